"""A real S3-compatible server for a test: moto's, which checks signatures and policies once a test demands it.

It listens on a free loopback port and ends with the test. `tools/s3_server.sh` installs it apart from the project's
packages.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.support.ports import free_port
from tests.support.processes import end
from tests.support.waiting import LIMIT_S, wait_until

BUCKET = "finance"
ROOT = Path(__file__).parents[3]


class S3Server:
    """One server process, which keeps its objects in memory."""

    def __init__(self, folder: Path, certificates: Path | None = None) -> None:
        """Prepares the server; with a folder of `ca.crt`, `tls.crt` and `tls.key` it speaks TLS."""
        self.folder = folder
        self.port = free_port()
        self.certificates = certificates
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.certificates is None else 'https'}://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Starts the server and returns once it answers."""
        program = _program()
        options = ["-H", "127.0.0.1", "-p", str(self.port)]
        if self.certificates is not None:
            options += ["-c", str(self.certificates / "tls.crt"), "-k", str(self.certificates / "tls.key")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        with (self.folder / "s3.log").open("ab") as log:
            self.process = subprocess.Popen([program, *options], stdout=log, stderr=log, env=environment)
        try:
            wait_until(self._answers, "the S3 server answers")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the server, with all objects in it; returns once it has ended."""
        if self.process is not None:
            process, self.process = self.process, None
            end(process)

    def make_bucket(self) -> None:
        self._ask("PUT", f"/{BUCKET}")

    def refuse_everybody(self) -> None:
        """Makes the server check signatures from now on; it knows no user, and so refuses every request."""
        self._ask("POST", "/moto-api/reset-auth", b"0")

    def empty(self) -> None:
        """Removes all objects and rules, as if the server had just started."""
        self._ask("POST", "/moto-api/reset-auth", b"inf")
        self._ask("POST", "/moto-api/reset")

    def _connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        trusted = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=LIMIT_S, context=trusted)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "s3.log").read_text()
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._ask("GET", "/moto-api/data.json")
            return True
        return False

    def _ask(self, method: str, path: str, body: bytes | None = None) -> None:
        headers = {} if body is None else {"Content-Type": "text/plain"}
        connection = self._connection()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
        finally:
            connection.close()


def _program() -> Path:
    environment = Path(sys.prefix)
    subprocess.run(["sh", str(ROOT / "tools" / "s3_server.sh"), str(environment)], check=True, timeout=300)
    return environment / "s3-server" / "bin" / "moto_server"


@pytest.fixture(scope="session")
def running_s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a worker, since its start takes a second."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def s3_server(running_s3_server: S3Server) -> S3Server:
    """The server with one empty bucket, which every caller may use."""
    running_s3_server.empty()
    running_s3_server.make_bucket()
    return running_s3_server
