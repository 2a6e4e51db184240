"""A session's reports in the store: their limits, their state, the leader's marks, and the intake of new reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import redis
import structlog

from timekeeper.domain.reports import Counter, Intake, Marks, Received, ReportLimits, intake_after
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, FencingToken, Store, concerns_all, run, run_for_each
from timekeeper.ledger.codec import (
    RecordError,
    decode_intake,
    decode_report_limits,
    encode_intake,
    encode_report_limits,
)
from timekeeper.ledger.reading import whole

REPORT_SECONDS = 35 * 86400
"""The time, in seconds, for which the store keeps a pod's reports after the last one."""

_log = structlog.get_logger()


class SessionReports(NamedTuple):
    """The limits and the totals of a session's reports.

    Attributes:
        limits: the devices that the reports may name, and the most use that they may state.
        intake: the totals of the reports that were received.
    """

    limits: ReportLimits
    intake: Intake


def readable_limits(uid: str, text: str | bytes | None) -> ReportLimits | None:
    """Decodes the limits of a pod's reports; None if the store holds no readable ones.

    Args:
        uid: the pod's uid, for the log.
    """
    try:
        return None if text is None else decode_report_limits(text)
    except RecordError as error:
        _log.error("report limits unreadable", uid=uid, error=str(error))
        return None


def readable_intake(uid: str, text: str | bytes | None) -> Intake:
    """Decodes the totals of a pod's reports; an empty Intake, as of no report, if `text` is None or unreadable.

    Args:
        uid: the pod's uid, for the log.
    """
    try:
        return Intake() if text is None else decode_intake(text)
    except RecordError as error:
        _log.error("reports unreadable", uid=uid, error=str(error))
        return Intake()


def encode_phases(phases: Sequence[int]) -> str:
    """Encodes the phases of a session's coming periods (nanoseconds after a full quarter of an hour) for the store."""
    return " ".join(map(str, phases))


def readable_phases(text: str | bytes | None) -> tuple[int, ...]:
    """Decodes the phases of a session's coming periods, in nanoseconds after a full quarter of an hour.

    The result is (0,), for periods that begin at a full quarter of an hour, if the text has no readable phase.
    """
    phases = [whole(phase) for phase in (text or b"").split()]
    return tuple(phase for phase in phases if phase is not None) or (0,)


def write_report_limits(
    client: Store,
    fencing_token: FencingToken,
    limits: Mapping[str, ReportLimits],
    phases: Mapping[str, Sequence[int]],
    *,
    replace: bool = False,
) -> None:
    """Writes the limits of sessions' reports, and the phases of the sessions' coming periods.

    Limits that the store holds stay, because earlier reports were priced by them, unless use is billed now and was not
    before, or the reverse. Limits and phases that a later leader has written stay in any case. GPU time that an earlier
    version of FairGPU stored without a bound is reduced to the most that the session can have used. For a session whose
    stored reports are broken, nothing is written, and the error is logged.

    Args:
        limits: the limits, keyed by the session's uid.
        phases: keyed by the session's uid, the nanoseconds after a full quarter of an hour at which periods can begin;
            0 alone for a session that is not in it.
        replace: whether limits that the store holds are replaced, too, since they cannot be read.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    encoded: list[tuple[str, tuple[str | int, ...]]] = [
        (
            key,
            (encode_report_limits(each), encode_phases(phases.get(uid, (0,))), -(-each.start // 1000), each.shares),
        )
        for key, (uid, each) in zip(keys.reports(limits), limits.items(), strict=True)
    ]
    answers = run_for_each(client, "write_report_limits", (REPORT_SECONDS, int(replace), fencing_token), encoded)
    for uid, answer in zip(limits, answers, strict=True):
        if isinstance(answer, redis.RedisError):
            _log.error("report limits not written", uid=uid, error=str(answer))


def end_reports(client: Store, uids: Sequence[str], seconds: int = REPORT_SECONDS) -> None:
    """Deletes the stored reports of closed sessions, except the last report's time and the total GPU time.

    A failure on the reports of one session is logged and not raised.

    Args:
        uids: the sessions' uids.
        seconds: the time for which the store keeps the last report's time and the total GPU time.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    answers = run_for_each(client, "end_report", (seconds,), [(key, ()) for key in keys.reports(uids)])
    for uid, answer in zip(uids, answers, strict=True):
        if isinstance(answer, redis.RedisError):
            _log.error("reports not ended", uid=uid, error=str(answer))


