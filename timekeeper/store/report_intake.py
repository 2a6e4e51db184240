"""Takes pods' reports into the store, many in two round trips: whose pods hold something, then what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError, RedisError

from timekeeper.store import keys
from timekeeper.store.book import REPORT_SECONDS, PodReport, take_report_call
from timekeeper.store.scripts import script

_TAKE = script("take_report")


@dataclass(frozen=True, slots=True)
class Submission:
    """What one pod said of itself.

    Attributes:
        uid: the pod, as its token proves.
        boot: which start of its sidecar; empty for a bare proof of life.
        sequence: the report's number within that start.
        body: the counters, as JSON; empty for a bare proof of life.
        received_at: nanoseconds since 1970.
    """

    uid: str
    boot: str
    sequence: int
    body: str
    received_at: int


class Outcome(Enum):
    """What became of a submission."""

    TAKEN = "taken"
    OLDER = "older"
    """A later report of the same start was taken before: nothing changed."""
    NOT_RUNNING = "not-running"
    """No session of this pod is open: it is not bound yet, or has ended. Nothing changed."""


class ReportIntake:
    """Writes reports over one connection pool."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def take(self, submissions: Sequence[Submission]) -> list[Outcome | Exception]:
        """What became of each.

        Raises:
            redis.RedisError: Redis does not answer; some may have been taken, and all may be sent again.
        """
        outcomes: list[Outcome | Exception] = [Outcome.NOT_RUNNING] * len(submissions)
        running = await self._running(submissions)
        answers = await self._write([submissions[index] for index in running])
        for index, answer in zip(running, answers, strict=True):
            if isinstance(answer, Exception):
                outcomes[index] = answer
            else:
                outcomes[index] = Outcome.TAKEN if answer else Outcome.OLDER
        return outcomes

    async def _running(self, submissions: Sequence[Submission]) -> list[int]:
        """Which of them are of pods with an open session."""
        pipeline = self._client.pipeline(transaction=False)
        for submission in submissions:
            uid = submission.uid.encode()
            pipeline.zrangebylex(keys.OPEN_SESSIONS, b"[" + uid + b" ", b"(" + uid + b"!", start=0, num=1)
        found = await pipeline.execute()
        return [index for index, members in enumerate(found) if members]

    async def _write(self, submissions: Sequence[Submission]) -> list[Any]:
        if not submissions:
            return []
        answers = await self._execute(submissions)
        missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            # A restarted or promoted Redis has forgotten the script; what was not run is run now.
            await self._client.script_load(_TAKE.text)
            again = await self._execute([submissions[index] for index in missing])
            for index, answer in zip(missing, again, strict=True):
                answers[index] = answer
        return answers

    async def _execute(self, submissions: Sequence[Submission]) -> list[Any]:
        """One answer each: 1 taken, 0 older, or the error that Redis gave."""
        pipeline = self._client.pipeline(transaction=False)
        for submission in submissions:
            if submission.boot:
                report = PodReport(submission.uid, submission.boot, submission.sequence, submission.body)
                call = take_report_call(report, submission.received_at)
                pipeline.evalsha(_TAKE.sha, len(call.keys), *call.keys, *call.arguments)
            else:
                key = keys.report(submission.uid)
                pipeline.eval(_ALIVE, 1, key, submission.received_at, REPORT_SECONDS)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, RedisError) and not isinstance(answer, redis.exceptions.ResponseError):
                raise answer
        return answers


_ALIVE = "redis.call('HSET', KEYS[1], 'at', ARGV[1]) redis.call('EXPIRE', KEYS[1], ARGV[2]) return 1"
"""A bare proof of life leaves what was reported as it is."""
