"""Computes the settlements of sessions from what the store acknowledged and from the facts of pods and reports.

An item sets a session's amount in one period of one account, and states what else the store must do with the session,
such as to post a ledger entry. A session's record is the session as the store keeps it, with the totals of its reports.

`compute_settlements` is a pure function. The caller adopts `Settlement.following` once the store has taken all items.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.sessions import (
    Acknowledged,
    AcknowledgedAmount,
    Key,
    MeteredSession,
    RecordedUse,
    first_known,
    running_on,
    with_use,
)
from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import (
    Assignments,
    HourlyPoint,
    Segment,
    charged,
    cost,
    hourly_points,
    rate_now,
    with_used,
)
from timekeeper.domain.pricing import Bill, billed
from timekeeper.domain.reports import (
    Bases,
    Course,
    Marks,
    Sample,
    begun_by,
    extended,
    is_unpriced,
    parts,
    sample_before,
)
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import HOUR, Instant
from timekeeper.domain.usage import dimensions
from timekeeper.ledger.codec import encode_session
from timekeeper.ledger.entries import Ending
from timekeeper.ledger.reports import SessionReports
from timekeeper.ledger.writing import Item, Kind, LedgerAction

CLOSING = frozenset({LedgerAction.MOVE, LedgerAction.CLOSE, LedgerAction.FINALIZE_PERIOD, LedgerAction.FINALIZE})
"""Actions of an item after which the session is no longer open under the item's account."""
POST_EVERY = HOUR
"""The longest time between two ledger entries of a running session, in nanoseconds."""


def is_entry_due(posted_at: Instant, until: Instant) -> bool:
    """Returns whether a running session needs a new ledger entry.

    True if its last entry is POST_EVERY old. True also if that entry is later than `until`, since a clock that was
    ahead wrote it.

    Args:
        posted_at: the instant of the last entry.
        until: the instant up to which the session is charged.
    """
    return not posted_at <= until < posted_at + POST_EVERY


class Basis(NamedTuple):
    """The leader's state that all settlements of a reconciliation are computed from.

    Attributes:
        assignments: keyed by namespace, its payers.
        accounts: the accounts, keyed by name; their periods are open up to the instants of settlement.
        surely_past: the earlier of the local clock's time and the store's. Periods that end later are not final.
        bill: whether reservations, usage or the larger of both is billed.
        present: gets a namespace and an instant; returns ((payer, start of the payer's period at that instant), end of
            that period), or None if no period is open then.
    """

    assignments: Mapping[str, Assignments]
    accounts: Mapping[str, Account]
    surely_past: Instant
    bill: Bill
    present: Callable[[str, int], tuple[Key, int] | None]


def make_basis(
    assignments: Mapping[str, Assignments],
    accounts: Mapping[str, Account],
    surely_past: int,
    bill: Bill = Bill.RESERVED,
) -> Basis:
    """Returns the Basis from which all settlements of a reconciliation are computed.

    The result's function `present` finds who pays for a namespace at an instant, and the payer's period then. This
    function keeps its answers, since most sessions of a namespace are settled up to the same instant.

    Args:
        assignments: keyed by namespace, its payers in order of time.
        accounts: the accounts, keyed by name; their periods are open up to the instants of settlement.
        surely_past: the earlier of the local clock's time and the store's, in nanoseconds since 1970.
        bill: whether reservations, usage or the larger of both is billed.
    """
    answers: dict[tuple[str, int], tuple[Key, int] | None] = {}

    def present(namespace: str, until: int) -> tuple[Key, int] | None:
        asked = namespace, until
        if asked not in answers:
            payers = assignments[namespace]
            payer = next((name for since, name in reversed(payers) if since <= until), payers[0][1])
            period = accounts[payer].period_at(until)
            answers[asked] = ((payer, period.start), period.end) if period is not None else None
        return answers[asked]

    return Basis(assignments, accounts, surely_past, bill, present)


