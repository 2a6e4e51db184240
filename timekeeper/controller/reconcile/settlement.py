"""Settles sessions: computes the amounts to write, sends them in few calls, and adopts what the store acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import redis
import structlog

from timekeeper.controller.reconcile import settling
from timekeeper.controller.reconcile.context import ReconcileContext, is_general
from timekeeper.controller.reconcile.periods import open_due_periods, phases_after
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.sessions import Key, MeteredSession
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import Marks, report_terms
from timekeeper.ledger import shared
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.reports import SessionReports, close_and_read, write_terms
from timekeeper.ledger.settlement import Item, LedgerAction, Revision, SettlementBatch, settle, settle_each
from timekeeper.ledger.totals import PeriodTotals

Refused = tuple[Key, str]
"""A session's uid, with the account and period in which the store refused its amount."""

_log = structlog.get_logger()


REMOVING = frozenset({LedgerAction.MOVE, LedgerAction.FINALIZE})
"""Actions that remove a record of the session that a next leader may need; they are sent last."""
KEEPING = frozenset(LedgerAction) - REMOVING

Grown = tuple[MeteredSession, Key, int]
"""A session of which only the amount grew, the account and period that it grew in, and the new amount."""


class Prepared(NamedTuple):
    """A session, and the settlement that is to be written."""

    metered: MeteredSession
    settlement: settling.Settlement


class Work(NamedTuple):
    """The writes of all sessions: new amounts where only the amount grew, and whole settlements for the others."""

    grown: list[Grown]
    prepared: list[Prepared]


def settle_accounts(context: ReconcileContext, now: int, touched: set[str]) -> None:
    """Settles the sessions of these accounts up to an instant, in memory and in the store.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
        redis.RedisError: as above.
    """
    books = context.books
    unsettled = [metered for metered in books.sessions_under(touched) if _unsettled(metered)]
    if books.failed:
        unsettled = [metered for metered in unsettled if not _has_failed_payer(books, metered)]
    concerned = _with_room(context, unsettled)
    namespaces = {metered.session.namespace for metered in concerned}
    open_due_periods(context, now, {account for namespace in namespaces for _, account in books.assignments[namespace]})
    done = _write(context, _prepare(context, now, concerned), now)
    ended = [each.metered for each in done if _is_left(each.metered) and not _is_finalized(each.metered)]
    if ended:
        _write(context, _prepare(context, now, ended), now)


def _write(context: ReconcileContext, work: Work, now: int) -> list[Prepared]:
    """Sends settlements to the store; adopts and returns those of which the store took every item.

    Settlements that end a session are left out where replicas do not hold these ends in time.
    """
    refused = _send(context, work, now)
    done = [each for each in work.prepared if not _is_refused(each, refused)]
    ends = [account for each in done if _ended(each) for account, _ in each.settlement.items]
    if ends and not context.replicated("ends of sessions", ends):
        done = [each for each in done if not _ended(each)]
    write_report_terms(context, [each.metered for each in done if _opens(each)], now)
    _write_index(context, done)
    _adopt(context, done, now)
    return done


def _with_room(context: ReconcileContext, sessions: list[MeteredSession]) -> list[MeteredSession]:
    """Returns the sessions that may be settled now; running sessions new to a store without free memory wait.

    Amounts are cumulative, so a session that is opened later is still charged from its start.
    """
    if context.held_back:
        context.held_back.difference_update(metered.session.uid for metered in sessions)
    if not context.full:
        return sessions
    new = {m.session.uid for m in sessions if not m.acknowledged.open_under and not m.acknowledged.periods}
    context.held_back |= {m.session.uid for m in sessions if m.session.end is None} & new
    return [metered for metered in sessions if metered.session.uid not in context.held_back]


def _prepare(context: ReconcileContext, now: int, concerned: list[MeteredSession]) -> Work:
    """Computes the settlements of sessions; reads the reports of the sessions that get a ledger entry."""
    books = context.books
    bill = books.rules.bill

    def settled(metered: MeteredSession, until: int, reports: SessionReports | None) -> Prepared:
        facts = settling.Facts(metered.session, metered.pod_gone, reports)
        payers = books.assignments[metered.session.namespace]
        return Prepared(metered, settling.settle(metered.acknowledged, facts, payers, books.accounts, until, bill))

    instants = context.charged_until(concerned, now)
    if bill is not Bill.RESERVED:
        found = _read_reports(context, concerned, instants)
        return Work([], [settled(*each) for each in zip(concerned, instants, found, strict=True)])
    grown, changed = _grown(books, concerned, instants)
    prepared = [settled(metered, until, None) for metered, until in changed]
    cutting = [index for index, (_, found) in enumerate(prepared) if _has_points(found)]
    reports = _read_reports(context, [changed[index][0] for index in cutting], [changed[index][1] for index in cutting])
    for index, known in zip(cutting, reports, strict=True):
        if known is not None:
            prepared[index] = settled(*changed[index], known)
    return Work(grown, prepared)