def close_and_read(
    client: Store, fencing_token: FencingToken, wanted: Sequence[tuple[str, Marks]]
) -> list[SessionReports | None]:
    """Closes the reports of each session up to an instant, and returns the reports as the store then holds them.

    A report that arrives later counts as received at that instant or later. Marks in the store are never set back, and
    phases that a later leader wrote stay.

    Args:
        wanted: pairs of a session's uid and the marks for its reports. `Marks.closed` is the instant up to which the
            reports are closed.

    Returns:
        Each session's reports, in order; None if the store holds no readable limits for the session.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    names = keys.reports([uid for uid, _ in wanted])
    each = [
        (key, (marks.closed, marks.settled, encode_phases(marks.phases)))
        for key, (_, marks) in zip(names, wanted, strict=True)
    ]
    read: list[SessionReports | None] = []
    answers = run_for_each(client, "read_report", (REPORT_SECONDS, fencing_token), each)
    for (uid, _), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, redis.RedisError):
            _log.error("reports unreadable", uid=uid, error=str(answer))
        read.append(_read(uid, answer) if isinstance(answer, list) else None)
    return read


def _read(uid: str, answer: list[Any]) -> SessionReports | None:
    limits = readable_limits(uid, answer[0])
    return None if limits is None else SessionReports(limits, readable_intake(uid, answer[1] or None))


FIELDS = ["terms", "state", "closed", "settled", "phase"]
CHANGED, EARLY = 0, 2
"""The answers of the script take_report if another process has changed the state, and if a report comes too early."""
ATTEMPTS = 8
"""The most attempts to add a report while other processes change the pod's state; after that it counts as too early."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A report of one pod's sidecar, or a bare proof that the pod lives.

    Attributes:
        uid: the pod's uid, as its token proves.
        boot: the id of the sidecar's start; empty for a bare proof of life.
        sequence: the report's number since that start; a later report has a higher one.
        received_at: the instant at which the REST API received the report.
        counters: the use of each device by each container; empty for a bare proof of life.
        last: whether the sidecar ends, so that no other report of this start follows.
    """

    uid: str
    boot: str
    sequence: int
    received_at: Instant
    counters: tuple[Counter, ...] = ()
    last: bool = False


class IntakeOutcome(Enum):
    """The outcome of a pod's report: TAKEN if it was accepted, otherwise the reason why it was not."""

    TAKEN = "taken"
    """The report was written; only as a proof of life, if the store has no limits for the pod's reports. A proof of
    life that comes too early changes nothing.
    """
    OLDER = "older"
    """A report of the same start with the same or a higher number was taken before. Nothing changed."""
    EARLY = "early"
    """The pod's previous report was taken less than the intake's `pause` ago, or other processes kept writing reports
    of the pod. Nothing changed.
    """
    FULL = "full"
    """The store has no memory left for reports. Nothing changed."""
    NOT_RUNNING = "not-running"
    """No session of this pod is open: it is not bound yet, or has ended. Nothing changed."""


