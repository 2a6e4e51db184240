"""Liveness and readiness, answered on the event loop: a slow store or API server kills no pod."""

from __future__ import annotations

from collections.abc import Callable

from fairgpu.serving.messages import Request, Response
from timekeeper.rest.problems import ProblemError
from timekeeper.rest.states_feed import StatesFeed

SILENCE_SECONDS = 10.0
"""Ready is who heard from the store within this time."""

_OK = Response(200, b'{"status":"ok"}')


class Freshness:
    """When the store last answered; written by the thread that follows the states."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is a monotonic one, in seconds."""
        self._clock = clock
        self._answered_at: float | None = None

    def note(self) -> None:
        """Notes that the store answered now."""
        self._answered_at = self._clock()

    def is_fresh(self) -> bool:
        """Whether it answered lately."""
        return self._answered_at is not None and self._clock() - self._answered_at < SILENCE_SECONDS


class Probes:
    """The two probes of a worker."""

    def __init__(self, feed: StatesFeed, store: Freshness, draining: Callable[[], bool]) -> None:
        self._feed = feed
        self._store = store
        self._draining = draining

    async def live(self, _request: Request) -> Response:
        """`GET /healthz`: the event loop turns."""
        return _OK

    async def ready(self, _request: Request) -> Response:
        """`GET /readyz`: the store answers, the states are known, and this is not the end.

        Raises:
            ProblemError: one of these does not hold.
        """
        if self._draining():
            raise ProblemError(503, "unavailable", "this replica is about to end")
        if not self._store.is_fresh():
            raise ProblemError(503, "unavailable", "the store of the ledger does not answer")
        if self._feed.cursor is None:
            raise ProblemError(503, "unavailable", "no states are known yet: fairgpu timekeeper jobs publishes them")
        return _OK
