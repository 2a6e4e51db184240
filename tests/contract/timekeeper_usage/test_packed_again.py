"""Changes to hours that are packed already: what is packed beside them neither replaces nor loses any use."""

from __future__ import annotations

import pytest

from tests.contract.timekeeper_usage.test_retention import MIDNIGHT, archivist, days
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.stored_hours import parts_of
from timekeeper.controller.archive import Archivist
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.windows import Window
from timekeeper.ledger import compaction

WINDOW = Window(MIDNIGHT, MIDNIGHT + 6 * DAY)


@pytest.fixture
def steady(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> Archivist:
    """The archivist of a budget that pays for one pod, and has so many rows that none is added to a packed value."""
    monkeypatch.setattr(compaction, "LARGE_PART", 0)
    harness.budget("research", ["team-a"], gpu_hours=1000)
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    return archivist(harness, reconciler)


def pass_hours(harness: LedgerHarness, steady: Archivist, hours: int) -> None:
    """Lets hours pass, with a settlement and a run of the archivist in each, and checks the ledger after each."""
    for _ in range(hours):
        harness.reconcile(3600)
        steady.archive(harness.now)
        harness.spent("research")


def test_both_halves_of_a_day_are_folded_into_it(harness: LedgerHarness, steady: Archivist) -> None:
    pass_hours(harness, steady, 4 * 24)
    parts = parts_of(harness.client, "research", hourly=False)
    assert [(part.first * HOUR - MIDNIGHT, part.end * HOUR - MIDNIGHT) for part in parts] == [(0, DAY), (DAY, 2 * DAY)]
    assert days(harness, WINDOW, "budget") == [12, 24, 24, 24, 12]


def test_corrections_of_the_first_and_last_hour_of_a_packed_half_day_join_it(
    harness: LedgerHarness, steady: Archivist
) -> None:
    pass_hours(harness, steady, 27)
    before = parts_of(harness.client, "research", hourly=True)
    assert before[-1].end * HOUR == MIDNIGHT + 36 * HOUR
    for number, hour in enumerate((before[-1].first, before[-1].end - 1)):
        harness.correct(f"c{number}", "research", 5, hour * HOUR)
    pass_hours(harness, steady, 1)
    assert parts_of(harness.client, "research", hourly=True) == before
    assert days(harness, WINDOW, "budget") == [12, 26]


def test_a_correction_of_a_folded_day_joins_it(harness: LedgerHarness, steady: Archivist) -> None:
    pass_hours(harness, steady, 4 * 24)
    before = parts_of(harness.client, "research", hourly=False)
    harness.correct("c1", "research", -3, MIDNIGHT + DAY + 3 * HOUR)
    pass_hours(harness, steady, 1)
    assert parts_of(harness.client, "research", hourly=False) == before
    assert days(harness, WINDOW, "budget") == [12, 21, 24, 24, 13]


def test_hours_that_a_fold_leaves_join_those_that_were_packed_beside_them(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, steady: Archivist
) -> None:
    monkeypatch.setattr(compaction, "LARGE_PART", 1 << 20)
    pass_hours(harness, steady, 2 * 24 + 6)
    (both_days,) = parts_of(harness.client, "research", hourly=True)
    assert both_days.first * HOUR < MIDNIGHT + DAY < both_days.end * HOUR
    monkeypatch.setattr(compaction, "LARGE_PART", 0)
    for number, hour in enumerate((MIDNIGHT // HOUR + 24, both_days.end - 1)):
        harness.correct(f"c{number}", "research", 5, hour * HOUR)
    pass_hours(harness, steady, 1)
    assert len(parts_of(harness.client, "research", hourly=True)) == 2
    pass_hours(harness, steady, 24)
    assert parts_of(harness.client, "research", hourly=True)[0].first * HOUR == MIDNIGHT + DAY
    assert days(harness, WINDOW, "budget") == [12, 29, 29, 19]
