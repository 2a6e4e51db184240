"""Holds what a GPUBudget's status says to what was true when it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from timekeeper.audit.burning import check_burning
from timekeeper.audit.charging import Changes, charge
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.limits import BudgetLimits, state
from timekeeper.audit.sight import Sight
from timekeeper.audit.snapshot import Snapshot, read_amount, read_session, whole
from timekeeper.audit.sums import CORRECTION, MONEY, Sums, difference
from timekeeper.rules.timestamps import TimeError, format_instant, parse_instant

REWRITTEN = 20 * 60 * 10**9
"""A status is written again at least every ten minutes; to write ten thousand of them takes minutes more."""
SETTLED_WITHIN = 60 * 10**9
"""The figures of a status are at most so much older than it is, in nanoseconds."""

Json = Mapping[str, Any]


def check_status(
    snapshot: Snapshot, sums: Sums, item: Json, limits: BudgetLimits | None, sight: Sight
) -> Iterator[Difference]:
    """A budget's status, against the period that it speaks of; one that speaks of another period is passed over.

    Args:
        snapshot: the period.
        sums: what it must stand at.
        item: the GPUBudget, read before the snapshot or at the same time.
        limits: what its spec allows; None where it cannot be used.
        sight: payers and the time.
    """
    now = sight.now
    status = _mapping(item.get("status"))
    written = _instant(_mapping(status.get("checkpoint")).get("time"))
    start = _instant(_mapping(status.get("period")).get("start"))
    if not status or (start is not None and start != _second(snapshot.start) and written is not None):
        if snapshot.latest and (written is None or now - written > REWRITTEN):
            told = _shown(_mapping(status.get("period")).get("start"))
            yield _difference(snapshot, "period.start", told, format_instant(snapshot.start), "the latest period")
        return
    if written is None or not snapshot.start <= written <= now or now - written > REWRITTEN:
        told = _shown(_mapping(status.get("checkpoint")).get("time"))
        yield _difference(snapshot, "checkpoint.time", told, "an instant of the last 20 minutes", "when it was written")
        return
    yield from _check_amounts(snapshot, sums, status, limits, sight, written)
    yield from check_burning(snapshot, item)
    generation = _mapping(item.get("metadata")).get("generation", 0)
    if limits is not None and status.get("observedGeneration") == generation:
        yield from _check_state(snapshot, status, limits, written)


def _check_amounts(
    snapshot: Snapshot,
    sums: Sums,
    status: Json,
    limits: BudgetLimits | None,
    sight: Sight,
    written: int,
) -> Iterator[Difference]:
    granted, spent, told = _granted(snapshot, written), _money(status, "spent"), _money(status, "granted")
    # By a clock that was ahead for a moment, what had been granted then is of a time to come.
    ahead = accumulate(entry.amount for entry in snapshot.entries if entry.kind in MONEY and entry.at > sight.now)
    if told in {granted + part for part in ahead}:
        granted = told
    if told != granted:
        reason = "the ledger's grants up to when it was written"
        yield _difference(snapshot, "granted", _shown(told), str(granted), reason)
    yield from _check_spent(snapshot, sums, spent, sight, written)
    yield from _check_checkpoint(snapshot, sums, _mapping(status.get("checkpoint")))
    end = _mapping(status.get("period")).get("end")
    if snapshot.end is not None and end != format_instant(snapshot.end):
        yield _difference(snapshot, "period.end", _shown(end), format_instant(snapshot.end), "the period")
    if limits is not None and limits.allowance is not None:
        yield from _check_balance(snapshot, status, spent, limits.allowance + granted)


def _check_checkpoint(snapshot: Snapshot, sums: Sums, told: Json) -> Iterator[Difference]:
    closed = whole(told.get("closedMicroGPUSeconds"))
    if closed != sums.gone:
        yield _difference(snapshot, "checkpoint", _shown(closed), str(sums.gone), "sessions whose pods are gone")
    previous, balance = told.get("previousMicroGPUSeconds"), snapshot.sums.get("struck")
    if previous != balance:
        reason = "the closing balance of the period before"
        yield _difference(snapshot, "checkpoint.previous", _shown(previous), _shown(balance), reason)
    pots = {(pot.get("grant", ""), bool(pot.get("lapsed"))): pot for pot in told.get("pots") or () if _mapping(pot)}
    for name, text in snapshot.pots.items():
        amount, *_, flag = text.split(" ")
        pot = pots.get((name, flag == "l"))
        if pot is not None and pot.get("microGPUSeconds") != amount:
            stored = _shown(pot.get("microGPUSeconds"))
            yield _difference(snapshot, f"checkpoint.pots {name}".rstrip(), stored, amount, "what the grant brought")


def _check_spent(snapshot: Snapshot, sums: Sums, spent: int | None, sight: Sight, written: int) -> Iterator[Difference]:
    # What was corrected since it was written may have made the sum larger or smaller.
    since = written - SETTLED_WITHIN
    later = [entry.amount for entry in snapshot.entries if entry.kind == CORRECTION and entry.at > since]
    more, less = sum(amount for amount in later if amount > 0), -sum(amount for amount in later if amount < 0)
    least = sums.total - _growth(snapshot, sight.payers, since) - more
    if spent is None or not least <= spent <= sums.total + less:
        reason = "what was spent when it was written"
        yield _difference(snapshot, "spent", _shown(spent), f"{least} to {sums.total + less}", reason)


def _check_balance(snapshot: Snapshot, status: Json, spent: int | None, expected: int) -> Iterator[Difference]:
    available, remaining = _money(status, "available"), _money(status, "remaining")
    if available != expected:
        yield _difference(snapshot, "available", _shown(available), str(expected), "allowance + grants")
    if spent is not None and available is not None and remaining != available - spent:
        yield _difference(
            snapshot, "remaining", _shown(remaining), str(available - spent), "its own available and spent"
        )


def _granted(snapshot: Snapshot, until: int) -> int:
    return sum(entry.amount for entry in snapshot.entries if entry.kind in MONEY and entry.at <= until)


def _check_state(snapshot: Snapshot, status: Json, limits: BudgetLimits, written: int) -> Iterator[Difference]:
    spent, available = _money(status, "spent"), _money(status, "available")
    exhausted_at = _instant(status.get("exhaustedAt"))
    if spent is None:
        return
    expected = state(limits, available, spent, exhausted_at, written)
    if status.get("state") != expected:
        reason = "its own figures and the budget's limits"
        yield _difference(snapshot, "state", _shown(status.get("state")), expected, reason)
    stored = whole(snapshot.sums.get("exhausted"))
    if exhausted_at is not None and stored is not None and exhausted_at != stored:
        yield _difference(snapshot, "exhaustedAt", str(exhausted_at), str(stored), "the period's sums")
    ran_out = available is not None and spent >= available
    if ran_out != (exhausted_at is not None):
        told = _shown(status.get("exhaustedAt"))
        yield _difference(snapshot, "exhaustedAt", told, "an instant" if ran_out else "nothing", "its own figures")


def _growth(snapshot: Snapshot, payers: Mapping[str, Changes], since: int) -> int:
    """The most that can have been spent after an instant: of recorded sessions by time, of others by the ledger."""
    posted: dict[str, int] = {}
    for entry in snapshot.entries:
        if entry.kind not in MONEY and entry.at <= since:
            posted[entry.session] = posted.get(entry.session, 0) + entry.amount
    growth = 0
    for uid, text in snapshot.amounts.items():
        found = read_amount(text)
        if found is None:
            continue
        before = posted.get(uid, 0)
        record = read_session(snapshot.sessions.get(uid) or snapshot.ended.get(uid) or "")
        if record is not None and record.namespace in payers and not record.by_use:
            until = since if record.end is None else min(since, record.end)
            period = (snapshot.start, snapshot.end or until)
            before = max(before, charge(record, payers[record.namespace], snapshot.account, period, until))
        growth += max(found.amount - before, 0)
    folded = (entry for entry in snapshot.entries if entry.session and entry.session not in snapshot.amounts)
    return growth + sum(max(entry.amount, 0) for entry in folded if entry.at > since)


def _difference(snapshot: Snapshot, field: str, stored: str, expected: str, reason: str) -> Difference:
    return difference(snapshot, Figure.STATUS, f"status.{field}", stored, expected, reason)


def _money(status: Json, field: str) -> int | None:
    try:
        return int(_mapping(status.get(field)).get("microGPUSeconds", ""))
    except (TypeError, ValueError):
        return None


def _instant(value: Any) -> int | None:
    try:
        return parse_instant(value)
    except TimeError:
        return None


def _second(instant: int) -> int:
    return instant // 10**9 * 10**9


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)
