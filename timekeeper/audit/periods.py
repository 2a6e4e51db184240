"""Holds an account's periods to each other: they follow without gap, and the latest is the one that is named."""

from __future__ import annotations

from collections.abc import Iterator

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import Snapshot, whole
from timekeeper.audit.sums import difference


def check_period(snapshot: Snapshot) -> Iterator[Difference]:
    """The period's end is where the next one starts, and lies after its start; the latest period is the head's."""
    start, end = snapshot.start, snapshot.end
    starts = sorted(found for found in map(whole, snapshot.periods) if found is not None)
    following = next((found for found in starts if found > start), None)
    stored = snapshot.periods.get(str(start), "nothing")
    if end is None or end <= start or (following is not None and end != following):
        expected = str(following) if following is not None else f"an instant after {start}"
        yield difference(snapshot, Figure.PERIOD, "end", stored, expected, "the start of the period that follows")
    latest, named = (str(starts[-1]) if starts else "nothing"), snapshot.head.get("period", "nothing")
    if named != latest:
        yield difference(snapshot, Figure.PERIOD, "latest", named, latest, "the account's periods")
