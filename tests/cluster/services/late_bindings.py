"""A proxy between an extender and the API server that carries out one Binding late, as a slow API server would."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.cluster.control_plane.certificates import Authority
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.services.relay import port_of, shut
from tests.support.waiting import LIMIT_S

LATE_S = 8.0
"""The time from an extender's first look at the Lease until the Binding is carried out; a Lease lasts 15 s."""


class Request(NamedTuple):
    """A request as it came: its first line, and all its bytes."""

    line: str
    whole: bytes

    def is_of(self, method: str, part: str) -> bool:
        """Whether the request has this method, and a path with this part."""
        return self.line.startswith(f"{method} ") and part in self.line


class LateBindings:
    """Passes requests on to the API server, one a connection, but for Bindings that it keeps unanswered.

    Attributes:
        port: where it listens, on loopback.
        keeps: whether it keeps Bindings.
        kept: the last Binding that it kept.
        looked: when an extender first read the Lease, by the monotonic clock; None before. A test sets it to None.
    """

    def __init__(self, plane: ControlPlane, authority: Authority) -> None:
        self.keeps = False
        self.kept: Request | None = None
        self.looked: float | None = None
        self._carried_out = threading.Event()
        self._target = port_of(plane.admin.kubeconfig)
        files = authority.server("late-bindings", ["127.0.0.1"])
        self._here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._here.load_cert_chain(files.certificate, files.key)
        self._there = ssl._create_unverified_context()  # noqa: S323 - the API server of the test, on loopback
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # guards _open
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def is_late(self) -> bool:
        """Whether LATE_S have passed since an extender first read the Lease."""
        return self.looked is not None and time.monotonic() >= self.looked + LATE_S

    def carry_out(self) -> None:
        """Sends the kept Binding to the API server, which makes it."""
        assert self.kept is not None
        with self._connected() as server:
            server.sendall(self.kept.whole)
            answer = server.makefile("rb").readline()
        assert b" 201 " in answer, answer
        self._carried_out.set()

    def close(self) -> None:
        """Ends all connections, and takes no more."""
        self._carried_out.set()
        with self._lock:
            for end in (self._listener, *self._open):
                shut(end)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=partial(self._serve, client), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, suppress(OSError), self._here.wrap_socket(plain, server_side=True) as client:
            with self._lock:
                self._open.add(client)
            try:
                request = read_request(client)
                if request is None:
                    return
                if not self._passes(request):
                    # The client would send it again if this connection ended. It sends nothing here until it ends.
                    client.recv(1)
                    return
                with self._connected() as server:
                    server.sendall(request.whole)
                    while part := server.recv(1 << 16):
                        client.sendall(part)
            finally:
                with self._lock:
                    self._open.discard(client)

    def _passes(self, request: Request) -> bool:
        """Notes a request; returns whether it is to be passed on."""
        if request.is_of("GET", "/leases/fairgpu-scheduler") and self.looked is None:
            self.looked = time.monotonic()
        if self.keeps and request.is_of("POST", "/binding"):
            self.kept = request
            return False
        # However slow this machine is: an extender that waits for long enough finds the Binding carried out.
        if self.kept is not None and request.is_of("PATCH", "/status") and self.is_late():
            self._carried_out.wait(LIMIT_S)
        return True

    @contextmanager
    def _connected(self) -> Iterator[ssl.SSLSocket]:
        """A connection to the API server; what waits for its answers ends with this proxy."""
        with (
            socket.create_connection(("127.0.0.1", self._target)) as plain,
            self._there.wrap_socket(plain, server_hostname="127.0.0.1") as server,
        ):
            with self._lock:
                self._open.add(server)
            try:
                yield server
            finally:
                with self._lock:
                    self._open.discard(server)


def read_request(client: ssl.SSLSocket) -> Request | None:
    """Reads one request, and asks in it for the end of the connection after the answer; None where none came."""
    stream = client.makefile("rb")
    lines = []
    while (line := stream.readline()) not in {b"\r\n", b""}:
        lines.append(line)
    if not lines:
        return None
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines[1:])}
    body = stream.read(int(headers.get(b"content-length", b"0")))
    kept = [each for each in lines if not each.lower().startswith(b"connection:")]
    return Request(lines[0].decode(), b"".join([*kept, b"Connection: close\r\n\r\n", body]))


@contextmanager
def late_bindings(plane: ControlPlane, folder: Path, kubeconfig: Path) -> Iterator[tuple[LateBindings, Path]]:
    """A proxy for the length of a with statement, and a kubeconfig of the same identity that goes through it."""
    authority = Authority(folder)
    proxy = LateBindings(plane, authority)
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {
        "server": f"https://127.0.0.1:{proxy.port}",
        "certificate-authority": str(authority.certificate),
    }
    file = kubeconfig.with_suffix(".late")
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document))
    try:
        yield proxy, file
    finally:
        proxy.close()