class Case(NamedTuple):
    """A session to settle.

    Attributes:
        acknowledged: the session as the store holds it.
        session: the session, as its pod shows it.
        until: the instant up to which it is charged; its end if it has ended.
        pod_deleted: whether its pod is deleted from the API server.
        reports: its reports; None if they were not read, or if the store has none.
    """

    acknowledged: Acknowledged
    session: Session
    until: Instant
    pod_deleted: bool = False
    reports: SessionReports | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The totals of the session's reports up to several instants, the earliest first.

        Each sample adds up all reports that were received by its instant. A sample after the session's end counts as
        one at the end, since the last report may come after it. Empty if no reports were read, or if none has named a
        device.
        """
        return () if self.reports is None else self.reports.intake.samples


class Settlement(NamedTuple):
    """The writes that settle one session.

    Attributes:
        items: the items to write, each with the session's amount in one period, keyed by account and start of the
            period. Periods that need no write are left out.
        following: the session as the store holds it once it has taken all items.
    """

    items: Mapping[Key, Item]
    following: Acknowledged


class _Inputs(NamedTuple):
    """The facts from which one session's settlement is computed.

    Attributes:
        acknowledged: the session as the store holds it.
        facts: the session as its pod shows it, and its reports.
        payers: the payers of its namespace, in order of time.
        accounts: the accounts, keyed by name.
        until: the instant up to which it is charged, in nanoseconds since 1970.
        surely_past: the earlier of the local clock's time and the store's, in nanoseconds since 1970.
    """

    acknowledged: Acknowledged
    facts: Case
    payers: Assignments
    accounts: Mapping[str, Account]
    until: int
    surely_past: int
    current: Key | None
    """The account that pays at `until`, and the start of its period then; None if no period is open."""
    ends: Mapping[Key, int] = MappingProxyType({})
    """The end of each period in which the session has or gets an amount, keyed by account and start of the period.

    It is in nanoseconds since 1970; 0 for a period that is not open.
    """


def amount_going_on(
    acknowledged: Acknowledged, session: Session, payers: Assignments, accounts: Mapping[str, Account], until: Instant
) -> tuple[Key, int] | None:
    """Returns the new amount of a session of which nothing but the amount has changed since its last settlement.

    A full settlement would write this amount and nothing else, so the caller saves its cost. The result is None for
    any other session, such as one that has ended or needs a ledger entry. Call this only if reservations are billed.

    Args:
        acknowledged: the session as the store holds it.
        session: the session, as its pod shows it.
        payers: the payers of its namespace, in order of time.
        accounts: the accounts, keyed by name.
        until: the instant up to which it is charged.

    Returns:
        The pair of the account and the start of the period, and the amount in that period, in microGPU-seconds.
    """
    periods, settled_until, recorded, _, open_under, posted_at, posted_rate, _, also_open, _ = acknowledged
    rates = session.tariff
    if recorded is not session or session.end is not None or len(payers) != 1 or len(rates) != 1 or len(periods) != 1:
        return None
    ((key, acknowledged_amount),) = periods.items()
    account, start = key
    rate, begun = rates[0][1], session.start
    if rate != posted_rate or is_entry_due(posted_at, until) or until < settled_until or acknowledged_amount.finalized:
        return None
    if account != open_under or account != payers[0][1] or also_open:
        return None
    period = accounts[account].periods[-1]
    if start != period.start or not start <= until < period.end or until < begun:
        return None
    if begun < start and settled_until < start:
        return None
    return key, cost(rate, until - max(begun, start))


def with_amount(acknowledged: Acknowledged, key: Key, amount: int) -> Acknowledged:
    """Returns an acknowledged session after the store took a new amount in its only period.

    Args:
        acknowledged: the session as the store held it before.
        key: the account and the start of the period.
        amount: the new amount in microGPU-seconds.
    """
    _, settled_until, session, use, open_under, posted_at, posted_rate, closed, *_ = acknowledged
    periods = {key: AcknowledgedAmount(amount, acknowledged.periods[key].last_point)}
    return Acknowledged(periods, settled_until, session, use, open_under, posted_at, posted_rate, closed)


Grown = tuple[MeteredSession, Key, int]
"""A session of which only the amount grew, the account and period that it grew in, and the new amount."""


def split_grown(
    basis: Basis, cases: Iterable[tuple[MeteredSession, int]]
) -> tuple[list[Grown], list[tuple[MeteredSession, int]]]:
    """Returns the sessions in which only the amount grew, and those of `cases` that need a whole settlement.

    An entry of the first list is a session, its period's account and start, and the new amount in microGPU-seconds. A
    session in which not even the amount changed is in neither list. Call this only if reservations are billed.

    Args:
        basis: the leader's state.
        cases: pairs of a session and the instant up to which it is charged, in nanoseconds since 1970.
    """
    grown, others = list[Grown](), list[tuple[MeteredSession, int]]()
    accounts, assignments = basis.accounts, basis.assignments
    for case in cases:
        metered, until = case
        session, acknowledged = metered.session, metered.acknowledged
        growth = amount_going_on(acknowledged, session, assignments[session.namespace], accounts, until)
        if growth is None:
            others.append(case)
        elif acknowledged.periods[growth[0]].amount != growth[1]:
            grown.append((metered, *growth))
    return grown, others


def entries_due(cases: Iterable[tuple[MeteredSession, int]]) -> list[bool]:
    """Returns for each session, in order, whether its settlement needs a ledger entry even if its amount stays equal.

    That is so if the session has ended and the store does not hold the end yet, or if its last entry is POST_EVERY old.
    The caller reads the reports of such a session before it settles the session.

    Args:
        cases: pairs of a session and the instant up to which it is charged, in nanoseconds since 1970.
    """
    return [_gets_entry(metered, until) for metered, until in cases]


def _gets_entry(metered: MeteredSession, until: Instant) -> bool:
    known = metered.acknowledged
    old = bool(known.open_under) and is_entry_due(known.posted_at, until)
    return not is_closed(known) and (metered.session.end is not None or old)


def is_closed(acknowledged: Acknowledged) -> bool:
    """Returns whether the store holds a session's end and at least one of its amounts.

    Later reports of such a session change none of its amounts.
    """
    return acknowledged.closed and bool(acknowledged.periods)


def compute_settlements(basis: Basis, cases: Iterable[Case]) -> list[Settlement]:
    """Returns the settlement of each case, in the order of `cases`.

    Args:
        basis: the leader's state.
        cases: the sessions to settle, each with the instant up to which it is charged.
    """
    settlements = []
    for case in cases:
        until = _computable_until(case, basis.surely_past)
        payers = basis.assignments[case.session.namespace]
        current, end = basis.present(case.session.namespace, until) or (None, 0)
        inputs = _Inputs(case.acknowledged, case, payers, basis.accounts, until, basis.surely_past, current)
        settlements.append(_settlement(inputs, end, basis.bill))
    return settlements


def _settlement(inputs: _Inputs, end: int, bill: Bill) -> Settlement:
    """Returns one session's settlement.

    Args:
        inputs: the facts of the session, which state its present period, too.
        end: the end of the period `inputs.current`, in nanoseconds since 1970; 0 if no period is open.
        bill: whether reservations, usage or the larger of both is billed.
    """
    acknowledged, facts, current = inputs.acknowledged, inputs.facts, inputs.current
    if is_closed(acknowledged):
        return _finalized(inputs)
    shortened = _is_shortened(inputs, bill)
    final = first_known(acknowledged.use) if shortened else acknowledged.settled_until
    session_segments, reserved = _charged(inputs, final)
    if shortened and session_segments:
        # The end changes nothing in final periods before its own, and their older reports are not kept.
        ended_in = session_segments[-1].account, session_segments[-1].period
        reserved = {key: amount for key, amount in reserved.items() if key in acknowledged.periods or key == ended_in}
    course = _course(inputs, session_segments)
    # Nothing before the recorded use can be computed again: until the session is past it, the recorded use stays.
    use = _bounded(inputs, course) if shortened and not session_segments else _known_use(inputs, course, bill)
    due = _amounts_due(inputs, bill, use, reserved, session_segments) if bill is not Bill.RESERVED else reserved
    last = max(due, key=lambda key: key[1], default=current)
    if facts.session.end is None or current in due:
        last = current
    taken_back = _taken_back(inputs) if shortened else {}
    if not due and shortened:
        # The amount in the last period stays: the use at that period's start is not known any more.
        under = [key for key in {*acknowledged.periods, *taken_back} if key[0] == acknowledged.open_under]
        last = max(under, key=lambda key: key[1], default=last)
    totals = _totals(inputs, taken_back, due, last)
    if len(totals) > 1:
        # The store must hold the record of the end before it forgets the session: see `_finalized`.
        inputs = inputs._replace(facts=facts._replace(pod_deleted=False))
    others = {*acknowledged.periods, *totals} - {current}
    inputs = inputs._replace(ends={**_ends(inputs.accounts, others), **({} if current is None else {current: end})})
    recorded = _recorded(use, course, inputs.surely_past)
    items = _items(inputs, totals, last, (use, recorded), session_segments)
    return Settlement(items, _following(inputs, items, recorded))


def _computable_until(case: Case, surely_past: int) -> int:
    """Returns the instant up to which a session is charged, in nanoseconds since 1970.

    The result is `case.until`, which can move back, for example because a node turns silent. It does not move back past
    the first recorded use of a running session whose use is billed. The store no longer has the totals of earlier
    reports, so the cost before that instant stays until the session's end is known. A recorded use after `surely_past`
    does not count, since a clock that was ahead wrote it.
    """
    use = case.acknowledged.use
    if case.session.end is not None or not use.billed:
        return case.until
    return max(case.until, min(first_known(use), surely_past))


def with_stored_amounts(partly: Iterable[tuple[Acknowledged, Settlement, Collection[Key]]]) -> list[Acknowledged]:
    """Returns sessions as the store holds them after it took only some items of their settlements.

    Args:
        partly: for each session, its acknowledged state before, the settlement that was sent, and the account and start
            of each period in which the store took the amount.
    """
    return [_with_stored_amounts(*each) for each in partly]


def _with_stored_amounts(acknowledged: Acknowledged, settlement: Settlement, stored: Collection[Key]) -> Acknowledged:
    periods, also_open = dict(acknowledged.periods), acknowledged.also_open
    open_under = acknowledged.open_under
    for key, item in settlement.items.items():
        if key in stored:
            periods[key] = _acknowledged_amount(acknowledged, key, item)
            if item.action is LedgerAction.OPEN and key[0] != acknowledged.open_under:
                also_open |= {key[0]}
            if item.action is LedgerAction.MOVE and key[0] == open_under and not settlement.following.closed:
                open_under = ""  # the account has no record of it any more: going on there opens it again
    return acknowledged._replace(periods=periods, also_open=also_open, open_under=open_under)


def _finalized(inputs: _Inputs) -> Settlement:
    """Returns the settlement that finalizes a closed session whose pod is deleted: its amounts stay as they are.

    The last item removes the record of the session's end. By that record, a leader that takes over before the removal
    finds the session and finalizes its other periods.
    """
    acknowledged, facts = inputs.acknowledged, inputs.facts
    last = max(acknowledged.periods, key=lambda key: (key[0] == acknowledged.ended_under, key[1]))
    items = {}
    for key, known in acknowledged.periods.items():
        kind = Kind.CLOSE if key == last else Kind.MOVE
        last_points = [known.last_point] if known.last_point is not None else []
        action = LedgerAction.FINALIZE if key == last else LedgerAction.FINALIZE_PERIOD
        items[key] = _item(facts.session, known.amount, action, kind, "", last_points)
    return Settlement(items, _following(inputs, items, acknowledged.use))


def _is_shortened(inputs: _Inputs, bill: Bill) -> bool:
    """Whether the session ended earlier than the store assumes, so that final periods are computed again.

    Final periods are also computed again if usage is billed and the session ended at the very end of a final period:
    use that was reported after the session's end counts in that period.
    """
    until, settled_until, facts = inputs.until, inputs.acknowledged.settled_until, inputs.facts
    by_reports = bill is not Bill.RESERVED and facts.session.end is not None and facts.samples != ()
    return until < settled_until or (until == settled_until and by_reports)


def _charged(inputs: _Inputs, final: int) -> tuple[list[Segment], dict[Key, int]]:
    """Returns the session's segments in the periods that end after the instant `final`, and their cost.

    The second result is the cost of the reservation in each of these periods, in microGPU-seconds, keyed by account and
    start of the period.
    """
    session = inputs.facts.session
    after = max(final, session.start - 1)
    periods = {name: inputs.accounts[name].periods_after(after) for _, name in inputs.payers}
    return charged(session.tariff, inputs.payers, periods.__getitem__, session.start, inputs.until)


def _course(inputs: _Inputs, session_segments: Sequence[Segment]) -> Course:
    """Returns the session's start and segments, by which the totals of its reports are divided among periods.

    If the session goes on in a period that begins at the very instant of settlement, the result also has an empty
    segment in that period.

    Args:
        session_segments: the session's segments in the periods that are not final, in order of time.
    """
    session, until, current = inputs.facts.session, inputs.until, inputs.current
    begun = []
    if current is not None and session.end is None:
        last = session_segments[-1] if session_segments else None
        if last is None or (last.account, last.period) != current:
            begun = [Segment(*current, until, until)]
    return Course(session.start, (*session_segments, *begun))


def _known_use(inputs: _Inputs, course: Course, bill: Bill) -> RecordedUse:
    """Returns the record of a session's use after this settlement: the totals of its reports at each segment's start.

    If the store has lost the reports, the recorded totals stay.
    """
    known, samples = _bounded(inputs, course), inputs.facts.samples
    use = known
    if samples:
        use = use._replace(reported=extended(known.reported, course, lambda instant: _before(samples, instant).gpu))
    reports = inputs.facts.reports
    if bill is Bill.RESERVED or reports is None or (not samples and known.total is None):
        return use
    if is_unpriced(reports.limits, reports.intake):
        return use  # billed as reserved until the next report
    if not known.billed:
        # With the first report the period before the present one is kept, too: the session may have ended in it.
        past = [span for span in _charged(inputs, 0)[0] if span not in course.segments]
        course = replace(course, segments=(*past[-1:], *course.segments))
    present, recorded = _total(inputs).money, known.total or 0
    lost = not samples or samples[-1].money < recorded
    total = recorded if lost else present

    def money_before(instant: int) -> int:
        # Where the store has lost the reports, the recorded total counts as used before this instant.
        return total if lost else _before(samples, instant).money

    missing = _total(inputs).missing
    whole = reports.limits.whole
    pair = (missing, whole) if samples and missing else (0, 0) if samples else known.missing
    return use._replace(billed=extended(known.billed, course, money_before), total=total, missing=pair)


def _bounded(inputs: _Inputs, course: Course) -> RecordedUse:
    """Returns the recorded use, each total reduced to the most that the session can have used by the total's instant.

    Earlier versions of FairGPU accepted reports with larger totals.
    """
    use, reports = inputs.acknowledged.use, inputs.facts.reports
    if reports is None or use == RecordedUse():
        return use
    limits, until = reports.limits, inputs.until
    starts = {(span.account, span.period): span.start for span in course.segments}

    def within(bases: Bases, most: Callable[[int], int]) -> Bases:
        return tuple(
            (account, period, min(base, most(starts.get((account, period), until)))) for account, period, base in bases
        )

    total = None if use.total is None else min(use.total, limits.most_money(until))
    return use._replace(
        billed=within(use.billed, limits.most_money), reported=within(use.reported, limits.most_gpu), total=total
    )


def _before(samples: Sequence[Sample], instant: int) -> Sample:
    """Returns the totals of the reports that were received before an instant (nanoseconds since 1970).

    All totals are 0 if no report was received before.
    """
    return sample_before(samples, instant) or Sample(0, 0, 0, 0)


def _total(inputs: _Inputs) -> Sample:
    """Returns the totals of all reports that the session had sent by the instant of settlement.

    For an ended session, later reports count, too. Without a report, the use in the result is 0. Its `missing` is then
    the rate of all the session's devices, or 0 if the reports were not read.
    """
    samples = inputs.facts.samples
    if samples and inputs.facts.session.end is not None:
        return samples[-1]
    reports = inputs.facts.reports
    # A clock that is ahead may have stamped a report later than now; it does not count yet.
    none = Sample(0, 0, 0, 0 if reports is None else reports.limits.whole)
    return sample_before(samples, inputs.until + 1) or none


def _recorded(use: RecordedUse, course: Course, past: Instant) -> RecordedUse:
    """Returns a session's use in the form in which the store's record of the session keeps it.

    The totals of segments that begin after `past` are left out, since only a clock that was ahead began them. Reported
    totals that are all 0, as in most sessions, are left out, too.
    """
    if course.segments and course.segments[-1].start > past:
        use = use._replace(billed=begun_by(use.billed, course, past), reported=begun_by(use.reported, course, past))
    return use if not use.reported or any(base for *_, base in use.reported) else use._replace(reported=())


def _amounts_due(
    inputs: _Inputs, bill: Bill, use: RecordedUse, reserved: Mapping[Key, int], session_segments: Sequence[Segment]
) -> dict[Key, int]:
    """Returns the session's amount in microGPU-seconds, keyed by account and start of the period, if usage is billed.

    Devices that no report has named are billed as reserved, so that silence is not free. If the store has lost the
    reports, no amount falls below the one that was billed before.

    Args:
        bill: usage, or the larger of reservations and usage.
        use: the totals of the session's reports at the start of each segment.
        reserved: the cost of the reservation in each period, in microGPU-seconds, keyed by account and start.
        session_segments: the session's segments in the periods that are not final, in order of time.
    """
    known, reports = inputs.acknowledged.periods, inputs.facts.reports
    if use.total is None:
        return dict(reserved)
    if reports is None:
        stored = {key: known[key].amount for key in reserved if key in known}
        # The store holds the session's end, so it holds an amount that cannot be read: nothing replaces it.
        return stored if inputs.acknowledged.ended_under else {**reserved, **stored}
    limits, used_amounts = reports.limits, parts(use.billed, use.total)
    due = {}
    for key, amount in reserved.items():
        if key in used_amounts:
            missing = _missing(inputs, key, session_segments)
            # Devices that no report names are billed at their share of the reservation.
            used = used_amounts[key] + (amount * missing // limits.whole if limits.whole else 0)
            ceiling = amount * limits.most // limits.rate if limits.rate else amount
            if not inputs.facts.samples and key in known:
                # Lost reports lower no bill: the record may be older than the last bill that they led to.
                used = max(used, known[key].amount)
            due[key] = amount if missing and missing == limits.whole else billed(bill, amount, used, ceiling)
        elif key in known:
            due[key] = known[key].amount
    return due


def _missing(inputs: _Inputs, key: Key, session_segments: Sequence[Segment]) -> int:
    """Returns the sum of the rates of the session's devices that no report has named, in microGPU-seconds a second.

    In a period that the session has left, only reports count that were received before it left. `key` is the period's
    account and start.
    """
    samples, reports = inputs.facts.samples, inputs.facts.reports
    end = _left_at(inputs, key, session_segments)
    if not samples or reports is None or end is None:
        return _total(inputs).missing if samples else inputs.acknowledged.use.missing[0]
    sample = sample_before(samples, end)
    return reports.limits.whole if sample is None else sample.missing


def _left_at(inputs: _Inputs, key: Key, session_segments: Sequence[Segment]) -> int | None:
    """Returns the instant (ns since 1970) at which a session left the period `key` (account, start) for another.

    None if the session has not left the period, or never was in it. A running session is only in the present payer's
    present period. It may have no segment there yet, because it changes the period at the very instant of settlement.
    """
    ends = [span.end for span in session_segments if (span.account, span.period) == key]
    if inputs.facts.session.end is None:
        stays = key == inputs.current
    else:
        stays = bool(ends) and ends[-1] == session_segments[-1].end
    return None if stays or not ends else ends[-1]


def _taken_back(inputs: _Inputs) -> dict[Key, int]:
    """Returns the amount 0 for each period that the session turns out not to have reached.

    The result is keyed by account and start of the period. It takes back amounts that were charged by a clock that was
    ahead, or before the session's end was known.
    """
    reached = {(span.account, span.period) for span in _charged(inputs, inputs.until)[0]}
    later = {
        (name, period.start)
        for _, name in inputs.payers
        for period in inputs.accounts[name].periods_after(inputs.until)
    }
    return dict.fromkeys(later - reached, 0)


def _totals(inputs: _Inputs, taken_back: Mapping[Key, int], due: Mapping[Key, int], last: Key | None) -> dict[Key, int]:
    """Returns the session's amount in each period that may need a write, in microGPU-seconds, for `_items` to choose.

    The result is keyed by account and start of the period. It has each period of `due`. The amount is 0 in any other
    period that the store holds for the session, in those of `taken_back`, and usually in `last`. It is also 0 in the
    present period of an account that has a record of the session and no other period in the result.

    Args:
        taken_back: the amount 0 for each period that the session turns out not to have reached.
        due: the computed amount of each period that it did reach.
        last: the period that the session is in, or ended in, as account and start; None if no period is open.
    """
    totals = {**dict.fromkeys(inputs.acknowledged.periods, 0), **taken_back, **due}
    open_under, ended = inputs.acknowledged.open_under, inputs.facts.session.end is not None
    if last is not None and (last[0] == open_under or not ended or due):
        totals.setdefault(last, 0)
    # The session leaves each account that has a record of it, also one in which it has no amount.
    for account in (inputs.acknowledged.also_open | {open_under}) - {""}:
        if all(name != account for name, _ in totals):
            present = inputs.accounts[account].period_at(inputs.until)
            if present is not None:
                totals[account, present.start] = 0
    return totals


def _items(
    inputs: _Inputs,
    totals: Mapping[Key, int],
    last: Key | None,
    uses: tuple[RecordedUse, RecordedUse],
    session_segments: Sequence[Segment],
) -> dict[Key, Item]:
    """Returns the items to write, keyed by account and start of the period; periods that need no write are left out.

    Args:
        totals: the session's amount in each period, in microGPU-seconds.
        last: the period that the session is in, or ended in, as account and start; None if no period is open.
        uses: the use that reports state, as it was computed; then the same, as the session's record will hold it.
        session_segments: the session's segments in the periods that are not final, in order of time.
    """
    acknowledged, session = inputs.acknowledged, inputs.facts.session
    use, recorded = uses
    stale = session != acknowledged.session or recorded != acknowledged.use
    used = _used(inputs, use, session_segments)
    items = {}
    for key, amount in totals.items():
        known = acknowledged.periods.get(key)
        changed = known is not None and known.amount != amount
        action, kind = _action(inputs, key, last, stale=stale, changed=changed)
        if known is not None and not changed and (action is LedgerAction.HOLD or _is_posted(inputs, key, known, last)):
            continue
        points: Sequence[HourlyPoint] = ()
        if action not in {LedgerAction.HOLD, LedgerAction.OPEN}:
            points = _points(inputs, key, amount, session_segments)
            if key in used:
                last_point = None if known is None else known.last_point
                points = with_used(points, last_point, max(session.start, key[1]), used[key])
        written = action in {LedgerAction.OPEN, LedgerAction.CLOSE} or (
            stale and key == last and action is LedgerAction.POST
        )
        record = encode_session(with_use(session, recorded)) if written else ""
        items[key] = _item(session, amount, action, kind, record, points)
    return items


def _is_posted(inputs: _Inputs, key: Key, known: AcknowledgedAmount, last: Key | None) -> bool:
    """Whether the ledger holds the whole amount of a running session in a period that it has left for another one.

    `key` is the period's account and start, `known` the amount that the store holds, `last` the present period's key.
    """
    point, left = known.last_point, key != last and key[0] == inputs.acknowledged.open_under
    posted = point is not None and point.until >= inputs.ends[key] > 0 and point.billed == known.amount
    return inputs.facts.session.end is None and left and posted


def _used(inputs: _Inputs, use: RecordedUse, session_segments: Sequence[Segment]) -> dict[Key, int]:
    """Returns the reported GPU time in microGPU-seconds, keyed by account and start of the period.

    The time is at least that in the period's hourly points in the store. A period is left out if no report was received
    before the session left it.
    """
    samples = inputs.facts.samples
    if not samples:
        return {}
    known = inputs.acknowledged.periods
    in_points = {key: each.last_point.used or 0 for key, each in known.items() if each.last_point is not None}
    reported = parts(use.reported, _total(inputs).gpu)
    return {
        key: max(amount, in_points.get(key, 0))
        for key, amount in reported.items()
        if (end := _left_at(inputs, key, session_segments)) is None or sample_before(samples, end) is not None
    }


def report_marks(
    basis: Basis, cases: Iterable[tuple[MeteredSession, int]], phases: Iterable[tuple[int, ...]]
) -> list[tuple[str, Marks]]:
    """Returns the uid of each session, and the marks by which the store keeps its reports apart in time.

    Once the store has the marks, reports that arrive later change no use before the session's present segment.

    Args:
        basis: the leader's state.
        cases: the sessions, each with the instant up to which it is charged, in nanoseconds since 1970.
        phases: for each session, the nanoseconds after a full quarter of an hour at which its next periods begin.
    """
    past = basis.surely_past
    wanted = []
    for (metered, until), own in zip(cases, phases, strict=True):
        session, payers = metered.session, basis.assignments[metered.session.namespace]
        period = basis.present(session.namespace, until)
        since = max((since for since, _ in payers if since <= until), default=0)
        start = max(session.start, since if len(payers) > 1 else 0, 0 if period is None else period[0][1])
        needed_since = _totals_needed_since(metered.acknowledged, session)
        marks = Marks(min(start, past), min(needed_since, past), own)
        wanted.append((session.uid, marks))
    return wanted


def _totals_needed_since(acknowledged: Acknowledged, session: Session) -> int:
    """Returns the instant (ns since 1970) from which on later settlements need the totals of a session's reports.

    A period that is not final needs the totals since its last hourly point, because the store may have refused a later
    amount. Periods of a former payer need no totals: the record under the present account holds these.
    """
    starts = [start for _, start in acknowledged.periods]
    if starts and min(starts) > max(acknowledged.settled_until, session.start):
        return acknowledged.settled_until  # an earlier period's amount could not be read
    under = acknowledged.open_under
    periods = acknowledged.periods.items()
    return min(
        (_posted_until(start, amount) for (account, start), amount in periods if under in {"", account}), default=0
    )


def _posted_until(start: int, amount: AcknowledgedAmount) -> int:
    """Returns the instant up to which a session's amount in a period is divided into hourly points; 0 without points.

    For a session that has no time in the period yet, this is the period's start, though its point is a nanosecond later
    (see `_points`).
    """
    if amount.last_point is None:
        return 0
    return start if amount.last_point.until == start + 1 else amount.last_point.until


def _action(inputs: _Inputs, key: Key, last: Key | None, *, stale: bool, changed: bool) -> tuple[LedgerAction, Kind]:
    acknowledged, session, until = inputs.acknowledged, inputs.facts.session, inputs.until
    kind = Kind.PERIOD if inputs.ends[key] <= until else Kind.MOVE
    if session.end is not None:
        ending = LedgerAction.CLOSE if key == last else LedgerAction.MOVE
        return (LedgerAction.FINALIZE if inputs.facts.pod_deleted else ending), (Kind.CLOSE if key == last else kind)
    if key != last:
        return _leaving(acknowledged, key, last, over=kind is Kind.PERIOD, changed=changed), kind
    if key[0] != acknowledged.open_under:
        return LedgerAction.OPEN, kind
    if rate_now(session.tariff, until) != acknowledged.posted_rate:
        return LedgerAction.POST, Kind.RATE
    if is_entry_due(acknowledged.posted_at, until) or _is_behind(inputs, key):
        return LedgerAction.POST, Kind.HOURLY
    return (LedgerAction.OPEN if stale else LedgerAction.HOLD), Kind.HOURLY


def _is_behind(inputs: _Inputs, key: Key) -> bool:
    """Whether a session that is charged only up to an instant in an ended period needs a ledger entry in that period.

    A session on a silent node is charged only up to the node's last sign of life, which may lie several periods back.
    Readers look up use that is not in the ledger only in an account's last two periods. Without the entry they would
    miss the session's use.
    """
    known = inputs.acknowledged.periods.get(key)
    point = None if known is None else known.last_point
    over = 0 < inputs.ends[key] <= inputs.surely_past
    return over and (point is None or point.until != max(inputs.until, key[1] + 1))


def _leaving(acknowledged: Acknowledged, key: Key, last: Key | None, *, over: bool, changed: bool) -> LedgerAction:
    """Returns the action of the item for a period that a running session has left, or turns out not to have reached.

    No later settlement posts this period, so the ledger gets its entry now.

    Args:
        acknowledged: the session as the store holds it.
        key: the account and the start of the period that the session has left.
        last: the account and the start of the period that the session is in; None if no period is open.
        over: whether the period `key` has ended.
        changed: whether the session's amount in the period `key` has changed.
    """
    under = key[0] == acknowledged.open_under or key[0] in acknowledged.also_open
    # A late report may change the amount of a period that was left: its hours are posted anew.
    if not (under or over or changed or key not in acknowledged.periods):
        return LedgerAction.HOLD
    # If the session goes on under this account, the account's record of the session stays.
    goes_on = (over and not under) or last is None or last[0] == key[0]
    return LedgerAction.POST if goes_on else LedgerAction.MOVE


def _points(inputs: _Inputs, key: Key, amount: int, session_segments: Sequence[Segment]) -> Sequence[HourlyPoint]:
    session = inputs.facts.session
    own = [span for span in session_segments if (span.account, span.period) == key]
    if not own:
        return [HourlyPoint(key[1] + 1, amount, 0, 0)]  # takes the charge back
    known = inputs.acknowledged.periods.get(key)
    last_point = None if known is None else known.last_point
    return hourly_points(own, session.tariff, session.attribution or Attribution(), last_point, amount)


def _item(
    session: Session, amount: int, action: LedgerAction, kind: Kind, record: str, points: Sequence[HourlyPoint]
) -> Item:
    if action is LedgerAction.HOLD:
        return Item(session.uid, amount)
    note: str | Ending = ""
    if kind is Kind.CLOSE and session.end is not None and session.proof is not None:
        note = Ending(session.proof, session.start, session.end, session.namespace_uid)
    if action is LedgerAction.OPEN:
        return Item(session.uid, amount, action, kind, session.namespace, session.pod, note, record)
    shown = dimensions(session.namespace, session.node, session.attribution)
    return Item(session.uid, amount, action, kind, session.namespace, session.pod, note, record, shown, tuple(points))


def _following(inputs: _Inputs, items: Mapping[Key, Item], use: RecordedUse) -> Acknowledged:
    """Returns the acknowledged session after the store took all of these items."""
    known, session, until = inputs.acknowledged, inputs.facts.session, inputs.until
    periods = {**known.periods, **{key: _acknowledged_amount(known, key, item) for key, item in items.items()}}
    written = any(item.record for item in items.values())
    following = Acknowledged(
        periods=periods,
        session=session if written or session == known.session else known.session,
        use=use if written else known.use,
        open_under=_open_under(known.open_under, items),
        closed=session.end is not None,
        also_open=_also_open(known, items),
        ended_under=_ended_under(known.ended_under, items),
    )
    if session.end is not None:
        return following
    final = min(until, inputs.surely_past)
    over = {inputs.ends[key] for key in periods if inputs.ends[key] <= final}
    changing = {key: amount for key, amount in periods.items() if inputs.ends[key] > final}
    # A session that turns out to have ended, or a clock that was ahead, moves the settled instant back.
    before = known.settled_until if known.settled_until <= until else first_known(known.use)
    shown = following.session or session
    return running_on(following, shown, inputs.payers, changing, until, max([before, *over]))


def _open_under(before: str, items: Mapping[Key, Item]) -> str:
    """Returns the account under which the session is open once the items are stored; empty for none.

    `before` is the account under which it is open now.
    """
    for (account, _), item in items.items():
        if item.action is LedgerAction.OPEN:
            return account
    left = any(account == before and item.action in CLOSING for (account, _), item in items.items())
    return "" if left else before


def _ended_under(before: str, items: Mapping[Key, Item]) -> str:
    """Returns the account that holds the record of the session's end once the items are stored; empty for none.

    It is the account of the item that closes the session. Without such an item, it is `before`, the account that holds
    the record now.
    """
    return next((account for (account, _), item in items.items() if item.action is LedgerAction.CLOSE), before)


def _also_open(acknowledged: Acknowledged, items: Mapping[Key, Item]) -> frozenset[str]:
    """Returns the further accounts under which the session may be open once the items are stored.

    `Acknowledged.also_open` says why. An account is left out once an item opens or closes the session under it.
    """
    if not acknowledged.also_open:
        return acknowledged.also_open
    return acknowledged.also_open - {
        account for (account, _), item in items.items() if item.action in CLOSING or item.action is LedgerAction.OPEN
    }


def _acknowledged_amount(acknowledged: Acknowledged, key: Key, item: Item) -> AcknowledgedAmount:
    before = acknowledged.periods.get(key)
    last = before.last_point if before is not None else None
    if item.points:
        point = item.points[-1]
        last = point if point.used is not None or last is None else point._replace(used=last.used)
    return AcknowledgedAmount(item.amount, last, item.action in {LedgerAction.FINALIZE_PERIOD, LedgerAction.FINALIZE})


def _ends(accounts: Mapping[str, Account], keys: Iterable[Key]) -> dict[Key, int]:
    """Returns the end of each period in nanoseconds since 1970, keyed as `keys`: by account and start of the period.

    The end is 0 for a period that is not among the account's open ones.
    """
    periods = {key: accounts[key[0]].period_at(key[1]) for key in keys}
    return {key: 0 if period is None else period.end for key, period in periods.items()}
