"""Runs scripts on Redis, many in one round trip, and turns Redis's errors into StoreErrors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from timekeeper.ledger.keys import BOOK_FENCING_TOKEN
from timekeeper.ledger.redis_cluster import ClusterStore
from timekeeper.ledger.scripts import script

Store = redis.Redis
"""A client of the Redis that holds the ledger. Its answers are bytes."""
FencingToken = int
"""A leader's fencing token. The store refuses a write whose token is lower than the highest one it has received."""

PIPELINE_CALLS = 1000
KEYS_AT_ONCE = 100
"""The number of keys in one call of a script that takes many."""
PUT_AT_ONCE = 1000
"""The most arguments of one command; even, since HSET's come in pairs. Lua's stack holds some thousands."""

_OF_6 = re.compile(r"Error running script \(call to f_[0-9a-f]{40}\): @user_script:\d+: (?:@user_script: \d+: -(\w+))?")
"""Matches the beginning of Redis 6.2's reply if a script fails; the group is the code of the server's own error."""
_OF_7 = re.compile(r"(\w+).*script: [0-9a-f]{40}, on @user_script:\d+\.?", re.DOTALL)
"""Matches Redis 7's whole reply if a script fails. The reply begins with the error's code, unless redis-py has a type
for that code.
"""
_SERVER_CODES = frozenset({"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"})
"""The codes of a server that takes no writes from any client at the moment."""
_SERVER_ERRORS = (BusyLoadingError, ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError)
"""redis-py's exception types for some of these codes; the text of such an exception lacks the code."""


class StoreError(RuntimeError):
    """Redis refused a call, which then changed nothing, or an answer of Redis cannot be read."""


class StoreUnavailableError(StoreError):
    """Redis does not answer or is not ready. Unlike with other StoreErrors, the change may have been made.

    The caller may try the change again.
    """


class ScriptError(StoreError):
    """A script failed on the data under its keys. The data of other accounts is not affected."""


class StoreEmptyError(StoreError):
    """The account or period is not in the store: the store was emptied, or the period was never opened."""


class StoreFormatError(StoreError):
    """The store's format is later than this timekeeper knows, or unreadable, so this timekeeper does not lead.

    A read of an account's use also gets this error until the account is converted from an earlier format.
    """


class OverdrawnError(StoreError):
    """A correction would take back more than a budget's period spent.

    Attributes:
        spent: microGPU-seconds that were spent in the period.
    """

    def __init__(self, spent: int) -> None:
        super().__init__(f"{spent} microGPU-seconds were spent in this period, and no correction takes that below 0")
        self.spent = spent


class FencedError(StoreError):
    """The store knows a later leader or a later term: this leader was replaced and must stop."""


_REFUSALS: Mapping[str, type[StoreError]] = {
    "EMPTY": StoreEmptyError,
    "FENCED": FencedError,
    "DATA": ScriptError,
    "FORMAT": StoreFormatError,
    **dict.fromkeys(("AMOUNT", "ACTION", "CUTS", "TWICE", "OVERFLOW"), StoreError),
}
"""The type of an error that a script of the ledger returns, by the error's first word."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a Lua script on Redis.

    Attributes:
        script: the script's file name without `.lua`.
        keys: the Redis keys that the script touches.
        arguments: the script's arguments after the keys.
    """

    script: str
    keys: tuple[str, ...]
    arguments: tuple[str | int | bytes, ...]


def described(error: Exception) -> str:
    """Returns an error's type and text for a log or message, as the repr of redis-py's errors has neither."""
    return f"{type(error).__name__}: {error}"


def run(client: Store, calls: Sequence[Call]) -> list[Any]:
    """Runs scripts on the store; returns, for each call in order, the script's reply or a StoreError.

    The calls may run in another order: a call whose script the store does not have yet runs after the others.

    Raises:
        StoreUnavailableError: Redis does not answer; some of the calls may have been done.
    """
    answers: list[Any] = []
    for start in range(0, len(calls), PIPELINE_CALLS):
        answers.extend(_run_chunk(client, calls[start : start + PIPELINE_CALLS]))
    return answers


def run_one(client: Store, call: Call) -> Any:
    """Runs one script on the store and returns its reply.

    Raises:
        StoreError: the script was refused or failed, or Redis does not answer.
    """
    (answer,) = run(client, [call])
    if isinstance(answer, StoreError):
        raise answer
    return answer


