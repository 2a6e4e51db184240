from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.background import in_background
from tests.support.ledger.exported_months import JANUARY, MonthsHarness
from tests.support.waiting import LIMIT_S
from timekeeper.controller import export_job, month_conflicts
from timekeeper.domain.timestamps import DAY, parse_instant
from timekeeper.domain.usage_folding import parse_part
from timekeeper.ledger import keys
from timekeeper.ledger.exports import UnreadableUseError


def test_a_month_is_written_once_its_hours_are_folded_and_says_what_the_store_says(months: MonthsHarness) -> None:
    months.pass_days(18)
    months.archive()
    months.export()
    # On the second of February hours of January are still kept apart.
    assert list(months.folder.iterdir()) == []
    months.pass_days(3)
    months.archive()
    months.export()
    assert months.billed(JANUARY) == months.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    assert months.pending() == 0


def test_a_clock_that_is_ahead_writes_no_month_that_goes_on(
    months: MonthsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_job, "store_clock", lambda _client: months.harness.now)

    def run() -> list[str]:
        ends = iter((False, True))
        months.exporter.run(lambda _seconds: next(ends), lambda: months.harness.now + 40 * DAY)
        return [file.name for file in months.folder.glob("*.csv.gz")]

    months.pass_days(10)
    months.archive()
    assert run() == []
    months.pass_days(11)
    months.archive()
    assert run() == ["usage-2026-01.csv.gz"]
    assert months.billed(JANUARY) == {"namespace:team-b": 198, "research": 396}


def test_an_export_that_holds_all_is_not_written_again(months: MonthsHarness) -> None:
    months.pass_days(21)
    months.archive()
    months.export()
    before = (months.folder / "usage-2026-01.csv.gz").stat().st_mtime_ns
    assert months.place.written == 1
    months.archive()
    months.export()
    months.restart()
    months.export()
    assert months.place.written == 1
    assert (months.folder / "usage-2026-01.csv.gz").stat().st_mtime_ns == before


def test_nothing_is_forgotten_before_its_month_is_written(months: MonthsHarness) -> None:
    months.place.away = True
    months.pass_days(120)
    months.archive()
    months.export()
    assert months.count("failed") > 0
    assert months.pending() > 0
    assert months.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    months.place.away = False
    months.export()
    assert months.pending() == 0
    months.archive()
    assert months.held(JANUARY) == {}
    assert months.billed(JANUARY) == {"namespace:team-b": 198, "research": 396}


def test_a_writer_that_dies_between_the_file_and_the_record_loses_nothing_and_shows_nothing_twice(
    months: MonthsHarness,
) -> None:
    months.pass_days(120)
    months.archive()
    months.place.dies_after_writing = True
    with pytest.raises(KeyboardInterrupt):
        months.export()
    months.archive()
    assert months.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    months.place.dies_after_writing = False
    months.restart()
    months.export()
    months.archive()
    assert months.held(JANUARY) == {}
    assert months.billed(JANUARY) == {"namespace:team-b": 198, "research": 396}
    assert months.count("conflict") == 0


def test_a_place_that_hangs_holds_up_nothing_else(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()
    months.place.answers.clear()
    ending = threading.Event()

    def end() -> None:
        months.place.answers.set()
        ending.set()

    run = partial(months.exporter.run, lambda _seconds: ending.wait(0.01), lambda: months.harness.now)
    with in_background(run, end) as thread:
        assert months.place.asked.wait(LIMIT_S)
        before = months.held("2026-02")["research"]
        months.pass_days(1)
        assert months.held("2026-02")["research"] == before + 24
        assert thread.is_alive()
    assert months.billed(JANUARY) == months.held(JANUARY)


def test_a_late_correction_changes_the_file_of_its_month_alone(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()
    months.export()
    written = months.place.written
    months.harness.correct("c1", "research", -96, parse_instant("2026-01-20T10:00:00Z"))
    months.harness.reconcile(60)
    months.archive()
    months.export()
    assert months.billed(JANUARY) == {"namespace:team-b": 198, "research": 300}
    assert months.place.written == written + 1
    months.export()
    assert months.place.written == written + 1


@pytest.mark.parametrize("broken", [b"", b"nonsense", b"\xff" * 20])
def test_a_month_that_cannot_be_read_is_named_with_its_account_and_waits_and_later_months_are_written(
    months: MonthsHarness, broken: bytes
) -> None:
    for _ in range(5):
        months.pass_days(10)
        months.archive()
    folded = keys.AccountKeys("research").folded
    stored: Any = months.harness.client.hkeys(folded)
    of_january = next(name for name in stored if (part := parse_part(name)) is not None and part.month == JANUARY)
    whole = months.harness.client.hget(folded, of_january)
    months.harness.client.hset(folded, of_january, broken)
    with capture_logs() as logs:
        months.export()
    (named,) = [log for log in logs if log["event"] == "month not exported, and kept"]
    assert named["month"] == JANUARY
    assert "'research'" in named["error"]
    assert "team-b" not in named["error"]
    assert [file.name for file in months.folder.glob("*.csv.gz")] == ["usage-2026-02.csv.gz"]
    assert (months.count("failed"), months.pending()) == (1, 1)
    with pytest.raises(UnreadableUseError, match="'research'"):
        month_conflicts.rewrite(months.harness.client, months.place, JANUARY)
    months.harness.client.hset(folded, of_january, whole)
    months.export()
    assert months.billed(JANUARY) == months.held(JANUARY)


@pytest.mark.parametrize("key", ["folded", "periods", "head", "sessions"])
def test_a_key_of_another_type_of_one_account_ends_no_step_of_the_export(months: MonthsHarness, key: str) -> None:
    for _ in range(3):
        months.pass_days(10)
        months.archive()
    place = getattr(keys.AccountKeys("research"), key)
    whole: Any = months.harness.client.dump(place)
    months.harness.client.delete(place)
    months.harness.client.set(place, "of another type")
    months.export()
    assert months.count("failed") == 1
    months.harness.client.restore(place, 0, whole, replace=True)
    months.export()
    assert months.billed(JANUARY) == months.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
