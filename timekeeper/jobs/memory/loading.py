"""Rebuilds the leader's memory: from the store, from what it remembers of an emptied one, from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import redis
import structlog

from timekeeper.jobs.memory.accounts import Account, Checkpoint
from timekeeper.jobs.memory.acknowledged import (
    Acknowledged,
    Key,
    Posted,
    first_known,
    forgotten,
    use_of,
    without_use,
)
from timekeeper.jobs.memory.books import Books, Memory
from timekeeper.jobs.memory.metered import Metered, Meters
from timekeeper.metering.reservations import Tariff, tariff
from timekeeper.metering.segments import rate_now, spans
from timekeeper.metering.sessions import Session
from timekeeper.rules.budgets import Budget
from timekeeper.rules.periods import Period, PeriodRule, boundary_after
from timekeeper.rules.pots import OWN, Pot
from timekeeper.rules.pricing import amended
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.store import book, reading
from timekeeper.store.account_loading import StoredAccount, load_accounts
from timekeeper.store.calls import described
from timekeeper.store.isolation import each_apart
from timekeeper.store.reading import GONE, StoredAmount

_log = structlog.get_logger()


def load(client: redis.Redis, books: Books, now: int) -> set[str]:
    """Takes over what the store holds; the accounts that were known here and are lost there.

    Raises:
        redis.RedisError: the store does not answer.
    """
    remembered = books.accounts
    books.memory = books.memory or remember(books)
    books.budgets.take_stored(reading.budgets(client))
    _take_assignments(client, books)
    stored, books.unreadable = _readable(client, reading.account_names(client))
    books.failed = dict(books.unreadable)
    books.accounts = {
        account.name: Account(
            account.name,
            Budget(account.name),
            list(account.periods),
            dict(account.standings),
            {start: dict(pots) for start, pots in account.pots.items()},
            grants=dict(account.grants),
            corrections=dict(account.corrections),
            checkpoint=books.memory.checkpoints.get(account.name),
            burn=account.burn,
        )
        for account in stored
    }
    there = books.accounts.keys() | books.unreadable.keys()
    lost = {name for name, account in remembered.items() if account.periods and name not in there}
    books.figures, books.told = {}, {}
    _take_sessions(client, books, stored, now)
    _take_amounts(client, books, stored, now)
    for name in lost:
        books.accounts[name] = Account(name, remembered[name].budget, checkpoint=books.memory.checkpoints.get(name))
    books.ensure_accounts(account for known in books.assignments.values() for _, account in known)
    books.ensure_accounts(books.unreadable)
    return lost


def _readable(client: redis.Redis, names: Sequence[str]) -> tuple[list[StoredAccount], dict[str, str]]:
    """The accounts that can be read, and why others cannot."""
    stored: list[StoredAccount] = []
    failed = each_apart(names, lambda found: stored.extend(load_accounts(client, found)))
    for name, error in failed.items():
        _log.error("account not readable", account=name, error=described(error))
    return stored, {name: f"it cannot be read: {described(error)}" for name, error in failed.items()}


def remember(books: Books) -> Memory:
    """What is known now of what the store should hold; nothing for a leader that has only begun."""
    again = [*books.pods.sessions.all(), *(metered for _, metered in books.left)]
    computed: dict[Key, int] = {}
    for metered in again:
        for key, posted in metered.acknowledged.periods.items():
            if posted.finalized:
                computed[key] = computed.get(key, 0) + posted.amount
    checkpoints = {}
    for name, account in books.accounts.items():
        if account.standings:
            start, standing = max(account.standings.items())
            period = next(period for period in account.periods if period.start == start)
            pots = tuple(account.pots.get(start, {}).values())
            gone = max(standing.gone - computed.get((name, start), 0), 0)
            sums = (gone, standing.exhausted_at, pots, standing.struck)
            # No time: whoever has left is brought back, and not a part of it.
            checkpoints[name] = Checkpoint(period, 0, *sums, account.version)
    return Memory(checkpoints, frozenset(metered.session.uid for metered in again))


def take_checkpoints(books: Books, kept: Mapping[str, dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Gives accounts that the store has lost, or has of an earlier state, the checkpoint that they start again from.

    That is what this leader remembers or, where that is of a later version, the one in the budget's status, or
    among those that are `kept` of accounts without a budget.

    Returns:
        The accounts that the store does not hold, and those that went back to an earlier state.
    """
    lost, behind = set[str](), set[str]()
    for name, account in books.accounts.items():
        item = books.budgets.objects.get(name) or ({"status": kept[name]} if name in kept else None)
        if item is not None:
            written = read_checkpoint(item, account.budget.period)
            if written is not None and (account.checkpoint is None or written.version > account.checkpoint.version):
                account.checkpoint = written
        if account.checkpoint is None or name in books.failed:
            continue
        if not account.periods:
            lost.add(name)
        elif account.checkpoint.version > account.version:
            behind.add(name)
        else:
            account.checkpoint = None
    return lost, behind


