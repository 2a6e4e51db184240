from __future__ import annotations

import dataclasses

import pytest

from tests.support.ledger.exported_months import JANUARY, KEPT, Scene
from tests.support.ledger.stored_hours import write_rows
from timekeeper.api.problems import ProblemError
from timekeeper.controller.archive import Archivist
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR
from timekeeper.export import document
from timekeeper.export.destination import MonthUnavailableError
from timekeeper.export.document import window_of


def test_without_an_export_what_is_old_is_forgotten_as_ever(scene: Scene) -> None:
    scene.pass_days(120)
    alone = dataclasses.replace(KEPT, exported=False)
    Archivist(scene.stage.client, scene.stage.source, scene.keeper.books, scene.keeper.epoch, alone).archive(
        scene.stage.now
    )
    assert scene.held(JANUARY) == {}


def test_a_question_about_forgotten_months_is_answered_as_it_was_before(scene: Scene) -> None:
    scene.pass_days(60)
    questions: list[tuple[str, ...]] = [("budget",), ("namespace",), ("namespace", "owner", "label:team"), ("node",)]
    window = ("2026-01-01", "2026-03-10")
    before = {asked: scene.usage_of(*window, *asked, step="1d") for asked in questions}
    alone = scene.usage_of(*window, namespace="team-b")
    for asked, items in before.items():
        assert len(items) == 54 * (2 if asked[0] != "node" else 1)
    scene.pass_days(60)
    scene.archive()
    scene.export()
    scene.archive()
    assert scene.held(JANUARY) == {}
    assert {asked: scene.usage_of(*window, *asked, step="1d") for asked in questions} == before
    assert scene.usage_of(*window, namespace="team-b") == alone
    idle = scene.usage_of(*window, "budget", idle=True)
    assert [item.key for item in idle] == [("namespace:team-b",), ("research",)]


def test_a_late_change_of_a_forgotten_month_is_shown_before_and_after_its_file_has_it(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    (team_b, research) = scene.usage_of("2026-01-01", "2026-02-01")
    hour = window_of(JANUARY).start // HOUR
    write_rows(scene.stage.client, "research", {(hour, '["team-a"]'): f"{GPU_HOUR} 0 0 -"})
    for _ in range(2):
        usage_of = scene.usage_of("2026-01-01", "2026-02-01")
        assert usage_of[0] == team_b
        assert usage_of[1].figures.billed == GPU_HOUR != research.figures.billed
        scene.archive()
        scene.export()


def test_a_month_that_cannot_be_read_is_never_shown_as_nothing(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    recent = scene.usage_of("2026-04-01", "2026-05-01")
    scene.place.away = True
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.usage_of("2026-01-01", "2026-05-01")
    assert scene.usage_of("2026-04-01", "2026-05-01") == recent
    scene.place.away = False
    file = scene.folder / "usage-2026-01.csv.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.usage_of("2026-01-01", "2026-05-01")
    file.unlink()
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.usage_of("2026-01-01", "2026-05-01")
    # Of the time before the first file nobody knows anything.
    assert scene.usage_of("2025-01-01", "2025-12-01") == []


def test_an_answer_reads_so_many_files_and_no_more(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    for year in (2021, 2022, 2023, 2024, 2025):
        (scene.folder / f"usage-{year}-01.csv.gz").write_bytes(document.write([]).body)
    with pytest.raises(ProblemError, match="at most 24 months"):
        scene.usage_of("2021-01-01", "2026-05-01")
