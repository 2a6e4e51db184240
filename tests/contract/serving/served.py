"""A server of `fairgpu.serving` for a test, and what the test asks of it."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from fairgpu.certificates import Pair, make_authority, make_leaf, utc_now
from tests.support.ports import free_port
from tests.support.processes import ending
from tests.support.servers.https_requests import one_request
from tests.support.waiting import LIMIT_S, wait_until

LEAF = timedelta(hours=1)


@dataclass
class Served:
    folder: Path
    authority: Pair
    port: int
    metrics_port: int
    process: subprocess.Popen[bytes]

    def connect(self, version: ssl.TLSVersion | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.authority.certificate_pem.decode())
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return http.client.HTTPSConnection("localhost", self.port, timeout=LIMIT_S, context=context)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        return one_request(self.connect(), method, path, body)

    def present(self, leaf: Pair) -> None:
        (self.folder / "tls.key").write_bytes(leaf.key_pem)
        (self.folder / "tls.crt").write_bytes(leaf.certificate_pem)


@contextmanager
def serving(tmp_path: Path, *options: str, patience: float = LIMIT_S) -> Iterator[Served]:
    authority = make_authority("test", utc_now(), timedelta(days=1))
    port, metrics_port = free_port(), free_port()
    arguments = [str(port), str(metrics_port), str(tmp_path), str(patience), *options]
    command = [sys.executable, "-m", "tests.support.servers.serving_program", *arguments]
    (tmp_path / "tls.crt").write_bytes(make_leaf(authority, ("localhost",), utc_now(), LEAF).certificate_pem)
    log = (tmp_path / "log").open("wb")
    with log, ending(subprocess.Popen(command, stdout=log, stderr=log)) as process:
        # Its key is not there yet: it waits for a chain that it can use.
        served = Served(tmp_path, authority, port, metrics_port, process)
        served.present(make_leaf(authority, ("localhost",), utc_now(), LEAF))
        wait_until_listening(served)
        yield served


def wait_until_listening(served: Served) -> None:
    def listens() -> bool:
        assert served.process.poll() is None, (served.folder / "log").read_text()
        try:
            return served.ask("POST", "/echo", b"")[0] == 200
        except OSError:
            return False

    wait_until(listens, "it listens")
