"""Settles sessions: computes what is to be written, sends it in few calls, and adopts what the store has taken."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import structlog

from timekeeper.jobs.memory.acknowledged import Key
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.round import settling
from timekeeper.jobs.round.desk import Desk, is_general
from timekeeper.jobs.round.paying import open_due_periods
from timekeeper.metering.bill import Bill
from timekeeper.metering.reports import QUARTER, Marks, report_terms
from timekeeper.store import book
from timekeeper.store.calls import StoreError
from timekeeper.store.ledger import Action, Item, Revision, Settlement, settle, settle_each
from timekeeper.store.reports import Reports, close_and_read, write_terms
from timekeeper.store.standing import Standing

Refused = tuple[Key, str]
"""A session's uid, and the account and period in which the store did not take its amount."""

_log = structlog.get_logger()


class Prepared(NamedTuple):
    """A session, and what is to be written of it."""

    metered: Metered
    settlement: settling.Settlement


def settle_accounts(desk: Desk, now: int, touched: set[str]) -> None:
    """Brings the sessions of these accounts up to an instant.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
        redis.RedisError: as above.
    """
    books = desk.books
    unsettled = [m for m in books.sessions_under(touched) if _unsettled(m) and not _waits_for_a_payer(books, m)]
    concerned = _with_room(desk, unsettled)
    namespaces = {metered.session.namespace for metered in concerned}
    open_due_periods(desk, now, {account for namespace in namespaces for _, account in books.assignments[namespace]})
    prepared = _prepare(desk, now, concerned)
    refused = _send(desk, prepared, now)
    done = [each for each in prepared if not each.settlement.plain and not _is_refused(each, refused)]
    ends = [account for each in done if _ended(each) for account, _ in each.settlement.items]
    if ends and not desk.replicated("ends of sessions", ends):
        done = [each for each in done if not _ended(each)]
    write_report_terms(desk, [each.metered for each in done if _opens(each)], now)
    _write_index(desk, done)
    _adopt(desk, done, now)


def _with_room(desk: Desk, sessions: list[Metered]) -> list[Metered]:
    """The sessions without those that the store has no room for: it has never heard of them, and they have not ended.

    Amounts are cumulative, so that nothing is lost of a session that is opened later.
    """
    desk.held_back.difference_update(metered.session.uid for metered in sessions)
    if not desk.full:
        return sessions
    new = {m.session.uid for m in sessions if not m.acknowledged.open_under and not m.acknowledged.periods}
    desk.held_back |= {m.session.uid for m in sessions if m.session.end is None} & new
    return [metered for metered in sessions if metered.session.uid not in desk.held_back]


def _prepare(desk: Desk, now: int, concerned: list[Metered]) -> list[Prepared]:
    """Settles sessions in memory; reads the reports of those that get a ledger entry."""
    books = desk.books
    bill = books.rules.bill

    def settled(metered: Metered, until: int, reports: Reports | None) -> Prepared:
        facts = settling.Facts(metered.session, metered.pod_gone, reports)
        payers = books.assignments[metered.session.namespace]
        return Prepared(metered, settling.settle(metered.acknowledged, facts, payers, books.accounts, until, bill))

    instants = [desk.until(metered, now) for metered in concerned]
    if bill is not Bill.RESERVED:
        found = _read_reports(desk, concerned, instants)
        return [settled(*each) for each in zip(concerned, instants, found, strict=True)]
    prepared = []
    accounts, assignments = books.accounts, books.assignments
    for metered, until in zip(concerned, instants, strict=True):
        session = metered.session
        plain = settling.going_on(metered.acknowledged, session, assignments[session.namespace], accounts, until)
        prepared.append(Prepared(metered, plain) if plain is not None else settled(metered, until, None))
    cutting = [index for index, (_, found) in enumerate(prepared) if not found.plain and _cuts_any(found)]
    reports = _read_reports(desk, [concerned[index] for index in cutting], [instants[index] for index in cutting])
    for index, known in zip(cutting, reports, strict=True):
        if known is not None:
            prepared[index] = settled(concerned[index], instants[index], known)
    return prepared


def _read_reports(desk: Desk, sessions: list[Metered], instants: list[int]) -> list[Reports | None]:
    """Reads sessions' reports, and closes the stretches before the present one of each to further reports."""
    books = desk.books
    wanted = []
    for metered, until in zip(sessions, instants, strict=True):
        session, payers = metered.session, books.assignments[metered.session.namespace]
        start = settling.present_start(session, payers, books.accounts, until)
        cut = max((posted.cut.until for posted in metered.acknowledged.periods.values() if posted.cut), default=0)
        wanted.append((session.uid, Marks(start, cut, _phase(books, metered, until))))
    return close_and_read(desk.client, wanted)


def _phase(books: Books, metered: Metered, until: int) -> int:
    """The offset of a session's period end from a quarter of an hour, in nanoseconds."""
    payers = books.assignments[metered.session.namespace]
    period = books.accounts[payers[-1][1]].period_at(until)
    return 0 if period is None else period.end % QUARTER


def write_report_terms(desk: Desk, sessions: Iterable[Metered], now: int) -> None:
    """Writes down what sessions may report."""
    books = desk.books
    by_use = books.rules.bill is not Bill.RESERVED
    found, phases = {}, {}
    for metered in sessions:
        reservation, session = metered.reservation, metered.session
        if reservation is not None and reservation.placed and session.end is None:
            terms = report_terms(reservation, session.start, books.prices, books.rules.charge, billed=by_use)
            found[session.uid], phases[session.uid] = terms, _phase(books, metered, now)
    write_terms(desk.client, found, phases)


