"""A served timekeeper for tests and benchmarks: the real command, real TLS, a real Redis, and a folder for a cluster.

The folder's rules have `admin` (may do everything), `finance` (may read everything) and `alice` (may read team-a).
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.ports import free_port
from tests.support.processes import FAIRGPU, end
from tests.support.tokens import TokenSigner
from tests.support.waiting import LIMIT_S, wait_until

ACCESS: list[dict[str, Any]] = [
    {"subject": "admin", "namespace": "*", "verbs": ["get", "list", "create"]},
    {"subject": "finance", "namespace": "*", "verbs": ["get", "list"]},
    {"subject": "alice", "namespace": "team-a", "verbs": ["get"]},
]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a request; `document` is its body parsed from JSON."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class RestServer:
    """One `fairgpu timekeeper serve` in standalone mode."""

    folder: Path
    redis_url: str
    workers: int = 1
    signer: TokenSigner = field(default_factory=lambda: TokenSigner(algorithm="ES256"))
    port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    access: list[dict[str, Any]] = field(default_factory=lambda: ACCESS)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "timekeeper" / "ca.crt"

    def start(self) -> Self:
        """Starts the timekeeper; returns once it answers its liveness probe."""
        self._write_folder()
        command = [*FAIRGPU, "timekeeper", "serve", "--standalone", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self.wait_for("/healthz")
        except BaseException:
            self.stop()  # a with statement ends nothing that did not start
            raise
        return self

    def stop(self) -> None:
        """Ends the timekeeper and its workers in order, by SIGTERM."""
        if self.process is not None:
            process, self.process = self.process, None
            end(process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def wait_for(self, path: str) -> None:
        """Returns once a route that needs no token answers 200."""

        def ready() -> bool:
            assert self.process is None or self.process.poll() is None, f"it ended:\n{self.log()[-3000:]}"
            try:
                return self.ask("GET", path).status == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_until(ready, f"{path} answers 200")

    def wait_for_metric(self, name: str, value: float) -> None:
        """Returns once a metric has the value."""
        wait_until(lambda: self.metric(name) == value, f"{name} is {value}")

    def metric(self, name: str) -> float | None:
        """Returns a metric's present value, given its name with labels as Prometheus writes them; None without it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=LIMIT_S) as response:
            lines = response.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.rpartition(" ")[0] == name), None)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def connect(self) -> http.client.HTTPSConnection:
        """Returns a connection that trusts this timekeeper's own CA; the caller closes it."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=LIMIT_S, context=context)

    def ask(
        self, method: str, path: str, token: str | None = None, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Returns the answer to one request; a body that is neither bytes nor an iterator of them is sent as JSON."""
        data = body if body is None or isinstance(body, bytes | Iterator) else json.dumps(body).encode()
        sent = {**(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())
        finally:
            connection.close()

    def as_person(self, subject: str, method: str, path: str, **rest: Any) -> Answer:
        return self.ask(method, path, self.signer.person(subject), **rest)

    def _write_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "pods").mkdir(exist_ok=True)
        (self.folder / "jwks.json").write_text(json.dumps(self.signer.key_set()))
        (self.folder / "access.yaml").write_text(yaml.safe_dump(self.access))
        settings = {
            "redis": {"url": self.redis_url, "timeout_seconds": 5},
            "serve": {"port": self.port, "metrics_port": self.metrics_port, "workers": self.workers},
            **self.settings,
        }
        (self.folder / "settings.yaml").write_text(yaml.safe_dump({"timekeeper": settings}))
