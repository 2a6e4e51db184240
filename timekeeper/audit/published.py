"""Checks the figures that people and admission read: published summaries and states, and the statuses of GPUBudgets.

Spending uses up first the money that expires first. The check of expiring grants computes again, from one arrival of
money to the next, which money was spent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fairgpu.json_values import mapping, mappings
from timekeeper.audit.charges import Changes, charge, payer_at, rate_at
from timekeeper.audit.cluster import AuditContext, BudgetLimits, acted_on, state
from timekeeper.audit.difference import SUMMARY, Difference, Figure, shown
from timekeeper.audit.snapshot import SessionRecord, Snapshot, read_amount, read_session, whole
from timekeeper.audit.sums import CORRECTION, MONEY, Sums, difference
from timekeeper.domain.timestamps import Instant, format_instant, instant_or_none

REFRESH_SHARE = 100
"""The remaining amount is published again only once it has changed by the available amount divided by this number."""
NANOSECONDS = 1_000_000_000
EXPIRED = "l"
"""The flag of a credit that has expired."""


_NO_NAME = ""
"""The name of money that was rolled over, which expires with the period like its own money."""

Json = Mapping[str, Any]


def check_published(
    snapshot: Snapshot, sums: Sums, limits: BudgetLimits | None, context: AuditContext
) -> Iterator[Difference]:
    """Checks the published figures of an account and the states of its namespaces; yields each difference.

    Only the account's present period is checked. The account's state and committed amount are checked only if `limits`
    are known and admission is simple.

    Args:
        snapshot: the period as the store holds it; any other than the present one is skipped.
        sums: the expected totals of the period.
        limits: the limits of the account's budget; None if they are unknown.
        context: published states, payers of namespaces, and the times of the audit and of the last settlement.
    """
    total, granted, now, settled = sums.total, sums.granted, context.now, context.settled
    if not snapshot.is_present(now):
        return
    published = _json(snapshot.head.get("summary"))
    if not published:
        yield difference(snapshot, Figure.STATE, SUMMARY, "nothing", "the account's figures", "its place in the store")
        return
    available = published.get("available")
    if limits is not None:
        available = None if limits.allowance is None else limits.allowance + granted
    yield from _check_exhausted(snapshot, available, total, now)
    exhausted_at = whole(snapshot.sums.get("exhausted"))
    running = [record for text in snapshot.sessions.values() if (record := read_session(text)) is not None]
    running += [record for record in context.left if record.uid not in snapshot.sessions]
    rate = _rate(running, context.payers, snapshot.account, now)
    expected: dict[str, tuple[Figure, Any, str]] = {
        "period_start": (Figure.PERIOD, snapshot.start, "the present period"),
        "period_end": (Figure.PERIOD, snapshot.end, "the present period"),
        "granted": (Figure.GRANTED, granted, "the period's sums"),
        "available": (Figure.AVAILABLE, available, "allowance + grants"),
        "rate": (Figure.RATE, rate, "the rates of its open sessions"),
        "exhausted_at": (Figure.EXHAUSTED, exhausted_at, "the period's sums"),
        **_credited(snapshot, available if available is not None else granted),
    }
    if limits is not None and limits.simple:
        published_state = acted_on(limits, state(limits, available, total, exhausted_at, now))
        expected["state"] = (Figure.STATE, published_state, "limits, spending and when it ran out")
        expected["committed"] = (Figure.AVAILABLE, 0, "admission is simple")
    for field, (figure, value, reason) in expected.items():
        if published.get(field) != value:
            yield difference(snapshot, figure, SUMMARY, shown(published.get(field)), shown(value), reason)
    since = now if settled is None else max(now - settled, 0)
    tolerance = max(available or 0, 0) // REFRESH_SHARE + rate * since // NANOSECONDS + 1
    remaining = (available - total) if available is not None else 0
    for namespace, text in context.states.items():
        if namespace in context.payers and payer_at(context.payers[namespace], now) == snapshot.account:
            stands = (published.get("state"), available or 0, remaining, rate)
            yield from _check_state(snapshot, namespace, _json(text), stands, tolerance)


def _credits(snapshot: Snapshot) -> list[list[Any]]:
    """Returns the credits that a summary must list, from the period's stored credits.

    Unreadable credits are left out, and so is money that was rolled over.

    Each credit is a list: the grant's name, the amount that the credit brought (for an expired credit, the part that
    was spent), its expiry, the amount that the period had spent when the credit arrived, and whether it has expired.
    Amounts are microGPU-seconds, instants nanoseconds since 1970.
    """
    credits_read = []
    for name, text in sorted(snapshot.credits.items()):
        amount, expires, since, flag = [*text.split(" "), *[""] * 4][:4]
        figures = whole(amount), whole(expires), whole(since)
        if name and None not in figures:
            credits_read.append([name, *figures, flag == EXPIRED])
    return credits_read


def _credited(snapshot: Snapshot, money: int) -> dict[str, tuple[Figure, Any, str]]:
    """Returns two expected fields of a published summary: the money that expires with the period, and the credits.

    The key is the field's name; the value is the kind of figure, the expected value, and its source in words.

    Args:
        money: the available amount, in microGPU-seconds; without a limit, the amount that grants added.
    """
    period_credits = _credits(snapshot)
    own = money - sum(amount for _, amount, *_ in period_credits)
    return {
        "own": (Figure.AVAILABLE, own, "what is available, less the period's credits"),
        "pots": (Figure.BURNED, period_credits, "the period's credits"),
    }


def _check_exhausted(snapshot: Snapshot, available: Any, total: int, now: Instant) -> Iterator[Difference]:
    stored = snapshot.sums.get("exhausted", "")
    if not isinstance(available, int) or total < available:
        if stored:
            yield difference(snapshot, Figure.EXHAUSTED, "", stored, "nothing", "less is spent than is available")
        return
    moment = whole(stored)
    if moment is None or not snapshot.start <= moment <= now:
        expected = f"an instant from {snapshot.start} to {now}"
        yield difference(
            snapshot, Figure.EXHAUSTED, "", stored or "nothing", expected, "all that is available is spent"
        )


def _check_state(
    snapshot: Snapshot, namespace: str, published: Mapping[str, Any], stands: tuple[Any, int, int, int], tolerance: int
) -> Iterator[Difference]:
    account_state, available, remaining, rate = stands
    subject = f"state of {namespace}"
    budget = "" if snapshot.account.startswith("namespace:") else snapshot.account
    reason = "what pays for the namespace, and how that stands"
    exact = {
        "budget": (Figure.STATE, budget),
        "state": (Figure.STATE, str(account_state)),
        "available": (Figure.AVAILABLE, str(available)),
        "rate": (Figure.RATE, str(rate)),
    }
    for field, (figure, value) in exact.items():
        if published.get(field) != value:
            yield difference(snapshot, figure, subject, shown(published.get(field)), value, reason)
    left = _whole_of_any_sign(published.get("remaining"))
    if left is None or abs(left - remaining) > tolerance:
        stored, expected = shown(published.get("remaining")), f"{remaining} or nearly so"
        yield difference(snapshot, Figure.REMAINING, subject, stored, expected, reason)


def _rate(running: Sequence[SessionRecord], payers: Mapping[str, Changes], account: str, now: Instant) -> int:
    return sum(
        rate_at(record, now)
        for record in running
        if record.namespace in payers and payer_at(payers[record.namespace], now) == account
    )


def _json(text: str | None) -> dict[str, Any]:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _whole_of_any_sign(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def check_status(
    snapshot: Snapshot, sums: Sums, item: Json, limits: BudgetLimits | None, context: AuditContext
) -> Iterator[Difference]:
    """Checks a budget's status against the period that it describes, and yields each difference.

    The status's figures are checked only if it describes the snapshot's period and is at most REWRITTEN old. An older
    status of the snapshot's period is a difference itself. If the snapshot's period is the present one, a missing
    status is a difference, too, and so is one of another period that is older than REWRITTEN.

    Args:
        sums: the expected totals of the period.
        item: the GPUBudget as JSON, read before the snapshot or at the same time.
        limits: the budget's limits; None if they are unknown: what follows from them is then not checked.
        context: the payers of namespaces, and the time of the audit.
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
        yield from _check_status_state(snapshot, status, limits, written)


