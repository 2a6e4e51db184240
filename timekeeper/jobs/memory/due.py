"""What is due in the books at an instant: periods to open, and grants to apply."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from timekeeper.jobs.memory.accounts import Account, periods_to_open
from timekeeper.jobs.memory.books import Books
from timekeeper.rules.grants import Grant
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import SKEW
from timekeeper.store.ledger import Opening


def due_openings(books: Books, names: Iterable[str], now: int) -> list[tuple[Account, Period, Opening]]:
    """The periods that these accounts need up to now, each with what a checkpoint says of it."""
    openings = []
    for account in (books.accounts[name] for name in sorted(names) if name not in books.failed):
        until = now
        gone = account.is_budget and account.name not in books.budgets.budgets
        if gone and account.periods and account.periods[-1].end <= now:
            until = min(now, books.paid_until(account.name) - 1)  # it pays as long as any namespace was its own
        checkpoint = account.checkpoint
        for period in periods_to_open(account, until):
            opening = Opening(account.name, period.start, period.end, known=bool(account.periods))
            if checkpoint is not None and checkpoint.period.start == period.start:
                opening = replace(
                    opening,
                    checkpoint=checkpoint.amount,
                    exhausted_at=checkpoint.exhausted_at,
                    version=checkpoint.version,
                )
            openings.append((account, period, opening))
    return openings


def due_grants(
    books: Books, names: Container[str], now: int
) -> tuple[list[tuple[Grant, Period]], list[tuple[Account, str]]]:
    """The grants of accounts that the store has not taken, with their periods, and those whose period never opened.

    One that outlives its period comes into the first that there was before it expired, unless it was applied to one
    that is not known any more: what was left of it then is among the pots that were carried on, or there is nothing.
    """
    due: list[tuple[Grant, Period]] = []
    lapsed: list[tuple[Account, str]] = []
    for grant in books.budgets.grants.values():
        account = books.accounts.get(grant.budget) if grant.budget in names else None
        if account is None or not account.is_budget or grant.budget not in books.budgets.budgets:
            continue
        known = account.holds_pot(grant.name) and grant.name not in account.unconfirmed
        if grant.refused or grant.name in account.grants or known:
            continue
        instant = grant.created or now
        period = account.period_at(instant if instant < now + SKEW else now)
        if period is None and now < instant < now + SKEW:
            continue  # it opens as soon as our clock gets there, too
        if period is None and grant.expires is not None and not grant.applied:
            later = next(iter(account.periods_after(instant)), None)
            period = later if later is not None and later.start < grant.expires else None
        if period is None:
            lapsed.append((account, grant.name))
            continue
        due.append((grant, period))
    return due, lapsed
