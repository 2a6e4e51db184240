"""The busiest routes, served by the event loop without a thread: reports of pods, and states for waiting clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import orjson
from pydantic import TypeAdapter

from fairgpu.serving.messages import Handler, Request, Response
from timekeeper.api.batching import Batcher
from timekeeper.api.metrics import Measures
from timekeeper.api.models import MAX_REPORT_BYTES, Report
from timekeeper.api.paging import refuse_unknown
from timekeeper.api.problems import ProblemError, answer, invalid, problem_of
from timekeeper.api.states_feed import CursorError, StatesFeed, parse_cursor
from timekeeper.auth.callers import Action, Authority, bearer_token, require
from timekeeper.auth.pod_tokens import PodAuthenticator, PodIdentity
from timekeeper.domain.reports import Counter
from timekeeper.ledger.reports import IntakeOutcome, Submission
from timekeeper.ledger.states import Cursor

LIST_BUDGETS = Action("list", "gpubudgets")
MAX_WAIT_SECONDS = 60.0
NOT_RUNNING_RETRY_SECONDS = 5
FULL_RETRY_SECONDS = 60
PAUSE_SECONDS = 1
"""The shortest time between two reports of a pod, except its first and the last of a sidecar."""

_REPORT = TypeAdapter(Report)

Submissions = Batcher[Submission, IntakeOutcome]


class ReportRoute:
    """`POST /v1/reports`: stores a pod's report of its own usage; the pod's token identifies it."""

    def __init__(
        self,
        recognise: PodAuthenticator,
        submissions: Submissions,
        now: Callable[[], int],
        interval_seconds: int,
        measures: Measures,
    ) -> None:
        """Makes the route; `now` returns nanoseconds since 1970, and answers ask sidecars to keep the interval."""
        self._recognise = recognise
        self._submissions = submissions
        self._now = now
        self._answer = Response(200, orjson.dumps({"interval_s": interval_seconds}))
        self._outcomes = {outcome: measures.reports.labels(outcome.value) for outcome in IntakeOutcome}

    async def __call__(self, request: Request) -> Response:
        """Stores one report; answers with the interval until the next."""
        pod = await self._recognise(_authorization(request))
        if len(request.body) > MAX_REPORT_BYTES:
            raise ProblemError(413, "content-too-large", f"a report has at most {MAX_REPORT_BYTES} bytes")
        report = _REPORT.validate_json(request.body)
        counters = tuple(
            Counter(device.uuid, device.busyNs, device.spanNs, device.memoryPeakMiB)
            for container in report.containers
            for device in container.devices
        )
        submission = Submission(pod.uid, report.boot, report.seq, self._now(), counters, report.last)
        outcome = await self._submissions.submit(submission)
        self._outcomes[outcome].inc()
        refuse_unless_running(outcome, pod)
        if outcome is IntakeOutcome.EARLY:
            detail = f"a report of this pod was taken less than {PAUSE_SECONDS} s ago: send the next one later"
            raise ProblemError(429, "too-many-requests", detail, headers={"Retry-After": str(PAUSE_SECONDS)})
        return self._answer


class StatesRoute:
    """`GET /v1/states?since=&wait=`: answers with the states that changed since a cursor, as soon as one does."""

    def __init__(self, authority: Authority, feed: StatesFeed, measures: Measures, threads: ThreadPoolExecutor) -> None:
        """Makes the route; `threads` are those in which callers are authenticated by the API server."""
        self._authority = authority
        self._threads = threads
        self._feed = feed
        self._waiting = measures.waiting

    async def __call__(self, request: Request) -> Response:
        """Answers at once, or after a change or the wait."""
        token = bearer_token(_authorization(request))
        loop, origin = asyncio.get_running_loop(), (request.scope.get("client") or ("",))[0]
        await loop.run_in_executor(self._threads, require, self._authority, token, LIST_BUDGETS, origin)
        query = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        refuse_unknown(query, ("since", "wait"))
        since, wait = _cursor(query.get("since", [""])[-1]), _wait(query.get("wait", ["0"])[-1])
        with self._waiting.track_inprogress():
            body = await self._feed.answer(since, wait)
        if body is None:
            raise ProblemError(503, "unavailable", "no states are known yet; try again", headers={"Retry-After": "1"})
        return Response(200, body, headers=((b"cache-control", b"no-store"),))


def refuse_unless_running(outcome: IntakeOutcome, pod: PodIdentity) -> None:
    """Raises for the two outcomes that refuse a report, FULL and NOT_RUNNING; returns for any other.

    Raises:
        ProblemError: the pod has no open session, or the store has no memory for its report.
    """
    if outcome is IntakeOutcome.FULL:
        detail = "the store of the ledger has no room left for reports; what is reserved is metered all the same"
        raise ProblemError(503, "store-full", detail, headers={"Retry-After": str(FULL_RETRY_SECONDS)})
    if outcome is IntakeOutcome.NOT_RUNNING:
        detail = f"no reservation of pod {pod.namespace}/{pod.pod} ({pod.uid}) is open: not bound yet, or ended"
        raise ProblemError(403, "not-running", detail, headers={"Retry-After": str(NOT_RUNNING_RETRY_SECONDS)})


def guarded(route: Callable[[Request], Awaitable[Response]], measures: Measures) -> Handler:
    """Returns the route with its errors answered as problem documents."""

    async def handle(request: Request) -> Response:
        try:
            return await route(request)
        except Exception as error:  # noqa: BLE001 - the one place of the hot routes where errors become answers
            problem = problem_of(error)
            measures.problems.labels(problem.kind).inc()
            return answer(problem)

    return handle


def _authorization(request: Request) -> str | None:
    value = request.header(b"authorization")
    return None if value is None else value.decode("latin-1")


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    try:
        return parse_cursor(text)
    except CursorError as error:
        raise invalid("since", text, str(error)) from error


def _wait(text: str) -> float:
    """Parses the seconds to wait, at most MAX_WAIT_SECONDS."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 16):
        raise invalid("wait", text, f"seconds from 0; more than {MAX_WAIT_SECONDS:g} count as {MAX_WAIT_SECONDS:g}")
    return min(float(text), MAX_WAIT_SECONDS)
