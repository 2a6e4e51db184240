from __future__ import annotations

import gzip
import json

import pytest

from tests.support.ledger.exported_months import JANUARY, MonthsHarness
from tests.support.ledger.stored_hours import write_rows
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage import Row, values_of
from timekeeper.export import document
from timekeeper.export.document import window_of
from timekeeper.ledger import exports, keys


def forgotten(months: MonthsHarness) -> dict[str, int]:
    """January is written, and the store has forgotten it; what the file says."""
    months.pass_days(120)
    months.archive()
    months.export()
    whole = months.billed(JANUARY)
    months.archive()
    assert months.held(JANUARY) == {}
    return whole


def learn_again(months: MonthsHarness, rows: list[Row]) -> None:
    """The store holds these rows of research's January."""
    fields = {(row.hour, json.dumps(values_of(row.dimensions))): "{} {} {} -".format(*row.figures[:3]) for row in rows}
    write_rows(months.harness.client, "research", fields)
    months.archive()
    months.export()


def rows_of_research(months: MonthsHarness) -> list[Row]:
    file = months.folder / f"usage-{JANUARY}.csv.gz"
    return [row for account, row in document.read(file.read_bytes()) if account == "research"]


def test_a_late_change_after_others_were_forgotten_keeps_what_the_file_has_of_them(months: MonthsHarness) -> None:
    whole = forgotten(months)
    first, *others = rows_of_research(months)
    more = first.figures._replace(billed=first.figures.billed + 7 * GPU_HOUR)
    learn_again(months, [first._replace(figures=more), *others])
    assert months.billed(JANUARY) == whole | {"research": whole["research"] + 7}


def test_a_store_that_lost_part_of_a_budgets_month_replaces_no_file(months: MonthsHarness) -> None:
    whole = forgotten(months)
    learn_again(months, rows_of_research(months)[:-1])
    assert months.billed(JANUARY) == whole
    assert months.count("conflict") == 1
    assert months.pending() == 1


def test_a_file_that_somebody_changed_is_left_alone_and_reported(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()
    months.export()
    file = months.folder / "usage-2026-01.csv.gz"
    changed = gzip.compress(gzip.decompress(file.read_bytes()).replace(b"team-a", b"team-x"), mtime=0)
    file.write_bytes(changed)
    months.restart()
    months.export()
    assert file.read_bytes() == changed
    assert months.count("conflict") == 1
    assert months.pending() == 1


def learn_late(months: MonthsHarness) -> None:
    """The store learns of an hour of January, in an account that holds nothing else of it."""
    exports.note_late_changes(months.harness.client, [JANUARY])
    hour = window_of(JANUARY).start // HOUR
    write_rows(months.harness.client, "research", {(hour, '["team-a"]'): "5 0 0 -"})


def test_a_store_that_was_emptied_overwrites_no_month(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()
    months.export()
    before = months.billed(JANUARY)
    months.harness.client.flushall()
    months.reconciler = months.harness.lead()
    months.harness.reconcile(0)
    months.restart()
    learn_late(months)
    months.export()
    assert months.billed(JANUARY) == before
    assert months.count("conflict") == 1
    assert months.pending() == 1


def test_a_file_whose_record_is_lost_counts_as_long_as_the_store_knows_nothing_else(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    before = months.billed(JANUARY)
    months.archive()
    months.harness.client.delete(keys.EXPORTS)
    exports.note_late_changes(months.harness.client, [JANUARY])
    months.restart()
    months.export()
    assert exports.load(months.harness.client).is_confirmed(JANUARY)
    assert months.count("conflict") == 0
    learn_late(months)
    months.export()
    assert months.count("conflict") == 1
    assert months.billed(JANUARY) == before


def test_a_file_that_is_gone_is_written_again_while_the_store_holds_its_month(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()
    months.export()
    whole = months.billed(JANUARY)
    (months.folder / "usage-2026-01.csv.gz").unlink()
    months.pass_days(1)
    months.export()
    assert months.billed(JANUARY) == whole


def test_a_file_that_is_gone_with_what_it_held_is_reported(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    months.archive()
    (months.folder / "usage-2026-01.csv.gz").unlink()
    months.pass_days(1)
    months.export()
    assert not (months.folder / "usage-2026-01.csv.gz").exists()
    assert months.count("conflict") == 1


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", "{}", '{"change":"1","sha256":"","rows":0,"tag":""}'])
def test_an_unreadable_record_of_one_month_hides_no_other(months: MonthsHarness, broken: str | bytes) -> None:
    client, written = months.harness.client, exports.Export(0, "of its CSV", 1, "tag")
    exports.note_written(client, "2025-11", written)
    client.hset(keys.EXPORTS, "2025-12", broken)
    found = exports.load(client)
    assert found.written == {"2025-11": written}
    assert not found.is_confirmed("2025-12")
