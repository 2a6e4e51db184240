"""Encodes a GPU's schedule page, and decodes a container's activity in its ledger file (vcuda/include/schedule.h)."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MAGIC = b"FGSCHED\0"
VERSION = 1
SIZE = 7296
SLOTS = 64
TURNS = 128
UUID_SIZE = 48
STALE_AFTER_NS = 1_000_000_000
CHECKED_FROM = 32
GENERATION_AT = 16

SLOT_ACTIVE = 1
SLOT_NOTICE = 2

HEAD = struct.Struct("<8sIIQQ")
BODY = struct.Struct(f"<QQQIIII{UUID_SIZE}s")
SLOT = struct.Struct("<QQQQQIIIIQQ8x")
TURN = struct.Struct("<IIII")

LEDGER_MAGIC = 0x52474C4147465543
LEDGER_VERSION = 1
LEDGER_PAGE_SIZE = 4096
LEDGER_HEAD = struct.Struct("<QQ")
LEDGER_DEVICES_AT = 64
LEDGER_DEVICES = 16
ACTIVITY = struct.Struct("<QQQQQQQ8x")

_HEARTBEAT = struct.Struct(f"<{HEAD.size}xQ")
HEARTBEAT_BYTES = _HEARTBEAT.size
"""The bytes from a page's start that `heartbeat_ns` reads."""
_TIMES = struct.Struct("<QQQ")
_CHECKSUM = struct.Struct("<I")
_REST_AT = HEAD.size + _TIMES.size


class PageSlot(NamedTuple):
    """One container on a GPU's schedule page. Times are ns of CLOCK_MONOTONIC, and 0 if they are unknown.

    Attributes:
        slot: its place on the page, from 0 to 63.
        key: a random number that marks this start of the container in that place; never 0.
        core_percent: its share of GPU time, in percent.
        policy: the number of its Policy, which says how it may use GPU time beyond its share.
        active: whether it had or wanted work within the last two periods.
        effective_permille: the part of the page's period (50 ms) in which it may launch kernels, in thousandths.
        memory_limit_bytes: its limit of GPU memory; 0 if the limit in its configuration file holds.
        driver_bytes: the GPU memory that it holds according to the driver, in bytes.
        driver_sampled_ns: when the driver was asked.
        notice_ns: when it will be evicted; 0 if it will not.
        trim_permille: the part of each of its turns that it may use, in thousandths.
        dead_gone_ns: the time of the driver's last sample that named none of its ended processes: their memory was then
            free.
    """

    slot: int
    key: int
    core_percent: int
    policy: int
    active: bool = False
    effective_permille: int = 0
    memory_limit_bytes: int = 0
    driver_bytes: int = 0
    driver_sampled_ns: int = 0
    notice_ns: int = 0
    trim_permille: int = 0
    dead_gone_ns: int = 0


class Page(NamedTuple):
    """The content of a GPU's schedule page. Times are ns of CLOCK_MONOTONIC.

    Attributes:
        uuid: the GPU's uuid.
        heartbeat_ns: when the page is written.
        epoch_ns: when the present period began.
        period_ns: the length of a period.
        slots: the containers that share the GPU.
        turns: the slot, start and length of each turn; the start and the length are in ns, the start from the beginning
            of the period.
    """

    uuid: str
    heartbeat_ns: int
    epoch_ns: int
    period_ns: int
    slots: tuple[PageSlot, ...]
    turns: tuple[tuple[int, int, int], ...]


class Activity(NamedTuple):
    """A container's activity on one GPU, as its shim reports it. Times are ns of CLOCK_MONOTONIC.

    The container can report anything, so no report may cost other containers more than the container's own share.

    Attributes:
        activity_ns: when it last had or wanted GPU work; 0 for never.
        waiting_ns: when one of its kernel launches last had to wait for its turn; 0 for never.
        busy_ns: the GPU time that it has used so far, in ns.
        overrun_ns: the part of that time that ran past the end of its turns, in ns.
        launches: the number of its kernel launches so far.
        charged_bytes: the GPU memory that the shim has charged to it.
        sample_wanted_ns: when it last asked for new figures of the driver.
    """

    activity_ns: int = 0
    waiting_ns: int = 0
    busy_ns: int = 0
    overrun_ns: int = 0
    launches: int = 0
    charged_bytes: int = 0
    sample_wanted_ns: int = 0


NO_ACTIVITY = Activity()
_LEDGER_KIND = LEDGER_HEAD.pack(LEDGER_MAGIC, LEDGER_VERSION)


