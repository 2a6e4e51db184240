"""Begins a term, or begins anew with a store that was restarted: what it holds, what is remembered, what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

import structlog

from fairgpu.cluster.api import Json
from timekeeper.jobs.memory.accounts import DEFAULT_PREFIX, Account
from timekeeper.jobs.memory.loading import bring_back, bring_rates_up, load, reprice, take_checkpoints
from timekeeper.jobs.memory.moves import read_moves
from timekeeper.jobs.memory.observing import nodes_that_are_silent
from timekeeper.jobs.memory.price_history import first_forgotten, later_prices, read_prices
from timekeeper.jobs.round.desk import Desk
from timekeeper.jobs.round.paying import assign, open_due_periods
from timekeeper.jobs.round.restoring import MAX_NOTICES, restore_accounts
from timekeeper.jobs.round.settlement import write_report_terms
from timekeeper.metering.segments import Assignments
from timekeeper.rules.budgets import payers
from timekeeper.sources.source import Notice
from timekeeper.store import book, keys, reading
from timekeeper.store.book import highest_epoch
from timekeeper.store.calls import FencedError, described
from timekeeper.store.conversion import convert_store
from timekeeper.store.isolation import each_apart

_log = structlog.get_logger()


def take_over(desk: Desk, now: int) -> bool:
    """Makes the books those of the store, the mirrors and the checkpoints; whether the store must hear of the prices.

    Raises:
        FencedError: another leader has followed.
        StoreError: the store refused.
        redis.RedisError: it does not answer.
    """
    books, mirrors = desk.books, desk.source.mirrors
    _claim(desk)
    converted = convert_store(desk.client, desk.epoch, desk.step)
    if converted:
        _log.info("store converted", format=keys.FORMAT, accounts=converted)
    stored_prices, kept = reading.prices(desk.client), desk.source.read_checkpoints()
    remembered = books.prices or later_prices(stored_prices, read_prices(kept), now)
    books.prices = remembered
    load(desk.client, books, now)
    books.budgets.refresh(mirrors)
    _bring_moves_back(desk)
    _bring_payers_back(desk, kept)
    assign(desk, now)
    lost, behind = take_checkpoints(books, kept)
    bring_back(books, behind)
    there = {name for name in behind if _is_there(books.accounts[name])}
    _apart(desk, set(books.accounts), lambda names: open_due_periods(desk, now, names))
    desk.silent = nodes_that_are_silent(mirrors)
    books.pods.refresh(mirrors.pods, desk.meter_rules(), desk.silent, desk.reported, now, desk.clocks)
    _apart(desk, there, lambda names: restore_accounts(desk, names, now))
    books.pods.end_missing(reading.watched(desk.client), desk.reported, now)
    if stored_prices and remembered != stored_prices:
        bring_rates_up(books, first_forgotten(stored_prices, remembered, now))
    reprice(books, now)
    write_report_terms(desk, [found for found in books.pods.sessions.all() if found.acknowledged.open_under], now)
    lost = (lost | behind - there) - books.failed.keys()
    for name in sorted(lost):
        _log.error("account was not in the store: it starts again from its checkpoint", account=name)
    for name in sorted(lost & books.budgets.objects.keys())[:MAX_NOTICES]:
        _tell_of_loss(desk, books.budgets.objects[name])
    books.memory = None
    return books.prices != stored_prices


def _apart(desk: Desk, names: AbstractSet[str], act: Callable[[list[str]], object]) -> None:
    """Does something with accounts; what is wrong with one of them is noted, and stops no other."""
    failed = each_apart(names - desk.books.failed.keys(), act)
    for name, error in failed.items():
        desk.books.unreadable[name] = desk.books.failed[name] = described(error)
        _log.error("account not readable", account=name, error=described(error))


def _bring_moves_back(desk: Desk) -> None:
    """Takes over who paid for namespaces before they moved, where the store has forgotten them."""
    books = desk.books
    known = read_moves(books.budgets.objects.values())
    forgotten = {namespace: found for namespace, found in known.items() if namespace not in books.assignments}
    book.write_assignments(desk.client, forgotten)
    books.assignments.update(forgotten)


def _bring_payers_back(desk: Desk, kept: Iterable[str]) -> None:
    """Takes over again that namespaces without a budget had spent something, where the store has forgotten them."""
    books = desk.books
    paid = payers(books.budgets.budgets.values())[0]
    named = {name.removeprefix(DEFAULT_PREFIX): name for name in kept if name.startswith(DEFAULT_PREFIX)}
    forgotten: dict[str, Assignments] = {
        namespace: ((0, name),)
        for namespace, name in named.items()
        if namespace not in paid and namespace not in books.assignments
    }
    book.write_assignments(desk.client, forgotten)
    books.assignments.update(forgotten)
    books.ensure_accounts(account for ((_, account),) in forgotten.values())


def _claim(desk: Desk) -> None:
    """Makes sure that nobody has followed, in a store that may have gone back to before this term, too."""
    latest = highest_epoch(desk.client)
    if latest > desk.epoch:
        raise FencedError(f"epoch {desk.epoch} was followed by {latest}")
    book.write_epoch(desk.client, desk.epoch)


def _is_there(account: Account) -> bool:
    """Whether the store has the period that the checkpoint is of."""
    return account.checkpoint is not None and account.checkpoint.period.start in account.standings


def _tell_of_loss(desk: Desk, budget: Json) -> None:
    message = (
        "The store of the ledger had been emptied. Spending starts again from the last checkpoint; sessions "
        "that ended after it and whose pods are gone are not charged, and grants and corrections whose objects were "
        "deleted are not there any more."
    )
    desk.source.tell(Notice(budget, "LedgerRestored", message, warning=True))
