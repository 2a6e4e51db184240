"""The ASGI application of a REST worker: its routes, its probes, and the thread that reads the states of namespaces."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from fairgpu.keeping import Wait
from fairgpu.serving.addresses import plain_address
from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import Receive, Scope, Send
from fairgpu.serving.probes import build_probes
from timekeeper.api.dependencies import Dependencies
from timekeeper.api.gpu_objects import KINDS, PREFIX, GPURoute, GPUWatches
from timekeeper.api.problems import guarded
from timekeeper.api.reports import ReportRoute
from timekeeper.api.routes import build_flask
from timekeeper.api.states_feed import StatesFeed, StatesRoute
from timekeeper.dashboard.serving import page_routes
from timekeeper.ledger.reading import Changes, Cursor

POLL_SECONDS = 0.2
"""The seconds between two reads of the version of the published states, so that clients get a change within a second.
"""

_log = structlog.get_logger()

ReadChanges = Callable[[Cursor | None], Changes | None]
"""Returns the states that changed in the store since a cursor, or all states without one.

None if none changed, or if no state was ever published. May raise redis.RedisError.
"""


def follow(read: ReadChanges, deliver: Callable[[Changes], None], wait: Wait) -> None:
    """Reads changed states of namespaces from the store and delivers them, until the process ends.

    An error of a read is logged, and the states are read again after POLL_SECONDS.

    Args:
        read: returns the states that changed in the store since a cursor, or all states for the cursor None; None if
            none changed.
        deliver: receives the changes; called in this thread.
        wait: sleeps for a number of seconds; returns True once the process ends, and this function then returns.
    """
    cursor: Cursor | None = None
    answering = True
    while not wait(POLL_SECONDS):
        try:
            changes = read(cursor)
        except Exception as error:  # noqa: BLE001 - a thread that ended here would leave the states as they are for good
            if answering:
                _log.warning("states not read", kind=type(error).__name__, error=str(error))
            answering = False
            continue
        if not answering:
            _log.info("states read again")
        answering = True
        if changes is not None:
            deliver(changes)
            cursor = changes.cursor


SILENCE_SECONDS = 10.0
"""The age, in seconds, from which the store's last answer no longer counts: the worker is then not ready."""


class Freshness:
    """Records when the store last answered the thread that reads the namespaces' states, for the readiness probe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Makes a record without an answer; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._answered_at: float | None = None

    def note(self) -> None:
        """Records that the store answered just now."""
        self._answered_at = self._clock()

    def is_fresh(self) -> bool:
        """Returns whether the store answered within the last SILENCE_SECONDS."""
        return self._answered_at is not None and self._clock() - self._answered_at < SILENCE_SECONDS


FORWARDED_FOR = b"x-forwarded-for"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HOPS = 8
"""The most addresses that are read of an X-Forwarded-For header, from its end: each proxy appends one, and the client
may have invented those before.
"""
WSGI_THREADS = 8
"""The threads of the WSGI routes; each may wait for the API server to authenticate a caller."""
REVIEW_THREADS = 8
"""The threads that authenticate the clients of states and of GPU objects; each may wait for the API server."""


class Loop:
    """Holds a worker's event loop, which exists once the worker has started. Calling an instance returns the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        """Returns the worker's event loop; raises RuntimeError if the worker has not started yet."""
        if self._loop is None:
            raise RuntimeError("the worker has not started")
        return self._loop

    def note(self) -> None:
        """Records the running event loop as the worker's."""
        self._loop = asyncio.get_running_loop()


class RestApplication:
    """The ASGI application of a worker; it replaces the address of a trusted proxy by that of the proxy's client."""

    def __init__(self, served: Application, loop: Loop, trusted_proxies: Sequence[Network] = ()) -> None:
        self._served = served
        self._loop = loop
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope; a request that a trusted proxy passed on gets the address of the proxy's client."""
        if scope["type"] == "lifespan":
            self._loop.note()
        elif self._trusted_proxies:
            scope = behind_proxies(scope, self._trusted_proxies)
        await self._served(scope, receive, send)


