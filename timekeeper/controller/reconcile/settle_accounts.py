"""Settles sessions: computes the amounts to write, sends them in few calls, and adopts what the store acknowledged.

An item is the write of one session's amount in one period of one account. A batch has the items of one period.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import redis
import structlog

from timekeeper.controller.reconcile.compute_settlement import (
    Basis,
    Case,
    Grown,
    Settlement,
    compute_settlements,
    entries_due,
    is_closed,
    make_basis,
    report_marks,
    split_grown,
    with_amount,
    with_stored_amounts,
)
from timekeeper.controller.reconcile.context import ReconcileContext, is_general
from timekeeper.controller.reconcile.open_and_close_periods import coming_phases, open_due_periods
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.sessions import Key, MeteredSession
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import report_limits
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import shared
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.reports import SessionReports, close_and_read, end_reports, write_report_limits
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import (
    Item,
    LedgerAction,
    Revision,
    SettlementBatch,
    write_each_settlement,
    write_settlements,
)

Refused = tuple[Key, str]
"""An item that the store refused: the account and the start of the period, then the session's uid."""

_log = structlog.get_logger()


REMOVING = frozenset({LedgerAction.MOVE, LedgerAction.FINALIZE})
"""Actions that remove a record of the session that a next leader may need; they are sent after its other items."""
KEEPING = frozenset(LedgerAction) - REMOVING


class Prepared(NamedTuple):
    """A session and its settlement, ready to be written."""

    metered: MeteredSession
    settlement: Settlement


SETTLED_AT_ONCE = 10_000
"""The most sessions whose settlements are in memory at once. The settlement of a new session takes over a kilobyte."""


class Work(NamedTuple):
    """The writes that settle a group of sessions.

    Attributes:
        grown: the sessions in which only time has passed, each with its new amount.
        prepared: all other sessions, each with its settlement.
    """

    grown: list[Grown]
    prepared: list[Prepared]


def settle_accounts(context: ReconcileContext, now: Instant, touched: Collection[str]) -> None:
    """Settles the sessions of these accounts up to an instant, in memory and in the store.

    A session that the store refuses is logged and stays unsettled, and `books.not_settled` names its account. Left out
    are sessions with a payer that failed in this reconciliation, and new sessions while the store has no free memory.

    Raises:
        StoreError: the store does not answer, was emptied, refuses this leader's term, or refuses to open a period.
        redis.RedisError: the store does not answer.
    """
    books = context.books
    unsettled = [metered for metered in books.sessions_under(touched) if _unsettled(metered)]
    if books.failed:
        unsettled = [metered for metered in unsettled if not _has_failed_payer(books, metered)]
    concerned = _with_room(context, unsettled)
    namespaces = {metered.session.namespace for metered in concerned}
    open_due_periods(context, now, {account for namespace in namespaces for _, account in books.assignments[namespace]})
    closed: list[MeteredSession] = []
    for first in range(0, len(concerned), SETTLED_AT_ONCE):
        done = _write(context, _prepare(context, now, concerned[first : first + SETTLED_AT_ONCE]), now)
        closed += [each.metered for each in done if _may_be_finalized(each.metered) and not _is_finalized(each.metered)]
    if closed:
        _write(context, _prepare(context, now, closed), now)


def _write(context: ReconcileContext, work: Work, now: Instant) -> list[Prepared]:
    """Sends settlements to the store; adopts and returns the settlements of which the store took every item.

    Settlements of ended sessions are not adopted if the store's replicas do not hold them in time: they are sent again.
    """
    refused = _send(context, work, now)
    done = [each for each in work.prepared if not _is_refused(each, refused)]
    ends = [account for each in done if _ends_session(each) for account, _ in each.settlement.items]
    if ends and not context.replicated("ends of sessions", ends):
        done = [each for each in done if not _ends_session(each)]
    write_limits_of(context, [each.metered for each in done if _opens(each)], now)
    _write_index(context, done)
    _adopt(context, done, now)
    _end_reports(context, done)  # until the end is adopted, another attempt needs the reports
    return done


def _with_room(context: ReconcileContext, sessions: list[MeteredSession]) -> list[MeteredSession]:
    """Returns the sessions that can be settled now.

    These are all of `sessions`. If the store has no free memory, running sessions that the store does not hold yet are
    left out, and are put into `context.held_back`. Amounts are cumulative, so a session that is opened later is still
    charged from its start.
    """
    if context.held_back:
        context.held_back.difference_update(metered.session.uid for metered in sessions)
    if not context.full:
        return sessions
    new = {m.session.uid for m in sessions if not m.acknowledged.open_under and not m.acknowledged.periods}
    context.held_back |= {m.session.uid for m in sessions if m.session.end is None} & new
    return [metered for metered in sessions if metered.session.uid not in context.held_back]