def bring_back(books: Books, behind: set[str]) -> None:
    """Puts sessions back on the meter that have left since the checkpoint that their account starts again from.

    Where the store still holds them, it takes no notice.
    """
    for left_at, metered in books.left:
        names = {account for account, _ in metered.acknowledged.periods}
        started = [books.accounts[name] for name in names if name in behind or not books.accounts[name].periods]
        checkpoints = [account.checkpoint for account in started]
        if all(checkpoint is None or checkpoint.time < left_at for checkpoint in checkpoints):
            metered.acknowledged = forgotten(metered.acknowledged)
            _replace(books.pods.sessions, metered)
    books.left = []


def _replace(sessions: Meters, metered: Metered) -> None:
    """Puts a session on the meter in place of what the store still has of it: that it is open, and some of its cost."""
    stored = sessions.get(metered.session.uid)
    if stored is not None:
        metered.acknowledged = stored.acknowledged
        sessions.drop(stored)
    sessions.keep(metered)


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
        version = int(found.get("version", 0))
    except (TimeError, KeyError, TypeError, ValueError):
        return None
    return Checkpoint(Period(start, end), time, amount, exhausted_at, pots, struck, version)


def _read_pot(found: dict[str, Any]) -> Pot:
    return Pot(
        name=str(found.get("grant", OWN)),
        amount=int(found["microGPUSeconds"]),
        expires=parse_instant(found["expires"]),
        since=int(found.get("sinceMicroGPUSeconds", 0)),
        lapsed=found.get("lapsed") is True,
    )


def _take_assignments(client: redis.Redis, books: Books) -> None:
    """What this leader knows counts: a store that differs went back to what was before."""
    stored = reading.assignments(client)
    book.write_assignments(
        client, {name: known for name, known in books.assignments.items() if stored.get(name) != known}
    )
    books.assignments = {**stored, **books.assignments}


def _take_sessions(client: redis.Redis, books: Books, stored: list[StoredAccount], now: int) -> None:
    """Takes over the sessions that the store has records of; their amounts are read apart."""
    sessions = books.pods.sessions
    for metered in sessions.all():
        metered.acknowledged = forgotten(metered.acknowledged)
    for account in stored:
        for record in account.ended:
            metered = sessions.keep(Metered(without_use(record)))
            metered.acknowledged = Acknowledged(session=without_use(record), use=use_of(record), closed=True)
        for record in account.sessions:
            session = without_use(record)
            metered = sessions.keep(Metered(session))
            metered.acknowledged = Acknowledged(
                session=metered.session if metered.session == session else session,
                use=use_of(record),
                open_under=account.name,
                posted_at=now,
                posted_rate=rate_now(record.tariff, now),
            )
    index = ((session.uid, account.name) for account in stored for session in account.sessions)
    book.renew_index(client, index, books.unreadable.keys())


