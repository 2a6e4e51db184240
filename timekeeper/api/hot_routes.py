"""The routes that carry the load, straight on the event loop: reports from every pod, states for every waiter."""

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
"""The least time between two reports of a pod; its first, and that of a sidecar that ends, do not wait for it."""

_REPORT = TypeAdapter(Report)

Submissions = Batcher[Submission, IntakeOutcome]


class ReportRoute:
    """`POST /v1/reports`: a pod reports its own use; its token identifies it."""

    def __init__(
        self,
        recognise: PodAuthenticator,
        submissions: Submissions,
        now: Callable[[], int],
        interval_seconds: int,
        measures: Measures,
    ) -> None:
        """`now` is nanoseconds since 1970; the interval is what sidecars are asked to keep."""
        self._recognise = recognise
        self._submissions = submissions
        self._now = now
        self._answer = Response(200, orjson.dumps({"interval_s": interval_seconds}))
        self._outcomes = {outcome: measures.reports.labels(outcome.value) for outcome in IntakeOutcome}

    async def __call__(self, request: Request) -> Response:
        """Takes one report."""
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
    """`GET /v1/states?since=&wait=`: what changed since a cursor, as soon as something does."""

    def __init__(self, authority: Authority, feed: StatesFeed, measures: Measures, threads: ThreadPoolExecutor) -> None:
        """`threads` are those that may wait for the API server to say what a caller may do."""
        self._authority = authority
        self._threads = threads
        self._feed = feed
        self._waiting = measures.waiting

    async def __call__(self, request: Request) -> Response:
        """Answers at once, or waits."""
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
    """Passes a report that was taken, or that a later one had overtaken.

    Raises:
        ProblemError: the pod holds nothing, so that there is nothing to report; or the store has no room for it.
    """
    if outcome is IntakeOutcome.FULL:
        detail = "the store of the ledger has no room left for reports; what is reserved is metered all the same"
        raise ProblemError(503, "store-full", detail, headers={"Retry-After": str(FULL_RETRY_SECONDS)})
    if outcome is IntakeOutcome.NOT_RUNNING:
        detail = f"no reservation of pod {pod.namespace}/{pod.pod} ({pod.uid}) is open: not bound yet, or ended"
        raise ProblemError(403, "not-running", detail, headers={"Retry-After": str(NOT_RUNNING_RETRY_SECONDS)})


def guarded(route: Callable[[Request], Awaitable[Response]], measures: Measures) -> Handler:
    """A route whose errors are answered as problem documents."""

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
    """Seconds to wait, at most MAX_WAIT_SECONDS."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 16):
        raise invalid("wait", text, f"seconds from 0; more than {MAX_WAIT_SECONDS:g} count as {MAX_WAIT_SECONDS:g}")
    return min(float(text), MAX_WAIT_SECONDS)
