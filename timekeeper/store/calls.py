"""Runs scripts on Redis, many in one round trip, and turns what Redis refuses into errors of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from timekeeper.store.scripts import script

PIPELINE_CALLS = 1000

_OF_6 = re.compile(r"Error running script \(call to f_[0-9a-f]{40}\): @user_script:\d+: (?:@user_script: \d+: -(\w+))?")
"""The beginning of Redis 6.2's reply where a script breaks off, with the code of a refusal of the server's."""
_OF_7 = re.compile(r"(\w+).*script: [0-9a-f]{40}, on @user_script:\d+\.?", re.DOTALL)
"""The whole of such a reply of Redis 7; it begins with the code, unless redis-py has a type for that."""
_SERVER_CODES = frozenset({"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"})
"""The codes of a server that takes no writes from anybody at the moment."""
_SERVER_ERRORS = (BusyLoadingError, ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError)
"""redis-py's types for some of these; it cuts their code off the text."""


class StoreError(RuntimeError):
    """Redis refused a change; nothing of it was done."""


class StoreUnavailableError(StoreError):
    """Redis does not answer, or is not ready to; whether a change was done is unknown, and it may be tried again."""


class ScriptError(StoreError):
    """A script met data that it could not work with; other accounts are not concerned."""


class StoreEmptyError(StoreError):
    """The account or period is not in the store: it was emptied, or never opened."""


class OverdrawnError(StoreError):
    """A correction would take back more than was spent.

    Attributes:
        spent: microGPU-seconds that were spent in the period.
    """

    def __init__(self, spent: int) -> None:
        super().__init__(f"{spent} microGPU-seconds were spent in this period, and no correction takes that below 0")
        self.spent = spent


class FencedError(StoreError):
    """A leader with a later epoch has written: this one has been replaced and must stop."""


_REFUSALS: Mapping[str, type[StoreError]] = {
    "EMPTY": StoreEmptyError,
    "FENCED": FencedError,
    "DATA": ScriptError,
    **dict.fromkeys(("FORMAT", "AMOUNT", "ACTION", "CUTS", "TWICE", "OVERFLOW"), StoreError),
}
"""The type of an error of our scripts, by its first word."""


@dataclass(frozen=True, slots=True)
class Call:
    """A script by name, its keys and its arguments."""

    script: str
    keys: tuple[str, ...]
    arguments: tuple[str | int | bytes, ...]


def described(error: Exception) -> str:
    """An error's type and text. The repr of redis-py's errors has neither."""
    return f"{type(error).__name__}: {error}"


def run(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    """Runs the scripts in their order; each answer is the script's, or the StoreError that it ended in.

    Raises:
        StoreUnavailableError: Redis does not answer; some of the calls may have been done.
    """
    answers: list[Any] = []
    for start in range(0, len(calls), PIPELINE_CALLS):
        answers.extend(_run_chunk(client, calls[start : start + PIPELINE_CALLS]))
    return answers


def run_one(client: redis.Redis, call: Call) -> Any:
    """Runs one script.

    Raises:
        StoreError: it was refused.
    """
    (answer,) = run(client, [call])
    if isinstance(answer, StoreError):
        raise answer
    return answer


def _run_chunk(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    answers = _execute(client, calls)
    missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if missing:
        # A restarted or promoted Redis has forgotten the scripts; those that were not run are run now.
        _load(client, {calls[index].script for index in missing})
        for index, answer in zip(missing, _execute(client, [calls[index] for index in missing]), strict=True):
            answers[index] = answer
    if any(_is_read_only(answer) for answer in answers):
        _look_for_the_master(client)
    return [_translated(answer) for answer in answers]


def _look_for_the_master(client: redis.Redis) -> None:
    """Drops connections to a server that has become a replica: behind Sentinels a new one leads to the master.

    redis-py does so by itself only where no script stands between it and the refusal.
    """
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect(inuse_connections=False)


def _execute(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.evalsha(script(call.script).sha, len(call.keys), *call.keys, *call.arguments)
    try:
        return pipeline.execute(raise_on_error=False)
    except RedisError as error:
        raise StoreUnavailableError(f"Redis does not answer: {error}") from error


def _load(client: redis.Redis, names: set[str]) -> None:
    try:
        for name in names:
            client.script_load(script(name).text)
    except RedisError as error:
        raise StoreUnavailableError(f"Redis takes no scripts: {error}") from error


def _translated(answer: Any) -> Any:
    if not isinstance(answer, RedisError):
        return answer
    kind, _, message = str(answer).partition(" ")
    if kind == "OVERDRAWN":
        return OverdrawnError(int(message))
    if kind in _REFUSALS:
        return _REFUSALS[kind](message)
    if _broke_off(answer):
        return ScriptError(str(answer))
    return StoreUnavailableError(str(answer))  # loading, read-only, out of memory, without replicas


def _broke_off(answer: RedisError) -> bool:
    """Whether a script ended in an error of its own data, and not since the server takes no writes."""
    if not isinstance(answer, ResponseError) or isinstance(answer, _SERVER_ERRORS):
        return False
    found = _OF_6.match(str(answer)) or _OF_7.fullmatch(str(answer))
    return found is not None and found[1] not in _SERVER_CODES


def _is_read_only(answer: Any) -> bool:
    """Whether a server refused a write as a replica does."""
    if isinstance(answer, ReadOnlyError):
        return True
    found = _OF_6.match(str(answer)) if isinstance(answer, ResponseError) else None
    return found is not None and found[1] == "READONLY"