def _take_amounts(client: redis.Redis, books: Books, stored: list[StoredAccount], now: int) -> None:
    """Takes over the amounts of the sessions that are metered: a period holds one of every pod that ever ran in it."""
    wanted = _amounts_that_matter(books, stored)
    found: dict[str, dict[Key, StoredAmount]] = {}

    def read(names: Sequence[str]) -> None:
        chosen = set(names)
        for key, amounts in reading.amounts_of(client, [item for item in wanted if item[0] in chosen]).items():
            for uid, amount in amounts.items():
                found.setdefault(uid, {})[key] = amount

    for name, error in each_apart({account for account, *_ in wanted}, read).items():
        books.unreadable[name] = books.failed[name] = f"its amounts cannot be read: {described(error)}"
        _log.error("account not readable", account=name, error=described(error))
    for uid, amounts_found in found.items():
        metered = books.pods.sessions.get(uid)
        if metered is not None:
            metered.acknowledged = _with_amounts(books, metered, amounts_found, now)


def _amounts_that_matter(books: Books, stored: list[StoredAccount]) -> list[tuple[str, int, list[str]]]:
    """The latest periods of each account with the sessions that may be in them, and the last one of ended sessions."""
    payers: dict[str, set[str]] = {}
    for namespace, known in books.assignments.items():
        for _, name in known:
            payers.setdefault(name, set()).add(namespace)
    wanted: list[tuple[str, int, list[str]]] = []
    for account in stored:
        found = [m for name in payers.get(account.name, ()) for m in books.pods.sessions.of_namespace(name)]
        uids = [metered.session.uid for metered in found]
        starts = {start: list(uids) for start in account.standings if uids}
        for session in account.ended:
            last = books.accounts[account.name].period_at((session.end or 0) - 1)
            if last is not None and last.start not in starts:
                starts.setdefault(last.start, []).append(session.uid)
        wanted.extend((account.name, start, uids) for start, uids in starts.items())
    return wanted


def _with_amounts(books: Books, metered: Metered, amounts: Mapping[Key, StoredAmount], now: int) -> Acknowledged:
    """Adds the store's amounts in these periods to an acknowledged session."""
    known = metered.acknowledged
    periods = {key: Posted(amount.amount, amount.cut, amount.flag == GONE) for key, amount in amounts.items()}
    if known.closed:
        return known._replace(periods=periods)
    ends = {(name, start): books.accounts[name].period_at(start) for name, start in periods}
    over = {key: found.end for key, found in ends.items() if found is not None and found.end <= now}
    unsettled = [end for key, end in over.items() if not _is_final(books, metered.session, key, end, amounts[key])]
    final = [end for end in over.values() if end < min(unsettled, default=now + 1)]
    settled_until = max([first_known(known.use), *final])
    going_on = {key: found for key, found in periods.items() if not _ends_by(ends[key], settled_until)}
    return known._replace(periods=going_on, settled_until=settled_until)


def _ends_by(period: Period | None, instant: int) -> bool:
    return period is not None and period.end <= instant


def _is_final(books: Books, session: Session, key: Key, end: int, amount: StoredAmount) -> bool:
    """Whether a period that is over holds all of a session: all is posted, up to the end of its last stretch there."""
    account, start = key
    payers = books.assignments.get(session.namespace, ())
    period = Period(start, end)
    stretches = spans(payers, lambda name: (period,) if name == account else (), session.start, end)
    last = max((span.end for span in stretches), default=start)
    return amount.amount == amount.posted and amount.cut is not None and amount.cut.until >= last


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
                metered.session = replace(session, tariff=rates)
    return True


def bring_rates_up(books: Books, since: int) -> None:
    """Gives sessions of a store that went back to before a change of prices the rates that they had from then on.

    Args:
        books: with the prices as they were charged.
        since: the first change that the store did not know of, in nanoseconds since 1970.
    """
    for metered in books.pods.sessions.all():
        session = metered.session
        if metered.reservation is None or metered.acknowledged.closed:
            continue
        rates = tariff(metered.reservation, books.prices, max(since, session.start), books.rules.charge)
        known = from_now_on(session.tariff, rates)
        if known != session.tariff:
            metered.session = replace(session, tariff=known)


def from_now_on(rates: Tariff, later: Tariff) -> Tariff:
    """The rates until the first instant of `later`, and from then on those of `later`."""
    since, rate = later[0]
    past = tuple(entry for entry in rates if entry[0] < since)
    if past and past[-1][1] == rate:
        return past + later[1:]
    return past + later
