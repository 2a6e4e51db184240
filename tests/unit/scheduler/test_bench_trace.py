"""The benchmark of placement measures the public trace that it names, or says why it does not."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.bench import _trace, placement
from tests.bench._trace import FOLDER, NODES, PODS, TraceError, read_trace

CONTENT = {NODES: b"sn,gpu\nn0,8\n", PODS: b"name,num_gpu\np0,1\n"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(
        _trace, "DIGESTS", {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        content = CONTENT[name] if "/good/" in self.path else b"other" if "/other/" in self.path else None
        if "/endless/" in self.path:
            content = b"x" * (_trace.MAX_BYTES + (1 << 17))
        self.send_response(200 if content is not None else 404)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_the_files_come_from_the_address(server: str) -> None:
    assert read_trace(f"{server}/good") == ([{"sn": "n0", "gpu": "8"}], [{"name": "p0", "num_gpu": "1"}])


def test_the_files_come_from_a_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert read_trace("http://nowhere.invalid")[0] == [{"sn": "n0", "gpu": "8"}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("other", f"{NODES} of .*/other is not that of .*: its SHA-256 is "),
        ("none", f"/none/{NODES} is answered with HTTP 404; or name a folder with {NODES} and {PODS} by {FOLDER}"),
        ("endless", "and no end in 60 s; or name a folder"),
    ],
)
def test_a_path_that_is_not_the_file_is_not_measured(server: str, path: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(f"{server}/{path}")


def test_a_folder_with_another_file_or_none_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(TraceError, match=f"it must hold the files of {re.escape(_trace.ADDRESS)}"):
        read_trace()
    (tmp_path / NODES).write_bytes(b"another")
    with pytest.raises(TraceError, match="its SHA-256 is"):
        read_trace()


def test_an_address_that_is_not_reached_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/csv"
        monkeypatch.setattr(placement, "read_trace", lambda: read_trace(address))
        row = placement.trace_row()
    assert (row["value"], row["met"]) == ("not run", None)
    assert f"{address}/{NODES} cannot be reached" in row["context"]
    assert FOLDER in row["context"]