class ReportIntake:
    """Writes pods' reports to the store. Its methods block; it is not thread-safe."""

    def __init__(self, client: Store, pause: int = 0, is_full: Callable[[], bool] = lambda: False) -> None:
        """Makes an intake that refuses reports that come too soon, or while the store is full.

        Args:
            pause: the least time between two writes of a pod, in nanoseconds.
            is_full: returns whether the store has no memory left for reports; may raise redis.RedisError.
        """
        self._client = client
        self._pause = pause
        self._is_full = is_full

    def take(self, submissions: Sequence[Submission]) -> list[IntakeOutcome | Exception]:
        """Writes pods' reports to the store; returns, for each, its outcome, or the error that refused it.

        Raises:
            redis.RedisError, StoreUnavailableError: Redis does not answer; some reports may have been written, and all
                may be sent again.
        """
        if self._is_full():
            return [IntakeOutcome.FULL] * len(submissions)
        outcomes: list[IntakeOutcome | Exception] = [IntakeOutcome.NOT_RUNNING] * len(submissions)
        left = list(range(len(submissions)))
        for _ in range(ATTEMPTS):
            if not left:
                break
            left = self._attempt(submissions, left, outcomes)
        return outcomes

    def _attempt(
        self, submissions: Sequence[Submission], chosen: Sequence[int], outcomes: list[IntakeOutcome | Exception]
    ) -> list[int]:
        """Writes the submissions with the `chosen` indexes, and sets their outcomes.

        Returns the indexes of the submissions to try again, since another process wrote reports of their pods
        meanwhile.
        """
        states = self._read([submissions[index] for index in chosen])
        calls, writers = list[Call](), list[int]()
        for index in chosen:
            outcomes[index], call = _add_report(states, submissions[index], self._pause)
            if call is not None:
                calls.append(call)
                writers.append(index)
        left = []
        for index, answer in zip(writers, run(self._client, calls), strict=True):
            if isinstance(answer, Exception):
                outcomes[index] = answer
            elif answer == CHANGED:
                left.append(index)
            elif answer == EARLY:
                outcomes[index] = IntakeOutcome.EARLY
        for index in left:
            outcomes[index] = IntakeOutcome.EARLY  # the outcome if this was the last attempt
        return left

    def _read(self, submissions: Sequence[Submission]) -> dict[str, list[Any] | None]:
        """Returns the stored values of FIELDS, in that order, keyed by the pod's uid; None without an open session."""
        pipeline = self._client.pipeline(transaction=False)
        uids = list(dict.fromkeys(submission.uid for submission in submissions))
        for name in uids:
            uid = name.encode()
            pipeline.zrangebylex(keys.OPEN_SESSIONS, b"[" + uid + b" ", b"(" + uid + b"!", start=0, num=1)
            pipeline.hmget(keys.report(name), FIELDS)
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and concerns_all(answer):
                raise answer
        return dict(zip(uids, map(_fields, answers[::2], answers[1::2]), strict=True))


def _fields(members: Any, fields: Any) -> list[Any] | None:
    """Returns the stored values of FIELDS of a pod's reports, from Redis's two answers; None without an open session.

    Args:
        members: the answer with the pod's open session; empty if there is none.
        fields: the answer with the values; an error if the key holds no hash, and then each value is None.
    """
    if not members or isinstance(members, Exception):
        return None
    return [None] * len(FIELDS) if isinstance(fields, Exception) else list(fields)


def _add_report(
    stored: dict[str, list[Any] | None], submission: Submission, pause: int
) -> tuple[IntakeOutcome, Call | None]:
    """Adds a report to `stored`; returns its outcome, and the call that writes it, None if nothing is written.

    If the store holds no report limits of the session, a report only proves that the pod lives. Nothing is lost:
    reports are cumulative.

    Args:
        stored: the values of FIELDS, keyed by uid. The values of this pod become those after this report, since the
            pod's next report builds on them.
        pause: the least time between two writes of a pod, in nanoseconds.
    """
    fields, touched = stored[submission.uid], (keys.report(submission.uid),)
    if fields is None:
        return IntakeOutcome.NOT_RUNNING, None
    limits_text, state, closed, settled, phases = fields
    limits = readable_limits(submission.uid, limits_text)
    if not submission.boot or limits is None:
        return IntakeOutcome.TAKEN, Call("keep_alive", touched, (submission.received_at, REPORT_SECONDS, pause))
    marks = Marks(whole(closed) or 0, whole(settled) or 0, readable_phases(phases))
    report = Received(submission.boot, submission.sequence, submission.counters, submission.received_at)
    before = readable_intake(submission.uid, state)
    following = intake_after(limits, before, report, marks)
    if following is None:
        return IntakeOutcome.OLDER, None
    text = encode_intake(following)
    used = following.samples[-1].gpu if following.samples else ""
    stored[submission.uid] = [limits_text, text, closed, settled, phases]
    at_once = submission.last or all(boot.name != submission.boot for boot in before.boots)
    written = (state or "", closed or "", text, submission.received_at, used, REPORT_SECONDS, pause, int(at_once))
    return IntakeOutcome.TAKEN, Call("take_report", touched, written)
