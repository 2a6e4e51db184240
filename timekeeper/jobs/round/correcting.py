"""Puts corrections into the ledger: what was spent in the period that each names, over or not, is set right by it."""

from __future__ import annotations

from collections.abc import Container

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.rules.corrections import Correction, no_less_than
from timekeeper.rules.orders import Taken
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import book, reading
from timekeeper.store.calls import OverdrawnError, StoreError
from timekeeper.store.money import CorrectionEntry, apply_corrections
from timekeeper.store.standing import Standing

_log = structlog.get_logger()


def apply_due_corrections(desk: Desk, now: int, names: Container[str]) -> set[str]:
    """Applies the corrections of some accounts that the store has not taken; the accounts that they concern.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
    """
    books = desk.books
    due = due_corrections(books, names, now)
    if not due:
        return set()
    entries = [_entry(books, found, account, period) for found, account, period in due]
    desk.step("correct")
    book.note_restored(desk.client, [entry.account for entry in entries if not entry.namespace])
    answers = apply_corrections(desk.client, desk.epoch, now, entries)
    kept = desk.replicated("corrections", [entry.account for entry in entries])
    for (found, account, period), answer in zip(due, answers, strict=True):
        if isinstance(answer, Standing):
            if period.start in account.standings:
                account.standings[period.start] = answer
        else:
            raise_if_general(answer)
            account.refused[found.name] = why_refused(answer)
            _log.error("correction not applied", correction=found.name, budget=account.name, error=str(answer))
            continue
        if kept:
            account.corrections[found.name] = _taken(desk, found, account, period, answer)
    return {entry.account for entry in entries}


def why_refused(answer: StoreError) -> str:
    """What whoever made a correction reads of the store's answer."""
    if isinstance(answer, OverdrawnError):
        return f"spec.gpuHours: {no_less_than(answer.spent)}"
    return str(answer)


def _taken(desk: Desk, found: Correction, account: Account, period: Period, answer: Standing) -> Taken:
    """What the store holds under a correction's name, which it may have held before."""
    ours = Taken(period.start, found.amount)
    return ours if answer.new else reading.orders_of(desk.client, account.name)[1].get(found.name, ours)


def due_corrections(books: Books, names: Container[str], now: int) -> list[tuple[Correction, Account, Period]]:
    """The corrections of accounts that the store has not taken, each with the account and the period that it is of.

    One of a period that is still to come waits for it. One that an earlier leader has told to be refused stays so:
    whoever ordered it may have ordered another one since.
    """
    due = []
    for found in books.budgets.corrections.values():
        account = books.accounts.get(found.budget) if found.budget in names else None
        if account is None or found.refused or found.name in account.corrections or found.name in account.refused:
            continue
        period = account.period_at(found.effective)
        if found.effective <= now and not found.applied and not _paid_for(books, found):
            account.refused[found.name] = (
                f"{found.budget} has never paid for the namespace {found.namespace!r}: write one in spec.namespace for "
                "which it has, or leave it out"
            )
        elif period is not None and found.effective <= now:
            due.append((found, account, period))
        elif period is None and found.effective <= now and not found.applied:
            account.refused[found.name] = "no period of this budget that the ledger knows holds spec.effectivePeriod"
    return due


def hour(found: Correction) -> int:
    """The hour since 1970 that a correction's use is put down to."""
    return found.effective // HOUR


def _paid_for(books: Books, found: Correction) -> bool:
    """Whether use of the namespace is looked for among what the budget has spent."""
    paid = (payer for _, payer in books.assignments.get(found.namespace, ()))
    return not found.namespace or found.budget in paid


def _entry(books: Books, found: Correction, account: Account, period: Period) -> CorrectionEntry:
    # Where it has been forgotten since that the namespace was ever the budget's, nobody would look for it there.
    namespace = found.namespace if _paid_for(books, found) else ""
    return CorrectionEntry(
        account.name,
        period.start,
        found.name,
        found.amount,
        namespace,
        found.note,
        hour(found),
        again=found.applied,
    )
