from __future__ import annotations

import threading

import pytest

from tests.support.ledger.exported_months import JANUARY, Scene
from tests.support.waiting import LIMIT_S
from timekeeper.domain.timestamps import parse_instant


def test_a_month_is_written_once_its_hours_are_folded_and_says_what_the_store_says(scene: Scene) -> None:
    scene.pass_days(18)
    scene.archive()
    scene.export()
    # On the second of February hours of January can still be told apart.
    assert list(scene.folder.iterdir()) == []
    scene.pass_days(3)
    scene.archive()
    scene.export()
    assert scene.billed(JANUARY) == scene.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    assert scene.pending() == 0


def test_an_export_that_holds_all_is_not_written_again(scene: Scene) -> None:
    scene.pass_days(21)
    scene.archive()
    scene.export()
    before = (scene.folder / "usage-2026-01.csv.gz").stat().st_mtime_ns
    assert scene.place.written == 1
    scene.archive()
    scene.export()
    scene.restart()
    scene.export()
    assert scene.place.written == 1
    assert (scene.folder / "usage-2026-01.csv.gz").stat().st_mtime_ns == before


def test_nothing_is_forgotten_before_its_month_is_written(scene: Scene) -> None:
    scene.place.away = True
    scene.pass_days(120)
    scene.archive()
    scene.export()
    assert scene.count("failed") > 0
    assert scene.pending() > 0
    assert scene.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    scene.place.away = False
    scene.export()
    assert scene.pending() == 0
    scene.archive()
    assert scene.held(JANUARY) == {}
    assert scene.billed(JANUARY) == {"namespace:team-b": 198, "research": 396}


def test_a_writer_that_dies_between_the_file_and_the_record_loses_nothing_and_shows_nothing_twice(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.place.dies_after_writing = True
    with pytest.raises(KeyboardInterrupt):
        scene.export()
    scene.archive()
    assert scene.held(JANUARY) == {"namespace:team-b": 198, "research": 396}
    scene.place.dies_after_writing = False
    scene.restart()
    scene.export()
    scene.archive()
    assert scene.held(JANUARY) == {}
    assert scene.billed(JANUARY) == {"namespace:team-b": 198, "research": 396}
    assert scene.count("conflict") == 0


def test_a_place_that_hangs_holds_up_nothing_else(scene: Scene) -> None:
    scene.pass_days(30)
    scene.archive()
    scene.place.answers.clear()
    ending = threading.Event()
    arguments = (lambda _seconds: ending.wait(0.01), lambda: scene.stage.now)
    thread = threading.Thread(target=scene.exporter.run, args=arguments)
    thread.start()
    try:
        assert scene.place.asked.wait(LIMIT_S)
        before = scene.held("2026-02")["research"]
        scene.pass_days(1)
        assert scene.held("2026-02")["research"] == before + 24
        assert thread.is_alive()
    finally:
        scene.place.answers.set()
        ending.set()
        thread.join(LIMIT_S)
    assert scene.billed(JANUARY) == scene.held(JANUARY)


def test_a_late_correction_changes_the_file_of_its_month_alone(scene: Scene) -> None:
    scene.pass_days(30)
    scene.archive()
    scene.export()
    written = scene.place.written
    scene.stage.correct("c1", "research", -96, parse_instant("2026-01-20T10:00:00Z"))
    scene.stage.round(60)
    scene.archive()
    scene.export()
    assert scene.billed(JANUARY) == {"namespace:team-b": 198, "research": 300}
    assert scene.place.written == written + 1
    scene.export()
    assert scene.place.written == written + 1
