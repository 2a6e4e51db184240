from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.exported_months import JANUARY
from timekeeper.export.destination import ChangedError, DeposedError, ExportError, Folder
from timekeeper.ledger import exports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.ledger.exported_months import MonthsHarness

NAME = "usage-2026-01.csv.gz"
STANDS_STILL = """
import os, signal, sys
from pathlib import Path
from timekeeper.export.destination import Folder

def stand_still():
    os.kill(os.getpid(), signal.SIGSTOP)
    return sys.argv[2] == "still-leads"

place = Folder(Path(sys.argv[1]))
place.write("usage-2026-01.csv.gz", b"of the old leader", place.tag("usage-2026-01.csv.gz"), stand_still)
"""


class OldLeader:
    """A process that has looked at what is there, has its own beside it, and is stopped before it renames that."""

    def __init__(self, folder: Path, answer: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", STANDS_STILL, str(folder), answer])
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> int:
        """Lets it end; its exit status."""
        self.process.send_signal(signal.SIGCONT)
        return self.process.wait(120)

    def end(self) -> None:
        """Whatever it does."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write(NAME, b"of long ago", None, lambda: True)
    return made


@pytest.fixture
def stopped(place: Folder, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OldLeader]:
    assert place.tag(NAME)
    leader = OldLeader(tmp_path, getattr(request, "param", "still-leads"))
    yield leader
    leader.end()


def test_a_writer_that_stands_still_between_the_look_and_the_rename_keeps_others_from_writing(
    place: Folder, stopped: OldLeader
) -> None:
    before = place.tag(NAME)
    with pytest.raises(ExportError, match="another timekeeper is writing there"):
        place.write(NAME, b"of the new leader", before, lambda: True)
    assert stopped.go_on() == 0
    with pytest.raises(ChangedError):
        place.write(NAME, b"of the new leader", before, lambda: True)
    found = place.read(NAME)
    assert found is not None
    assert found.body == b"of the old leader"
    place.write(NAME, b"of the new leader", found.tag, lambda: True)


@pytest.mark.parametrize("stopped", ["deposed"], indirect=True)
def test_a_leader_that_was_replaced_while_it_stood_still_writes_nothing(place: Folder, stopped: OldLeader) -> None:
    before = place.read(NAME)
    assert stopped.go_on() != 0
    assert place.read(NAME) == before
    assert [name for name in place.names() if not name.startswith(".")] == [NAME]


def test_a_process_that_was_killed_while_it_wrote_is_in_no_others_way(
    place: Folder, stopped: OldLeader, tmp_path: Path
) -> None:
    stopped.end()
    place.write(NAME, b"of the new leader", place.tag(NAME), lambda: True)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".fairgpu-writes", NAME]


def test_a_replica_that_leads_no_more_writes_nothing(place: Folder) -> None:
    before = place.read(NAME)
    with pytest.raises(DeposedError):
        place.write(NAME, b"late", place.tag(NAME), lambda: False)
    assert place.read(NAME) == before


def test_a_term_that_ends_while_a_month_is_made_leaves_it_to_who_leads_then(months: MonthsHarness) -> None:
    months.pass_days(30)
    months.archive()

    def depose() -> None:
        months.term.leads = False

    months.place.before_writing = depose
    months.export()
    assert not (months.folder / NAME).exists()
    assert JANUARY not in exports.load(months.harness.client).written
    months.term.leads, months.place.before_writing = True, lambda: None
    months.restart()
    months.export()
    assert months.billed(JANUARY)
