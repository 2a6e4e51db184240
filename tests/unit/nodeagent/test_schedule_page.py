"""The bytes of a schedule page."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.schedule_page import (
    CHECKSUM_AT,
    LEDGER_MAGIC,
    Activity,
    Page,
    PageSlot,
    activity_bytes,
    pack,
    rest_checksum,
    shown,
    times_checksum,
    unpack_activity,
    unpack_one,
)
from tests.support.schedule_page import unpack

PAGE = Page(
    "GPU-53494d47",
    heartbeat_ns=2_000,
    epoch_ns=1_000,
    period_ns=50_000_000,
    slots=(PageSlot(0, 7, 30, 0, True, 300, 1 << 30), PageSlot(5, 9, 0, 2, notice_ns=77, dead_gone_ns=78)),
    turns=((0, 0, 15_000_000), (5, 15_000_000, 35_000_000)),
)


def test_a_page_reads_as_it_was_written() -> None:
    assert unpack(pack(PAGE, 4)) == PAGE


@given(st.integers(0, 7295), st.integers(1, 255))
def test_a_page_shows_what_its_slots_hold_and_a_changed_byte_is_noticed(position: int, change: int) -> None:
    packed = bytearray(pack(PAGE, 4))
    assert shown(bytes(packed)) == {(0, 7, 30, 0), (5, 9, 0, 77)}
    packed[position] ^= change
    if position not in range(12, 32):  # its size, its generation, and what is reserved
        with pytest.raises(ValueError, match="page"):
            shown(bytes(packed))


@given(st.integers(0, 7295), st.integers(1, 255))
def test_any_changed_byte_of_what_counts_is_noticed(position: int, change: int) -> None:
    packed = bytearray(pack(PAGE, 4))
    packed[position] ^= change
    generation_or_reserved = range(16, 32)
    if position in generation_or_reserved:
        return
    with pytest.raises(ValueError, match=r"page|checksum"):
        unpack(bytes(packed))


@given(st.binary(max_size=8000))
def test_bytes_that_are_no_page_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="page"):
        unpack(packed)
    with pytest.raises(ValueError, match="page"):
        shown(packed)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_checksum_of_new_times_is_that_of_the_whole_page(heartbeat_ns: int, epoch_ns: int, key: int) -> None:
    slots = (PAGE.slots[0]._replace(key=key), *PAGE.slots[1:])
    expected = pack(PAGE._replace(heartbeat_ns=heartbeat_ns, epoch_ns=epoch_ns, slots=slots), 4)
    rest = rest_checksum(pack(PAGE._replace(slots=slots), 2))
    assert (times_checksum(heartbeat_ns, epoch_ns) ^ rest).to_bytes(4, "little") == expected[CHECKSUM_AT:]


def test_a_time_that_has_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="page"):
        times_checksum(-1, 0)


def test_a_page_that_is_being_written_is_refused() -> None:
    with pytest.raises(ValueError, match="being written"):
        unpack(pack(PAGE, 5))
    with pytest.raises(ValueError, match="being written"):
        shown(pack(PAGE, 5))


@pytest.mark.parametrize(
    "page",
    [
        Page("x" * 48, 0, 0, 1, (), ()),
        Page("x", 0, 0, 1, (PageSlot(64, 1, 0, 0),), ()),
        Page("x", 0, 0, 1, (), ((0, 0, 1),) * 129),
        Page("x", -1, 0, 1, (), ()),
    ],
)
def test_a_request_that_has_no_room_is_refused(page: Page) -> None:
    with pytest.raises(ValueError, match="page"):
        pack(page, 2)


def test_a_ledgers_public_page_is_read_per_device() -> None:
    page = bytearray(4096)
    struct.pack_into("<QQ", page, 0, LEDGER_MAGIC, 1)
    struct.pack_into("<7Q", page, 64 + 2 * 64, 1, 2, 3, 4, 5, 6, 7)
    devices = unpack_activity(bytes(page))
    assert len(devices) == 16
    assert devices[2] == Activity(1, 2, 3, 4, 5, 6, 7)
    assert devices[0] == Activity()


@given(st.binary(max_size=5000))
def test_a_file_that_is_no_ledger_says_nothing(page: bytes) -> None:
    assert unpack_activity(page) == ()


@given(st.binary(max_size=4032), st.integers(0, 15), st.booleans())
def test_one_device_of_a_ledger_reads_as_among_all(content: bytes, device: int, is_ledger: bool) -> None:  # noqa: FBT001
    head = struct.pack("<QQ", LEDGER_MAGIC if is_ledger else 7, 1)
    page = (head + bytes(48) + content).ljust(4096, b"\0")
    among_all = unpack_activity(page)
    expected = among_all[device] if among_all else Activity()
    assert unpack_one(page[: activity_bytes(device)], device) == expected
    assert unpack_one(page[: activity_bytes(device) - 1], device) == Activity()
