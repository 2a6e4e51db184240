"""Applies grants and corrections: a due order becomes an entry in the ledger and changes its period's totals."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeVar

import redis
import structlog

from timekeeper.controller.reconcile.context import ReconcileContext, raise_if_general
from timekeeper.controller.reconcile.open_and_close_periods import SpentBy, spending
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.books import Books, due_grants
from timekeeper.domain.credits import Credit
from timekeeper.domain.orders import Correction, Grant, OrderEntry, no_less_than
from timekeeper.domain.periods import Period
from timekeeper.domain.timestamps import HOUR, Instant
from timekeeper.ledger import reading, shared
from timekeeper.ledger.client import OverdrawnError, StoreError
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import CorrectionEntry, GrantEntry, apply_corrections, apply_grants

Entry = TypeVar("Entry", GrantEntry, CorrectionEntry)

_log = structlog.get_logger()


def apply_due_grants(context: ReconcileContext, now: Instant, names: Container[str]) -> set[str]:
    """Applies the due grants of these accounts that the store does not hold yet; returns the accounts of these grants.

    A grant that the store refuses is logged and added to its account's `refused_grants`, with the reason.

    Args:
        context: the leader's state, the store and the clocks.
        names: the accounts whose grants are applied.

    Raises:
        StoreError: the store does not answer, was emptied, or refuses this leader's term.
        redis.RedisError: the store does not answer.
    """
    books = context.books
    due, without_period = due_grants(books, names, now, context.perhaps_past(now))
    for account, name in without_period:
        account.grants[name] = None
    if not due:
        return set()
    spent_by = spending(context, now)
    entries = [_grant_entry(context, grant, period, spent_by, now) for grant, period in due]
    for entry, answer, kept in _apply(context, now, "grants", apply_grants, entries):
        account = books.accounts[entry.account]
        if isinstance(answer, StoreError):
            account.refused_grants[entry.name] = str(answer)
            _log.error("grant not applied", grant=entry.name, budget=entry.account, error=str(answer))
            continue
        account.period_totals[entry.period] = answer
        if entry.following is not None:
            totals = account.period_totals[entry.following]
            account.period_totals[entry.following] = totals._replace(previous_spent=None)
        _take_credit(context, account, entry, new=answer.new)
        if kept:
            account.grants[entry.name] = _stored_order(context, entry, answer)
            account.unconfirmed.discard(entry.name)
        else:
            account.unconfirmed.add(entry.name)
    return {entry.account for entry in entries}


def apply_due_corrections(context: ReconcileContext, now: Instant, names: Container[str]) -> set[str]:
    """Applies the due corrections of these accounts that the store does not hold; returns the corrections' accounts.

    A correction that the store refuses is logged and added to its account's `refused`, with the reason. A correction
    that takes back more than was spent waits instead if the account was not published since the store was read.

    Args:
        context: the leader's state, the store and the clocks.
        names: the accounts whose corrections are applied.

    Raises:
        StoreError: the store does not answer, was emptied, or refuses this leader's term.
        redis.RedisError: the store does not answer.
    """
    books = context.books
    due = due_corrections(books, names, now)
    if not due:
        return set()
    entries = [_correction_entry(books, correction, account, period) for correction, account, period in due]
    shared.note_restored(
        context.client, context.fencing_token, [entry.account for entry in entries if not entry.namespace]
    )
    for entry, answer, kept in _apply(context, now, "corrections", apply_corrections, entries):
        account = books.accounts[entry.account]
        if isinstance(answer, OverdrawnError) and entry.account not in books.figures:
            continue  # nothing is settled since the store was read, and it may have lost the spending of running pods
        if isinstance(answer, StoreError):
            account.refused[entry.name] = why_refused(answer)
            _log.error("correction not applied", correction=entry.name, budget=entry.account, error=str(answer))
            continue
        if entry.period in account.period_totals:
            account.period_totals[entry.period] = answer
        if kept:
            sent = OrderEntry(entry.period, entry.amount)
            account.corrections[entry.name] = _stored_order(context, entry, answer) or sent
    return {entry.account for entry in entries}


def _apply(
    context: ReconcileContext,
    now: Instant,
    kind: str,
    send: Callable[[redis.Redis, int, int, Sequence[Entry]], Sequence[PeriodTotals | StoreError]],
    entries: Sequence[Entry],
) -> Iterator[tuple[Entry, PeriodTotals | StoreError, bool]]:
    """Sends orders to the store by `send`; yields each order with the store's answer to it, and a truth value.

    The truth value says whether the store's replicas hold all these orders. `send` gets the store's client, the fencing
    token, `now` and the orders. `kind` names the orders in the log.

    Raises:
        StoreError: the store does not answer, was emptied, or refuses this leader's term.
        redis.RedisError: the store does not answer.
    """
    answers = send(context.client, context.fencing_token, now, entries)
    kept = context.replicated(kind, [entry.account for entry in entries])
    for entry, answer in zip(entries, answers, strict=True):
        if isinstance(answer, StoreError):
            raise_if_general(answer)
        yield entry, answer, kept


def _stored_order(
    context: ReconcileContext, entry: GrantEntry | CorrectionEntry, answer: PeriodTotals
) -> OrderEntry | None:
    """Returns the order that the ledger holds under an entry's name: this entry, or an earlier order of the same name.

    `answer` is the store's answer to the entry. The result is None if the ledger holds no order of that name.
    """
    if answer.new:
        return OrderEntry(entry.period, entry.amount)
    grants, corrections = reading.orders_of(context.client, entry.account)
    return (grants if isinstance(entry, GrantEntry) else corrections).get(entry.name)


def _take_credit(context: ReconcileContext, account: Account, entry: GrantEntry, *, new: bool) -> None:
    """Adds a grant, if it outlives its period, to the account's credits in memory.

    `new` says whether the store applied the grant just now. If not, the answer to an earlier attempt was lost, and the
    period's credits are read again.
    """
    if entry.expires is None:
        return
    known = account.credits.setdefault(entry.period, {})
    if new:
        known[entry.name] = Credit(entry.name, entry.amount, entry.expires, entry.since)
    else:
        known |= reading.credits_of(context.client, account.name, entry.period)


def _grant_entry(
    context: ReconcileContext, grant: Grant, period: Period, spent_by: SpentBy, now: Instant
) -> GrantEntry:
    account, since = context.books.accounts[grant.budget], 0
    if grant.expires is not None:
        since = max(0, spent_by(account, period, min(grant.created or now, now)))
    following = period.end if {period.start, period.end} <= account.period_totals.keys() else None
    if _has_been_carried_over(account, grant, period):
        following = None
    return GrantEntry(grant.budget, period.start, grant.name, grant.amount, grant.note, grant.expires, since, following)


def _has_been_carried_over(account: Account, grant: Grant, period: Period) -> bool:
    """Whether the next period was restored, and the store had applied the grant before that period began.

    The restored credits of the next period then contain what was left of the grant. They are not computed again: it is
    not known which of the restored spending of the grant's period is from before the grant or after its expiry.
    """
    restored, applied_at = account.restored, grant.applied_at
    return restored is not None and restored.start == period.end and applied_at is not None and applied_at <= period.end


def _correction_entry(books: Books, correction: Correction, account: Account, period: Period) -> CorrectionEntry:
    # Usage is not looked up under a namespace once the store no longer holds that the budget paid for it.
    namespace = correction.namespace if _paid_for(books, correction) else ""
    return CorrectionEntry(
        account.name,
        period.start,
        correction.name,
        correction.amount,
        namespace,
        correction.note,
        correction.effective // HOUR,
        again=correction.applied,
    )


def why_refused(answer: StoreError) -> str:
    """Returns the text for a correction's status that says why the ledger refused the correction."""
    if isinstance(answer, OverdrawnError):
        return f"spec.gpuHours: {no_less_than(answer.spent)}"
    return str(answer)


