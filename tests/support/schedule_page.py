"""Decodes a schedule page as the shim does, for tests of the node agent's pages."""

from __future__ import annotations

import struct
import zlib

from nodeagent.schedule_page import (
    BODY,
    CHECKED_FROM,
    HEAD,
    MAGIC,
    SIZE,
    SLOT,
    SLOT_ACTIVE,
    SLOTS,
    TURN,
    VERSION,
    Page,
    PageSlot,
)


def unpack(packed: bytes) -> Page:
    """Decodes a page as a reader does.

    Raises:
        ValueError: the size, magic, version, generation or checksum is wrong.
    """
    if len(packed) != SIZE:
        raise ValueError(f"a schedule page has {SIZE} bytes, this has {len(packed)}")
    magic, version, size, generation, _ = HEAD.unpack_from(packed)
    (checksum,) = struct.unpack_from("<I", packed, SIZE - 4)
    if (magic, version, size) != (MAGIC, VERSION, SIZE) or generation % 2:
        raise ValueError("not a schedule page of this version, or one that is being written")
    if checksum != zlib.crc32(packed[CHECKED_FROM:-4]):
        raise ValueError("the checksum does not match")
    heartbeat_ns, _, epoch_ns, period_ns, turn_count, slot_count, _, uuid = BODY.unpack_from(packed, HEAD.size)
    slots_at = HEAD.size + BODY.size
    slots = [_unpack_slot(packed, slots_at, index) for index in range(slot_count)]
    turns_at = slots_at + SLOTS * SLOT.size
    turns = [TURN.unpack_from(packed, turns_at + index * TURN.size)[:3] for index in range(turn_count)]
    return Page(
        uuid.split(b"\0", 1)[0].decode(),
        heartbeat_ns,
        epoch_ns,
        period_ns,
        tuple(slot for slot in slots if slot.key),
        tuple((number, start_ns, length_ns) for number, start_ns, length_ns in turns),
    )


def _unpack_slot(packed: bytes, slots_at: int, index: int) -> PageSlot:
    key, limit, driver, sampled_ns, notice_ns, core, effective, policy, flags, trim, gone_ns = SLOT.unpack_from(
        packed, slots_at + index * SLOT.size
    )
    active = bool(flags & SLOT_ACTIVE)
    return PageSlot(index, key, core, policy, active, effective, limit, driver, sampled_ns, notice_ns, trim, gone_ns)
