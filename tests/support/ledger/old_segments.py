"""Packed ledger entries of version 1, as the code of that version wrote them: each entry names its session."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from timekeeper.ledger.entries import PROOFS, Ending, LedgerEntry, entry_order, read_ending


def pack_entries(entries: Sequence[LedgerEntry]) -> bytes:
    """Packs entries, in their order, into one compressed value of version 1."""
    uids = [_uid_bytes(entry.session) for entry in entries]
    packed = zlib.compress(json.dumps(list(zip(*_rows(entries), strict=True)), separators=(",", ":")).encode(), 9)
    return struct.pack(">BI", 1, len(packed)) + packed + b"".join(uids)


def _rows(entries: Sequence[LedgerEntry]) -> Iterator[tuple[Any, ...]]:
    before, ended = 0, Ending(PROOFS[0], 0, 0)
    for entry in entries:
        milliseconds, counter = entry_order(entry.id)
        ending = read_ending(entry.note)
        shown = ending or ended
        yield (
            milliseconds - before,
            counter,
            entry.kind,
            entry.period,
            entry.amount,
            entry.at - milliseconds * 10**6,
            None if _uid_bytes(entry.session) else entry.session,
            entry.namespace,
            entry.pod,
            None if ending else entry.note,
            shown.proof,
            shown.start - ended.start,
            shown.end - shown.start,
            shown.uid,
        )
        before, ended = milliseconds, shown


def _uid_bytes(text: str) -> bytes:
    try:
        uid = UUID(text)
    except ValueError:
        return b""
    return uid.bytes if str(uid) == text else b""
