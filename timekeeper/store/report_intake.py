"""Takes pods' reports into the store, many in two round trips: whose pods hold something, then what they come to.

What a report makes of what is known is computed here, and written only if nothing has changed that meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import redis

from timekeeper.metering.reports import Counter, Marks, Received, ReportTerms, taken
from timekeeper.store import keys
from timekeeper.store.calls import Call, run
from timekeeper.store.reports import REPORT_SECONDS, decode_intake, decode_terms, encode_intake

FIELDS = ["terms", "state", "closed", "settled", "phase"]
CHANGED, EARLY = 0, 2
"""The scripts' answers where the state has changed meanwhile, and where a report comes too early."""
ATTEMPTS = 8
"""How often a report is computed anew, as something else changes: who reports as fast as that comes too early."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What one pod said of itself.

    Attributes:
        uid: the pod, as its token proves.
        boot: which start of its sidecar; empty for a bare proof of life.
        sequence: the report's number within that start.
        received_at: nanoseconds since 1970.
        counters: what each container used of each device; nothing for a bare proof of life.
        last: whether its sidecar ends, and no other of this start follows.
    """

    uid: str
    boot: str
    sequence: int
    received_at: int
    counters: tuple[Counter, ...] = ()
    last: bool = False


class Outcome(Enum):
    """What became of a submission."""

    TAKEN = "taken"
    OLDER = "older"
    """A later report of the same start was taken before: nothing changed."""
    EARLY = "early"
    """The pod's report before was taken too short a time ago. Nothing changed."""
    FULL = "full"
    """The store has no room left for what pods tell. Nothing changed."""
    NOT_RUNNING = "not-running"
    """No session of this pod is open: it is not bound yet, or has ended. Nothing changed."""


class ReportIntake:
    """Writes reports over connections of its own. Blocks; used by one thread."""

    def __init__(self, client: redis.Redis, pause: int = 0, is_full: Callable[[], bool] = lambda: False) -> None:
        """Names the store, and what bounds the writes.

        Args:
            client: the store.
            pause: the least time between two writes of a pod, in nanoseconds.
            is_full: whether the store has no room for reports; may raise redis.RedisError.
        """
        self._client = client
        self._pause = pause
        self._is_full = is_full

    def take(self, submissions: Sequence[Submission]) -> list[Outcome | Exception]:
        """What became of each.

        Raises:
            redis.RedisError: Redis does not answer; nothing was taken.
            StoreUnavailableError: it does not answer any more; some may have been taken, and all may be sent again.
        """
        if self._is_full():
            return [Outcome.FULL] * len(submissions)
        outcomes: list[Outcome | Exception] = [Outcome.NOT_RUNNING] * len(submissions)
        left = list(range(len(submissions)))
        for _ in range(ATTEMPTS):
            if not left:
                break
            left = self._attempt(submissions, left, outcomes)
        return outcomes

    def _attempt(
        self, submissions: Sequence[Submission], chosen: Sequence[int], outcomes: list[Outcome | Exception]
    ) -> list[int]:
        """Takes some of the submissions, and notes what became of them; those of which something else has changed."""
        known = self._read([submissions[index] for index in chosen])
        calls, writers = list[Call](), list[int]()
        for index in chosen:
            outcomes[index], call = _judged(known, submissions[index], self._pause)
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
                outcomes[index] = Outcome.EARLY
        for index in left:
            outcomes[index] = Outcome.EARLY  # unless another attempt comes
        return left

    def _read(self, submissions: Sequence[Submission]) -> dict[str, list[Any] | None]:
        """The state of the pods' reports, by uid; None where no session of the pod is open."""
        pipeline = self._client.pipeline(transaction=False)
        uids = list(dict.fromkeys(submission.uid for submission in submissions))
        for name in uids:
            uid = name.encode()
            pipeline.zrangebylex(keys.OPEN_SESSIONS, b"[" + uid + b" ", b"(" + uid + b"!", start=0, num=1)
            pipeline.hmget(keys.report(name), FIELDS)
        answers = pipeline.execute()
        return {
            uid: list(fields) if members else None
            for uid, members, fields in zip(uids, answers[::2], answers[1::2], strict=True)
        }


def _judged(known: dict[str, list[Any] | None], given: Submission, pause: int) -> tuple[Outcome, Call | None]:
    """Decides on a submission, and on the write that it needs; reports of one pod follow each other.

    Where nothing says what the pod may report, its report proves that it lives and no more: reports are cumulative.
    """
    fields, touched = known[given.uid], (keys.report(given.uid),)
    if fields is None:
        return Outcome.NOT_RUNNING, None
    terms_text, state, closed, settled, phase = fields
    if not given.boot or terms_text is None:
        return Outcome.TAKEN, Call("keep_alive", touched, (given.received_at, REPORT_SECONDS, pause))
    marks = Marks(int(closed or 0), int(settled or 0), int(phase or 0))
    report = Received(given.boot, given.sequence, given.counters, given.received_at)
    terms: ReportTerms = decode_terms(terms_text)
    before = decode_intake(state)
    following = taken(terms, before, report, marks)
    if following is None:
        return Outcome.OLDER, None
    text = encode_intake(following)
    used = following.samples[-1].gpu if following.samples else ""
    known[given.uid] = [terms_text, text, closed, settled, phase]
    at_once = given.last or all(boot.name != given.boot for boot in before.boots)
    written = (state or "", closed or "", text, given.received_at, used, REPORT_SECONDS, pause, int(at_once))
    return Outcome.TAKEN, Call("take_report", touched, written)
