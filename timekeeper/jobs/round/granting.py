"""Applies grants to the periods in which they were made."""

from __future__ import annotations

from collections.abc import Container

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.due import due_grants
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.jobs.round.striking import SpentBy, spending
from timekeeper.rules.grants import Grant
from timekeeper.rules.orders import Taken
from timekeeper.rules.periods import Period
from timekeeper.rules.pots import Pot
from timekeeper.store import reading
from timekeeper.store.calls import StoreError
from timekeeper.store.money import GrantEntry, apply_grants
from timekeeper.store.standing import Standing

_log = structlog.get_logger()


def apply_due_grants(desk: Desk, now: int, names: Container[str]) -> set[str]:
    """Applies the grants of some accounts that the store has not taken; the accounts that they concern.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
    """
    books = desk.books
    due, lapsed = due_grants(books, names, now)
    for account, name in lapsed:
        account.grants[name] = None
    if not due:
        return set()
    spent_by = spending(desk, now)
    entries = [_entry(desk, grant, period, spent_by, now) for grant, period in due]
    desk.step("grant")
    answers = apply_grants(desk.client, desk.epoch, now, entries)
    kept = desk.replicated("grants", [entry.account for entry in entries])
    for entry, answer in zip(entries, answers, strict=True):
        account = books.accounts[entry.account]
        if isinstance(answer, Standing):
            account.standings[entry.period] = answer
            if entry.expires is not None:
                _take_pot(desk, account, entry, new=answer.new)
        else:
            raise_if_general(answer)
            _log.error("grant not applied", grant=entry.name, budget=entry.account, error=str(answer))
        if kept:
            account.grants[entry.name] = _taken(desk, entry, answer)
            account.unconfirmed.discard(entry.name)
        else:
            account.unconfirmed.add(entry.name)
    return {entry.account for entry in entries}


def _taken(desk: Desk, entry: GrantEntry, answer: Standing | StoreError) -> Taken | None:
    """What the store holds under a grant's name, which it may have held before; None where it refused it."""
    if isinstance(answer, StoreError):
        return None
    if answer.new:
        return Taken(entry.period, entry.amount)
    return reading.orders_of(desk.client, entry.account)[0].get(entry.name)


def _take_pot(desk: Desk, account: Account, entry: GrantEntry, *, new: bool) -> None:
    """Notes the pot that the store holds: of a grant whose answer was lost, as it stands there since."""
    pots = account.pots.setdefault(entry.period, {})
    if new and entry.expires is not None:
        pots[entry.name] = Pot(entry.name, entry.amount, entry.expires, entry.since)
    else:
        pots |= reading.pots(desk.client, account.name, entry.period)


def _entry(desk: Desk, grant: Grant, period: Period, spent_by: SpentBy, now: int) -> GrantEntry:
    since = 0
    if grant.expires is not None:
        since = max(0, spent_by(desk.books.accounts[grant.budget], period, min(grant.created or now, now)))
    return GrantEntry(grant.budget, period.start, grant.name, grant.amount, grant.note, grant.expires, since)
