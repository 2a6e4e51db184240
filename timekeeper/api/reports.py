"""The REST API's intake of pods' reports: the route, served by the event loop, and the batches that go to the store.

A report that arrives alone goes to the store at once. Reports that arrive while a round trip to the store is under way
share the next round trip, at most MAX_BATCH of them. No timer adds a delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import orjson
from pydantic import TypeAdapter

from fairgpu.serving.messages import Request, Response
from timekeeper.api.metrics import Measures
from timekeeper.api.models import MAX_REPORT_BYTES, Report
from timekeeper.api.problems import OverloadedError, ProblemError
from timekeeper.auth.signed_tokens import PodAuthenticator, PodIdentity
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission

MAX_BATCH = 256
MAX_WAITING = 8192
"""The most items that wait. If there are more, the store does not keep up, and further items are refused at once."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Gathers items and passes them to a function in batches, one batch at a time, in the order of arrival."""

    def __init__(
        self,
        execute: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        observe: Callable[[float], None] = lambda _size: None,
    ) -> None:
        """Makes a batcher without items.

        Args:
            execute: processes a batch; returns the result or the error of each item. If it raises an error, each item
                of the batch gets that error.
            observe: receives the size of each batch.
        """
        self._execute = execute
        self._observe = observe
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Submits one item and waits for its result, or raises the item's error.

        Raises:
            OverloadedError: MAX_WAITING items are waiting already.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} requests are waiting for the store already")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                self._observe(len(batch))
                await self._deliver(batch)
        finally:
            self._running = None

    async def _deliver(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._execute([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - every waiting caller gets the error
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # the caller has left
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class ReportExecutor:
    """Stores pods' reports in a separate thread, so that neither the event loop nor reads of the store wait for it."""

    def __init__(self, reports: ReportIntake) -> None:
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, "take-reports")

    async def take(self, submissions: Sequence[Submission]) -> Sequence[IntakeOutcome | Exception]:
        """Stores reports; returns the outcome or the error of each, in the same order.

        Raises:
            redis.RedisError, StoreUnavailableError: Redis does not answer; some reports may have been written.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._reports.take, submissions)

    def close(self) -> None:
        """Ends the thread once the reports that were submitted are stored."""
        self._thread.shutdown(wait=True)


NOT_RUNNING_RETRY_SECONDS = 5
FULL_RETRY_SECONDS = 60
PAUSE_SECONDS = 1
"""The fewest seconds between two reports of a pod; a sidecar's first and last report may come sooner."""

_REPORT = TypeAdapter(Report)

Submissions = Batcher[Submission, IntakeOutcome]


class ReportRoute:
    """Answers `POST /v1/reports`: it stores a pod's report of its own usage; the pod's token identifies the pod."""

    def __init__(
        self,
        recognise: PodAuthenticator,
        submissions: Submissions,
        now: Callable[[], Instant],
        interval_seconds: int,
        measures: Measures,
    ) -> None:
        """Makes the route.

        Args:
            recognise: authenticates pods by their tokens.
            submissions: stores the reports.
            now: returns nanoseconds since 1970.
            interval_seconds: the seconds after which each answer asks the sidecar to report again.
            measures: the worker's metrics.
        """
        self._recognise = recognise
        self._submissions = submissions
        self._now = now
        self._answer = Response(200, orjson.dumps({"interval_s": interval_seconds}))
        self._outcomes = {outcome: measures.reports.labels(outcome.value) for outcome in IntakeOutcome}

    async def __call__(self, request: Request) -> Response:
        """Stores one report; answers with the seconds until the pod's next report.

        A report that is older than a stored one of the same start gets the same answer, and is not stored. If a report
        is not stored for any other reason, an error is raised, from which `guarded` makes the answer.
        """
        pod = await self._recognise(request.text_header(b"authorization"))
        if len(request.body) > MAX_REPORT_BYTES:
            raise ProblemError(413, "content-too-large", f"a report has at most {MAX_REPORT_BYTES} bytes")
        report = _REPORT.validate_json(request.body)
        submission = Submission(pod.uid, report.boot, report.seq, self._now(), counters_of(report), report.last)
        outcome = await self._submissions.submit(submission)
        self._outcomes[outcome].inc()
        refuse_unless_running(outcome, pod)
        if outcome is IntakeOutcome.EARLY:
            detail = f"a report of this pod was taken less than {PAUSE_SECONDS} s ago: send the next one later"
            raise ProblemError(429, "too-many-requests", detail, headers={"Retry-After": str(PAUSE_SECONDS)})
        return self._answer


def counters_of(report: Report) -> tuple[Counter, ...]:
    """Returns a counter for each device of each container in a report; the container's name is left out."""
    return tuple(
        Counter(
            device.uuid,
            device.busyNs,
            device.spanNs,
            device.memoryPeakMiB,
            device.earlierBusyNs,
            device.earlierSpanNs,
        )
        for container in report.containers
        for device in container.devices
    )


def refuse_unless_running(outcome: IntakeOutcome, pod: PodIdentity) -> None:
    """Raises a problem if a pod's report was refused; does nothing for a report that was stored or ignored.

    Args:
        outcome: the outcome of the report; FULL and NOT_RUNNING are refusals.

    Raises:
        ProblemError: the pod has no open session, or the store has no memory for its report.
    """
    if outcome is IntakeOutcome.FULL:
        detail = "the store of the ledger has no room left for reports; what is reserved is metered all the same"
        raise ProblemError(503, "store-full", detail, headers={"Retry-After": str(FULL_RETRY_SECONDS)})
    if outcome is IntakeOutcome.NOT_RUNNING:
        detail = f"no reservation of pod {pod.namespace}/{pod.pod} ({pod.uid}) is open: not bound yet, or ended"
        raise ProblemError(403, "not-running", detail, headers={"Retry-After": str(NOT_RUNNING_RETRY_SECONDS)})
