from __future__ import annotations

from collections.abc import Sequence

import pytest
import redis

from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.ledger.stored_hours import delete_rows, parts_of, rows_of, write_rows
from tests.support.servers.redis_server import RedisServer
from timekeeper.api.usage import Query, find
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller import archive
from timekeeper.controller.archive import Archivist
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import DAY, HOUR, parse_instant
from timekeeper.domain.usage import FoldedHoursError, Group
from timekeeper.domain.windows import Retention, Window, month_start
from timekeeper.ledger import compaction, entries, keys, reading, shared
from timekeeper.ledger.client import FencedError, StoreError
from timekeeper.ledger.reading import load_accounts
from timekeeper.ledger.usage import capacity, capacity_of_models
from timekeeper.ledger.writing import take_fencing_token

MIDNIGHT = NOON - 12 * HOUR


def archivist(harness: LedgerHarness, reconciler: Reconciler, hourly_days: int = 2, months: int = 3) -> Archivist:
    return Archivist(
        harness.client, harness.source, reconciler.books, reconciler.fencing_token, Retention(hourly_days, months)
    )


def days(harness: LedgerHarness, window: Window, *aggregate: str) -> list[int]:
    """GPU-hours billed each day."""
    found = find(harness.client, Query(window, "1d", aggregate or ("namespace",), 1000), harness.now)
    return [item.figures.billed // GPU_HOUR for item in found.items]


def test_hours_that_are_old_are_days_and_every_answer_by_day_stays_as_it_was(harness: LedgerHarness) -> None:
    harness.budget("research", ["team-a"], period={"every": "day", "start": {"time": "06:00"}})
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(5 * 24):
        harness.reconcile(3600)
    window = Window(MIDNIGHT, MIDNIGHT + 6 * DAY)
    before = days(harness, window)
    assert before == [12, 24, 24, 24, 24, 12]
    for _ in range(2):
        archivist(harness, reconciler).archive(harness.now)
    (packed,) = parts_of(harness.client, "research", hourly=True)
    assert (packed.first * HOUR, packed.end * HOUR) == (MIDNIGHT + 3 * DAY, MIDNIGHT + 5 * DAY)
    (hour, _), *_ = rows_of(harness.client, "research")
    assert hour * HOUR == MIDNIGHT + 5 * DAY
    assert days(harness, window) == before
    harness.spent("research", MIDNIGHT + 6 * HOUR)
    with pytest.raises(FoldedHoursError):
        find(harness.client, Query(window, "1h", ("namespace",), 1000), harness.now)
    # Of a day in which a period began, both sides are still kept apart.
    period = Window(MIDNIGHT + DAY + 6 * HOUR, MIDNIGHT + 2 * DAY + 6 * HOUR)
    (item,) = find(harness.client, Query(period, None, ("budget",), 1000), harness.now).items
    assert item.figures.billed == 24 * GPU_HOUR == harness.spent("research", period.start)


def test_a_day_is_cut_where_the_last_period_of_a_deleted_budget_ends(harness: LedgerHarness) -> None:
    harness.budget("research", ["team-a"], period={"every": "day", "start": {"time": "06:00"}})
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(14):
        harness.reconcile(3600)
    harness.budgets = []
    harness.write_budgets()
    for _ in range(4 * 24):
        harness.reconcile(3600)
    archivist(harness, reconciler).archive(harness.now)
    (folded,) = parts_of(harness.client, "research", hourly=False)
    assert (folded.first * HOUR, folded.end * HOUR) == (MIDNIGHT + 6 * HOUR, MIDNIGHT + 30 * HOUR)
    assert harness.spent("research", MIDNIGHT + 6 * HOUR) == 15 * GPU_HOUR
    around = AuditEnvironment(
        harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, bool
    )
    found = audit(around, AuditRequest(patience_seconds=0)).differences
    assert [each for each in found if each.figure is not Figure.STATUS] == []


def test_hours_are_packed_two_hours_after_half_a_day_and_entries_two_hours_after_a_day(harness: LedgerHarness) -> None:
    account, reconciler = "namespace:team-a", harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    steady, window = archivist(harness, reconciler), Window(MIDNIGHT, MIDNIGHT + 3 * DAY)
    kept: dict[int, tuple[int, int]] = {}
    for hour in range(13, 51):
        harness.reconcile(3600)
        before = days(harness, window)
        steady.archive(harness.now)
        assert days(harness, window) == before
        first_hour = min(hour for hour, _ in rows_of(harness.client, account))
        ((name, fields),) = harness.client.xrange(keys.AccountKeys(account).ledger, "-", "+", 1)
        first_day = entries.read_entry(name, fields).at // DAY
        kept[hour] = first_hour - MIDNIGHT // HOUR, first_day - MIDNIGHT // DAY
    assert {hour: kept[hour] for hour in (25, 26, 37, 38, 49, 50)} == {
        25: (12, 0),
        26: (24, 1),
        37: (24, 1),
        38: (36, 1),
        49: (36, 1),
        50: (48, 2),
    }


@pytest.mark.parametrize("broken", ["row", "packed", "segment"])
def test_an_account_whose_data_is_broken_keeps_no_other_from_being_archived(
    harness: LedgerHarness, broken: str
) -> None:
    reconciler = harness.lead()
    for name in ("a", "b"):
        harness.budget(name, [f"team-{name}"])
        harness.pod(name, f"team-{name}")
    harness.reconcile(0)
    for _ in range(2 * 24):
        harness.reconcile(3600)
    hour = harness.now // HOUR
    if broken == "row":
        write_rows(harness.client, "a", {(hour - 30, '["team-a"]'): "nonsense"})
    elif broken == "packed":
        harness.client.hset(keys.AccountKeys("a").folded, f"h {hour - 50} {hour - 49}", b"nonsense")
    else:
        harness.client.hset(keys.AccountKeys("a").segments, "1-1 1", b"nonsense")
    archivist(harness, reconciler).archive(harness.now)
    assert min(hour for hour, _ in rows_of(harness.client, "b")) * HOUR == harness.now // DAY * DAY


def test_archiving_whose_time_is_up_goes_on_where_it_was(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOST_ROWS", 1)
    reconciler = harness.lead()
    names = ("a", "b", "c")
    for name in names:
        harness.budget(name, [f"team-{name}"])
        harness.pod(name, f"team-{name}")
    harness.reconcile(0)
    for _ in range(2 * 24):
        harness.reconcile(3600)
    hurried = Archivist(
        harness.client,
        harness.source,
        reconciler.books,
        reconciler.fencing_token,
        Retention(2, 3),
        lambda: lambda: True,
    )
    runs = 0
    while min(hour for name in names for hour, _ in rows_of(harness.client, name)) * HOUR < harness.now // DAY * DAY:
        hurried.archive(harness.now)
        runs += 1
        for name in names:
            harness.spent(name)
    assert runs > 36 * len(names) // 2
    hurried.archive(harness.now)


def test_a_run_that_ended_as_the_store_did_not_answer_is_made_again_in_the_same_hour(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(24):
        harness.reconcile(3600)
    made = archivist(harness, reconciler)
    redis_server.wait_until_written()
    redis_server.kill()
    with pytest.raises((redis.RedisError, StoreError)):
        made.archive(harness.now)
    redis_server.start()
    made.archive(harness.now)
    assert parts_of(harness.client, "namespace:team-a", hourly=True)


@pytest.mark.parametrize("exported", [False, True])
def test_capacity_is_kept_as_long_as_a_question_may_ask_for_it(harness: LedgerHarness, *, exported: bool) -> None:
    """It is kept for good where exported files answer questions about older months, and no day has many changes."""
    reconciler, client = harness.lead(), harness.client
    harness.reconcile(0)
    kept_from = month_start(harness.now, -2)
    instants = [kept_from + offset for offset in (-30 * DAY, -2 * DAY, -DAY, 0, DAY, 2 * DAY)]
    for gpus, instant in enumerate(instants, 1):
        shared.write_capacity(client, reconciler.fencing_token, instant, {"A100": gpus * 10**6, "": 10**6})
    client.hset(keys.CAPACITY, "nonsense", "1")
    window = Window(kept_from, kept_from + 4 * DAY)
    query = Query(window, "1d", ("model",), 1000, idle=True, idle_models=True)
    before = find(client, query, harness.now).items
    retention = Retention(hourly_days=2, months=2, exported=exported)
    for _ in range(2):
        Archivist(client, harness.source, reconciler.books, reconciler.fencing_token, retention).archive(harness.now)

    assert before
    assert find(client, query, harness.now).items == before
    assert client.hget(keys.CAPACITY, "nonsense") == b"1"
    left = {instant for instant in capacity(client) if instant <= instants[-1]}
    assert left == {instant for instant, _ in capacity_of_models(client)["A100"].items() if instant <= instants[-1]}
    assert left == set(instants if exported else instants[3:])


def test_capacity_before_the_oldest_kept_month_is_that_of_its_last_change(harness: LedgerHarness) -> None:
    reconciler, client = harness.lead(), harness.client
    harness.reconcile(0)
    kept_from = month_start(harness.now, -2)
    for instant, gpus in ((kept_from - 9 * DAY, 1), (kept_from - DAY, 2), (kept_from + DAY, 3)):
        shared.write_capacity(client, reconciler.fencing_token, instant, {"A100": gpus})
    Archivist(client, harness.source, reconciler.books, reconciler.fencing_token, Retention(2, 2)).archive(harness.now)

    assert {instant: rate for instant, rate in capacity(client).items() if rate} == {
        kept_from - DAY: 2,
        kept_from + DAY: 3,
    }


def test_a_day_of_many_changes_in_exported_months_is_kept_as_its_mean(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that ends between two commands leaves what the next one finishes."""
    reconciler, client = harness.lead(), harness.client
    harness.reconcile(0)
    kept_from = month_start(harness.now, -2)
    first = kept_from - 3 * DAY
    for number in range(72 * 2):  # every half an hour of the three days before, and at their ends
        at = first + number * HOUR // 2
        shared.write_capacity(
            client, reconciler.fencing_token, at, {"A100": (1 + number % 5) * 10**6, "": 10**6 * (number % 2)}
        )
    shared.write_capacity(client, reconciler.fencing_token, kept_from + HOUR, {"A100": 10**6})
    window = Window(first, kept_from + DAY)
    query = Query(window, "1d", ("model",), 1000, idle=True, idle_models=True)
    before = find(client, query, harness.now).items
    retention = Retention(hourly_days=2, months=2, exported=True)

    def stopped(*_arguments: object) -> None:
        raise redis.ConnectionError("the leader ends here")

    with monkeypatch.context() as patched:
        patched.setattr(client, "hdel", stopped)
        with pytest.raises(redis.ConnectionError):
            Archivist(client, harness.source, reconciler.books, reconciler.fencing_token, retention).archive(
                harness.now
            )
    assert {item.step.start for item in before} == set(range(first, kept_from + DAY, DAY))
    assert close(find(client, query, harness.now).items, before)
    for _ in range(2):
        Archivist(client, harness.source, reconciler.books, reconciler.fencing_token, retention).archive(harness.now)

    assert close(find(client, query, harness.now).items, before)
    days = [first + number * DAY for number in range(4)]
    assert sorted(at for at in capacity(client) if at <= kept_from + HOUR) == [*days, kept_from + HOUR]
    assert capacity(client)[kept_from] == 10**6 * (1 + 143 % 5) + 10**6


def close(found: Sequence[Group], expected: Sequence[Group]) -> bool:
    """Returns whether items have the same keys, and capacities that differ by at most a tenth of a GPU-second."""
    return [item.key for item in found] == [item.key for item in expected] and all(
        abs(item.figures.core - other.figures.core) <= GPU_SECOND // 10
        for item, other in zip(found, expected, strict=True)
    )


def test_a_leader_that_was_replaced_folds_nothing(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(4):
        harness.reconcile(86_400)
    old = archivist(harness, reconciler)
    harness.lead()
    harness.reconcile(0)
    with pytest.raises(FencedError):
        old.archive(harness.now)
    assert not harness.client.exists(keys.AccountKeys("namespace:team-a").folded)


def test_records_older_than_they_are_kept_are_forgotten_and_no_others(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    harness.budget("research", ["team-a"])
    harness.pod("p1", "team-a")
    harness.grant("g1", "research", 1)
    harness.reconcile(0)
    for _ in range(30):
        harness.reconcile(7 * 86_400)
    archivist(harness, reconciler).archive(harness.now)
    (account,) = load_accounts(harness.client, ["research"], latest_periods=100)
    kept = harness.now - 3 * 31 * DAY
    assert kept - 31 * DAY <= account.periods[0].start <= kept
    assert account.grants == {}
    assert harness.client.exists(keys.AccountKeys("research").segments)
    assert min(entry.period for entry in reading.ledger_page(harness.client, "research", "", 10_000)) <= kept
    assert not harness.client.exists(keys.AccountKeys("research").amounts(MIDNIGHT - 14 * DAY))
    assert min(part.month for part in parts_of(harness.client, "research", hourly=False)) == "2026-05"
    last_days = Window(harness.now // DAY * DAY - 60 * DAY, harness.now // DAY * DAY + DAY)
    before = days(harness, last_days, "budget")
    harness.lead()
    harness.reconcile(0)
    assert days(harness, last_days, "budget") == before


def test_hours_packed_with_those_of_a_month_past_retention_stay(harness: LedgerHarness) -> None:
    """On the first of March the months kept are January and February, and 62 days before it are those of December."""
    harness.budget("research", ["team-a"])
    reconciler = harness.lead()
    harness.now = parse_instant("2025-12-30T00:00:00Z")
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(61 * 24):
        harness.reconcile(3600)
    archivist(harness, reconciler, hourly_days=62, months=2).archive(harness.now)
    (packed,) = parts_of(harness.client, "research", hourly=True)
    assert packed.month == "2025-12"
    january = Window(month_start(harness.now, -2), month_start(harness.now, -1))
    assert sum(days(harness, january)) == 31 * 24


def test_segments_are_forgotten_with_the_last_period_that_they_hold(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    harness.budget("research", ["team-a"], period={"every": "day"})
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    first = archivist(harness, reconciler)
    for _ in range(5):
        harness.reconcile(86_400)
    first.archive(harness.now)
    (early,) = harness.client.hkeys(keys.AccountKeys("research").segments)
    for _ in range(6):
        harness.reconcile(31 * 86_400)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entries, "SEGMENT_ENTRIES", 3)
            archivist(harness, reconciler).archive(harness.now)
    left = harness.client.hkeys(keys.AccountKeys("research").segments)
    assert len(left) == harness.client.zcard(keys.AccountKeys("research").segment_order)
    assert left
    assert early not in left
    (account,) = load_accounts(harness.client, ["research"], latest_periods=100)
    latest = [max(int(name.split()[1]) for name in left), account.periods[0].start]
    assert latest == sorted(latest, reverse=True)
    harness.spent("research", account.periods[-1].start)


def test_the_account_of_a_namespace_long_gone_is_forgotten(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    harness.pod("p1", "team-gone")
    harness.pod("p2", "team-a")
    harness.reconcile(0)
    harness.reconcile(60)
    harness.remove("p1")
    for _ in range(6):
        harness.reconcile(31 * 86_400)
        archivist(harness, reconciler).archive(harness.now)
    assert "namespace:team-gone" not in reading.account_names(harness.client)
    assert "team-gone" not in reading.assignments(harness.client)
    assert not list(harness.client.scan_iter("*team-gone*"))
    harness.reconcile(60)
    assert "namespace:team-gone" not in reading.account_names(harness.client)
    assert harness.spent("namespace:team-a", load_accounts(harness.client, ["namespace:team-a"])[0].periods[-1].start)
    harness.pod("p3", "team-gone")
    harness.reconcile(60)
    harness.reconcile(60)
    assert "namespace:team-gone" in reading.account_names(harness.client)


def test_each_account_is_looked_at_once_an_hour(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(4):
        harness.reconcile(86_400)
    steady = archivist(harness, reconciler)
    steady.archive(harness.now)
    delete_rows(harness.client, "namespace:team-a")
    write_rows(harness.client, "namespace:team-a", {(1, '[""]'): "1 1 1 -"})
    steady.archive(harness.now + 1)
    assert rows_of(harness.client, "namespace:team-a") == {(1, '[""]'): "1 1 1 -"}
    steady.archive(harness.now + HOUR)
    assert rows_of(harness.client, "namespace:team-a") == {}
    assert take_fencing_token(harness.client, reconciler.fencing_token + 1) > reconciler.fencing_token


def test_only_accounts_with_old_hours_or_entries_are_compacted(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("busy", "idle", "broken"):
        harness.budget(name, [f"team-{name}"])
    reconciler = harness.lead()
    harness.pod("p1", "team-busy")
    for _ in range(3 * 24):
        harness.reconcile(3600)
    harness.client.hset(keys.AccountKeys("broken").hour_index, "no hour", "1")
    compacted: list[str] = []
    monkeypatch.setattr(
        archive, "pack_hours", lambda _client, _fencing_token, name, _before: compacted.append(name) or True
    )
    archivist(harness, reconciler).archive(harness.now)
    assert compacted == ["busy"]
    monkeypatch.undo()
    archivist(harness, reconciler).archive(harness.now)
    assert parts_of(harness.client, "busy", hourly=True)
    today = harness.now // DAY * DAY
    cutoffs = compaction.Cutoffs(today - 2 * DAY, today, today - DAY)
    assert compaction.due_for_compaction(harness.client, ["busy", "idle", "broken"], cutoffs) == {"broken"}
