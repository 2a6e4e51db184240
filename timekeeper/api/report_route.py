"""The route of pods' reports, served by the event loop without a thread."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from pydantic import TypeAdapter

from fairgpu.serving.messages import Request, Response
from timekeeper.api.batching import Batcher
from timekeeper.api.metrics import Measures
from timekeeper.api.models import MAX_REPORT_BYTES, Report
from timekeeper.api.problems import ProblemError
from timekeeper.auth.pod_tokens import PodAuthenticator, PodIdentity
from timekeeper.domain.reports import Counter
from timekeeper.ledger.reports import IntakeOutcome, Submission

NOT_RUNNING_RETRY_SECONDS = 5
FULL_RETRY_SECONDS = 60
PAUSE_SECONDS = 1
"""The shortest time between two reports of a pod, except its first and the last of a sidecar."""

_REPORT = TypeAdapter(Report)

Submissions = Batcher[Submission, IntakeOutcome]


class ReportRoute:
    """Answers `POST /v1/reports`: it stores a pod's report of its own usage; the pod's token identifies the pod."""

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
        pod = await self._recognise(request.text_header(b"authorization"))
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


def refuse_unless_running(outcome: IntakeOutcome, pod: PodIdentity) -> None:
    """Raises a problem where the store did not accept a pod's report; returns where it did.

    Args:
        outcome: the store's answer; FULL and NOT_RUNNING are refusals.

    Raises:
        ProblemError: the pod has no open session, or the store has no memory for its report.
    """
    if outcome is IntakeOutcome.FULL:
        detail = "the store of the ledger has no room left for reports; what is reserved is metered all the same"
        raise ProblemError(503, "store-full", detail, headers={"Retry-After": str(FULL_RETRY_SECONDS)})
    if outcome is IntakeOutcome.NOT_RUNNING:
        detail = f"no reservation of pod {pod.namespace}/{pod.pod} ({pod.uid}) is open: not bound yet, or ended"
        raise ProblemError(403, "not-running", detail, headers={"Retry-After": str(NOT_RUNNING_RETRY_SECONDS)})