def _cuts_any(settlement: settling.Settlement) -> bool:
    return any(item.cuts for item in settlement.items.values())


def _ended(prepared: Prepared) -> bool:
    """Whether it closes the session: nobody computes it again once that is known to be stored."""
    return prepared.metered.session.end is not None


def _send(desk: Desk, prepared: list[Prepared], now: int) -> set[Refused]:
    """Sends all items, those of one period of one account together; what was refused.

    A settlement of several items that was refused is sent item by item: one session stops no other.
    """
    batches: dict[Key, list[Item]] = {}
    for _, found in prepared:
        for key, item in found.items.items():
            batches.setdefault(key, []).append(item)
    desk.step("settle")
    revision = desk.next_revision()
    settlements = [Settlement(account, period, items) for (account, period), items in batches.items()]
    answers = settle(desk.client, revision, now, settlements)
    taken: set[Key] = set()
    refused: dict[Refused, StoreError] = {}
    general: StoreError | None = None
    for settlement, answer in zip(settlements, answers, strict=True):
        key = settlement.account, settlement.period
        standing, errors = _one_by_one(desk, revision, now, settlement, answer)
        refused |= {(key, uid): error for uid, error in errors.items()}
        general = general or next(filter(is_general, errors.values()), None)
        if standing is not None:
            taken.add(key)
            desk.books.accounts[key[0]].standings[key[1]] = standing
    _note_taken(prepared, taken, refused.keys(), everything=len(taken) == len(batches) and not refused)
    if general is not None:
        raise general
    for ((account, period), uid), error in refused.items():
        desk.books.not_settled[account] = str(error)
        _log.error("not settled", account=account, period=period, uid=uid, error=str(error))
    return set(refused)


def _one_by_one(
    desk: Desk, revision: Revision, now: int, settlement: Settlement, answer: Standing | StoreError
) -> tuple[Standing | None, dict[str, StoreError]]:
    """The period's sums, and the sessions that the store refused: one of them stops no other."""
    if not isinstance(answer, StoreError):
        return answer, {}
    if is_general(answer) or len(settlement.items) == 1:
        return None, {item.uid: answer for item in settlement.items}
    return settle_each(desk.client, revision, now, settlement)


def _is_refused(prepared: Prepared, refused: AbstractSet[Refused]) -> bool:
    uid = prepared.metered.session.uid
    return bool(refused) and any((key, uid) in refused for key in prepared.settlement.items)


def _note_taken(
    prepared: list[Prepared], taken: AbstractSet[Key], refused: AbstractSet[Refused], *, everything: bool
) -> None:
    """Notes the amounts that the store has taken: what it answered that a period stands at holds them.

    Nothing more than the amount changes of a session that only spends on; the others are not done with it.
    """
    for metered, settlement in prepared:
        if everything and settlement.plain:
            metered.acknowledged = settlement.following
            continue
        uid = metered.session.uid
        found = [key for key in settlement.items if key in taken and (key, uid) not in refused]
        if settlement.plain and found:
            metered.acknowledged = settlement.following
        elif found:
            metered.acknowledged = settling.with_taken(metered.acknowledged, settlement, found)


def _write_index(desk: Desk, changed: list[Prepared]) -> None:
    """Writes down which sessions are open, and lets go of the reports of those that are not."""
    opened: list[tuple[str, str]] = []
    closed: list[tuple[str, str]] = []
    for metered, settlement in changed:
        for (account, _), item in settlement.items.items():
            if item.action is Action.OPEN:
                opened.append((metered.session.uid, account))
            elif item.action not in {Action.HOLD, Action.POST}:
                closed.append((metered.session.uid, account))
    desk.step("index")
    book.index_sessions(desk.client, opened, closed)
    book.end_reports(desk.client, [each.metered.session.uid for each in changed if _closes(each.settlement)])
    book.let_reports_go(desk.client, [metered.session.uid for metered, _ in changed if metered.pod_gone])


def _adopt(desk: Desk, done: list[Prepared], now: int) -> None:
    """Takes over what the store has said yes to, of sessions that do not only spend on."""
    books = desk.books
    for metered, settlement in done:
        metered.acknowledged = settlement.following
        if metered.pod_gone and metered.acknowledged.closed:
            books.left.append((now, metered))
            books.pods.sessions.drop(metered)


def _opens(prepared: Prepared) -> bool:
    return prepared.settlement.following.open_under not in {"", prepared.metered.acknowledged.open_under}


def _closes(settlement: settling.Settlement) -> bool:
    return any(item.action in {Action.CLOSE, Action.GONE} for item in settlement.items.values())


def _unsettled(metered: Metered) -> bool:
    """Whether the store must still hear of it: a closed session waits for its pod to go."""
    return not metered.acknowledged.closed or metered.pod_gone


def _waits_for_a_payer(books: Books, metered: Metered) -> bool:
    """Whether the store cannot take a session now, since nothing can be done with an account that pays for it."""
    return bool(books.failed) and not books.failed.keys().isdisjoint(
        books.payers_since(metered.session.namespace, metered.session.start)
    )
