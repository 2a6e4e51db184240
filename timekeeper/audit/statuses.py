"""Checks the statuses of GPUBudgets, and the amounts that they state as left of expiring grants.

Spending burns the money that expires soonest first. The check replays that from one arrival of money to the next, with
code of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fairgpu.json_values import mapping, mappings
from timekeeper.audit.charges import Changes, charge
from timekeeper.audit.cluster import AuditContext, BudgetLimits, state
from timekeeper.audit.difference import Difference, Figure, shown
from timekeeper.audit.snapshot import Snapshot, read_amount, read_session, whole
from timekeeper.audit.sums import CORRECTION, MONEY, Sums, difference
from timekeeper.domain.timestamps import format_instant, instant_or_none

_NO_NAME = ""
"""The name of money that was rolled over, which expires with the period like its own money."""

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Credit:
    """Money with an expiry: the amount left of it, in microGPU-seconds, and the amount spent when it arrived."""

    name: str
    left: int
    rank: tuple[int, int, str]
    since: int
    expires: int
    expired: bool


def check_burning(snapshot: Snapshot, item: Json) -> Iterator[Difference]:
    """Checks the amounts left of expiring grants in a budget's status, and yields each difference.

    Args:
        snapshot: the period that the status describes.
    """
    status = mapping(item.get("status"))
    spent, available, granted = (_money(status, name) for name in ("spent", "available", "granted"))
    open_credits = _credits(snapshot)
    published = _expiring(status)
    shown_credits = mappings(mapping(status.get("checkpoint")).get("pots"))
    known = {(credit.get("grant"), bool(credit.get("lapsed"))) for credit in shown_credits if credit.get("grant")}
    if spent is None or open_credits is None or known != {(credit.name, credit.expired) for credit in open_credits}:
        return  # the status is older than the last credit or expiry
    own = (granted or 0 if available is None else available) - sum(credit.left for credit in open_credits)
    left_of = burned(own, open_credits, snapshot.end or 0, spent)
    expected = {name: left for name, left in left_of.items() if left is not None}
    for name in sorted(published.keys() | expected.keys()):
        if published.get(name) != expected.get(name):
            stored, left = published.get(name, "nothing"), expected.get(name, "nothing")
            reason = "what was spent burns what expires soonest first"
            yield difference(snapshot, Figure.BURNED, f"status.expiring {name}", str(stored), str(left), reason)


def burned(own: int, open_credits: list[_Credit], end: int, spent: int) -> dict[str, int | None]:
    """Returns the amount left of each credit once an amount is spent; None for an expired credit.

    Amounts are microGPU-seconds.

    Args:
        own: the period's money that expires with the period; below 0 it is a debt.
        open_credits: the credits, which outlive the period.
        end: the period's end, in nanoseconds since 1970.
        spent: the amount that the period has spent.
    """
    mine = _Credit(_NO_NAME, max(own, 0), (end, 0, _NO_NAME), 0, end, expired=False)
    owed, here, counted = max(-own, 0), [mine], 0
    for coming in [*sorted(open_credits, key=lambda credit: (credit.since, credit.expires, credit.name)), None]:
        until = spent if coming is None else max(counted, min(coming.since, spent))
        wanted, counted = until - counted, until
        for credit in sorted(here, key=lambda credit: credit.rank):
            burned_now = min(credit.left, wanted)
            credit.left, wanted = credit.left - burned_now, wanted - burned_now
        owed += wanted
        if coming is not None:
            paid = min(owed, coming.left)
            coming.left, owed = coming.left - paid, owed - paid
            here.append(coming)
    return {credit.name: None if credit.expired else credit.left for credit in here if credit is not mine}


def _credits(snapshot: Snapshot) -> list[_Credit] | None:
    """Returns the period's money with an expiry; None where it is unreadable."""
    credits_read = []
    for name, text in snapshot.credits.items():
        amount, expires, since, flag, *_ = [*text.split(" "), "", "", "", ""]
        numbers = whole(amount), whole(expires), whole(since)
        if None in numbers:
            return None
        if name != _NO_NAME:
            left, until, came = (number or 0 for number in numbers)
            credits_read.append(_Credit(name, left, (until, 1, name), came, until, flag == "l"))
    return credits_read