def _grown(
    books: Books, concerned: list[MeteredSession], instants: list[int]
) -> tuple[list[Grown], list[tuple[MeteredSession, int]]]:
    """Splits sessions into those of which only the amount grew, and the others with their instants of settlement."""
    grown, others = list[Grown](), list[tuple[MeteredSession, int]]()
    accounts, assignments, amount_going_on = books.accounts, books.assignments, settling.amount_going_on
    for metered, until in zip(concerned, instants, strict=True):
        session, acknowledged = metered.session, metered.acknowledged
        found = amount_going_on(acknowledged, session, assignments[session.namespace], accounts, until)
        if found is None:
            others.append((metered, until))
            continue
        key, amount = found
        if acknowledged.periods[key].amount != amount:
            grown.append((metered, key, amount))
    return grown, others


def _read_reports(
    context: ReconcileContext, sessions: list[MeteredSession], instants: list[int]
) -> list[SessionReports | None]:
    """Reads sessions' reports; later reports count for the present segment alone."""
    books = context.books
    wanted = []
    for metered, until in zip(sessions, instants, strict=True):
        session, payers = metered.session, books.assignments[metered.session.namespace]
        start, needed_since = settling.marks(metered.acknowledged, session, payers, books.accounts, until)
        wanted.append((session.uid, Marks(start, needed_since, _phases(books, metered, until))))
    found = close_and_read(context.client, wanted)
    lacking = [m for m, known in zip(sessions, found, strict=True) if known is None and m.acknowledged.open_under]
    if lacking:
        write_report_terms(context, lacking, max(instants), replace=True)
    return found


def _phases(books: Books, metered: MeteredSession, until: int) -> tuple[int, ...]:
    """Returns the distance of the starts of a session's coming periods from a quarter of an hour, in nanoseconds."""
    account = books.accounts[books.assignments[metered.session.namespace][-1][1]]
    period = account.period_at(until)
    return (0,) if period is None else phases_after(account.budget.period, period.end)


def write_report_terms(
    context: ReconcileContext, sessions: Iterable[MeteredSession], now: int, *, replace: bool = False
) -> None:
    """Writes the report terms of sessions: the most that each one's reports may name."""
    books = context.books
    by_use = books.rules.bill is not Bill.RESERVED
    found, phases = {}, {}
    for metered in sessions:
        reservation, session = metered.reservation, metered.session
        reports = reservation is not None and reservation.placed and not reservation.holdings
        if reservation is not None and reports and session.end is None:
            terms = report_terms(reservation, session.start, books.prices, books.rules.charge, billed=by_use)
            found[session.uid], phases[session.uid] = terms, _phases(books, metered, now)
    write_terms(context.client, found, phases, replace=replace)


def _has_points(settlement: settling.Settlement) -> bool:
    return any(item.points for item in settlement.items.values())


def _ended(prepared: Prepared) -> bool:
    """Whether the settlement closes the session; once it is stored, the session is not computed again."""
    return prepared.metered.session.end is not None


def _send(context: ReconcileContext, work: Work, now: int) -> set[Refused]:
    """Sends all items, batched by account and period; returns those that the store refused.

    Items that remove a session's record under an account are sent last, once the store holds all other items of that
    session: a leader that follows in between finds the record and writes the rest.
    """
    batches: dict[Key, list[Item]] = {}
    for metered, key, amount in work.grown:
        item = Item(metered.session.uid, amount)
        if key in batches:
            batches[key].append(item)
        else:
            batches[key] = [item]
    _add_items(batches, work.prepared, KEEPING)
    revision = context.next_revision()
    refused = _send_batches(context, now, revision, work, batches, KEEPING)
    last = Work([], [prepared for prepared in work.prepared if not _is_refused(prepared, refused)])
    batches = {}
    _add_items(batches, last.prepared, REMOVING)
    if batches:
        refused |= _send_batches(context, now, revision, last, batches, REMOVING)
    return refused


def _add_items(
    batches: dict[Key, list[Item]], prepared: Iterable[Prepared], actions: AbstractSet[LedgerAction]
) -> None:
    """Adds each item with one of these actions to the batch of its account and period."""
    for _, found in prepared:
        for key, item in found.items.items():
            if item.action in actions:
                batches.setdefault(key, []).append(item)


def _send_batches(
    context: ReconcileContext,
    now: int,
    revision: Revision,
    work: Work,
    batches: Mapping[Key, list[Item]],
    actions: AbstractSet[LedgerAction],
) -> set[Refused]:
    """Sends one batch for each account and period, adopts the amounts that were taken, returns the refused items.

    A settlement of several items that was refused is sent item by item: one session stops no other.

    Args:
        context: the reconciliation's store and state.
        now: nanoseconds since 1970.
        revision: the revision of all items.
        work: the sessions that the items belong to.
        batches: the items to send, by account and period.
        actions: the actions of these items.
    """
    settlements = [SettlementBatch(account, period, items) for (account, period), items in batches.items()]
    try:
        answers = settle(context.client, revision, now, settlements)
    except (redis.RedisError, StoreError):
        _note_unanswered(work, actions)
        raise
    taken: set[Key] = set()
    refused: dict[Refused, StoreError] = {}
    general: StoreError | None = None
    for settlement, answer in zip(settlements, answers, strict=True):
        key = settlement.account, settlement.period
        totals, errors = _one_by_one(context, revision, now, settlement, answer)
        refused |= {(key, uid): error for uid, error in errors.items()}
        general = general or next(filter(is_general, errors.values()), None)
        if totals is not None:
            taken.add(key)
            context.books.accounts[key[0]].period_totals[key[1]] = totals
    _note_taken(work, taken, refused.keys(), actions)
    if general is not None:
        raise general
    for ((account, period), uid), error in refused.items():
        context.books.not_settled[account] = str(error)
        _log.error("not settled", account=account, period=period, uid=uid, error=str(error))
    return set(refused)


