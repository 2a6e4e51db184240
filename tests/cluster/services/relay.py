"""A relay between a client and the API server that loses answers: what was asked may have been done all the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane

LOST = 0.03
HANDSHAKE_PARTS = 8


class Relay:
    """Passes connections on to the API server, and closes some of them in place of an answer.

    Attributes:
        port: where it listens, on loopback.
        loses: the share of the parts of answers in whose place a connection is closed.
        lost: the number of connections that it has closed so.
    """

    def __init__(self, plane: ControlPlane, random: Random) -> None:
        self.loses, self.lost = 0.0, 0
        self._target, self._random = port_of(plane.admin.kubeconfig), random
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # guards _open
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @contextmanager
    def losing(self, share: float = LOST) -> Iterator[None]:
        """Loses answers for the length of a with statement; a list of all pods would hardly ever arrive."""
        before, self.loses = self.loses, share
        try:
            yield
        finally:
            self.loses = before

    def close(self) -> None:
        """Ends all connections, and takes no more."""
        with self._lock:
            for end in (self._listener, *self._open):
                shut(end)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            with self._lock:
                self._open |= {client, server}
            answers = threading.Thread(target=partial(self._pass_on, server, client, answers=True), daemon=True)
            answers.start()
            self._pass_on(client, server, answers=False)
            answers.join()
            with self._lock:
                self._open -= {client, server}

    def _pass_on(self, source: socket.socket, sink: socket.socket, *, answers: bool) -> None:
        with suppress(OSError):
            passed = 0
            while data := source.recv(1 << 16):
                # The first parts are the handshake of TLS.
                if answers and passed > HANDSHAKE_PARTS and self._random.random() < self.loses:
                    self.lost += 1
                    break
                passed += 1
                sink.sendall(data)
        for end in (source, sink):
            shut(end)


def shut(end: socket.socket) -> None:
    """Ends what reads from a socket or writes to it; its owner closes it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def through(relay: Relay, kubeconfig: Path) -> Path:
    """A kubeconfig beside this one, of the same identity, that goes through the relay."""
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    file = kubeconfig.with_suffix(".relayed")
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document))
    return file


def port_of(kubeconfig: Path) -> int:
    """The port of the API server."""
    (cluster,) = yaml.safe_load(kubeconfig.read_text())["clusters"]
    port = urlsplit(cluster["cluster"]["server"]).port
    assert port is not None
    return port
