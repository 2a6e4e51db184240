"""A served webhook for tests and benchmarks: the real command, real TLS, and a folder for a cluster."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import urllib.request
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import yaml

from fairgpu.certificates import make_authority, utc_now
from tests.support.ports import free_port
from tests.support.processes import PROGRAM, TREE, end, wait_for_end
from tests.support.servers.https_requests import one_request
from tests.support.waiting import LIMIT_S, wait_until


@dataclass
class WebhookServer:
    """One `fairgpu webhook serve` in standalone mode.

    Attributes:
        folder: its folder.
        settings: the settings besides the ports, keyed by group of the section `webhook`.
        timekeeper_ca: the CA that it takes for the timekeeper's, in PEM; by default one that signs nothing.
        environment: the environment of its process; by default this process's, with the tree of these tests.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    timekeeper_ca: bytes | None = None
    environment: dict[str, str] = field(default_factory=lambda: {**os.environ, "PYTHONPATH": str(TREE)})
    port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "webhook" / "ca.crt"

    def start(self) -> Self:
        """Starts the webhook; returns once it is ready."""
        self._write_folder()
        command = [PROGRAM, "webhook", "serve", "--standalone", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        try:
            wait_until(self._ready, "the webhook is ready")
        except BaseException:
            self.__exit__()  # a with statement ends nothing that did not start
            raise
        return self

    def tell_to_end(self) -> None:
        """Sends SIGTERM and returns at once."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def wait_until_ended(self) -> int:
        """Returns the exit status, after `tell_to_end`."""
        assert self.process is not None
        return wait_for_end(self.process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        if self.process is not None:
            end(self.process)

    def connect(self, ca_file: Path | None = None) -> http.client.HTTPSConnection:
        """Returns a connection that trusts `ca_file`, or the webhook's own CA as it is now; the caller closes it."""
        context = ssl.create_default_context(cafile=str(ca_file or self.ca_file))
        return http.client.HTTPSConnection("localhost", self.port, timeout=LIMIT_S, context=context)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Returns the status and the body of the answer to one request on a new connection."""
        return one_request(self.connect(), method, path, body)

    def metrics(self) -> dict[str, float]:
        """Returns all metrics, keyed by name with labels as Prometheus writes them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=LIMIT_S) as response:
            lines = response.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _ready(self) -> bool:
        assert self.process is None or self.process.poll() is None, f"it ended:\n{self.log()[-3000:]}"
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _write_folder(self) -> None:
        authority = self.folder / "certificates" / "timekeeper" / "ca.crt"
        authority.parent.mkdir(parents=True, exist_ok=True)
        if not authority.exists():
            pem = self.timekeeper_ca or make_authority("none", utc_now(), timedelta(days=1)).certificate_pem
            authority.write_bytes(pem)
        serving = {"port": self.port, "metrics_port": self.metrics_port, "drain_seconds": 0.3}
        settings = {"states": {"url": "https://localhost:1", "first_wait_seconds": 0}, **self.settings}
        settings["serving"] = {**serving, **self.settings.get("serving", {})}
        (self.folder / "settings.yaml").write_text(yaml.safe_dump({"webhook": settings}))
