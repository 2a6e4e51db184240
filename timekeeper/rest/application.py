"""The application of one worker: hot routes on the event loop, the others under Flask, one follower of the states."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import Receive, Scope, Send
from timekeeper.identity.origin import Network, origin_of
from timekeeper.page.serving import page_routes
from timekeeper.rest.hot_routes import ReportRoute, StatesRoute, guarded
from timekeeper.rest.parts import Parts
from timekeeper.rest.probes import Freshness, Probes
from timekeeper.rest.routes import build_flask
from timekeeper.rest.states_follower import ReadChanges, follow
from timekeeper.store.states_reading import Changes, Cursor

FORWARDED_FOR = b"x-forwarded-for"
WSGI_THREADS = 8
"""Each may wait for the API server to say who asks."""
REVIEW_THREADS = 8
"""As above, for those who wait for states."""


class Loop:
    """The event loop of a worker, which is known once its first event comes."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        """The loop; asked for by threads that live after the start alone."""
        if self._loop is None:
            raise RuntimeError("the worker has not started")
        return self._loop

    def note(self) -> None:
        """Takes the present loop for the worker's."""
        self._loop = asyncio.get_running_loop()


class RestApplication:
    """Notes the event loop when the worker starts, and serves requests as from the clients behind trusted proxies."""

    def __init__(self, served: Application, loop: Loop, trusted_proxies: Sequence[Network] = ()) -> None:
        self._served = served
        self._loop = loop
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One event of ASGI."""
        if scope["type"] == "lifespan":
            self._loop.note()
        elif self._trusted_proxies:
            scope = behind_proxies(scope, self._trusted_proxies)
        await self._served(scope, receive, send)


def behind_proxies(scope: Scope, trusted: Sequence[Network]) -> Scope:
    """The same request as from its client, where it came through proxies that are trusted."""
    peer, port = scope.get("client") or ("", 0)
    forwarded = b",".join(value for name, value in scope.get("headers", ()) if name == FORWARDED_FOR)
    return {**scope, "client": (origin_of(peer, forwarded.decode("latin-1"), trusted), port)}


def build_application(
    lifecycle: Lifecycle,
    parts: Parts,
    read_changes: ReadChanges,
    loop: Loop,
    trusted_proxies: Sequence[Network] = (),
) -> RestApplication:
    """The ASGI application over its parts; the follower of the states starts with it and ends with it."""
    measures = parts.measures
    reviews = ThreadPoolExecutor(REVIEW_THREADS, "access-reviews")
    lifecycle.on_stop(lambda: reviews.shutdown(wait=False, cancel_futures=True))
    lifecycle.on_stop(parts.recognise.close)
    report = ReportRoute(parts.recognise, parts.submissions, parts.now, parts.report_interval_seconds, measures)
    store = Freshness(time.monotonic)
    probes = Probes(parts.feed, store, lambda: lifecycle.draining)
    hot = {
        ("POST", "/v1/reports"): guarded(report, measures),
        ("GET", "/v1/states"): guarded(StatesRoute(parts.authority, parts.feed, measures, reviews), measures),
        ("GET", "/healthz"): guarded(probes.live, measures),
        ("GET", "/readyz"): guarded(probes.ready, measures),
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
    return RestApplication(Application(lifecycle, hot, build_flask(parts), WSGI_THREADS), loop, trusted_proxies)
