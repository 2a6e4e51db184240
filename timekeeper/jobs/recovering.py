"""Begins a term, or begins anew with a store that was restarted: what it holds, what is remembered, what is there."""

from __future__ import annotations

import structlog

from fairgpu.cluster.api import Json
from timekeeper.jobs.desk import Desk
from timekeeper.jobs.loading import bring_back, load, reprice, take_checkpoints
from timekeeper.jobs.observing import nodes_that_are_silent
from timekeeper.jobs.paying import assign, open_due_periods
from timekeeper.sources.source import Notice
from timekeeper.store import reading

MAX_NOTICES = 20
"""Accounts beside whose loss an event is written: where more are lost at once, all of them are."""

_log = structlog.get_logger()


def take_over(desk: Desk, now: int) -> bool:
    """Makes the books those of the store, the mirrors and the checkpoints; whether the prices have changed.

    Raises:
        StoreError: the store refused.
        redis.RedisError: it does not answer.
    """
    books, mirrors = desk.books, desk.source.mirrors
    lost = load(desk.client, books, now)
    books.budgets.refresh(mirrors)
    assign(desk, now)
    restored = take_checkpoints(books)
    bring_back(books)
    open_due_periods(desk, now, set(books.accounts))
    desk.silent = nodes_that_are_silent(mirrors)
    books.pods.refresh(mirrors.pods, desk.meter_rules(), desk.silent, desk.reported, now)
    books.pods.end_missing(reading.watched(desk.client), desk.reported, now)
    repriced = reprice(books, now)
    for name in sorted(lost | restored):
        _log.error("account was not in the store: it starts again from its checkpoint", account=name)
    for name in sorted((lost | restored) & books.budgets.objects.keys())[:MAX_NOTICES]:
        _tell_of_loss(desk, books.budgets.objects[name])
    return repriced


def _tell_of_loss(desk: Desk, budget: Json) -> None:
    message = (
        "The store of the ledger had been emptied. Spending starts again from the last checkpoint; sessions "
        "that ended after it and whose pods are gone are not charged."
    )
    desk.source.tell(Notice(budget, "LedgerRestored", message, warning=True))