def pack(page: Page, generation: int) -> bytes:
    """Returns the bytes of a GPU's schedule page.

    Args:
        generation: the number of the page's version; an even one, which says that the page is complete.

    Raises:
        ValueError: there are more containers or turns than there is room for, or a text or number does not fit its
            field.
    """
    uuid = page.uuid.encode()
    if len(uuid) >= UUID_SIZE or len(page.turns) > TURNS or any(not 0 <= slot.slot < SLOTS for slot in page.slots):
        raise ValueError(f"a page has room for {SLOTS} slots, {TURNS} turns and a uuid below {UUID_SIZE} bytes")
    packed = bytearray(SIZE)
    try:
        HEAD.pack_into(packed, 0, MAGIC, VERSION, SIZE, generation, 0)
        BODY.pack_into(packed, HEAD.size, *_body(page), uuid)
        for slot in page.slots:
            SLOT.pack_into(packed, HEAD.size + BODY.size + slot.slot * SLOT.size, *_slot(slot))
        turns_at = HEAD.size + BODY.size + SLOTS * SLOT.size
        for index, (number, start_ns, length_ns) in enumerate(page.turns):
            TURN.pack_into(packed, turns_at + index * TURN.size, number, start_ns, length_ns, 0)
    except struct.error as error:
        raise ValueError(f"a number does not fit the schedule page: {error}") from error
    _CHECKSUM.pack_into(packed, SIZE - 4, zlib.crc32(memoryview(packed)[CHECKED_FROM:-4]))
    return bytes(packed)


HEARTBEAT_AT = HEAD.size
EPOCH_AT = HEAD.size + 16
CHECKSUM_AT = SIZE - _CHECKSUM.size


@lru_cache(maxsize=1)
def times_checksum(heartbeat_ns: int, epoch_ns: int) -> int:
    """Returns the part of a page's checksum that depends on its times.

    The page's checksum is this part and `rest_checksum`, combined by exclusive or. The times change even if the page's
    turns do not. This part is made of 24 bytes instead of 7264, and is computed once for all pages with the same times:
    a node's writer gives every page new times fifty times a second.

    Args:
        heartbeat_ns: when the page is written, in ns of CLOCK_MONOTONIC.
        epoch_ns: when the present period began, in ns of CLOCK_MONOTONIC.

    Raises:
        ValueError: a number does not fit its field.
    """
    try:
        first = zlib.crc32(_TIMES.pack(heartbeat_ns, STALE_AFTER_NS, epoch_ns))
    except struct.error as error:
        raise ValueError(f"a time does not fit the schedule page: {error}") from error
    return _MOVED_0[first & 255] ^ _MOVED_1[first >> 8 & 255] ^ _MOVED_2[first >> 16 & 255] ^ _MOVED_3[first >> 24]


def rest_checksum(packed: bytes) -> int:
    """Returns the CRC-32 of the bytes of a schedule page that follow its times (see `times_checksum`).

    Args:
        packed: all bytes of the page.
    """
    return zlib.crc32(memoryview(packed)[_REST_AT:CHECKSUM_AT])


def _moved_bytes() -> tuple[array[int], ...]:
    """Returns four tables from which `times_checksum` looks up the part of a page's CRC-32 that its times make.

    Each table is for one byte of the CRC-32 of the times alone, the lowest byte first. For each value of that byte, it
    has what the byte becomes once as many zeros follow as the page has bytes after its times. A CRC-32 is linear: the
    four entries and the CRC-32 of these last bytes, combined by exclusive or, are the CRC-32 of the page.
    """
    zeros = bytes(CHECKSUM_AT - _REST_AT)
    none = zlib.crc32(zeros)
    bits = [zlib.crc32(zeros, 1 << bit) ^ none for bit in range(32)]
    tables = []
    for first in range(0, 32, 8):
        table = array("I", [0])
        for bit in bits[first : first + 8]:
            table.extend([value ^ bit for value in table])
        tables.append(table)
    return tuple(tables)


_MOVED_0, _MOVED_1, _MOVED_2, _MOVED_3 = _moved_bytes()


def _body(page: Page) -> tuple[int, ...]:
    slot_count = max((slot.slot + 1 for slot in page.slots), default=0)
    active_count = sum(slot.active for slot in page.slots)
    turn_count = len(page.turns)
    return page.heartbeat_ns, STALE_AFTER_NS, page.epoch_ns, page.period_ns, turn_count, slot_count, active_count


