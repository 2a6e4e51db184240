"""Settles sessions: plans them, sends the plans to the store in few calls, and notes what it has acknowledged."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import structlog

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.jobs.round.billed_use import billing, take_use
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.jobs.round.paying import open_due_periods
from timekeeper.jobs.round.settlement_plans import Plan, acknowledge, plan
from timekeeper.jobs.round.use_by_hour import with_reports
from timekeeper.store import book, reading
from timekeeper.store.calls import StoreError
from timekeeper.store.ledger import Action, Item, Revision, Settlement, settle, settle_each
from timekeeper.store.standing import Standing

Refused = tuple[Key, str]
"""A session's uid, and the account and period in which the store did not take its amount."""

_log = structlog.get_logger()


def settle_accounts(desk: Desk, now: int, touched: set[str]) -> None:
    """Brings the sessions of these accounts up to an instant.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
        redis.RedisError: as above.
    """
    books = desk.books
    concerned = [m for m in books.sessions_under(touched) if _unsettled(m) and not _waits_for_a_payer(books, m)]
    namespaces = {metered.session.namespace for metered in concerned}
    open_due_periods(desk, now, {account for namespace in namespaces for _, account in books.assignments[namespace]})
    billed = billing(books.rules.bill, books.prices, books.rules.charge)
    if billed:
        _take_use(desk, concerned)
    plans = [
        plan(metered, books.assignments[metered.session.namespace], books.accounts, desk.until(metered, now), billed)
        for metered in concerned
    ]
    plans = with_reports(desk.client, plans)
    refused = _send(desk, plans, now)
    done = [prepared for prepared in plans if not _refused_in(prepared, refused)] if refused else plans
    ends = [account for prepared in done if prepared.ends for account, _ in prepared.items]
    if ends and not desk.replicated("ends of sessions", ends):
        done = [prepared for prepared in done if not prepared.ends]
    _acknowledge(desk, done, now)


def _send(desk: Desk, plans: list[Plan], now: int) -> set[Refused]:
    """Sends all items, those of one period of one account together; what was refused.

    A settlement of several items that was refused is sent item by item: one session stops no other.
    """
    batches: dict[Key, list[Item]] = {}
    for prepared in plans:
        for key, item in prepared.items.items():
            batches.setdefault(key, []).append(item)
    desk.step("settle")
    revision = desk.next_revision()
    settlements = [Settlement(account, period, items) for (account, period), items in batches.items()]
    answers = settle(desk.client, revision, now, settlements)
    refused: dict[Refused, StoreError] = {}
    for settlement, answer in zip(settlements, answers, strict=True):
        key = settlement.account, settlement.period
        if isinstance(answer, Standing):
            desk.books.accounts[key[0]].standings[key[1]] = answer
            continue
        raise_if_general(answer)
        standing, found = _send_each(desk, revision, now, settlement, answer)
        refused |= {(key, uid): error for uid, error in found.items()}
        if standing is not None:
            desk.books.accounts[key[0]].standings[key[1]] = standing
    _note_gone(plans, refused.keys())
    for ((account, period), uid), error in refused.items():
        desk.books.not_settled[account] = str(error)
        _log.error("not settled", account=account, period=period, uid=uid, error=str(error))
    return set(refused)


def _send_each(
    desk: Desk, revision: Revision, now: int, settlement: Settlement, error: StoreError
) -> tuple[Standing | None, dict[str, StoreError]]:
    if len(settlement.items) == 1:
        return None, {settlement.items[0].uid: error}
    standing, refused = settle_each(desk.client, revision, now, settlement)
    for found in refused.values():
        raise_if_general(found)
    return standing, refused


def _refused_in(prepared: Plan, refused: AbstractSet[Refused]) -> bool:
    return any((key, prepared.metered.session.uid) in refused for key in prepared.items)


def _note_gone(plans: list[Plan], refused: AbstractSet[Refused]) -> None:
    """Notes which sessions a period's sum of those that are gone holds now, whether or not a replica has it, too."""
    for metered, _, items, plain in plans:
        if plain and not metered.gone_in:
            continue
        for key, item in items.items():
            settled = (key, item.uid) not in refused
            if settled and item.action is Action.GONE:
                metered.gone_in[key] = item.amount
            elif settled:
                metered.gone_in.pop(key, None)


def _acknowledge(desk: Desk, plans: list[Plan], now: int) -> None:
    books = desk.books
    opened: list[tuple[str, str]] = []
    closed: list[tuple[str, str]] = []
    changed = [done for done in plans if not done.plain]
    for done in changed:
        uid = done.metered.session.uid
        for (account, _), item in done.items.items():
            if item.action is Action.OPEN:
                opened.append((uid, account))
            elif item.action not in {Action.HOLD, Action.POST}:
                closed.append((uid, account))
    desk.step("index")
    book.index_sessions(desk.client, opened, closed)
    book.end_reports(desk.client, [done.metered.session.uid for done in changed if _ends(done)])
    book.let_reports_go(desk.client, [done.metered.session.uid for done in changed if done.metered.pod_gone])
    for done in plans:
        acknowledge(done, books.accounts, now)
    for done in changed:
        if done.metered.pod_gone and done.metered.closed:
            books.left.append((now, done.metered))
            books.pods.sessions.drop(done.metered)


def _ends(plan: Plan) -> bool:
    return any(item.action in {Action.CLOSE, Action.GONE} for item in plan.items.values())


def _take_use(desk: Desk, sessions: list[Metered]) -> None:
    bodies = reading.reports(desk.client, [metered.session.uid for metered in sessions])
    for metered, body in zip(sessions, bodies, strict=True):
        take_use(metered, body, desk.books.prices)


def _unsettled(metered: Metered) -> bool:
    """Whether the store must still hear of it: a closed session waits for its pod to go."""
    return not metered.closed or metered.pod_gone


def _waits_for_a_payer(books: Books, metered: Metered) -> bool:
    """Whether the store cannot take a session now, since nothing can be done with an account that pays for it."""
    return bool(books.failed) and not books.failed.keys().isdisjoint(
        books.payers_since(metered.session.namespace, metered.session.start)
    )
