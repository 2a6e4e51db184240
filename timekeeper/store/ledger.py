"""Changes to accounts: opening periods, settling sessions, publishing figures.

Each function takes many changes, sends them in one round trip per thousand, and answers each with what its period
stands at afterwards, or with the error that it was refused with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import redis

from timekeeper.metering.cuts import Cut
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run, run_one
from timekeeper.store.notes import pack_note
from timekeeper.store.records import encode_cuts, encode_optional
from timekeeper.store.standing import Standing, standing_or_error, standing_with_flag_or_error
from timekeeper.usage.dimensions import NOBODY

MAX_ITEMS = 500
"""Sessions in one script call; Lua's stack holds some thousands of arguments."""


class Action(StrEnum):
    """What a settlement does beside setting a session's amount."""

    HOLD = "hold"
    """Nothing."""
    OPEN = "open"
    """The session is written down as open; its record may change so, too."""
    POST = "post"
    """What the ledger does not hold yet becomes an entry."""
    MOVE = "move"
    """As POST; from now on another account pays."""
    CLOSE = "close"
    """As POST; the session has ended, its pod is still on the API server."""
    GONE = "gone"
    """As CLOSE; the pod is gone from the API server, so that only this store and checkpoints know of it."""


class Kind(StrEnum):
    """Why a ledger entry was written."""

    CLOSE = "close"
    RATE = "rate"
    PERIOD = "period"
    HOURLY = "hourly"
    MOVE = "move"
    CORRECTION = "correction"
    GRANT = "grant"
    CHECKPOINT = "checkpoint"
    CARRY = "carry"
    """What a period begins with of money that outlived the one before."""
    LAPSE = "lapse"
    """What was left of a grant when it expired; below 0."""


class Item(NamedTuple):
    """A session's cumulative amount in a period; what follows `action` goes into the ledger and the open session.

    `cuts` say in which hours it was held, the last one with that very amount, and `dimensions` what they are put down
    to; without any, an entry is put down to no hour.
    """

    uid: str
    amount: int
    action: Action = Action.HOLD
    kind: Kind = Kind.HOURLY
    namespace: str = ""
    pod: str = ""
    note: str = ""
    record: str = ""
    dimensions: str = ""
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class Revision:
    """Which of two settlements is newer: that of the later leader, then that of the higher counter."""

    epoch: int
    counter: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The sessions of one period of one account; each session once."""

    account: str
    period: int
    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Opening:
    """A period to open.

    Attributes:
        checkpoint: what was spent in it by sessions that nobody can recompute.
        known: whether the account was in the store before, so that its absence means that this was emptied.
        version: the account's when the checkpoint was taken.
    """

    account: str
    start: int
    end: int
    checkpoint: int = 0
    exhausted_at: int | None = None
    known: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Publication:
    """What readers see of an account; `burn` is empty where its samples have not changed."""

    account: str
    period: int
    exhausted_at: int | None
    summary: str
    burn: str = ""


def take_epoch(client: redis.Redis, term: int, holder: str = "") -> int:
    """The epoch of a leader, higher than any before and at least its term; `holder` is who leads in that term.

    Raises:
        FencedError: an epoch was given to a later term, or to another holder of this one.
        StoreError: Redis does not answer, or a later timekeeper wrote in a format that this one does not know.
    """
    touched = (keys.BOOK_EPOCH, keys.BOOK_FORMAT, keys.BOOK_CONVERTING, keys.BOOK_TERM)
    return int(run_one(client, Call("take_epoch", touched, (term, keys.FORMAT, holder))))


def open_periods(client: redis.Redis, epoch: int, now: int, openings: Sequence[Opening]) -> list[Standing | StoreError]:
    """Opens periods, and the accounts that the store does not know."""
    calls = []
    for opening in openings:
        account = keys.AccountKeys(opening.account)
        exhausted_at = encode_optional(opening.exhausted_at)
        row = f"{(min(max(opening.start + 1, now), opening.end) - 1) // HOUR} {NOBODY}"
        begun = (opening.start, opening.end, opening.checkpoint, exhausted_at, int(opening.known), opening.version, row)
        touched = (account.head, account.periods, account.period(opening.start), account.ledger, account.hours)
        calls.append(Call("open_period", touched, (epoch, now, *begun)))
    return [standing_with_flag_or_error(answer) for answer in run(client, calls)]


def settle(
    client: redis.Redis, revision: Revision, now: int, settlements: Sequence[Settlement]
) -> list[Standing | StoreError]:
    """Sets the cumulative amounts of sessions; one answer for each settlement."""
    calls, owners = list[Call](), list[int]()
    for index, settlement in enumerate(settlements):
        for call in _settle_calls(revision, now, settlement):
            calls.append(call)
            owners.append(index)
    answers: list[Any] = [None] * len(settlements)
    for index, answer in zip(owners, run(client, calls), strict=True):
        if not isinstance(answers[index], StoreError):
            answers[index] = answer
    return [standing_or_error(answer) for answer in answers]


def settle_each(
    client: redis.Redis, revision: Revision, now: int, settlement: Settlement
) -> tuple[Standing | None, dict[str, StoreError]]:
    """Sets the amounts of a refused settlement's sessions one by one, under the same revision: those taken stay so.

    Returns:
        What the period stands at, None where no session was taken; and each session that was refused, by its uid.
    """
    alone = [Settlement(settlement.account, settlement.period, [item]) for item in settlement.items]
    standing, refused = None, {}
    for item, answer in zip(settlement.items, settle(client, revision, now, alone), strict=True):
        if isinstance(answer, StoreError):
            refused[item.uid] = answer
        else:
            standing = answer
    return standing, refused


def publish_accounts(client: redis.Redis, epoch: int, publications: Sequence[Publication]) -> list[StoreError | None]:
    """Writes down what readers see of accounts."""
    calls = []
    for publication in publications:
        account = keys.AccountKeys(publication.account)
        arguments = (epoch, encode_optional(publication.exhausted_at), publication.summary, publication.burn)
        calls.append(Call("publish_account", (account.head, account.period(publication.period)), arguments))
    return [answer if isinstance(answer, StoreError) else None for answer in run(client, calls)]


def _settle_calls(revision: Revision, now: int, settlement: Settlement) -> Iterator[Call]:
    account = keys.AccountKeys(settlement.account)
    period = settlement.period
    touched = (
        account.head,
        account.period(period),
        account.amounts(period),
        account.sessions,
        account.ended,
        account.ledger,
        account.hours,
    )
    for start in range(0, len(settlement.items), MAX_ITEMS):
        arguments: list[str | int | bytes] = [revision.epoch, revision.counter, now, period]
        for item in settlement.items[start : start + MAX_ITEMS]:
            arguments += (item.uid, item.amount, item.action)
            if item.action is not Action.HOLD:
                arguments += (item.kind, item.namespace, item.pod, pack_note(item.note), item.record)
                arguments += (item.dimensions, encode_cuts(item.cuts))
        yield Call("settle", touched, tuple(arguments))
