"""The page's file as containers see it, and their ledgers as the node agent reads them."""

import os
from pathlib import Path

from nodeagent.rounds import Container
from nodeagent.schedule import PageFile, read_activity
from nodeagent.schedule_page import GENERATION_AT, LEDGER_MAGIC, SIZE, Activity, Page, pack, unpack
from nodeagent.turns import Policy

PAGE = Page("GPU-1", 2_000, 1_000, 50_000_000, (), ())


def generation(page: Path) -> int:
    return int.from_bytes(page.read_bytes()[GENERATION_AT:][:8], "little")


def test_a_writer_goes_on_where_the_last_one_was_killed_in_the_middle_of_a_writing(tmp_path: Path) -> None:
    page = tmp_path / "page"
    torn = bytearray(pack(PAGE, 6))
    torn[GENERATION_AT] = 7
    page.write_bytes(torn)
    file = PageFile(page)
    file.write(PAGE)
    file.close()
    assert generation(page) == 8
    assert unpack(page.read_bytes()) == PAGE


def test_while_a_page_is_written_its_generation_is_odd(tmp_path: Path) -> None:
    page = tmp_path / "page"
    file = PageFile(page)
    seen = []

    class Watched(bytearray):
        def __setitem__(self, *change: object) -> None:
            super().__setitem__(*change)  # type: ignore[call-overload]
            seen.append(self[GENERATION_AT] % 2)

    file._memory.close()
    file._memory = Watched(SIZE)  # type: ignore[assignment]
    file.write(PAGE)
    assert seen == [1, 1, 1, 0]


def test_a_page_that_is_there_is_neither_cut_off_nor_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_bytes(pack(PAGE, 4))
    before = page.stat()
    PageFile(page).close()
    assert (page.stat().st_ino, page.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert unpack(page.read_bytes()) == PAGE


def test_a_container_cannot_have_another_file_read_for_its_ledger_nor_keep_its_reader_waiting(tmp_path: Path) -> None:
    other, link, fifo = tmp_path / "other", tmp_path / "link", tmp_path / "fifo"
    words = [LEDGER_MAGIC, 1, 0, 0, 0, 0, 0, 0, 77]
    other.write_bytes(b"".join(word.to_bytes(8, "little") for word in words).ljust(4096, b"\0"))
    link.symlink_to(other)
    os.mkfifo(fifo)
    shown = [read_activity(Container(0, 1, 30, Policy.HARD, path)) for path in (other, link, fifo)]
    assert shown == [Activity(activity_ns=77), Activity(), Activity()]