def _money(status: Json, field: str) -> int | None:
    return whole(str(mapping(status.get(field)).get("microGPUSeconds")))


def _expiring(status: Json) -> dict[str, int | None]:
    rows = mappings(status.get("expiring"))
    return {str(row.get("grant")): whole(str(row.get("microGPUSeconds"))) for row in rows}


REWRITTEN = 20 * 60 * 10**9
"""The oldest that a status may be: each is written every ten minutes, and ten thousand take minutes more."""
SETTLED_WITHIN = 60 * 10**9
"""The most by which the figures of a status may be older than the status, in nanoseconds."""


def check_status(
    snapshot: Snapshot, sums: Sums, item: Json, limits: BudgetLimits | None, context: AuditContext
) -> Iterator[Difference]:
    """Checks a budget's status against the period that it describes, and yields each difference.

    A status of another period is skipped.

    Args:
        sums: the expected totals of the period.
        item: the GPUBudget as JSON, read before the snapshot or at the same time.
        limits: the limits in its spec; None where they are invalid.
    """
    now = context.now
    status = mapping(item.get("status"))
    written = instant_or_none(mapping(status.get("checkpoint")).get("time"))
    start = instant_or_none(mapping(status.get("period")).get("start"))
    if not status or (start is not None and start != _second(snapshot.start) and written is not None):
        if snapshot.is_present(now) and (written is None or now - written > REWRITTEN):
            published = shown(mapping(status.get("period")).get("start"))
            yield _difference(snapshot, "period.start", published, format_instant(snapshot.start), "the present period")
        return
    if written is None or not snapshot.start <= written <= now or now - written > REWRITTEN:
        published = shown(mapping(status.get("checkpoint")).get("time"))
        yield _difference(
            snapshot, "checkpoint.time", published, "an instant of the last 20 minutes", "when it was written"
        )
        return
    yield from _check_amounts(snapshot, sums, status, limits, context, written)
    yield from check_burning(snapshot, item)
    generation = mapping(item.get("metadata")).get("generation", 0)
    if limits is not None and status.get("observedGeneration") == generation:
        yield from _check_state(snapshot, status, limits, written)


def _check_amounts(
    snapshot: Snapshot,
    sums: Sums,
    status: Json,
    limits: BudgetLimits | None,
    context: AuditContext,
    written: int,
) -> Iterator[Difference]:
    granted, spent, published = (
        _granted(snapshot, written),
        _amount_of(status, "spent"),
        _amount_of(status, "granted"),
    )
    # A clock that was ahead for a moment gave grants of that moment a future time.
    ahead = accumulate(entry.amount for entry in snapshot.entries if entry.kind in MONEY and entry.at > context.now)
    if published in {granted + part for part in ahead}:
        granted = published
    if published != granted:
        reason = "the ledger's grants up to when it was written"
        yield _difference(snapshot, "granted", shown(published), str(granted), reason)
    yield from _check_spent(snapshot, sums, spent, context, written)
    yield from _check_checkpoint(snapshot, sums, mapping(status.get("checkpoint")))
    end = mapping(status.get("period")).get("end")
    if snapshot.end is not None and end != format_instant(snapshot.end):
        yield _difference(snapshot, "period.end", shown(end), format_instant(snapshot.end), "the period")
    if limits is not None and limits.allowance is not None:
        yield from _check_balance(snapshot, status, spent, limits.allowance + granted)


def _check_checkpoint(snapshot: Snapshot, sums: Sums, published: Json) -> Iterator[Difference]:
    closed = whole(published.get("closedMicroGPUSeconds"))
    if closed != sums.finalized:
        yield _difference(snapshot, "checkpoint", shown(closed), str(sums.finalized), "sessions whose pods are gone")
    previous, balance = published.get("previousMicroGPUSeconds"), snapshot.sums.get("struck")
    if previous != balance:
        reason = "the closing balance of the period before"
        yield _difference(snapshot, "checkpoint.previous", shown(previous), shown(balance), reason)
    shown_credits = {
        (credit.get("grant", ""), bool(credit.get("lapsed"))): credit
        for credit in published.get("pots") or ()
        if mapping(credit)
    }
    for name, text in snapshot.credits.items():
        amount, *_, flag = text.split(" ")
        credit = shown_credits.get((name, flag == "l"))
        if credit is not None and credit.get("microGPUSeconds") != amount:
            stored = shown(credit.get("microGPUSeconds"))
            yield _difference(snapshot, f"checkpoint.pots {name}".rstrip(), stored, amount, "what the grant brought")


