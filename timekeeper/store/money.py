"""Changes to accounts beside settlement: grants, corrections, and the pots of money that outlives a period.

As in `timekeeper.store.ledger`, each function takes many changes, and answers each with what its period stands at
afterwards, or with the error that it was refused with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from timekeeper.rules.pots import Pot
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run
from timekeeper.store.ledger import Kind
from timekeeper.store.records import encode_optional
from timekeeper.store.standing import Standing, standing_or_error, standing_with_flag_or_error
from timekeeper.usage.dimensions import dimensions


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
        named = (grant.name, grant.amount, grant.note, encode_optional(grant.expires), grant.since)
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
        arguments: list[str | int] = [epoch, now, change.period, encode_optional(change.struck)]
        arguments.append(" ".join(map(str, change.terms or ())))
        for entry in change.pots:
            pot = entry.pot
            flag = "l" if pot.lapsed else "o"
            arguments += (pot.name, pot.amount, pot.expires, pot.since, flag, entry.kind, entry.note)
        calls.append(Call("strike", touched, tuple(arguments)))
    return [standing_or_error(answer) for answer in run(client, calls)]
