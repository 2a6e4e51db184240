from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from fairgpu.commands import main
from tests.support.ledger.exported_months import JANUARY, KEPT
from tests.support.ledger.stored_hours import write_rows
from timekeeper.controller import month_conflicts
from timekeeper.controller.month_conflicts import Month, State, UndecidableError
from timekeeper.export import document
from timekeeper.ledger import exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.ledger.exported_months import MonthsHarness

NAME = f"usage-{JANUARY}.csv.gz"


@pytest.fixture
def changed(months: MonthsHarness) -> bytes:
    """January's file has been changed, and the leader has said so."""
    months.pass_days(30)
    months.archive()
    months.export()
    file = months.folder / NAME
    body = gzip.compress(gzip.decompress(file.read_bytes()).replace(b"team-a", b"team-x"), mtime=0)
    file.write_bytes(body)
    months.restart()
    months.export()
    assert months.pending() == 1
    assert state(months) is State.WAITING
    return body


def state(months: MonthsHarness) -> State:
    found = month_conflicts.look(months.harness.client, months.place, months.harness.now, KEPT.hourly_days)
    return next(month.state for month in found if month.month == JANUARY)


def namespaces(months: MonthsHarness) -> set[str]:
    return {row.dimensions.namespace for _, row in document.read((months.folder / NAME).read_bytes())}


def test_a_file_that_is_kept_is_in_conflict_no_more_and_stays_as_it_is(months: MonthsHarness, changed: bytes) -> None:
    month_conflicts.keep(months.harness.client, months.place, JANUARY)
    assert state(months) is State.KEPT
    months.export()
    assert months.pending() == 0
    assert months.count("conflict") == 1
    assert (months.folder / NAME).read_bytes() == changed


def test_a_fact_learned_after_a_file_was_kept_must_be_decided_anew(months: MonthsHarness, changed: bytes) -> None:
    month_conflicts.keep(months.harness.client, months.place, JANUARY)
    exports.note_late_changes(months.harness.client, [JANUARY])
    months.export()
    assert months.count("conflict") == 2
    assert (months.folder / NAME).read_bytes() == changed


def test_a_file_that_is_rewritten_says_what_the_store_holds_and_the_old_one_stays_beside(
    months: MonthsHarness, changed: bytes
) -> None:
    _, aside = month_conflicts.rewrite(months.harness.client, months.place, JANUARY)
    assert namespaces(months) == {"team-a", "team-b"}
    assert aside is not None
    assert (months.folder / aside).read_bytes() == changed
    assert state(months) is State.WRITTEN
    months.export()
    assert months.pending() == 0
    assert months.count("conflict") == 1


def test_use_that_the_store_has_forgotten_stays_in_a_file_that_is_rewritten(months: MonthsHarness) -> None:
    months.pass_days(120)
    months.archive()
    months.export()
    whole = months.billed(JANUARY)
    months.archive()
    hour = next(
        row.hour for account, row in document.read((months.folder / NAME).read_bytes()) if account == "research"
    )
    write_rows(months.harness.client, "research", {(hour, '["team-a"]'): "3600000000 3600000000 5 -"})
    months.archive()
    months.export()
    assert months.count("conflict") == 1
    month_conflicts.rewrite(months.harness.client, months.place, JANUARY)
    assert months.billed(JANUARY) == whole | {"research": 1}
    months.export()
    assert months.pending() == 0


def test_nothing_is_written_over_a_month_of_which_the_store_holds_nothing(
    months: MonthsHarness, changed: bytes
) -> None:
    months.harness.client.flushall()
    with pytest.raises(UndecidableError, match="the store holds nothing of 2026-01"):
        month_conflicts.rewrite(months.harness.client, months.place, JANUARY)
    assert (months.folder / NAME).read_bytes() == changed


def test_a_file_that_is_no_month_of_use_is_not_kept(months: MonthsHarness, changed: bytes) -> None:
    (months.folder / NAME).write_bytes(changed[:-9])
    with pytest.raises(UndecidableError, match="is no month of use"):
        month_conflicts.keep(months.harness.client, months.place, JANUARY)
    (months.folder / NAME).unlink()
    with pytest.raises(UndecidableError, match="there is no usage-2026-01"):
        month_conflicts.keep(months.harness.client, months.place, JANUARY)
    month_conflicts.rewrite(months.harness.client, months.place, JANUARY)
    assert namespaces(months) == {"team-a", "team-b"}


def test_every_closed_month_is_listed(months: MonthsHarness) -> None:
    months.pass_days(60)
    months.archive()
    months.export()
    found = month_conflicts.look(months.harness.client, months.place, months.harness.now, KEPT.hourly_days)
    assert [(month.month, month.state) for month in found] == [(JANUARY, State.WRITTEN), ("2026-02", State.WRITTEN)]
    assert all(isinstance(month, Month) and month.rows for month in found)


@dataclass(frozen=True)
class Done:
    status: int
    stdout: str
    stderr: str


@pytest.fixture
def command(months: MonthsHarness, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Returns a function that runs `fairgpu timekeeper months` on the months' store."""
    settings = months.folder.parent / "settings.yaml"
    port = months.harness.client.connection_pool.connection_kwargs["port"]

    def run(*arguments: str, export: str = "") -> Done:
        settings.write_text(
            f"timekeeper: {{redis: {{url: 'redis://127.0.0.1:{port}/0'}}, usage: {{hourly_days: 2}}{export}}}"
        )
        status = main(["timekeeper", "months", "--settings", str(settings), *arguments])
        return Done(status, *capsys.readouterr())

    return run


@pytest.mark.usefixtures("changed")
def test_the_command_lists_and_settles_months(months: MonthsHarness, command: Callable[..., Done]) -> None:
    place = f", export: {{folder: '{months.folder}'}}"
    assert command("list", export=place).stdout.splitlines()[0] == "2026-01   waiting    34 rows"
    done = command("keep", JANUARY, export=place)
    assert (done.status, done.stdout) == (0, "2026-01: the file stays as it is (34 rows)\n")
    done = command("rewrite", JANUARY, export=place)
    assert done.stdout.startswith(
        "2026-01: written from what the store holds (34 rows); what was there is usage-2026-01"
    )


def test_the_command_says_what_cannot_be_and_what_to_do_instead(
    months: MonthsHarness, command: Callable[..., Done]
) -> None:
    place = f", export: {{folder: '{months.folder}'}}"
    wrong = {
        ("keep",): "MONTH: keep needs one, such as 2026-10",
        ("keep", "2026-13"): "MONTH: '2026-13' is no month: write it as 2026-10",
        ("rewrite", "2199-01"): "MONTH: 2199-01 is not closed before 2199-02-04T00:00:00Z",
    }
    for arguments, words in wrong.items():
        done = command(*arguments, export=place)
        assert done.status != 0
        assert words in done.stderr
    assert "set timekeeper.export.folder" in command("list").stderr
