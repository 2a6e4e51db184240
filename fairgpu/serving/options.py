"""The options of a server: addresses, processes, limits and times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on.

    Attributes:
        host: the host's name or address; empty for every address of the machine.
        port: the port; with 0 the kernel chooses one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options with which a service runs its server.

    Attributes:
        name: the name of the processes, and of the service in its logs.
        address: the address of the application, over TLS if there is a certificate chain.
        metrics_address: the address of `/metrics` in plain HTTP; None for no metrics.
        workers: the number of processes, each with the whole application.
        max_body_bytes: a longer body is answered with 413 and not read to its end.
        max_arriving_bytes: the most bytes of incomplete requests in a worker; beyond it, the connection whose
            incomplete request began first is closed.
        body_seconds: a body that takes longer is answered with 408.
        header_seconds: a connection that has not sent its first request's headers after this time is closed.
        unread_seconds: a connection whose client reads nothing of its answers is closed after one to two times this
            time.
        keepalive_seconds: the time for which an idle connection is kept. A client that reuses connections must close
            them first: a request sent just as the server closes is lost. Go's default, and so the API server's, is 90.
        max_connections: the most connections of a worker. For a further one, the connection that has been silent for
            longest is closed; if all have a request that is being answered, the further one is refused.
        handshake_seconds: the time for a client to begin its TLS handshake, and again the time to complete it.
        max_handshakes: the most unfinished handshakes, per worker and port. For a further one, the oldest handshake of
            the client address that has the most is ended.
        max_handshakes_of_address: the most unfinished handshakes, per worker and port, from one client address. By
            default two workers have room for the requests that an API server begins at a time: 400 that read and 200
            that change something.
        drain_seconds: the time after SIGTERM in which new connections are served, until load balancers know of it.
        finish_seconds: the time after `drain_seconds` in which requests under way can end.
        reload_seconds: the interval at which the certificate chain is read again.
        access_log: whether each request is logged as an event.
    """

    name: str
    address: Address
    metrics_address: Address | None = None
    workers: int = 2
    max_body_bytes: int = 8 << 20
    max_arriving_bytes: int = 64 << 20
    body_seconds: float = 10.0
    header_seconds: float = 10.0
    unread_seconds: float = 30.0
    keepalive_seconds: int = 120
    max_connections: int = 1000
    handshake_seconds: float = 5.0
    max_handshakes: int = 640
    max_handshakes_of_address: int = 400
    drain_seconds: float = 5.0
    finish_seconds: float = 15.0
    reload_seconds: float = 10.0
    access_log: bool = False
