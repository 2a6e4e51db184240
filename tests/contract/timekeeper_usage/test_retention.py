from __future__ import annotations

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.ledger.stored_hours import delete_rows, parts_of, rows_of, write_rows
from timekeeper.api.usage_finding import find
from timekeeper.api.usage_query import Query
from timekeeper.controller import archive
from timekeeper.controller.archive import Archivist
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage_grouping import FoldedHoursError
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import compaction, entries, keys, reading
from timekeeper.ledger.client import FencedError
from timekeeper.ledger.reading import load_accounts
from timekeeper.ledger.settlement import take_epoch

MIDNIGHT = NOON - 12 * HOUR


def archivist(stage: LedgerHarness, keeper: Reconciler, hourly_days: int = 2, months: int = 3) -> Archivist:
    return Archivist(stage.client, stage.source, keeper.books, keeper.epoch, Retention(hourly_days, months))


def days(stage: LedgerHarness, window: Window, *aggregate: str) -> list[int]:
    """GPU-hours billed each day."""
    found = find(stage.client, Query(window, "1d", aggregate or ("namespace",), 1000), stage.now)
    return [item.figures.billed // GPU_HOUR for item in found.items]


def test_hours_that_are_old_are_days_and_every_answer_by_day_stays_as_it_was(stage: LedgerHarness) -> None:
    stage.budget("research", ["team-a"], period={"every": "day", "start": {"time": "06:00"}})
    keeper = stage.lead()
    stage.pod("p1", "team-a")
    stage.round(0)
    for _ in range(5 * 24):
        stage.round(3600)
    window = Window(MIDNIGHT, MIDNIGHT + 6 * DAY)
    before = days(stage, window)
    assert before == [12, 24, 24, 24, 24, 12]
    for _ in range(2):
        archivist(stage, keeper).archive(stage.now)
    (packed,) = parts_of(stage.client, "research", hourly=True)
    assert (packed.first * HOUR, packed.end * HOUR) == (MIDNIGHT + 3 * DAY, MIDNIGHT + 5 * DAY)
    (hour, _), *_ = rows_of(stage.client, "research")
    assert hour * HOUR == MIDNIGHT + 5 * DAY
    assert days(stage, window) == before
    stage.spent("research", MIDNIGHT + 6 * HOUR)
    with pytest.raises(FoldedHoursError):
        find(stage.client, Query(window, "1h", ("namespace",), 1000), stage.now)
    # Of a day in which a period began, both sides are still told apart.
    period = Window(MIDNIGHT + DAY + 6 * HOUR, MIDNIGHT + 2 * DAY + 6 * HOUR)
    (item,) = find(stage.client, Query(period, None, ("budget",), 1000), stage.now).items
    assert item.figures.billed == 24 * GPU_HOUR == stage.spent("research", period.start)


@pytest.mark.parametrize("broken", ["row", "packed", "segment"])
def test_an_account_whose_data_is_broken_keeps_no_other_from_being_archived(stage: LedgerHarness, broken: str) -> None:
    keeper = stage.lead()
    for name in ("a", "b"):
        stage.budget(name, [f"team-{name}"])
        stage.pod(name, f"team-{name}")
    stage.round(0)
    for _ in range(2 * 24):
        stage.round(3600)
    hour = stage.now // HOUR
    if broken == "row":
        write_rows(stage.client, "a", {(hour - 30, '["team-a"]'): "nonsense"})
    elif broken == "packed":
        stage.client.hset(keys.AccountKeys("a").folded, f"h {hour - 50} {hour - 49}", b"nonsense")
    else:
        stage.client.hset(keys.AccountKeys("a").segments, "1-1 1", b"nonsense")
    archivist(stage, keeper).archive(stage.now)
    assert min(hour for hour, _ in rows_of(stage.client, "b")) * HOUR == stage.now // DAY * DAY


def test_archiving_whose_time_is_up_goes_on_where_it_was(stage: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_ROWS", 1)
    keeper = stage.lead()
    names = ("a", "b", "c")
    for name in names:
        stage.budget(name, [f"team-{name}"])
        stage.pod(name, f"team-{name}")
    stage.round(0)
    for _ in range(2 * 24):
        stage.round(3600)
    hurried = Archivist(stage.client, stage.source, keeper.books, keeper.epoch, Retention(2, 3), lambda: lambda: True)
    runs = 0
    while min(hour for name in names for hour, _ in rows_of(stage.client, name)) * HOUR < stage.now // DAY * DAY:
        hurried.archive(stage.now)
        runs += 1
        for name in names:
            stage.spent(name)
    assert runs > 36 * len(names) // 2
    hurried.archive(stage.now)


def test_a_leader_that_was_replaced_folds_nothing(stage: LedgerHarness) -> None:
    keeper = stage.lead()
    stage.pod("p1", "team-a")
    stage.round(0)
    for _ in range(4):
        stage.round(86_400)
    old = archivist(stage, keeper)
    stage.lead()
    stage.round(0)
    with pytest.raises(FencedError):
        old.archive(stage.now)
    assert not stage.client.exists(keys.AccountKeys("namespace:team-a").folded)


def test_what_is_older_than_it_is_kept_is_forgotten_and_nothing_else_is(stage: LedgerHarness) -> None:
    keeper = stage.lead()
    stage.budget("research", ["team-a"])
    stage.pod("p1", "team-a")
    stage.grant("g1", "research", 1)
    stage.round(0)
    for _ in range(30):
        stage.round(7 * 86_400)
    archivist(stage, keeper).archive(stage.now)
    (account,) = load_accounts(stage.client, ["research"], latest_periods=100)
    kept = stage.now - 3 * 31 * DAY
    assert kept - 31 * DAY <= account.periods[0].start <= kept
    assert account.grants == {}
    assert stage.client.exists(keys.AccountKeys("research").segments)
    assert min(entry.period for entry in reading.ledger_page(stage.client, "research", "", 10_000)) <= kept
    assert not stage.client.exists(keys.AccountKeys("research").amounts(MIDNIGHT - 14 * DAY))
    assert min(part.month for part in parts_of(stage.client, "research", hourly=False)) == "2026-05"
    last_days = Window(stage.now // DAY * DAY - 60 * DAY, stage.now // DAY * DAY + DAY)
    before = days(stage, last_days, "budget")
    stage.lead()
    stage.round(0)
    assert days(stage, last_days, "budget") == before


def test_segments_are_forgotten_with_the_last_period_that_they_hold(stage: LedgerHarness) -> None:
    keeper = stage.lead()
    stage.budget("research", ["team-a"], period={"every": "day"})
    stage.pod("p1", "team-a")
    stage.round(0)
    first = archivist(stage, keeper)
    for _ in range(5):
        stage.round(86_400)
    first.archive(stage.now)
    (early,) = stage.client.hkeys(keys.AccountKeys("research").segments)
    for _ in range(6):
        stage.round(31 * 86_400)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entries, "SEGMENT_ENTRIES", 3)
            archivist(stage, keeper).archive(stage.now)
    left = stage.client.hkeys(keys.AccountKeys("research").segments)
    assert len(left) == stage.client.zcard(keys.AccountKeys("research").segment_order)
    assert left
    assert early not in left
    (account,) = load_accounts(stage.client, ["research"], latest_periods=100)
    latest = [max(int(name.split()[1]) for name in left), account.periods[0].start]
    assert latest == sorted(latest, reverse=True)
    stage.spent("research", account.periods[-1].start)


def test_the_account_of_a_namespace_long_gone_is_forgotten(stage: LedgerHarness) -> None:
    keeper = stage.lead()
    stage.pod("p1", "team-gone")
    stage.pod("p2", "team-a")
    stage.round(0)
    stage.round(60)
    stage.remove("p1")
    for _ in range(6):
        stage.round(31 * 86_400)
        archivist(stage, keeper).archive(stage.now)
    assert "namespace:team-gone" not in reading.account_names(stage.client)
    assert "team-gone" not in reading.assignments(stage.client)
    assert not list(stage.client.scan_iter("*team-gone*"))
    stage.round(60)
    assert "namespace:team-gone" not in reading.account_names(stage.client)
    assert stage.spent("namespace:team-a", load_accounts(stage.client, ["namespace:team-a"])[0].periods[-1].start)
    stage.pod("p3", "team-gone")
    stage.round(60)
    stage.round(60)
    assert "namespace:team-gone" in reading.account_names(stage.client)


def test_each_account_is_looked_at_once_an_hour(stage: LedgerHarness) -> None:
    keeper = stage.lead()
    stage.pod("p1", "team-a")
    stage.round(0)
    for _ in range(4):
        stage.round(86_400)
    steady = archivist(stage, keeper)
    steady.archive(stage.now)
    delete_rows(stage.client, "namespace:team-a")
    write_rows(stage.client, "namespace:team-a", {(1, '[""]'): "1 1 1 -"})
    steady.archive(stage.now + 1)
    assert rows_of(stage.client, "namespace:team-a") == {(1, '[""]'): "1 1 1 -"}
    steady.archive(stage.now + HOUR)
    assert rows_of(stage.client, "namespace:team-a") == {}
    assert take_epoch(stage.client, keeper.epoch + 1) > keeper.epoch


def test_only_accounts_with_old_hours_or_entries_are_compacted(
    stage: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("busy", "idle", "broken"):
        stage.budget(name, [f"team-{name}"])
    keeper = stage.lead()
    stage.pod("p1", "team-busy")
    for _ in range(3 * 24):
        stage.round(3600)
    stage.client.hset(keys.AccountKeys("broken").hour_index, "no hour", "1")
    compacted: list[str] = []
    monkeypatch.setattr(archive, "pack_hours", lambda _client, _epoch, name, _before: compacted.append(name) or True)
    archivist(stage, keeper).archive(stage.now)
    assert compacted == ["busy"]
    monkeypatch.undo()
    archivist(stage, keeper).archive(stage.now)
    assert parts_of(stage.client, "busy", hourly=True)
    today = stage.now // DAY * DAY
    cutoffs = compaction.Cutoffs(today - 2 * DAY, today, today - DAY)
    assert compaction.due_for_compaction(stage.client, ["busy", "idle", "broken"], cutoffs) == {"broken"}
