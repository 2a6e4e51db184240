"""Rebuilds the leader's memory: from the store, from what it remembers of an emptied one, from checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import redis

from timekeeper.jobs.accounts import Account, Checkpoint
from timekeeper.jobs.books import Books
from timekeeper.jobs.metered import Metered
from timekeeper.metering.reservations import Tariff, tariff
from timekeeper.metering.segments import rate_now
from timekeeper.rules.budgets import Budget
from timekeeper.rules.periods import Period, PeriodRule, boundary_after
from timekeeper.rules.pots import OWN, Pot
from timekeeper.rules.pricing import amended
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.store import book, reading


def load(client: redis.Redis, books: Books, now: int) -> set[str]:
    """Takes over what the store holds; the accounts that were known here and are lost there.

    Raises:
        redis.RedisError: the store does not answer.
    """
    remembered = books.accounts
    books.assignments = reading.assignments(client) or books.assignments
    books.prices = reading.prices(client) or books.prices
    stored = reading.load_accounts(client, reading.account_names(client))
    books.accounts = {
        account.name: Account(
            account.name,
            Budget(account.name),
            list(account.periods),
            dict(account.standings),
            {start: dict(pots) for start, pots in account.pots.items()},
            set(account.grants),
            burn=account.burn,
        )
        for account in stored
    }
    lost = {name for name, account in remembered.items() if account.periods and name not in books.accounts}
    books.figures, books.told = {}, {}
    _take_sessions(client, books, stored, now)
    _take_amounts(client, books, stored)
    for name in lost:
        books.accounts[name] = Account(name, remembered[name].budget, checkpoint=remembered[name].checkpoint)
    books.ensure_accounts(account for known in books.assignments.values() for _, account in known)
    return lost


def take_checkpoints(books: Books) -> set[str]:
    """Gives accounts that the store does not hold the checkpoint of their budget's status, if that is newer than ours.

    The accounts that start again from one.
    """
    restored: set[str] = set()
    for name, account in books.accounts.items():
        if account.periods or name not in books.budgets.objects:
            continue
        written = read_checkpoint(books.budgets.objects[name], account.budget.period)
        if written is not None and (account.checkpoint is None or written.time > account.checkpoint.time):
            account.checkpoint = written
        if account.checkpoint is not None:
            restored.add(name)
    return restored


def bring_back(books: Books) -> None:
    """Puts sessions back on the meter that have left since the checkpoint that their account starts again from.

    Where the store still holds them, it takes no notice.
    """
    for left_at, metered in books.left:
        names = {account for account, _ in metered.written}
        checkpoints = [books.accounts[name].checkpoint for name in names if not books.accounts[name].periods]
        if all(checkpoint is None or checkpoint.time < left_at for checkpoint in checkpoints):
            metered.forget_store()
            books.pods.sessions.keep(metered)
    books.left = []


def read_checkpoint(item: dict[str, Any], rule: PeriodRule) -> Checkpoint | None:
    """The checkpoint in a GPUBudget's status; None where there is none that can be read."""
    status = item.get("status") or {}
    found = status.get("checkpoint") or {}
    try:
        start = parse_instant(found.get("period"))
        time = parse_instant(found.get("time"))
        amount = int(found["closedMicroGPUSeconds"])
        present = status.get("period") or {}
        ours = present.get("end") is not None and parse_instant(present.get("start")) == start
        end = parse_instant(present["end"]) if ours else boundary_after(rule, start)
        exhausted = status.get("exhaustedAt")
        exhausted_at = parse_instant(exhausted) if exhausted and ours else None
        pots = tuple(_read_pot(pot) for pot in found.get("pots") or ())
        struck = int(found["previousMicroGPUSeconds"]) if "previousMicroGPUSeconds" in found else None
    except (TimeError, KeyError, TypeError, ValueError):
        return None
    return Checkpoint(Period(start, end), time, amount, exhausted_at, pots, struck)


def _read_pot(found: dict[str, Any]) -> Pot:
    return Pot(
        name=str(found.get("grant", OWN)),
        amount=int(found["microGPUSeconds"]),
        expires=parse_instant(found["expires"]),
        since=int(found.get("sinceMicroGPUSeconds", 0)),
        lapsed=found.get("lapsed") is True,
    )


def _take_sessions(client: redis.Redis, books: Books, stored: list[reading.StoredAccount], now: int) -> None:
    sessions = books.pods.sessions
    for metered in sessions.all():
        metered.forget_store()
    for account in stored:
        for session in account.ended:
            sessions.keep(Metered(session)).closed = True
        for session in account.sessions:
            metered = sessions.keep(Metered(session))
            metered.recorded_in, metered.final_until = account.name, metered.known_from
            metered.posted_at, metered.posted_rate = now, rate_now(session.tariff, now)
    book.renew_index(client, ((session.uid, account.name) for account in stored for session in account.sessions))


def _take_amounts(client: redis.Redis, books: Books, stored: list[reading.StoredAccount]) -> None:
    """A period holds an amount of every pod that ever ran in it: only those are read that still matter."""
    payers: dict[str, set[str]] = {}
    for namespace, known in books.assignments.items():
        for _, name in known:
            payers.setdefault(name, set()).add(namespace)
    wanted: list[tuple[str, int, list[str]]] = []
    for account in stored:
        found = [m for name in payers.get(account.name, ()) for m in books.pods.sessions.of_namespace(name)]
        uids = [metered.session.uid for metered in found]
        wanted.extend((account.name, start, uids) for start in account.standings if uids)
    for key, amounts in reading.amounts_of(client, wanted).items():
        for uid, amount in amounts.items():
            metered = books.pods.sessions.get(uid)
            if metered is not None:
                metered.written[key] = amount.amount
                if amount.cut is not None:
                    metered.cut_at[key] = amount.cut.until


def reprice(books: Books, now: int) -> bool:
    """Takes over the configured prices from now on. What was metered keeps the rates that it had.

    Whether they have changed: then the store must hear of them, but not before it holds every session with its new
    rates. A leader that ends in between leaves the change to the next one.
    """
    # Where nothing was ever charged, the configured past is the only one there is.
    prices = amended(books.prices or books.rules.prices, books.rules.prices, now)
    if prices == books.prices:
        return False
    books.prices = prices
    for metered in books.pods.sessions.all():
        session = metered.session
        if metered.reservation is not None and session.end is None:
            later = tariff(metered.reservation, prices, max(now, session.start), books.rules.charge)
            rates = from_now_on(session.tariff, later)
            if rates != session.tariff:
                metered.session, metered.record_stale = replace(session, tariff=rates), True
    return True


def from_now_on(rates: Tariff, later: Tariff) -> Tariff:
    """The rates until the first instant of `later`, and from then on those of `later`."""
    since, rate = later[0]
    past = tuple(entry for entry in rates if entry[0] < since)
    if past and past[-1][1] == rate:
        return past + later[1:]
    return past + later
