"""Settles sessions: plans them, sends the plans to the store in few calls, and notes what it has acknowledged."""

from __future__ import annotations

import structlog

from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.jobs.round.billed_use import billing, take_use
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.jobs.round.paying import open_due_periods
from timekeeper.jobs.round.settlement_plans import Plan, acknowledge, plan
from timekeeper.jobs.round.use_by_hour import with_reports
from timekeeper.store import book, reading
from timekeeper.store.calls import StoreError
from timekeeper.store.ledger import Action, Item, Settlement, settle
from timekeeper.store.standing import Standing

_log = structlog.get_logger()


def settle_accounts(desk: Desk, now: int, touched: set[str]) -> None:
    """Brings the sessions of these accounts up to an instant.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
        redis.RedisError: as above.
    """
    books = desk.books
    concerned = [metered for metered in books.sessions_under(touched) if _unsettled(metered)]
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
    failed = _send(desk, plans, now)
    done = [prepared for prepared in plans if not failed & prepared.items.keys()] if failed else plans
    ends = [account for prepared in done if prepared.ends for account, _ in prepared.items]
    if ends and not desk.replicated("ends of sessions", ends):
        done = [prepared for prepared in done if not prepared.ends]
    _acknowledge(desk, done, now)


def _send(desk: Desk, plans: list[Plan], now: int) -> set[Key]:
    """Sends all items, those of one period of one account together; the periods that were refused."""
    batches: dict[Key, list[Item]] = {}
    for prepared in plans:
        for key, item in prepared.items.items():
            batches.setdefault(key, []).append(item)
    desk.step("settle")
    settlements = [Settlement(account, period, items) for (account, period), items in batches.items()]
    answers = dict(zip(batches, settle(desk.client, desk.next_revision(), now, settlements), strict=True))
    failed = {key: answer for key, answer in answers.items() if isinstance(answer, StoreError)}
    for key, answer in answers.items():
        if isinstance(answer, Standing):
            desk.books.accounts[key[0]].standings[key[1]] = answer
    _note_gone(plans, answers.keys() - failed.keys())
    for (account, period), error in failed.items():
        raise_if_general(error)
        _log.error("not settled", account=account, period=period, error=str(error))
    return set(failed)


def _note_gone(plans: list[Plan], settled: set[Key]) -> None:
    """Notes which sessions a period's sum of those that are gone holds now, whether or not a replica has it, too."""
    for metered, _, items, plain in plans:
        if plain and not metered.gone_in:
            continue
        for key, item in items.items():
            if key in settled and item.action is Action.GONE:
                metered.gone_in[key] = item.amount
            elif key in settled:
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
