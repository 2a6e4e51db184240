from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.archive import build
from sidecar.reporter import LAST_REPORT_SECONDS
from tests.support.servers.report_server import ReportServer, report_server
from tests.support.waiting import LIMIT_S

TOKEN = "a.very.secret-token"


class RunningSidecar:
    """The archive under `python -I -S`, as the image runs it, with its log read line by line."""

    def __init__(self, archive: Path, environment: dict[str, str]) -> None:
        self.log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", archive],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.log.append(json.loads(line))
                self._changed.notify_all()

    def wait_for_event(self, event: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((line for line in self.log if line["event"] == event), None)

        with self._changed:
            line = self._changed.wait_for(found, LIMIT_S)
        assert line is not None, self.log
        return line

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(LIMIT_S)
        self._reader.join()
        return status

    def close(self) -> None:
        self.process.kill()
        self.ended()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("archive") / "sidecar.pyz"
    build(target)
    return target


@pytest.fixture(scope="session")
def patient_archive(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive with as much time for the last report as a busy machine may take, where a pod has less."""
    target = tmp_path_factory.mktemp("archive") / "patient.pyz"
    known, longer = (f"\nLAST_REPORT_SECONDS = {seconds}\n" for seconds in (LAST_REPORT_SECONDS, LIMIT_S))
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(target, "w") as changed:
        for name in source.namelist():
            text = source.read(name).decode()
            assert (known in text) is (name == "sidecar/reporter.py")
            changed.writestr(name, text.replace(known, longer))
    return target


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    with report_server(tmp_path / "tls") as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path, server: ReportServer) -> dict[str, str]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "run").mkdir()
    return {
        "PATH": os.defpath,
        "FAIRGPU_TIMEKEEPER_URL": server.url,
        "FAIRGPU_TIMEKEEPER_CA": server.ca_pem,
        "FAIRGPU_TOKEN_FILE": str(tmp_path / "token"),
        "FAIRGPU_USAGE_FOLDER": str(tmp_path / "run"),
        "FAIRGPU_REPORT_INTERVAL_SECONDS": "1",
    }


@pytest.fixture
def start(archive: Path, environment: dict[str, str]) -> Iterator[Callable[..., RunningSidecar]]:
    with starting(archive, environment) as start:
        yield start


@pytest.fixture
def start_patient(patient_archive: Path, environment: dict[str, str]) -> Iterator[Callable[..., RunningSidecar]]:
    """Starts one whose last report arrives, however busy the machine is."""
    with starting(patient_archive, environment) as start:
        yield start


@contextmanager
def starting(archive: Path, environment: dict[str, str]) -> Iterator[Callable[..., RunningSidecar]]:
    with ExitStack() as running:

        def start_one(**changes: str) -> RunningSidecar:
            sidecar = RunningSidecar(archive, {**environment, **changes})
            running.callback(sidecar.close)
            return sidecar

        yield start_one
