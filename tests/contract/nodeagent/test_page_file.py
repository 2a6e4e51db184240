"""The page's file as containers see it, and their ledgers as the node agent reads them."""

import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.rounds import Container
from nodeagent.schedule import PageFile, read_activity
from nodeagent.schedule_page import GENERATION_AT, LEDGER_MAGIC, SIZE, Activity, Page, PageSlot, pack
from nodeagent.turns import Policy
from tests.support.schedule_page import unpack

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


SLOT = PageSlot(1, 7, 30, Policy.HARD, active=True, effective_permille=300)
WRITINGS = (
    PAGE,
    PAGE._replace(heartbeat_ns=3_000),
    PAGE._replace(heartbeat_ns=4_000, epoch_ns=3_500),
    PAGE._replace(slots=(SLOT,)),
    PAGE._replace(heartbeat_ns=5_000, slots=(SLOT._replace(driver_bytes=9),)),
    PAGE._replace(heartbeat_ns=6_000, slots=(SLOT._replace(driver_bytes=9),), turns=((1, 0, 15_000_000),)),
    PAGE._replace(heartbeat_ns=7_000, slots=(SLOT._replace(driver_bytes=9),), turns=((1, 0, 15_000_000),)),
    PAGE._replace(uuid="GPU-2", heartbeat_ns=7_000),
    PAGE,
)


def test_each_writing_leaves_exactly_its_page_whatever_stood_there_before(tmp_path: Path) -> None:
    file = PageFile(tmp_path / "page")
    for number, page in enumerate(WRITINGS, 1):
        file.write(page)
        assert unpack((tmp_path / "page").read_bytes()) == page
        assert generation(tmp_path / "page") == 2 * number
    file.close()


def test_a_page_that_is_renewed_has_new_times_and_all_else_of_the_last_one(tmp_path: Path) -> None:
    file = PageFile(tmp_path / "page")
    for number, page in enumerate(WRITINGS, 1):
        file.write(page)
        file.renew(page.heartbeat_ns + number, page.epoch_ns + 1)
        expected = page._replace(heartbeat_ns=page.heartbeat_ns + number, epoch_ns=page.epoch_ns + 1)
        assert unpack((tmp_path / "page").read_bytes()) == expected
    with pytest.raises(ValueError, match="page"):
        file.renew(-1, 0)
    assert unpack((tmp_path / "page").read_bytes()) == expected
    file.close()


def test_a_page_has_room_on_its_file_system_before_it_is_written(tmp_path: Path) -> None:
    """A store into a hole of a mapped file would end the writer where the file system is full."""
    page = tmp_path / "page"
    PageFile(page).close()
    assert page.stat().st_blocks * 512 >= SIZE == page.stat().st_size
    page.write_bytes(bytes(2 * SIZE))
    PageFile(page).close()
    assert page.stat().st_size == SIZE


def test_while_a_page_is_written_its_generation_is_odd(tmp_path: Path) -> None:
    page = tmp_path / "page"
    file = PageFile(page)
    seen = []

    class Watched:
        def __init__(self, memory: Any) -> None:
            self._memory = memory

        def __setitem__(self, *change: Any) -> None:
            self._memory.__setitem__(*change)
            seen.append(generation(page) % 2)

    for name in ("_memory", "_words", "_half_words"):
        setattr(file, name, Watched(getattr(file, name)))
    file.write(PAGE)
    assert seen == [1, 1, 1, 0]
    seen.clear()
    file.renew(3_000, 1_000)
    assert seen == [1, 1, 1, 1, 0]


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
    shown = [read_activity(Container(0, 1, 30, Policy.HARD, str(path))) for path in (other, link, fifo)]
    assert shown == [Activity(activity_ns=77), Activity(), Activity()]