def _check_spent(
    snapshot: Snapshot, sums: Sums, spent: int | None, context: AuditContext, written: int
) -> Iterator[Difference]:
    # A correction since the status was written may have made the sum larger or smaller.
    since = written - SETTLED_WITHIN
    later = [entry.amount for entry in snapshot.entries if entry.kind == CORRECTION and entry.at > since]
    more, less = sum(amount for amount in later if amount > 0), -sum(amount for amount in later if amount < 0)
    least = sums.total - _growth(snapshot, context.payers, since) - more
    if spent is None or not least <= spent <= sums.total + less:
        reason = "what was spent when it was written"
        yield _difference(snapshot, "spent", shown(spent), f"{least} to {sums.total + less}", reason)


def _check_balance(snapshot: Snapshot, status: Json, spent: int | None, expected: int) -> Iterator[Difference]:
    available, remaining = _amount_of(status, "available"), _amount_of(status, "remaining")
    if available != expected:
        yield _difference(snapshot, "available", shown(available), str(expected), "allowance + grants")
    if spent is not None and available is not None and remaining != available - spent:
        yield _difference(
            snapshot, "remaining", shown(remaining), str(available - spent), "its own available and spent"
        )


def _granted(snapshot: Snapshot, until: int) -> int:
    return sum(entry.amount for entry in snapshot.entries if entry.kind in MONEY and entry.at <= until)


def _check_state(snapshot: Snapshot, status: Json, limits: BudgetLimits, written: int) -> Iterator[Difference]:
    spent, available = _amount_of(status, "spent"), _amount_of(status, "available")
    exhausted_at = instant_or_none(status.get("exhaustedAt"))
    if spent is None:
        return
    expected = state(limits, available, spent, exhausted_at, written)
    if status.get("state") != expected:
        reason = "its own figures and the budget's limits"
        yield _difference(snapshot, "state", shown(status.get("state")), expected, reason)
    stored = whole(snapshot.sums.get("exhausted"))
    if exhausted_at is not None and stored is not None and exhausted_at != stored:
        yield _difference(snapshot, "exhaustedAt", str(exhausted_at), str(stored), "the period's sums")
    ran_out = available is not None and spent >= available
    if ran_out != (exhausted_at is not None):
        published = shown(status.get("exhaustedAt"))
        yield _difference(snapshot, "exhaustedAt", published, "an instant" if ran_out else "nothing", "its own figures")


def _growth(snapshot: Snapshot, payers: Mapping[str, Changes], since: int) -> int:
    """Returns the most that can have been spent since an instant: by time for recorded sessions, else by the ledger."""
    posted: dict[str, int] = {}
    for entry in snapshot.entries:
        if entry.kind not in MONEY and entry.at <= since:
            posted[entry.session] = posted.get(entry.session, 0) + entry.amount
    growth = 0
    for uid, text in snapshot.amounts.items():
        amount = read_amount(text)
        if amount is None:
            continue
        before = posted.get(uid, 0)
        record = read_session(snapshot.sessions.get(uid) or snapshot.ended.get(uid) or "")
        if record is not None and record.namespace in payers and not record.by_use:
            until = since if record.end is None else min(since, record.end)
            period = (snapshot.start, snapshot.end or until)
            before = max(before, charge(record, payers[record.namespace], snapshot.account, period, until))
        growth += max(amount.amount - before, 0)
    folded = (entry for entry in snapshot.entries if entry.session and entry.session not in snapshot.amounts)
    return growth + sum(max(entry.amount, 0) for entry in folded if entry.at > since)


def _difference(snapshot: Snapshot, field: str, stored: str, expected: str, reason: str) -> Difference:
    return difference(snapshot, Figure.STATUS, f"status.{field}", stored, expected, reason)


def _amount_of(status: Json, field: str) -> int | None:
    try:
        return int(mapping(status.get(field)).get("microGPUSeconds", ""))
    except (TypeError, ValueError):
        return None


def _second(instant: int) -> int:
    return instant // 10**9 * 10**9
