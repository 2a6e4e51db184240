"""Takes pods' reports into the store, many in two round trips: whose pods hold something, then what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import redis

from timekeeper.store import keys
from timekeeper.store.book import REPORT_SECONDS
from timekeeper.store.calls import Call, run

MAX_BOOTS = 64
"""Sidecar starts remembered per pod."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What one pod said of itself.

    Attributes:
        uid: the pod, as its token proves.
        boot: which start of its sidecar; empty for a bare proof of life.
        sequence: the report's number within that start.
        body: the counters, as JSON; empty for a bare proof of life.
        received_at: nanoseconds since 1970.
        used: the GPU time that the counters come to, in microGPU-seconds.
        last: whether its sidecar ends, and no other of this start follows.
    """

    uid: str
    boot: str
    sequence: int
    body: str
    received_at: int
    used: int = 0
    last: bool = False


class Outcome(Enum):
    """What became of a submission."""

    TAKEN = "taken"
    OLDER = "older"
    """A later report of the same start was taken before: nothing changed."""
    EARLY = "early"
    """The pod's report before was taken too short a time ago. Nothing changed."""
    NOT_RUNNING = "not-running"
    """No session of this pod is open: it is not bound yet, or has ended. Nothing changed."""


class ReportIntake:
    """Writes reports over connections of its own. Blocks; used by one thread."""

    def __init__(self, client: redis.Redis, pause: int = 0) -> None:
        """`pause` is the least time between two writes of a pod, in nanoseconds."""
        self._client = client
        self._pause = pause

    def take(self, submissions: Sequence[Submission]) -> list[Outcome | Exception]:
        """What became of each.

        Raises:
            redis.RedisError: Redis does not answer; nothing was taken.
            StoreUnavailableError: it does not answer any more; some may have been taken, and all may be sent again.
        """
        outcomes: list[Outcome | Exception] = [Outcome.NOT_RUNNING] * len(submissions)
        running = self._running(submissions)
        answers = run(self._client, [_call(submissions[index], self._pause) for index in running])
        for index, answer in zip(running, answers, strict=True):
            if isinstance(answer, Exception):
                outcomes[index] = answer
            else:
                outcomes[index] = _OUTCOMES[answer]
        return outcomes

    def _running(self, submissions: Sequence[Submission]) -> list[int]:
        """Which of them are of pods with an open session."""
        pipeline = self._client.pipeline(transaction=False)
        for submission in submissions:
            uid = submission.uid.encode()
            pipeline.zrangebylex(keys.OPEN_SESSIONS, b"[" + uid + b" ", b"(" + uid + b"!", start=0, num=1)
        return [index for index, members in enumerate(pipeline.execute()) if members]


_OUTCOMES = {0: Outcome.OLDER, 1: Outcome.TAKEN, 2: Outcome.EARLY}
"""By what the scripts answer."""


def _call(given: Submission, pause: int) -> Call:
    """A report, or a bare proof of life, which leaves what was reported as it is."""
    touched = (keys.report(given.uid),)
    if not given.boot:
        return Call("keep_alive", touched, (given.received_at, REPORT_SECONDS, pause))
    told = (given.boot, given.sequence, given.received_at, given.body)
    return Call("take_report", touched, (*told, REPORT_SECONDS, MAX_BOOTS, given.used, pause, int(given.last)))
