"""Changes to accounts: opening periods, settling sessions, applying grants, publishing figures.

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
from timekeeper.rules.pots import Pot
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run, run_one
from timekeeper.store.notes import pack_note
from timekeeper.store.records import encode_cuts
from timekeeper.store.standing import Standing, standing_or_error, standing_with_flag_or_error
from timekeeper.usage.dimensions import NOBODY, dimensions

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


MONEY_KINDS = frozenset({Kind.GRANT, Kind.CARRY, Kind.LAPSE})
"""Entries that change what is available, and not what is spent."""


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
class GrantEntry:
    """Money to add to a period, or to take from it; `name` makes it one.

    Attributes:
        expires: when it expires, where it does not lapse with the period.
        since: what the period had spent when the grant was made.
    """

    account: str
    period: int
    name: str
    amount: int
    note: str
    expires: int | None = None
    since: int = 0


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """What a period spent more or less than the ledger said; `name` makes it one, `hour` is that of its use.

    `again` is one that the store had taken before it was lost: it counts whatever has been settled until now. Any other
    is refused where it would take what is spent below 0.
    """

    account: str
    period: int
    name: str
    amount: int
    namespace: str
    note: str
    hour: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class PotEntry:
    """What a pot amounts to in a period from now on, and why."""

    pot: Pot
    kind: Kind
    note: str


@dataclass(frozen=True, slots=True)
class Strike:
    """Pots to set in a period.

    Where they were carried from the period before it, `struck` is what that had spent, and `terms` are its allowance
    and how much of it could be rolled over.
    """

    account: str
    period: int
    pots: Sequence[PotEntry]
    struck: int | None = None
    terms: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """What readers see of an account; `burn` is empty where its samples have not changed."""

    account: str
    period: int
    exhausted_at: int | None
    summary: str
    burn: str = ""


def take_epoch(client: redis.Redis, least: int) -> int:
    """The epoch of a new leader, higher than any before.

    Raises:
        StoreError: Redis does not answer, or a later timekeeper wrote in a format that this one does not know.
    """
    return int(run_one(client, Call("take_epoch", (keys.BOOK_EPOCH, keys.BOOK_FORMAT), (least, keys.FORMAT))))


def open_periods(client: redis.Redis, epoch: int, now: int, openings: Sequence[Opening]) -> list[Standing | StoreError]:
    """Opens periods, and the accounts that the store does not know."""
    calls = []
    for opening in openings:
        account = keys.AccountKeys(opening.account)
        exhausted_at = _optional(opening.exhausted_at)
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


def apply_grants(
    client: redis.Redis, epoch: int, now: int, grants: Sequence[GrantEntry]
) -> list[Standing | StoreError]:
    """Adds grants to their periods, each once."""
    calls = []
    for grant in grants:
        account = keys.AccountKeys(grant.account)
        touched = (
            account.head,
            account.period(grant.period),
            account.grants,
            account.ledger,
            account.pots(grant.period),
        )
        named = (grant.name, grant.amount, grant.note, _optional(grant.expires), grant.since)
        calls.append(Call("grant", touched, (epoch, now, grant.period, *named)))
    return [standing_with_flag_or_error(answer) for answer in run(client, calls)]


def apply_corrections(
    client: redis.Redis, epoch: int, now: int, corrections: Sequence[CorrectionEntry]
) -> list[Standing | StoreError]:
    """Sets right what was spent in periods, each once."""
    calls = []
    for found in corrections:
        account = keys.AccountKeys(found.account)
        touched = (account.head, account.period(found.period), account.corrections, account.ledger, account.hours)
        put_down = (found.hour, dimensions(found.namespace, "", None), int(found.again))
        named = (found.name, found.amount, found.namespace, found.note)
        calls.append(Call("correct", touched, (epoch, now, found.period, *named, *put_down)))
    return [standing_with_flag_or_error(answer) for answer in run(client, calls)]


def strike(client: redis.Redis, epoch: int, now: int, strikes: Sequence[Strike]) -> list[Standing | StoreError]:
    """Sets pots; a lapsed one stays as it is."""
    calls = []
    for change in strikes:
        account = keys.AccountKeys(change.account)
        touched = (account.head, account.period(change.period), account.pots(change.period), account.ledger)
        arguments: list[str | int] = [epoch, now, change.period, _optional(change.struck)]
        arguments.append(" ".join(map(str, change.terms or ())))
        for entry in change.pots:
            pot = entry.pot
            flag = "l" if pot.lapsed else "o"
            arguments += (pot.name, pot.amount, pot.expires, pot.since, flag, entry.kind, entry.note)
        calls.append(Call("strike", touched, tuple(arguments)))
    return [standing_or_error(answer) for answer in run(client, calls)]


def publish_accounts(client: redis.Redis, epoch: int, publications: Sequence[Publication]) -> list[StoreError | None]:
    """Writes down what readers see of accounts."""
    calls = []
    for publication in publications:
        account = keys.AccountKeys(publication.account)
        arguments = (epoch, _optional(publication.exhausted_at), publication.summary, publication.burn)
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


def _optional(instant: int | None) -> str:
    return "" if instant is None else str(instant)
