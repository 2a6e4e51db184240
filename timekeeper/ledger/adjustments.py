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
    """Money to add to a period of an account, applied once for each name.

    Attributes:
        account: the account's name.
        period: the start of the period, in nanoseconds since 1970.
        name: the grant's name.
        amount: microGPU-seconds; below 0 where money is taken away.
        note: the note of the ledger entry.
        expires: the instant at which the money expires, in nanoseconds since 1970; None where it ends with the period.
        since: the amount that the period had spent when the grant was made, in microGPU-seconds.
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
    """A correction of the spending of an account's period, applied once for each name.

    Attributes:
        account: the account's name.
        period: the start of the period, in nanoseconds since 1970.
        name: the correction's name.
        amount: microGPU-seconds; below 0 where less was spent.
        namespace: the namespace whose use is corrected; empty for the account as a whole.
        note: the note of the ledger entry.
        hour: the hour, counted from 1970, that the corrected use is attributed to.
        again: whether the store had applied the correction before the store was lost: it is then applied whatever has
            been settled since. Any other correction is refused where it would take spending below 0.
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
    """The new state of a credit within a period, with the kind and the note of its ledger entry.

    Attributes:
        credit: the credit.
        kind: the reason of the ledger entry.
        note: the note of the ledger entry.
    """

    credit: Credit
    kind: Kind
    note: str


@dataclass(frozen=True, slots=True)
class ClosingBalance:
    """The credits to set in a period of an account, as balances carried over or expired.

    Attributes:
        account: the account's name.
        period: the start of the period, in nanoseconds since 1970.
        credits: the credits.
        previous_spent: the spending of the period before, in microGPU-seconds, where credits are carried over from it;
            otherwise None.
        terms: the allowance of the period before, and the part of it that could be rolled over, in microGPU-seconds;
            None where nothing is carried over.
    """

    account: str
    period: int
    credits: Sequence[CreditEntry]
    previous_spent: int | None = None
    terms: tuple[int, int] | None = None


def apply_grants(
    client: redis.Redis, epoch: int, now: int, grants: Sequence[GrantEntry]
) -> list[PeriodTotals | StoreError]:
    """Applies grants to their periods, each name once.

    Args:
        epoch: the leader's fencing token.
        now: nanoseconds since 1970.

    Returns:
        For each grant the totals of its period, or the error that refused it.

    Raises:
        StoreUnavailableError: Redis does not answer; some of the changes may have been done.
    """
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
    """Applies corrections to the spending of their periods, each name once.

    Args:
        epoch: the leader's fencing token.
        now: nanoseconds since 1970.

    Returns:
        For each correction the totals of its period, or the error that refused it.

    Raises:
        StoreUnavailableError: Redis does not answer; some of the changes may have been done.
    """
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
    """Sets credits of periods; a credit that has expired does not change any more.

    Args:
        epoch: the leader's fencing token.
        now: nanoseconds since 1970.

    Returns:
        For each period its totals, or the error that refused the change.

    Raises:
        StoreUnavailableError: Redis does not answer; some of the changes may have been done.
    """
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
    """A session whose pod object is deleted, so that its amounts cannot be computed again.

    Attributes:
        uid: the session's uid.
        namespace: its namespace.
        pod: the pod's name.
    """

    uid: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """The state that a period of an account is restored to after the store lost it. Amounts are microGPU-seconds.

    Attributes:
        account: the account's name.
        period: start of the period, in nanoseconds since 1970.
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
    """Restores a period of an account; returns the amount added beyond its sessions' amounts, and the period's totals.

    The amount is in microGPU-seconds.

    Args:
        epoch: the leader's fencing token.
        now: nanoseconds since 1970.

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