def run_for_each(
    client: Store, script: str, always: Sequence[str | int], each: Sequence[tuple[str, Sequence[str | int]]]
) -> list[Any]:
    """Runs a script on keys; returns, for each key in order, the script's answer or redis-py's error.

    Args:
        script: the name of a script whose answer has one part for each of its keys.
        always: the script's first arguments, which are the same for all keys.
        each: pairs of a key and the script's further arguments for that key.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    store: Any = client
    # Two keys lie in two slots of a cluster, and a script takes keys of one.
    at_once = 1 if isinstance(store, ClusterStore) else KEYS_AT_ONCE
    calls = list[Call]()
    for start in range(0, len(each), at_once):
        part = each[start : start + at_once]
        own = [argument for _, arguments in part for argument in arguments]
        calls.append(Call(script, tuple([key for key, _ in part]), (*always, *own)))
    answers = list[Any]()
    for answer in run(client, calls):
        if isinstance(answer, StoreError):
            raise answer
        answers += answer
    return answers


def put(client: Store, fencing_token: int | None, command: str, key: str, arguments: Sequence[str | int]) -> None:
    """Runs a Redis command that writes to a key shared by all accounts, even if the store has no free memory.

    Many arguments are divided over several calls, of which some may be done before an error; without arguments nothing
    is sent.

    Args:
        fencing_token: the leader's fencing token; None for a write that any process may do.
        command: the command, such as HSET.
        key: the key to which the command writes.
        arguments: the command's arguments after the key.

    Raises:
        FencedError: the store has given a fencing token to a later leader.
        StoreError: Redis refused the command, or does not answer.
    """
    parts = [arguments[start : start + PUT_AT_ONCE] for start in range(0, len(arguments), PUT_AT_ONCE)]
    for answer in run(
        client,
        [
            Call("put", (key, BOOK_FENCING_TOKEN), ("" if fencing_token is None else fencing_token, command, *part))
            for part in parts
        ],
    ):
        if isinstance(answer, StoreError):
            raise answer


def _run_chunk(client: Store, calls: Sequence[Call]) -> list[Any]:
    answers = _execute(client, calls)
    missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if missing:
        # A restarted or promoted Redis does not have the scripts: they are loaded, and the calls that failed run again.
        _load(client, {calls[index].script for index in missing})
        for index, answer in zip(missing, _execute(client, [calls[index] for index in missing]), strict=True):
            answers[index] = answer
    if any(_is_read_only(answer) for answer in answers):
        _drop_connections(client)
    return [_translated(answer) for answer in answers]


def _drop_connections(client: Store) -> None:
    """Drops idle connections after a server refused a write as a replica.

    Behind Sentinels, a new connection leads to the present master. redis-py drops the connections itself if a command
    gets this error, but not if a script does.
    """
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        pool.disconnect(inuse_connections=False)


def _execute(client: Store, calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command("EVALSHA", script(call.script).sha, len(call.keys), *call.keys, *call.arguments)
    try:
        return pipeline.execute(raise_on_error=False)
    except RedisError as error:
        raise StoreUnavailableError(f"Redis does not answer: {error}") from error


def _load(client: Store, names: set[str]) -> None:
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
    if _failed_on_data(answer):
        return ScriptError(str(answer))
    return StoreUnavailableError(str(answer))  # loading, read-only, out of memory, without replicas


def _failed_on_data(answer: RedisError) -> bool:
    """Whether a script failed on the data under its keys; False if the server itself refused, such as for memory."""
    if not isinstance(answer, ResponseError) or isinstance(answer, _SERVER_ERRORS):
        return False
    reply = _OF_6.match(str(answer)) or _OF_7.fullmatch(str(answer))
    return reply is not None and reply[1] not in _SERVER_CODES


def _is_read_only(answer: Any) -> bool:
    """Whether an answer is the refusal of a write by a replica."""
    if isinstance(answer, ReadOnlyError):
        return True
    reply = _OF_6.match(str(answer)) if isinstance(answer, ResponseError) else None
    return reply is not None and reply[1] == "READONLY"


_WRONG_TYPE = re.compile(r"(^|caused error: )WRONGTYPE ")
"""Matches the error of Redis, or of redis-py's pipelines, for a key of another type than the command expects."""


def is_of_another_type(answer: object) -> bool:
    """Returns whether an answer is Redis's error for a key that holds another type than the command expects."""
    return isinstance(answer, redis.RedisError) and _WRONG_TYPE.search(str(answer)) is not None


def of_another_type(answers: Mapping[str, object]) -> list[str]:
    """Returns the keys that hold another type than the command that read them expects.

    Args:
        answers: keyed by Redis key, the answer to the command that read the key, or its error.
    """
    return [key for key, answer in answers.items() if is_of_another_type(answer)]


def concerns_all(error: Exception) -> bool:
    """Returns whether an error would affect every account: the store itself fails, or this leader was replaced.

    The result is False for any other error, such as one about the data of one account or one key.
    """
    if isinstance(error, redis.RedisError):
        return not is_of_another_type(error)
    return isinstance(error, FencedError | StoreUnavailableError)


def readable_answers(answers: Sequence[Any]) -> list[Any]:
    """Returns a pipeline's answers, with None for each key that holds another type than its command expects.

    Args:
        answers: the pipeline's answers, among them the errors of commands.

    Raises:
        redis.RedisError: the store refused a command for another reason than the key's type.
    """
    for answer in answers:
        if isinstance(answer, Exception) and concerns_all(answer):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


def isolate_failures(names: Iterable[str], act: Callable[[list[str]], object]) -> dict[str, Exception]:
    """Calls `act` with all these accounts; if that fails, with each half of them, and so on down to single accounts.

    One account's error therefore does not stop `act` for the other accounts.

    Args:
        names: the names of the accounts.
        act: takes the names of several accounts; it may be called again for accounts that it has dealt with.

    Returns:
        Keyed by account, the error of each account whose call failed.

    Raises:
        Exception: the error of a call, if it concerns all accounts (see `concerns_all`), or if `names` is empty.
    """
    failed: dict[str, Exception] = {}
    groups = [sorted(names)]
    while groups:
        group = groups.pop()
        try:
            act(group)
        except Exception as error:
            if not group or concerns_all(error):
                raise
            if len(group) == 1:
                failed[group[0]] = error
            else:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
    return failed
