from __future__ import annotations

import gzip
import json

import pytest

from tests.support.ledger.exported_months import JANUARY, Scene
from tests.support.ledger.stored_hours import write_rows
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage import Row, values_of
from timekeeper.export import document
from timekeeper.export.document import window_of
from timekeeper.ledger import exports, keys


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
    fields = {(row.hour, json.dumps(values_of(row.dimensions))): "{} {} {} -".format(*row.figures[:3]) for row in rows}
    write_rows(scene.stage.client, "research", fields)
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


def test_a_file_that_somebody_changed_is_left_alone_and_reported(scene: Scene) -> None:
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
    write_rows(scene.stage.client, "research", {(hour, '["team-a"]'): "5 0 0 -"})


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


def test_a_file_that_is_gone_with_what_it_held_is_reported(scene: Scene) -> None:
    scene.pass_days(120)
    scene.archive()
    scene.export()
    scene.archive()
    (scene.folder / "usage-2026-01.csv.gz").unlink()
    scene.pass_days(1)
    scene.export()
    assert not (scene.folder / "usage-2026-01.csv.gz").exists()
    assert scene.count("conflict") == 1


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", "{}", '{"change":"1","sha256":"","rows":0,"tag":""}'])
def test_what_was_written_of_one_month_and_cannot_be_read_hides_no_other(scene: Scene, broken: str | bytes) -> None:
    client, written = scene.stage.client, exports.Export(0, "of its CSV", 1, "tag")
    exports.note_written(client, "2025-11", written)
    client.hset(keys.EXPORTS, "2025-12", broken)
    found = exports.load(client)
    assert found.written == {"2025-11": written}
    assert not found.is_confirmed("2025-12")