@dataclass(slots=True)
class _Credit:
    """Money with an expiry; amounts are microGPU-seconds, instants nanoseconds since 1970.

    Attributes:
        name: the grant's name.
        left: the unspent amount; of an expired credit, the amount that was spent.
        rank: the sort key of the order in which credits are spent, the smallest first.
        since: the amount that the period had spent when the credit arrived.
        expires: the instant at which the credit expires.
        expired: whether the ledger has recorded that the credit expired.
    """

    name: str
    left: int
    rank: tuple[int, int, str]
    since: int
    expires: int
    expired: bool


def check_burning(snapshot: Snapshot, item: Json) -> Iterator[Difference]:
    """Checks the unspent amounts of expiring grants in a budget's status; yields each difference.

    Nothing is checked if a stored credit is unreadable, or if the status does not list the same credits as the period:
    a grant then came or expired after the status was written.

    Args:
        snapshot: the period that the status describes.
        item: the GPUBudget as JSON.
    """
    status = mapping(item.get("status"))
    spent, available, granted = (_money(status, name) for name in ("spent", "available", "granted"))
    period_credits = _unspent_credits(snapshot)
    published = _expiring(status)
    shown_credits = mappings(mapping(status.get("checkpoint")).get("pots"))
    known = {(credit.get("grant"), bool(credit.get("lapsed"))) for credit in shown_credits if credit.get("grant")}
    if spent is None or period_credits is None or known != {(credit.name, credit.expired) for credit in period_credits}:
        return  # the status is older than the last credit or expiry
    own = (granted or 0 if available is None else available) - sum(credit.left for credit in period_credits)
    left_of = burned(own, period_credits, snapshot.end or 0, spent)
    expected = {name: left for name, left in left_of.items() if left is not None}
    for name in sorted(published.keys() | expected.keys()):
        if published.get(name) != expected.get(name):
            stored, left = published.get(name, "nothing"), expected.get(name, "nothing")
            reason = "what was spent burns what expires soonest first"
            yield difference(snapshot, Figure.BURNED, f"status.expiring {name}", str(stored), str(left), reason)