def behind_proxies(scope: Scope, trusted: Sequence[Network]) -> Scope:
    """Returns the scope of a request with the client's address in place of the address of a trusted proxy.

    Args:
        scope: the scope as the server made it.
        trusted: the networks of the proxies that may pass requests on.
    """
    peer, port = scope.get("client") or ("", 0)
    forwarded = b",".join(value for name, value in scope.get("headers", ()) if name == FORWARDED_FOR)
    return {**scope, "client": (origin_of(peer, forwarded.decode("latin-1"), trusted), port)}


def origin_of(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Returns the last address on a request's way to this server that belongs to no trusted proxy.

    A trusted proxy appends its client's address to `X-Forwarded-For`; the client may have invented all addresses before
    that one. If the peer is no trusted proxy, the result is the peer's own address, whatever the header says. If the
    header does not state a trusted proxy's client, the result is that proxy's address.

    Args:
        peer: the address that the connection comes from.
        forwarded: the header `X-Forwarded-For`, all its lines joined by commas; empty if there is none. Only its last
            MOST_HOPS addresses are read.
        trusted: the networks of the trusted proxies.
    """
    origin = plain_address(peer)
    for hop in reversed(forwarded.rsplit(",", MOST_HOPS)[-MOST_HOPS:]):
        if not _among(origin, trusted):
            break
        address = _address(hop)
        if address is None:
            break
        origin = address
    return origin


def _among(text: str, networks: Sequence[Network]) -> bool:
    address = _address(text)
    return address is not None and any(ipaddress.ip_address(address) in network for network in networks)


def _address(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return plain_address(str(address))


def build_application(
    lifecycle: Lifecycle,
    parts: Dependencies,
    read_changes: ReadChanges,
    loop: Loop,
    trusted_proxies: Sequence[Network] = (),
    gpus: GPUWatches | None = None,
) -> RestApplication:
    """Builds the ASGI application of a worker, with the thread that reads the states of namespaces.

    Args:
        lifecycle: gets the thread, and the actions for the start and the end of the worker.
        parts: the objects that the routes use.
        read_changes: reads the states that changed since a cursor from the store.
        loop: holds the worker's event loop.
        trusted_proxies: the networks of the proxies in front of the API.
        gpus: the GPUs of the cluster; None without a cluster.
    """
    measures = parts.measures
    reviews = ThreadPoolExecutor(REVIEW_THREADS, "access-reviews")
    lifecycle.on_stop(lambda: reviews.shutdown(wait=False, cancel_futures=True))
    lifecycle.on_stop(parts.recognise.close)
    report = ReportRoute(parts.recognise, parts.submissions, parts.now, parts.report_interval_seconds, measures)
    store = Freshness(time.monotonic)
    probes = build_probes(lifecycle, lambda: _missing(store, parts.feed))
    hot = {
        ("POST", "/v1/reports"): guarded(report, measures),
        ("GET", "/v1/states"): guarded(StatesRoute(parts.access, parts.feed, measures, reviews), measures),
        **{
            ("GET", f"{PREFIX}{kind}"): guarded(GPURoute(kind, gpus, parts.access, measures, reviews), measures)
            for kind in KINDS
        },
        **page_routes(parts.assets),
    }

    def deliver(changes: Changes) -> None:
        loop().call_soon_threadsafe(parts.feed.apply, changes)

    def read(since: Cursor | None) -> Changes | None:
        changes = read_changes(since)
        store.note()
        measures.states_read.set_to_current_time()
        return changes

    lifecycle.run_thread("follow-states", lambda: follow(read, deliver, lifecycle.ending.wait))
    lifecycle.on_drain(parts.feed.end)
    if gpus is not None:
        lifecycle.on_drain(gpus.end)
    served = Application(lifecycle, hot, build_flask(parts), WSGI_THREADS, immediate=probes)
    return RestApplication(served, loop, trusted_proxies)


def _missing(store: Freshness, feed: StatesFeed) -> tuple[str, ...]:
    """Returns phrases for the readiness probe that name what the worker still waits for; empty once it is ready."""
    silent = () if store.is_fresh() else ("an answer from the store of the ledger",)
    unknown = () if feed.cursor is not None else ("states, which fairgpu timekeeper jobs publishes",)
    return (*silent, *unknown)
