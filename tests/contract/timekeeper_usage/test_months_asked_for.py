from __future__ import annotations

import dataclasses

import pytest

from tests.support.ledger.exported_months import JANUARY, KEPT, MonthsHarness
from tests.support.ledger.stored_hours import write_rows
from timekeeper.api.problems import ProblemError
from timekeeper.controller.archive import Archivist
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR
from timekeeper.export import document
from timekeeper.export.destination import MonthUnavailableError
from timekeeper.export.document import window_of


def test_without_an_export_what_is_old_is_forgotten_as_ever(months: MonthsHarness) -> None:
    months.pass_days(120)
    alone = dataclasses.replace(KEPT, exported=False)
    Archivist(
        months.harness.client, months.harness.source, months.reconciler.books, months.reconciler.fencing_token, alone
    ).archive(months.harness.now)
    assert months.held(JANUARY) == {}


def test_a_question_about_forgotten_months_is_answered_as_it_was_before(months: MonthsHarness) -> None:
    months.pass_days(60)
    questions: list[tuple[str, ...]] = [("budget",), ("namespace",), ("namespace", "owner", "label:team"), ("node",)]
    window = ("2026-01-01", "2026-03-10")
    before = {asked: months.usage_of(*window, *asked, step="1d") for asked in questions}
    alone = months.usage_of(*window, namespace="team-b")
    for asked, items in before.items():
        assert len(items) == 54 * (2 if asked[0] != "node" else 1)
    months.pass_days(60)
    months.archive()
    months.export()
    months.archive()
    assert months.held(JANUARY) == {}
    assert {asked: months.usage_of(*window, *asked, step="1d") for asked in questions} == before
    assert months.usage_of(*window, namespace="team-b") == alone
    idle = months.usage_of(*window, "budget", idle=True)
    assert [item.key for item in idle] == [("namespace:team-b",), ("research",)]


def test_a_late_change_of_a_forgotten_month_is_shown_before_and_after_its_file_has_it(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    months.archive()
    (team_b, research) = months.usage_of("2026-01-01", "2026-02-01")
    hour = window_of(JANUARY).start // HOUR
    write_rows(months.harness.client, "research", {(hour, '["team-a"]'): f"{GPU_HOUR} 0 0 -"})
    for _ in range(2):
        usage_of = months.usage_of("2026-01-01", "2026-02-01")
        assert usage_of[0] == team_b
        assert usage_of[1].figures.billed == GPU_HOUR != research.figures.billed
        months.archive()
        months.export()


def test_a_month_that_cannot_be_read_is_never_shown_as_nothing(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    months.archive()
    recent = months.usage_of("2026-04-01", "2026-05-01")
    months.place.away = True
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        months.usage_of("2026-01-01", "2026-05-01")
    assert months.usage_of("2026-04-01", "2026-05-01") == recent
    months.place.away = False
    file = months.folder / "usage-2026-01.csv.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        months.usage_of("2026-01-01", "2026-05-01")
    file.unlink()
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        months.usage_of("2026-01-01", "2026-05-01")
    # Of the time before the first file nothing is known.
    assert months.usage_of("2025-01-01", "2025-12-01") == []


def test_an_answer_reads_so_many_files_and_no_more(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    for year in (2021, 2022, 2023, 2024, 2025):
        (months.folder / f"usage-{year}-01.csv.gz").write_bytes(document.write([]).body)
    with pytest.raises(ProblemError, match="at most 24 months"):
        months.usage_of("2021-01-01", "2026-05-01")