def burned(own: int, period_credits: list[_Credit], end: Instant, spent: int) -> dict[str, int | None]:
    """Returns the unspent amount of each credit after an amount is spent, keyed by grant; None for an expired credit.

    Amounts are microGPU-seconds. The money that expires soonest is spent first.

    Args:
        own: the money that expires with the period; an amount below 0 is a debt.
        period_credits: the credits, as `_unspent_credits` returns them; their `left` is changed.
        end: the period's end.
        spent: the amount that the period has spent.
    """
    mine = _Credit(_NO_NAME, max(own, 0), (end, 0, _NO_NAME), 0, end, expired=False)
    owed, here, counted = max(-own, 0), [mine], 0
    for coming in [*sorted(period_credits, key=lambda credit: (credit.since, credit.expires, credit.name)), None]:
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


def _unspent_credits(snapshot: Snapshot) -> list[_Credit] | None:
    """Returns the credits of a snapshot's period before any is spent, without the money that was rolled over.

    The result is None if a credit is unreadable.

    `left` is the amount that the credit brought; of an expired credit, the amount that was spent of it.
    """
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
"""The largest allowed age of a status, in nanoseconds: each is written every ten minutes, or later if many are due."""
SETTLED_WITHIN = 60 * 10**9
"""The most by which the figures of a status may be older than the status, in nanoseconds."""


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
    previous, balance = published.get("previousMicroGPUSeconds"), snapshot.sums.get("struck") or None
    if previous != balance:
        reason = "the closing balance of the period before"
        yield _difference(snapshot, "checkpoint.previous", shown(previous), shown(balance), reason)
    corrected, expected = published.get("previousCorrectedMicroGPUSeconds"), str(_corrected_before(snapshot))
    if corrected is not None and corrected != expected:
        reason = "the corrections of the period before"
        yield _difference(snapshot, "checkpoint.previousCorrected", shown(corrected), expected, reason)
    shown_credits = {
        (credit.get("grant", ""), bool(credit.get("lapsed"))): credit
        for credit in published.get("pots") or ()
        if mapping(credit)
    }
    for name, text in snapshot.credits.items():
        amount, flag = text.partition(" ")[0], text.rpartition(" ")[2]
        credit = shown_credits.get((name, flag == "l"))
        if credit is not None and credit.get("microGPUSeconds") != amount:
            stored = shown(credit.get("microGPUSeconds"))
            yield _difference(snapshot, f"checkpoint.pots {name}".rstrip(), stored, amount, "what the grant brought")


def _corrected_before(snapshot: Snapshot) -> int:
    before = {start for start, end in snapshot.periods.items() if end == str(snapshot.start)}
    stored = [text.split() for text in snapshot.corrections.values()]
    return sum(whole(amount) or 0 for start, amount in stored if start in before)


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


def _check_status_state(snapshot: Snapshot, status: Json, limits: BudgetLimits, written: int) -> Iterator[Difference]:
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
    """Returns the most that can have been spent in a snapshot's period from an instant on, in microGPU-seconds.

    A figure that was written at that instant may be lower than the present figure by this amount. The amount that a
    session had spent by then is the sum of its ledger entries by then. If the session has a record and is billed by
    time, its rate x time counts instead, if that is larger.

    Args:
        payers: keyed by namespace, its payers in order of time.
        since: the instant, in nanoseconds since 1970.
    """
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