def _prepare(context: ReconcileContext, now: Instant, concerned: list[MeteredSession]) -> Work:
    """Computes the settlements of sessions.

    It reads the reports of all sessions if usage is billed, and else of those that get a ledger entry.
    """
    books = context.books
    basis = make_basis(books.assignments, books.accounts, context.surely_past(now), books.rules.bill)
    cases = list(zip(concerned, context.charged_until(concerned, now), strict=True))
    if basis.bill is not Bill.RESERVED:
        return Work([], _settled(basis, cases, _read_reports(context, basis, cases)))
    grown, changed = split_grown(basis, cases)
    # A session that is due an entry is computed once, with its reports; the others first have to show whether they are.
    due = entries_due(changed)
    others = [case for case, entry in zip(changed, due, strict=True) if not entry]
    first = iter(_settled(basis, others, [None] * len(others)))
    prepared = [None if entry else next(first) for entry in due]
    cutting = [
        index
        for index, each in enumerate(prepared)
        if each is None or (_has_points(each.settlement) and not is_closed(each.metered.acknowledged))
    ]
    reports = _read_reports(context, basis, [changed[index] for index in cutting])
    again = [
        (index, known)
        for index, known in zip(cutting, reports, strict=True)
        if known is not None or prepared[index] is None
    ]
    settled = _settled(basis, [changed[index] for index, _ in again], [known for _, known in again])
    for (index, _), each in zip(again, settled, strict=True):
        prepared[index] = each
    return Work(grown, [each for each in prepared if each is not None])


def _settled(
    basis: Basis, cases: Sequence[tuple[MeteredSession, int]], reports: Sequence[SessionReports | None]
) -> list[Prepared]:
    """Returns each session with its settlement, computed from its reports up to the instant in `cases`.

    `reports` has each session's reports in the same order; None if they were not read, or if the store has none.
    """
    whole = [
        Case(metered.acknowledged, metered.session, until, metered.pod_deleted, known)
        for (metered, until), known in zip(cases, reports, strict=True)
    ]
    settlements = compute_settlements(basis, whole)
    return [Prepared(metered, each) for (metered, _), each in zip(cases, settlements, strict=True)]


def _read_reports(
    context: ReconcileContext, basis: Basis, cases: Sequence[tuple[MeteredSession, int]]
) -> list[SessionReports | None]:
    """Returns the reports of each session, in order; None if the store has no readable limits for them.

    The same call of the store sets the marks that keep the reports apart in time: a report that arrives later changes
    only the use of the session's present segment. Report limits that are missing or unreadable are written anew.
    """
    if not cases:
        return []
    now = max(until for _, until in cases)
    wanted = report_marks(basis, cases, coming_phases(context.books, cases))
    reports = close_and_read(context.client, context.fencing_token, wanted)
    lacking = [m for (m, _), known in zip(cases, reports, strict=True) if known is None and m.acknowledged.open_under]
    if lacking:
        write_limits_of(context, lacking, now, replace=True)
    return reports


def write_limits_of(
    context: ReconcileContext, sessions: Iterable[MeteredSession], now: Instant, *, replace: bool = False
) -> None:
    """Writes the report limits of sessions: the devices that reports may name, and the most use that they may state.

    The phases of the sessions' coming periods are written with them. Left out are sessions that have ended, whose
    devices are not chosen yet, or that hold GPUs by another stack.

    Args:
        now: the instant after which periods are coming, in nanoseconds since 1970.
        replace: whether to replace limits that the store holds in any case. If False, they are replaced only if use is
            billed now and was not before, or the reverse.

    Raises:
        StoreError: the store refused the write, or does not answer.
    """
    books = context.books
    by_use = books.rules.bill is not Bill.RESERVED
    limits_by_uid, limited = {}, list[tuple[MeteredSession, int]]()
    for metered in sessions:
        reservation, session = metered.reservation, metered.session
        reports = reservation is not None and reservation.placed and not reservation.holdings
        if reservation is not None and reports and session.end is None:
            limits = report_limits(reservation, session.start, books.prices, books.rules.charge, billed=by_use)
            limits_by_uid[session.uid] = limits
            limited.append((metered, now))
    coming = coming_phases(books, limited)
    phases = {metered.session.uid: each for (metered, _), each in zip(limited, coming, strict=True)}
    write_report_limits(context.client, context.fencing_token, limits_by_uid, phases, replace=replace)


def _has_points(settlement: Settlement) -> bool:
    return any(item.points for item in settlement.items.values())


