"""Puts corrections into the ledger: what was spent in the period that each names, over or not, is set right by it."""

from __future__ import annotations

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.rules.corrections import Correction
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import HOUR
from timekeeper.store.ledger import CorrectionEntry, apply_corrections
from timekeeper.store.standing import Standing

_log = structlog.get_logger()


def apply_due_corrections(desk: Desk, now: int) -> set[str]:
    """Applies the corrections that the store has not taken; the accounts that they concern.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
    """
    books = desk.books
    due = due_corrections(books, now)
    if not due:
        return set()
    entries = [_entry(found, account, period) for found, account, period in due]
    desk.step("correct")
    answers = apply_corrections(desk.client, desk.epoch, now, entries)
    kept = desk.replicated("corrections", [entry.account for entry in entries])
    for (found, account, period), answer in zip(due, answers, strict=True):
        if isinstance(answer, Standing):
            if period.start in account.standings:
                account.standings[period.start] = answer
        else:
            raise_if_general(answer)
            account.refused[found.name] = str(answer)
            _log.error("correction not applied", correction=found.name, budget=account.name, error=str(answer))
            continue
        if kept:
            account.corrections.add(found.name)
    return {entry.account for entry in entries}


def due_corrections(books: Books, now: int) -> list[tuple[Correction, Account, Period]]:
    """The corrections that the store has not taken, each with the account and the period that it is of.

    One of a period that is still to come waits for it. One that an earlier leader has told to be refused stays so:
    whoever ordered it may have ordered another one since.
    """
    due = []
    for found in books.budgets.corrections.values():
        account = books.accounts.get(found.budget)
        if account is None or found.refused or found.name in account.corrections or found.name in account.refused:
            continue
        period = account.period_at(found.effective)
        if period is not None and found.effective <= now:
            due.append((found, account, period))
        elif period is None and found.effective <= now and not found.applied:
            account.refused[found.name] = "no period of this budget that the ledger knows holds spec.effectivePeriod"
    return due


def hour(found: Correction) -> int:
    """The hour since 1970 that a correction's use is put down to."""
    return found.effective // HOUR


def _entry(found: Correction, account: Account, period: Period) -> CorrectionEntry:
    return CorrectionEntry(
        account.name,
        period.start,
        found.name,
        found.amount,
        found.namespace,
        found.note,
        hour(found),
        again=found.applied,
    )
