"""Who pays from now on, and in which periods: what the store must know before anything is metered."""

from __future__ import annotations

from collections.abc import Iterable

from timekeeper.jobs.memory.accounts import Account, reassigned
from timekeeper.jobs.memory.due import due_openings
from timekeeper.jobs.round.desk import Desk, checked
from timekeeper.jobs.round.striking import take
from timekeeper.rules.budgets import payers
from timekeeper.rules.periods import Period
from timekeeper.store import book
from timekeeper.store.calls import StoreError
from timekeeper.store.ledger import Kind, Opening, open_periods
from timekeeper.store.money import PotEntry, Strike, strike


def assign(desk: Desk, now: int) -> set[str]:
    """Settles who pays from now on, in the store first: nothing may be metered under what could be forgotten.

    The accounts whose namespaces or whose budget changed.
    """
    books = desk.books
    books.payers, books.conflicts = payers(books.budgets.budgets.values())
    metered = books.pods.sessions.namespaces() | books.pods.namespaces
    changed = reassigned(books.assignments, books.payers, metered, now)
    desk.step("assign")
    kept = books.budgets.not_stored()
    book.write_budgets(desk.client, kept)
    books.budgets.stored.update(kept)
    book.write_assignments(desk.client, changed)
    books.assignments.update(changed)
    before = set(books.accounts)
    books.ensure_accounts(books.budgets.budgets)
    books.ensure_accounts(account for known in changed.values() for _, account in known)
    book.write_accounts(desk.client, sorted(books.accounts.keys() - before))
    moved = {account for known in changed.values() for _, account in known[-2:]}
    return moved | books.refresh_budgets() | (books.accounts.keys() - before)


def open_due_periods(desk: Desk, now: int, names: Iterable[str]) -> None:
    """Opens the periods that these accounts need up to now.

    Raises:
        StoreError: one was refused. All that was opened is taken over before, and the rest is opened by the next call.
    """
    openings = due_openings(desk.books, names, now)
    if not openings:
        return
    desk.step("open")
    book.note_restored(desk.client, [opening.account for *_, opening in openings if opening.checkpoint])
    answers = open_periods(desk.client, desk.epoch, now, [opening for _, _, opening in openings])
    refused: dict[str, StoreError] = {}
    opened = []
    for opening, answer in zip(openings, answers, strict=True):
        account, period, _ = opening
        if isinstance(answer, StoreError):
            refused.setdefault(account.name, answer)
        elif account.name not in refused:
            account.standings[period.start] = answer
            account.periods.append(period)
            opened.append(opening)
    _bring_pots_back(desk, now, opened)
    for error in refused.values():
        raise error


def _bring_pots_back(desk: Desk, now: int, openings: list[tuple[Account, Period, Opening]]) -> None:
    """Gives periods that start again from a checkpoint the money that they had beside their own."""
    strikes = []
    for account, period, _ in openings:
        found = account.checkpoint
        if found is not None and found.period.start == period.start and (found.pots or found.struck is not None):
            entries = [PotEntry(pot, Kind.CARRY, "the store had been lost") for pot in found.pots]
            strikes.append((account, Strike(account.name, period.start, entries, found.struck)))
    answers = strike(desk.client, desk.epoch, now, [change for _, change in strikes])
    for (account, change), answer in zip(strikes, answers, strict=True):
        take(account, change, checked(answer))
