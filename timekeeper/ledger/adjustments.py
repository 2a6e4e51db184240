"""Writes to accounts beside settlement: grants, corrections, closing balances, and restoring a period.

As in `timekeeper.ledger.settlement`, each function takes many changes. For each it returns the totals of the period
after the change, or the error that refused it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import redis

from timekeeper.domain.credits import Credit
from timekeeper.domain.usage import dimensions
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, StoreError, run, run_one
from timekeeper.ledger.codec import encode_optional
from timekeeper.ledger.settlement import Kind
from timekeeper.ledger.totals import PeriodTotals, read_totals, totals_and_flag_or_error, totals_or_error


@dataclass(frozen=True, slots=True)
class GrantEntry:
    """Money to add to a period, or to take from it where the amount is negative; applied once for each name.

    Attributes:
        expires: the instant at which a grant with an expiry of its own expires; None where it ends with the period.
        since: the amount that the period had spent when the grant was made.
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
    """A correction of a period's spending, applied once for each name; its use is attributed to `hour`.

    `again` marks a correction that the store had applied before it was lost: it is applied whatever has been settled
    since. Any other correction is refused where it would take spending below 0.
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
class CreditEntry:
    """A credit's new state within a period, with the kind and the note of its ledger entry."""

    credit: Credit
    kind: Kind
    note: str


@dataclass(frozen=True, slots=True)
class ClosingBalance:
    """The credits to set in a period, as balances carried over or expired.

    Where they were carried over from the period before it, `previous_spent` is that period's spending, and `terms` are
    its allowance and the part of it that could be rolled over.
    """

    account: str
    period: int
    credits: Sequence[CreditEntry]
    previous_spent: int | None = None
    terms: tuple[int, int] | None = None


def apply_grants(
    client: redis.Redis, epoch: int, now: int, grants: Sequence[GrantEntry]
) -> list[PeriodTotals | StoreError]:
    """Applies grants to their periods, each name once."""
    calls = []
    for grant in grants:
        account = keys.AccountKeys(grant.account)
        touched = (
            account.head,
            account.period(grant.period),
            account.grants,
            account.ledger,
            account.credits(grant.period),
        )
        named = (grant.name, grant.amount, grant.note, encode_optional(grant.expires), grant.since)
        calls.append(Call("grant", touched, (epoch, now, grant.period, *named)))
    return [totals_and_flag_or_error(answer) for answer in run(client, calls)]


def apply_corrections(
    client: redis.Redis, epoch: int, now: int, corrections: Sequence[CorrectionEntry]
) -> list[PeriodTotals | StoreError]:
    """Applies corrections to the spending of their periods, each name once."""
    calls = []
    for correction in corrections:
        account, period = keys.AccountKeys(correction.account), correction.period
        touched = (account.head, account.period(period), account.corrections, account.ledger, account.hours)
        attributed_to = (correction.hour, dimensions(correction.namespace, "", None), int(correction.again))
        named = (correction.name, correction.amount, correction.namespace, correction.note)
        calls.append(Call("correct", touched, (epoch, now, period, *named, *attributed_to)))
    return [totals_and_flag_or_error(answer) for answer in run(client, calls)]


def close_balances(
    client: redis.Redis, epoch: int, now: int, balances: Sequence[ClosingBalance]
) -> list[PeriodTotals | StoreError]:
    """Sets credits of periods; an expired credit does not change any more."""
    calls = []
    for change in balances:
        account = keys.AccountKeys(change.account)
        touched = (account.head, account.period(change.period), account.credits(change.period), account.ledger)
        arguments: list[str | int] = [epoch, now, change.period, encode_optional(change.previous_spent)]
        arguments.append(" ".join(map(str, change.terms or ())))
        for entry in change.credits:
            credit = entry.credit
            flag = "l" if credit.expired else "o"
            arguments += (credit.name, credit.amount, credit.expires, credit.since, flag, entry.kind, entry.note)
        calls.append(Call("close_balances", touched, tuple(arguments)))
    return [totals_or_error(answer) for answer in run(client, calls)]


class FinalizedSession(NamedTuple):
    """A session whose pod object is deleted, so that its amounts cannot be computed again."""

    uid: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """The state that a period of an account is restored to.

    Attributes:
        period: start of the period.
        checkpoint: the spending of finalized sessions that are not computed again.
        apart: the part of the store's finalized sum that is computed again.
        version: the account's version when the checkpoint was taken.
        to_finalize: the sessions of the period that are not computed again and that the store does not hold as
            finalized.
        note: the note of the ledger entries to write.
    """

    account: str
    period: int
    checkpoint: int
    apart: int
    version: int
    to_finalize: Sequence[FinalizedSession]
    note: str


def restore(client: redis.Redis, epoch: int, now: int, wanted: Restoration) -> tuple[int, PeriodTotals]:
    """Restores a period; returns the amount added beyond its sessions' amounts, and the period's totals.

    Raises:
        StoreError: the store refused the change, or Redis does not answer.
    """
    account, period = keys.AccountKeys(wanted.account), wanted.period
    sums, amounts = account.period(period), account.amounts(period)
    touched = (account.head, sums, amounts, account.sessions, account.ended, account.ledger, account.hours)
    checkpoint = (wanted.checkpoint, wanted.version, wanted.apart, wanted.note)
    sessions = (part for session in wanted.to_finalize for part in session)
    added, *answer = run_one(client, Call("restore", touched, (epoch, now, period, *checkpoint, *sessions)))
    return int(added), read_totals(answer)
