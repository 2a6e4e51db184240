"""Applies grants to the periods in which they were made."""

from __future__ import annotations

import structlog

from timekeeper.jobs.desk import Desk, raise_if_general
from timekeeper.jobs.due import due_grants
from timekeeper.store.ledger import Standing, apply_grants

_log = structlog.get_logger()


def apply_due_grants(desk: Desk, now: int) -> set[str]:
    """Applies the grants that the store has not taken; the accounts that they concern.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
    """
    books = desk.books
    entries, lapsed = due_grants(books, now)
    for account, name in lapsed:
        account.grants.add(name)
    if not entries:
        return set()
    desk.step("grant")
    answers = apply_grants(desk.client, desk.epoch, now, entries)
    kept = desk.replicated("grants", [entry.account for entry in entries])
    for entry, answer in zip(entries, answers, strict=True):
        account = books.accounts[entry.account]
        if isinstance(answer, Standing):
            account.standings[entry.period] = answer
        else:
            raise_if_general(answer)
            _log.error("grant not applied", grant=entry.name, budget=entry.account, error=str(answer))
        if kept:
            account.grants.add(entry.name)
    return {entry.account for entry in entries}