def _ends_session(prepared: Prepared) -> bool:
    return prepared.metered.session.end is not None


def _send(context: ReconcileContext, work: Work, now: Instant) -> set[Refused]:
    """Sends all items, batched by account and period; returns account, period and uid of those that were refused.

    Items that remove a session's record under an account are sent once the store holds all other items of that session:
    a leader that follows in between finds the record and writes the rest.
    """
    batches: dict[Key, list[Item]] = {}
    for metered, key, amount in work.grown:
        item = Item(metered.session.uid, amount)
        if key in batches:
            batches[key].append(item)
        else:
            batches[key] = [item]
    _add_items(batches, work, KEEPING)
    revision = context.next_revision()
    refused = _send_batches(context, now, revision, work, batches, KEEPING)
    last = Work([], [prepared for prepared in work.prepared if not _is_refused(prepared, refused)])
    batches = {}
    _add_items(batches, last, REMOVING)
    if batches:
        refused |= _send_batches(context, now, revision, last, batches, REMOVING)
    return refused


def _items_sent(settlement: Settlement, actions: AbstractSet[LedgerAction]) -> Mapping[Key, Item]:
    """Returns the items of a settlement that one of two passes sends: the first with KEEPING, the second with REMOVING.

    Items that remove a session's record belong to the second pass. If a settlement has only one item, the first pass
    sends it.
    """
    items = settlement.items
    if len(items) == 1:
        return items if actions is KEEPING else {}
    return {key: item for key, item in items.items() if item.action in actions}


def _add_items(batches: dict[Key, list[Item]], work: Work, actions: AbstractSet[LedgerAction]) -> None:
    """Adds the items of prepared settlements that one pass sends (see `_items_sent`) to `batches`."""
    for _, settlement in work.prepared:
        for key, item in _items_sent(settlement, actions).items():
            batches.setdefault(key, []).append(item)


def _send_batches(
    context: ReconcileContext,
    now: Instant,
    revision: Revision,
    work: Work,
    batches: Mapping[Key, list[Item]],
    actions: AbstractSet[LedgerAction],
) -> set[Refused]:
    """Sends the batches of one of two passes, adopts the amounts that Redis took, and returns the refused items.

    The first pass keeps the sessions' records, the second removes those that are no longer needed. A batch that the
    store refuses for one of its items is sent again item by item, so that the fault of one session stops no other.

    Args:
        context: the reconciliation's store and state.
        revision: the revision under which Redis stores the items.
        work: the sessions that the items belong to.
        batches: the items to send, keyed by account and period.
        actions: the actions of the pass: KEEPING or REMOVING.
    """
    settlements = [SettlementBatch(account, period, items) for (account, period), items in batches.items()]
    try:
        answers = write_settlements(context.client, revision, now, settlements)
    except (redis.RedisError, StoreError):
        _note_unanswered(work, actions)
        raise
    stored: set[Key] = set()
    refused: dict[Refused, StoreError] = {}
    general: StoreError | None = None
    for settlement, answer in zip(settlements, answers, strict=True):
        key = settlement.account, settlement.period
        totals, errors = _one_by_one(context, revision, now, settlement, answer)
        refused |= {(key, uid): error for uid, error in errors.items()}
        general = general or next(filter(is_general, errors.values()), None)
        if totals is not None:
            stored.add(key)
            context.books.accounts[key[0]].period_totals[key[1]] = totals
    _note_taken(work, stored, refused.keys(), actions)
    if general is not None:
        raise general
    for ((account, period), uid), error in refused.items():
        context.books.not_settled[account] = str(error)
        _log.error("not settled", account=account, period=period, uid=uid, error=str(error))
    return set(refused)


def _note_unanswered(work: Work, actions: AbstractSet[LedgerAction]) -> None:
    """Adds to sessions' `also_open` the accounts of items without an answer: perhaps the store opened sessions there.

    A later settlement removes a session from an account that the session turns out not to have reached.
    """
    for metered, settlement in work.prepared:
        known = metered.acknowledged
        opened = {
            account
            for (account, _), item in _items_sent(settlement, actions).items()
            if item.action is LedgerAction.OPEN
        }
        if not opened <= {known.open_under}:
            metered.acknowledged = known._replace(also_open=known.also_open | (opened - {known.open_under}))