def _slot(slot: PageSlot) -> tuple[int, ...]:
    flags = (SLOT_ACTIVE if slot.active else 0) | (SLOT_NOTICE if slot.notice_ns else 0)
    memory = (slot.memory_limit_bytes, slot.driver_bytes, slot.driver_sampled_ns)
    share = (slot.core_percent, slot.effective_permille, slot.policy)
    return slot.key, *memory, slot.notice_ns, *share, flags, slot.trim_permille, slot.dead_gone_ns


def heartbeat_ns(beginning: bytes) -> int:
    """Returns when a schedule page was last written, in ns of CLOCK_MONOTONIC, even while it is being written.

    Args:
        beginning: the first HEARTBEAT_BYTES bytes of the page, or more.

    Raises:
        ValueError: there are fewer bytes.
    """
    if len(beginning) < HEARTBEAT_BYTES:
        raise ValueError(f"a schedule page has {SIZE} bytes, this has {len(beginning)}")
    (heartbeat,) = _HEARTBEAT.unpack_from(beginning)
    return int(heartbeat)


Shown = tuple[int, int, int, int]
"""A container as a page shows it: its slot, key and percent of the GPU, and its notice in ns of CLOCK_MONOTONIC."""


def shown(packed: bytes) -> frozenset[Shown]:
    """Returns the containers that a schedule page shows.

    Each has its slot, its key, its share of GPU time in percent, and when it will be evicted, in ns of CLOCK_MONOTONIC
    (0 if it will not).

    Args:
        packed: all bytes of the page.

    Raises:
        ValueError: the bytes are not a page of this version, or the page is being written.
    """
    if len(packed) != SIZE:
        raise ValueError(f"a schedule page has {SIZE} bytes, this has {len(packed)}")
    magic, version, _, generation, _ = HEAD.unpack_from(packed)
    (checked,) = _CHECKSUM.unpack_from(packed, CHECKSUM_AT)
    whole = checked == zlib.crc32(memoryview(packed)[CHECKED_FROM:CHECKSUM_AT])
    if (magic, version) != (MAGIC, VERSION) or generation % 2 or not whole:
        raise ValueError("no schedule page of this version, or one that is being written")
    slots_at = HEAD.size + BODY.size
    slots = enumerate(SLOT.iter_unpack(packed[slots_at : slots_at + SLOTS * SLOT.size]))
    return frozenset((slot, key, core, notice_ns) for slot, (key, _, _, _, notice_ns, core, *_) in slots if key)


def unpack_activity(page: bytes) -> Sequence[Activity]:
    """Returns a container's activity on each of its GPUs, from its shim's ledger file; none if the file is incomplete.

    A complete file gives LEDGER_DEVICES activities, of which those beyond the container's GPUs are all 0.

    Args:
        page: the first LEDGER_PAGE_SIZE bytes of the file.
    """
    if len(page) < LEDGER_PAGE_SIZE or LEDGER_HEAD.unpack_from(page) != (LEDGER_MAGIC, LEDGER_VERSION):
        return ()
    offsets = range(LEDGER_DEVICES_AT, LEDGER_DEVICES_AT + LEDGER_DEVICES * ACTIVITY.size, ACTIVITY.size)
    return tuple(Activity(*ACTIVITY.unpack_from(page, offset)) for offset in offsets)


def activity_bytes(device: int) -> int:
    """Returns how many bytes at the start of a shim's ledger file `unpack_one` needs.

    Args:
        device: the GPU's index among the container's GPUs.
    """
    return LEDGER_DEVICES_AT + (device + 1) * ACTIVITY.size


def unpack_one(beginning: bytes, device: int) -> Activity:
    """Returns a container's activity on one of its GPUs, from its shim's ledger file; all 0 if the file is incomplete.

    It reads no figures of the fifteen other GPUs: a node's writer reads every ledger file fifty times a second.

    Args:
        beginning: the first bytes of the file, at least `activity_bytes(device)`.
        device: the GPU's index among the container's GPUs.
    """
    offset = LEDGER_DEVICES_AT + device * ACTIVITY.size
    if not beginning.startswith(_LEDGER_KIND) or len(beginning) < offset + ACTIVITY.size:
        return NO_ACTIVITY
    # Activity._make counts the fields once more, which takes as long as all else here.
    return tuple.__new__(Activity, ACTIVITY.unpack_from(beginning, offset))