def _note_unanswered(work: Work, actions: AbstractSet[LedgerAction]) -> None:
    """Adds to `also_open` the accounts under which unanswered items open sessions: the store may have taken the items.

    A later settlement removes a session from an account that the session turns out not to have reached.
    """
    for metered, settlement in work.prepared:
        known = metered.acknowledged
        opened = {
            account
            for (account, _), item in settlement.items.items()
            if item.action is LedgerAction.OPEN and item.action in actions
        }
        if not opened <= {known.open_under}:
            metered.acknowledged = known._replace(also_open=known.also_open | (opened - {known.open_under}))


def _one_by_one(
    context: ReconcileContext,
    revision: Revision,
    now: int,
    settlement: SettlementBatch,
    answer: PeriodTotals | StoreError,
) -> tuple[PeriodTotals | None, dict[str, StoreError]]:
    """Sends a refused batch item by item; returns the period's totals, and the error of each session that failed."""
    if not isinstance(answer, StoreError):
        return answer, {}
    if is_general(answer) or len(settlement.items) == 1:
        return None, {item.uid: answer for item in settlement.items}
    return settle_each(context.client, revision, now, settlement)


def _is_refused(prepared: Prepared, refused: AbstractSet[Refused]) -> bool:
    uid = prepared.metered.session.uid
    return bool(refused) and any((key, uid) in refused for key in prepared.settlement.items)


def _note_taken(
    work: Work, taken: AbstractSet[Key], refused: AbstractSet[Refused], actions: AbstractSet[LedgerAction]
) -> None:
    """Adopts the amounts that the store took, of items with these actions.

    A session with further items is not yet acknowledged whole.
    """
    for metered, key, amount in work.grown:
        if key in taken and (not refused or (key, metered.session.uid) not in refused):
            metered.acknowledged = settling.with_amount(metered.acknowledged, key, amount)
    for metered, settlement in work.prepared:
        uid = metered.session.uid
        found = [
            key
            for key, item in settlement.items.items()
            if key in taken and item.action in actions and (key, uid) not in refused
        ]
        if found:
            metered.acknowledged = settling.with_taken(metered.acknowledged, settlement, found)


def _write_index(context: ReconcileContext, changed: list[Prepared]) -> None:
    """Updates the index of open sessions; lets the reports of closed sessions and deleted pods expire."""
    opened: list[tuple[str, str]] = []
    closed: list[tuple[str, str]] = []
    for metered, settlement in changed:
        for (account, _), item in settlement.items.items():
            if item.action is LedgerAction.OPEN:
                opened.append((metered.session.uid, account))
            elif item.action not in {LedgerAction.HOLD, LedgerAction.POST}:
                closed.append((metered.session.uid, account))
    shared.index_sessions(context.client, opened, closed)
    shared.end_reports(context.client, [each.metered.session.uid for each in changed if _closes(each.settlement)])
    shared.expire_reports(context.client, [metered.session.uid for metered, _ in changed if metered.pod_gone])


def _adopt(context: ReconcileContext, done: list[Prepared], now: int) -> None:
    """Makes each acknowledged settlement the base of its session's next one; drops sessions that are finalized."""
    books = context.books
    for metered, settlement in done:
        metered.acknowledged = settlement.following
        if _is_left(metered) and _is_finalized(metered):
            books.finalized.append((now, metered))
            books.pods.sessions.drop(metered)


def _is_left(metered: MeteredSession) -> bool:
    """Whether the pod is deleted, and the store holds the session's end."""
    return metered.pod_gone and metered.acknowledged.closed


def _is_finalized(metered: MeteredSession) -> bool:
    """Whether the store holds all of the session's amounts as finalized."""
    return all(posted.finalized for posted in metered.acknowledged.periods.values())


def _opens(prepared: Prepared) -> bool:
    return prepared.settlement.following.open_under not in {"", prepared.metered.acknowledged.open_under}


def _closes(settlement: settling.Settlement) -> bool:
    return any(item.action in {LedgerAction.CLOSE, LedgerAction.FINALIZE} for item in settlement.items.values())


def _unsettled(metered: MeteredSession) -> bool:
    """Whether the session may still need a write: it is not closed, or its pod is deleted."""
    return not metered.acknowledged.closed or metered.pod_gone


def _has_failed_payer(books: Books, metered: MeteredSession) -> bool:
    """Whether a step failed for an account that has paid for the session since its start."""
    payers = books.payers_since(metered.session.namespace, metered.session.start)
    return not books.failed.keys().isdisjoint(payers)