def _one_by_one(
    context: ReconcileContext,
    revision: Revision,
    now: Instant,
    settlement: SettlementBatch,
    answer: PeriodTotals | StoreError,
) -> tuple[PeriodTotals | None, dict[str, StoreError]]:
    """Sends the items of a batch again, one by one, if the store refused the batch for one of several items.

    Returns the period's totals, None if no item was taken, and the error of each session that failed, keyed by uid.

    Args:
        answer: the store's answer to the batch.
    """
    if not isinstance(answer, StoreError):
        return answer, {}
    if is_general(answer) or len(settlement.items) == 1:
        return None, {item.uid: answer for item in settlement.items}
    return write_each_settlement(context.client, revision, now, settlement)


def _is_refused(prepared: Prepared, refused: AbstractSet[Refused]) -> bool:
    uid = prepared.metered.session.uid
    return bool(refused) and any((key, uid) in refused for key in prepared.settlement.items)


def _note_taken(
    work: Work, stored: AbstractSet[Key], refused: AbstractSet[Refused], actions: AbstractSet[LedgerAction]
) -> None:
    """Adds the amounts that the store took in one pass to the acknowledged states of their sessions.

    Args:
        stored: the account and period of each batch of which the store took at least one item.
        refused: the items that were refused.
        actions: the pass, KEEPING or REMOVING.
    """
    for metered, key, amount in work.grown:
        if key in stored and (not refused or (key, metered.session.uid) not in refused):
            metered.acknowledged = with_amount(metered.acknowledged, key, amount)
    taken = []
    for metered, settlement in work.prepared:
        uid = metered.session.uid
        stored_keys = [key for key in _items_sent(settlement, actions) if key in stored and (key, uid) not in refused]
        if stored_keys:
            taken.append((metered, settlement, stored_keys))
    following = with_stored_amounts([(metered.acknowledged, settlement, keys) for metered, settlement, keys in taken])
    for (metered, _, _), acknowledged in zip(taken, following, strict=True):
        metered.acknowledged = acknowledged


def _write_index(context: ReconcileContext, changed: list[Prepared]) -> None:
    opened: list[tuple[str, str]] = []
    closed: list[tuple[str, str]] = []
    for metered, settlement in changed:
        for (account, _), item in settlement.items.items():
            if item.action is LedgerAction.OPEN:
                opened.append((metered.session.uid, account))
            elif item.action not in {LedgerAction.HOLD, LedgerAction.POST}:
                closed.append((metered.session.uid, account))
    shared.index_sessions(context.client, context.fencing_token, opened, closed)


def _end_reports(context: ReconcileContext, changed: list[Prepared]) -> None:
    """Deletes the stored reports of sessions that close, except the last report's time and the total GPU time.

    The store keeps these two for some weeks, or for GONE_REPORT_SECONDS from the pod's deletion on, after which the pod
    sends no reports. That shorter time is also set for a session that was closed before its pod was deleted.
    """
    closed, finalized, expiring = list[str](), list[str](), list[str]()
    for metered, settlement in changed:
        if _closes(settlement):
            (finalized if metered.pod_deleted else closed).append(metered.session.uid)
        elif metered.pod_deleted:
            expiring.append(metered.session.uid)
    end_reports(context.client, closed)
    end_reports(context.client, finalized, shared.GONE_REPORT_SECONDS)
    shared.expire_reports(context.client, expiring)


def _adopt(context: ReconcileContext, done: list[Prepared], now: Instant) -> None:
    """Makes each acknowledged settlement the base of its session's next one; drops sessions that are finalized."""
    books = context.books
    for metered, settlement in done:
        metered.acknowledged = settlement.following
        if _may_be_finalized(metered) and _is_finalized(metered):
            books.finalized.append((now, metered))
            books.pods.sessions.drop(metered)


def _may_be_finalized(metered: MeteredSession) -> bool:
    """Whether the pod is deleted, and the store holds the session's end."""
    return metered.pod_deleted and metered.acknowledged.closed


def _is_finalized(metered: MeteredSession) -> bool:
    """Whether the store holds all of the session's amounts as finalized."""
    return all(amount.finalized for amount in metered.acknowledged.periods.values())


def _opens(prepared: Prepared) -> bool:
    return prepared.settlement.following.open_under not in {"", prepared.metered.acknowledged.open_under}


def _closes(settlement: Settlement) -> bool:
    return any(item.action in {LedgerAction.CLOSE, LedgerAction.FINALIZE} for item in settlement.items.values())


def _unsettled(metered: MeteredSession) -> bool:
    """Whether the session may still need a write: it is not closed, or its pod is deleted."""
    return not metered.acknowledged.closed or metered.pod_deleted


def _has_failed_payer(books: Books, metered: MeteredSession) -> bool:
    """Whether a step of this reconciliation failed for an account that has paid for the session since its start."""
    payers = books.payers_since(metered.session.namespace, metered.session.start)
    return not books.failed.keys().isdisjoint(payers)
