"""From a session and an instant to what the store must be told, and back from the store's yes to what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.jobs.round.billed_use import Billing
from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import Cut, cuts
from timekeeper.metering.segments import Assignments, Span, amounts, rate_now, spans
from timekeeper.rules.money import cost
from timekeeper.rules.timestamps import HOUR, format_exact
from timekeeper.store.ledger import Action, Item, Kind
from timekeeper.store.records import encode_session
from timekeeper.usage.dimensions import dimensions

POST_EVERY = HOUR
"""A running session gets a ledger entry at least this often."""


class Plan(NamedTuple):
    """What the store must be told of one session, and until when that is true; `plain` where it only spends on."""

    metered: Metered
    until: int
    items: Mapping[Key, Item]
    plain: bool = False

    @property
    def ends(self) -> bool:
        """Whether it closes the session: nobody computes it again once that is known to be stored."""
        return self.metered.session.end is not None


def plan(
    metered: Metered,
    assignments: Assignments,
    accounts: Mapping[str, Account],
    until: int,
    billing: Billing | None = None,
) -> Plan:
    """What the store must be told of a session that is charged until an instant.

    Args:
        metered: the session and what the store holds of it.
        assignments: who pays for its namespace.
        accounts: the accounts, their periods opened up to that instant.
        until: nanoseconds since 1970; the session's end where it has ended.
        billing: how use is billed; None where reservations are.
    """
    amount = None if billing else _plain_amount(metered, assignments, accounts, until)
    if amount is not None:
        ((key, known),) = metered.written.items()
        changed = known != amount
        return Plan(metered, until, {key: Item(metered.session.uid, amount)} if changed else {}, plain=True)
    session = metered.session
    if until < metered.final_until:
        _reopen(metered, assignments, accounts, until)
    settled = max(metered.final_until, session.start - 1)
    stretches = list(spans(assignments, lambda name: accounts[name].periods_after(settled), session.start, until))
    found = amounts(session.tariff, stretches)
    current = _current(assignments, accounts, until)
    if billing:
        begun = {current: 0} if current is not None and session.end is None else {}
        found = billing(metered, {**begun, **found}, stretches)
    last = max(found, key=lambda key: key[1], default=current)
    if session.end is None or current in found:
        last = current
    totals: dict[Key, int] = {**dict.fromkeys(metered.written, 0), **found}
    if last is not None and (last[0] == metered.recorded_in or session.end is None or found):
        totals.setdefault(last, 0)
    items = {}
    for key, amount in totals.items():
        action, kind = _action(metered, key, last, accounts, until)
        if action is not Action.HOLD or metered.written.get(key) != amount:
            found_cuts = _cuts(metered, key, amount, stretches) if action not in {Action.HOLD, Action.OPEN} else []
            items[key] = _item(metered, amount, action, kind, found_cuts)
    return Plan(metered, until, items)


def acknowledge(done: Plan, accounts: Mapping[str, Account], now: int) -> None:
    """Notes that the store holds all of a plan."""
    metered = done.metered
    _note_written(metered, done.items)
    if done.plain:
        return
    for key, item in done.items.items():
        if item.action is Action.OPEN:
            if metered.recorded_in != key[0]:
                metered.posted_at, metered.posted_rate = now, rate_now(metered.session.tariff, now)
            metered.recorded_in, metered.record_stale = key[0], False
        elif item.action is not Action.HOLD:
            metered.posted_at, metered.posted_rate = now, rate_now(metered.session.tariff, now)
            if item.action is not Action.POST and metered.recorded_in == key[0]:
                metered.recorded_in = ""
    if metered.session.end is not None:
        metered.closed = True
        return
    ended = [key for key in metered.written if _end_of(accounts, key) <= done.until]
    for key in ended:
        metered.final_until = max(metered.final_until, _end_of(accounts, key))
        del metered.written[key]
        metered.cut_at.pop(key, None)


def _note_written(metered: Metered, items: Mapping[Key, Item]) -> None:
    for key, item in items.items():
        metered.written[key] = item.amount
        if item.cuts:
            metered.cut_at[key] = item.cuts[-1]


def _plain_amount(
    metered: Metered, assignments: Assignments, accounts: Mapping[str, Account], until: int
) -> int | None:
    """The amount of a session that goes on in the period and under the account where the store has it, as most do.

    None where anything else is the case, or where the ledger is due an entry.
    """
    session, rates = metered.session, metered.session.tariff
    if session.end is not None or len(assignments) != 1 or len(rates) != 1 or len(metered.written) != 1:
        return None
    ((account, start),) = metered.written
    period = accounts[account].periods[-1]
    rate = rates[0][1]
    due = until - metered.posted_at >= POST_EVERY or rate != metered.posted_rate
    if due or metered.record_stale or account != metered.recorded_in or account != assignments[0][1]:
        return None
    if start != period.start or not period.start <= until < period.end or until < metered.final_until:
        return None
    return cost(rate, max(until - max(session.start, period.start), 0))


def _reopen(metered: Metered, assignments: Assignments, accounts: Mapping[str, Account], until: int) -> None:
    """Takes back what counted as final: the clock had been ahead, or the session ended before it was seen to end."""
    metered.final_until = metered.known_from
    for _, name in assignments:
        for period in accounts[name].periods_after(until):
            metered.written.setdefault((name, period.start), -1)


def _current(assignments: Assignments, accounts: Mapping[str, Account], until: int) -> Key | None:
    payer = next((name for since, name in reversed(assignments) if since <= until), assignments[0][1])
    period = accounts[payer].period_at(until)
    return (payer, period.start) if period is not None else None


def _action(
    metered: Metered, key: Key, last: Key | None, accounts: Mapping[str, Account], until: int
) -> tuple[Action, Kind]:
    kind = Kind.PERIOD if _end_of(accounts, key) <= until else Kind.MOVE
    if metered.session.end is not None:
        ending = Action.CLOSE if key == last else Action.MOVE
        return (Action.GONE if metered.pod_gone else ending), (Kind.CLOSE if key == last else kind)
    if key != last:
        # Where the store has nothing of it yet, the ledger must get what no later settlement will post.
        left = Action.MOVE if key[0] == metered.recorded_in or key not in metered.written else Action.HOLD
        return (Action.POST if kind is Kind.PERIOD else left), kind
    if key[0] != metered.recorded_in or metered.record_stale:
        return Action.OPEN, kind
    if rate_now(metered.session.tariff, until) != metered.posted_rate:
        return Action.POST, Kind.RATE
    return (Action.POST if until - metered.posted_at >= POST_EVERY else Action.HOLD), Kind.HOURLY


def _cuts(metered: Metered, key: Key, amount: int, stretches: Sequence[Span]) -> list[Cut]:
    session = metered.session
    own = [span for span in stretches if (span.account, span.period) == key]
    if not own:
        return [Cut(key[1] + 1, amount, 0, 0)]  # what was charged there is taken back
    return cuts(own, session.tariff, session.attribution or Attribution(), metered.cut_at.get(key), amount)


def _item(metered: Metered, amount: int, action: Action, kind: Kind, found_cuts: Sequence[Cut]) -> Item:
    session = metered.session
    if action is Action.HOLD:
        return Item(session.uid, amount)
    note, record = "", ""
    if kind is Kind.CLOSE and session.end is not None:
        told = (session.proof, format_exact(session.start), format_exact(session.end), session.namespace_uid)
        note = " ".join(part for part in told if part)
    if action in {Action.OPEN, Action.CLOSE}:
        record = encode_session(session)
    if action is Action.OPEN:
        return Item(session.uid, amount, action, kind, session.namespace, session.pod, note, record)
    shown = dimensions(session.namespace, session.node, session.attribution)
    return Item(
        session.uid, amount, action, kind, session.namespace, session.pod, note, record, shown, tuple(found_cuts)
    )


def _end_of(accounts: Mapping[str, Account], key: Key) -> int:
    account, start = key
    period = accounts[account].period_at(start)
    return period.end if period is not None else 0
