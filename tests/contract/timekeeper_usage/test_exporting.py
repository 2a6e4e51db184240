from __future__ import annotations

import dataclasses
import gzip
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from tests.keeper_stage import Stage
from tests.waiting import LIMIT_S
from timekeeper.export import document
from timekeeper.export.destination import ExportError, Folder, MonthUnavailableError, Stored
from timekeeper.export.months import window_of
from timekeeper.jobs.archiving import Archivist
from timekeeper.jobs.exporting import Exporter
from timekeeper.jobs.measures import ExportMeasures
from timekeeper.rest.exported_months import ExportedMonths
from timekeeper.rest.problems import ProblemError
from timekeeper.rest.usage_finding import find
from timekeeper.rest.usage_query import Query
from timekeeper.rules.money import GPU_HOUR
from timekeeper.rules.timestamps import HOUR, parse_instant
from timekeeper.store import exports, keys
from timekeeper.usage.dimensions import values_of
from timekeeper.usage.grouping import Item
from timekeeper.usage.retention import Retention
from timekeeper.usage.rows import Row
from timekeeper.usage.windows import Window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.redis_server import RedisServer

JANUARY = "2026-01"
KEPT = Retention(hourly_days=2, months=2, exported=True)


class Away(Folder):
    """A folder that can be taken away, and that can lose the writer on the way."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.away = False
        self.dies_after_writing = False
        self.written = 0
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    def read(self, name: str) -> Stored | None:
        self._check()
        return super().read(name)

    def write(self, name: str, body: bytes, replacing: str | None) -> str:
        self._check()
        tag = super().write(name, body, replacing)
        self.written += 1
        if self.dies_after_writing:
            raise KeyboardInterrupt
        return tag

    def _check(self) -> None:
        self.asked.set()
        self.answers.wait(LIMIT_S)
        if self.away:
            raise ExportError("away")


class Term:
    def number(self) -> int | None:
        return 1


class Scene:
    """A stage, a place for months, and what moves what is old from one to the other."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        folder.mkdir()
        self.folder = folder
        self.place = Away(folder)
        self.keeper = stage.lead()
        self.seconds = 0.0
        self.registry = CollectorRegistry()
        self.restart()

    def restart(self) -> None:
        """A new process exports."""
        self.registry = CollectorRegistry()
        measures = ExportMeasures(self.registry)
        self.exporter = Exporter(
            self.stage.client, self.place, Term(), KEPT.hourly_days, measures, clock=lambda: self.seconds
        )

    def pass_days(self, days: int) -> None:
        for passed in range(0, days, 6):
            self.stage.round(86_400 * min(6, days - passed))

    def archive(self) -> None:
        Archivist(self.stage.client, self.stage.source, self.keeper.books, self.keeper.epoch, KEPT).archive(
            self.stage.now
        )

    def export(self) -> None:
        self.seconds += 3600.0
        self.exporter.step(self.stage.now)

    def count(self, outcome: str) -> float:
        return self.registry.get_sample_value("fairgpu_timekeeper_exports_total", {"outcome": outcome}) or 0.0

    def pending(self) -> float:
        return self.registry.get_sample_value("fairgpu_timekeeper_exports_pending") or 0.0

    def billed(self, month: str) -> dict[str, int]:
        """GPU-hours of each budget in a month's file."""
        sums: dict[str, int] = {}
        for account, row in document.read((self.folder / f"usage-{month}.csv.gz").read_bytes()):
            sums[account] = sums.get(account, 0) + row.figures.billed
        return {account: amount // GPU_HOUR for account, amount in sums.items()}

    def told(self, start: str, end: str, *aggregate: str, step: str | None = None, **options: Any) -> list[Item]:
        """What the REST service answers."""
        months = ExportedMonths(self.stage.client, self.place, KEPT.months, 1 << 20)
        window = Window(parse_instant(f"{start}T00:00:00Z"), parse_instant(f"{end}T00:00:00Z"))
        query = Query(window, step, aggregate or ("budget",), 1000, **options)
        return find(self.stage.client, query, self.stage.now, exported=months).items

    def held(self, month: str) -> dict[str, int]:
        """GPU-hours of each budget that the store holds of a month."""
        query = Query(window_of(month), None, ("budget",), 1000)
        found = find(self.stage.client, query, self.stage.now)
        return {item.key[0]: item.figures.billed // GPU_HOUR for item in found.items}


@pytest.fixture
def scene(redis_server: RedisServer, tmp_path: Path) -> Iterator[Scene]:
    with redis_server.client() as client:
        stage = Stage(tmp_path, client)
        stage.budget("research", ["team-a"], gpu_hours=10_000)
        made = Scene(stage, tmp_path / "months")
        stage.pod("p1", "team-a")
        stage.pod("p2", "team-b", core=50)
        stage.round(0)
        yield made


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


def test_a_writer_that_dies_between_the_file_and_the_record_loses_nothing_and_tells_nothing_twice(scene: Scene) -> None:
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


def forgotten(scene: Scene) -> dict[str, int]:
    """January is written, and the store has forgotten it; what the file says."""
    scene.pass_days(120)
    scene.archive()
    scene.export()
    whole = scene.billed(JANUARY)
    scene.archive()
    assert scene.held(JANUARY) == {}
    return whole


def learn_again(scene: Scene, rows: list[Row]) -> None:
    """The store holds these rows of research's January."""
    fields = {
        f"{row.hour} {json.dumps(values_of(row.dimensions))}": "{} {} {} -".format(*row.figures[:3]) for row in rows
    }
    scene.stage.client.hset(keys.AccountKeys("research").hours, mapping=fields)
    scene.archive()
    scene.export()


def rows_of_research(scene: Scene) -> list[Row]:
    file = scene.folder / f"usage-{JANUARY}.csv.gz"
    return [row for account, row in document.read(file.read_bytes()) if account == "research"]


def test_a_late_change_after_others_were_forgotten_keeps_what_the_file_has_of_them(scene: Scene) -> None:
    whole = forgotten(scene)
    first, *others = rows_of_research(scene)
    more = first.figures._replace(billed=first.figures.billed + 7 * GPU_HOUR)
    learn_again(scene, [first._replace(figures=more), *others])
    assert scene.billed(JANUARY) == whole | {"research": whole["research"] + 7}


def test_what_a_store_that_lost_part_of_a_budgets_month_holds_of_it_replaces_nothing(scene: Scene) -> None:
    whole = forgotten(scene)
    learn_again(scene, rows_of_research(scene)[:-1])
    assert scene.billed(JANUARY) == whole
    assert scene.count("conflict") == 1
    assert scene.pending() == 1


def test_a_file_that_somebody_changed_is_left_alone_and_told_of(scene: Scene) -> None:
    scene.pass_days(30)
    scene.archive()
    scene.export()
    file = scene.folder / "usage-2026-01.csv.gz"
    changed = gzip.compress(gzip.decompress(file.read_bytes()).replace(b"team-a", b"team-x"), mtime=0)
    file.write_bytes(changed)
    scene.restart()
    scene.export()
    assert file.read_bytes() == changed
    assert scene.count("conflict") == 1
    assert scene.pending() == 1


def learn_late(scene: Scene) -> None:
    """The store learns of an hour of January, in an account that holds nothing else of it."""
    exports.note_late_changes(scene.stage.client, [JANUARY])
    hour = window_of(JANUARY).start // HOUR
    scene.stage.client.hset(keys.AccountKeys("research").hours, f'{hour} ["team-a"]', "5 0 0 -")


def test_a_store_that_was_emptied_overwrites_no_month(scene: Scene) -> None:
    scene.pass_days(30)
    scene.archive()
    scene.export()
    before = scene.billed(JANUARY)
    scene.stage.client.flushall()
    scene.keeper = scene.stage.lead()
    scene.stage.round(0)
    scene.restart()
    learn_late(scene)
    scene.export()
    assert scene.billed(JANUARY) == before
    assert scene.count("conflict") == 1
    assert scene.pending() == 1


def test_a_file_whose_record_is_lost_counts_as_long_as_the_store_knows_nothing_else(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    before = scene.billed(JANUARY)
    scene.archive()
    scene.stage.client.delete(keys.EXPORTS)
    exports.note_late_changes(scene.stage.client, [JANUARY])
    scene.restart()
    scene.export()
    assert exports.load(scene.stage.client).is_confirmed(JANUARY)
    assert scene.count("conflict") == 0
    learn_late(scene)
    scene.export()
    assert scene.count("conflict") == 1
    assert scene.billed(JANUARY) == before


def test_a_file_that_is_gone_is_written_again_while_the_store_holds_its_month(scene: Scene) -> None:
    scene.pass_days(30)
    scene.archive()
    scene.export()
    whole = scene.billed(JANUARY)
    (scene.folder / "usage-2026-01.csv.gz").unlink()
    scene.pass_days(1)
    scene.export()
    assert scene.billed(JANUARY) == whole


def test_a_file_that_is_gone_with_what_it_held_is_told_of(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    (scene.folder / "usage-2026-01.csv.gz").unlink()
    scene.pass_days(1)
    scene.export()
    assert not (scene.folder / "usage-2026-01.csv.gz").exists()
    assert scene.count("conflict") == 1


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
    before = {asked: scene.told(*window, *asked, step="1d") for asked in questions}
    alone = scene.told(*window, namespace="team-b")
    for asked, items in before.items():
        assert len(items) == 54 * (2 if asked[0] != "node" else 1)
    scene.pass_days(60)
    scene.archive()
    scene.export()
    scene.archive()
    assert scene.held(JANUARY) == {}
    assert {asked: scene.told(*window, *asked, step="1d") for asked in questions} == before
    assert scene.told(*window, namespace="team-b") == alone
    idle = scene.told(*window, "budget", idle=True)
    assert [item.key for item in idle] == [("namespace:team-b",), ("research",)]


def test_a_late_change_of_a_forgotten_month_is_told_before_and_after_its_file_has_it(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    (team_b, research) = scene.told("2026-01-01", "2026-02-01")
    hour = window_of(JANUARY).start // HOUR
    scene.stage.client.hset(keys.AccountKeys("research").hours, f'{hour} ["team-a"]', f"{GPU_HOUR} 0 0 -")
    for _ in range(2):
        told = scene.told("2026-01-01", "2026-02-01")
        assert told[0] == team_b
        assert told[1].figures.billed == GPU_HOUR != research.figures.billed
        scene.archive()
        scene.export()


def test_a_month_that_cannot_be_read_is_never_told_as_nothing(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    recent = scene.told("2026-04-01", "2026-05-01")
    scene.place.away = True
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.told("2026-01-01", "2026-05-01")
    assert scene.told("2026-04-01", "2026-05-01") == recent
    scene.place.away = False
    file = scene.folder / "usage-2026-01.csv.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.told("2026-01-01", "2026-05-01")
    file.unlink()
    with pytest.raises(MonthUnavailableError, match=JANUARY):
        scene.told("2026-01-01", "2026-05-01")
    # Of the time before the first file nobody knows anything.
    assert scene.told("2025-01-01", "2025-12-01") == []


def test_an_answer_reads_so_many_files_and_no_more(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    for year in (2021, 2022, 2023, 2024, 2025):
        (scene.folder / f"usage-{year}-01.csv.gz").write_bytes(document.write([]).body)
    with pytest.raises(ProblemError, match="at most 24 months"):
        scene.told("2021-01-01", "2026-05-01")