def due_corrections(books: Books, names: Container[str], now: Instant) -> list[tuple[Correction, Account, Period]]:
    """Returns the corrections of these accounts that are due, each with its account and period.

    A correction whose effective instant is in the future waits for that instant. A correction that an earlier leader
    refused stays refused: its author may have ordered another one since. A correction that cannot be applied is added
    to the account's `refused`, with the reason.

    Args:
        names: the accounts whose corrections are wanted.
    """
    due = []
    for correction in books.budgets.corrections.values():
        name = correction.name
        account = books.accounts.get(correction.budget) if correction.budget in names else None
        if account is None or correction.refused or name in account.corrections or name in account.refused:
            continue
        if correction.effective > now:
            continue
        period = account.period_at(correction.effective)
        if not correction.applied and not _paid_for(books, correction):
            account.refused[name] = (
                f"{correction.budget} has never paid for the namespace {correction.namespace!r}: write one in "
                "spec.namespace for which it has, or leave it out"
            )
        elif period is not None:
            due.append((correction, account, period))
        elif not correction.applied:
            account.refused[name] = "no period of this budget that the ledger knows holds spec.effectivePeriod"
    return due


def _paid_for(books: Books, correction: Correction) -> bool:
    """Whether the budget has ever paid for the correction's namespace, or the correction names none."""
    accounts = (account for _, account in books.assignments.get(correction.namespace, ()))
    return not correction.namespace or correction.budget in accounts
