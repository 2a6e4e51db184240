"""Periods of a time zone between whole hours of UTC, asked for as docs/usage.md says."""

from __future__ import annotations

import pytest

from tests.contract.timekeeper_usage.test_retention import archivist
from tests.support.ledger.harness import LedgerHarness
from timekeeper.api.usage import find
from timekeeper.api.usage import read_query as read
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger.reading import load_accounts


@pytest.mark.parametrize("days", [3, 12], ids=["kept by the hour", "kept by the day"])
def test_windows_from_the_whole_hours_before_the_ends_follow_one_another_and_have_each_hour_once(
    harness: LedgerHarness, days: int
) -> None:
    harness.budget("a", ["team-a"], period={"every": "day", "timeZone": "Asia/Kolkata"})
    harness.pod("p1", "team-a")
    packing = archivist(harness, harness.lead())
    for _ in range(days * 24):
        harness.reconcile(3600)
    packing.archive(harness.now)
    (account,) = load_accounts(harness.client, ["a"], latest_periods=100)
    for period in account.periods[1:-1]:
        window = ",".join(format_instant(end // HOUR * HOUR) for end in (period.start, period.end))
        query = read({"window": window, "aggregate": "budget"}, [], harness.now)
        (found,) = find(harness.client, query, harness.now).items
        assert (period.start % HOUR, found.figures.billed) == (HOUR // 2, 24 * GPU_HOUR)
