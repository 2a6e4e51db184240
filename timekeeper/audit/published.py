"""Checks the published summary and states of an account against the totals of its present period."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from timekeeper.audit.charges import Changes, payer_at, rate_at
from timekeeper.audit.cluster import AuditContext, BudgetLimits, acted_on, state
from timekeeper.audit.difference import SUMMARY, Difference, Figure, shown
from timekeeper.audit.snapshot import SessionRecord, Snapshot, read_session, whole
from timekeeper.audit.sums import Sums, difference

REFRESH_SHARE = 100
"""The fraction of the available amount by which the remaining amount changes before it is published again."""
NANOSECONDS = 1_000_000_000
EXPIRED = "l"
"""The flag of a credit that has expired."""


def check_published(
    snapshot: Snapshot, sums: Sums, limits: BudgetLimits | None, context: AuditContext
) -> Iterator[Difference]:
    """Checks the published figures of an account and the states of its namespaces; yields each difference.

    Only the account's present period is checked.

    Args:
        sums: the expected totals of the period.
        limits: the limits of its budget; None where they are unknown.
        context: states, payers and the time.
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
    """Returns the credits of grants as the summary lists them; unreadable ones are left out."""
    credits_read = []
    for name, text in sorted(snapshot.credits.items()):
        amount, expires, since, flag = [*text.split(" "), *[""] * 4][:4]
        figures = whole(amount), whole(expires), whole(since)
        if name and None not in figures:
            credits_read.append([name, *figures, flag == EXPIRED])
    return credits_read


def _credited(snapshot: Snapshot, money: int) -> dict[str, tuple[Figure, Any, str]]:
    """Returns the expected money figures of a summary: for each field, its figure, its value, and the reason."""
    period_credits = _credits(snapshot)
    own = money - sum(amount for _, amount, *_ in period_credits)
    return {
        "own": (Figure.AVAILABLE, own, "what is available, less the period's credits"),
        "pots": (Figure.BURNED, period_credits, "the period's credits"),
    }


def _check_exhausted(snapshot: Snapshot, available: Any, total: int, now: int) -> Iterator[Difference]:
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


def _rate(running: Sequence[SessionRecord], payers: Mapping[str, Changes], account: str, now: int) -> int:
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
