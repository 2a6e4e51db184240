"""Ledger entries that will never change, many packed into one value: a quarter of the room that they take in a stream.

A segment is a version, the length of what is compressed, that, and the uids of sessions, which no compression makes
shorter. Compressed are columns of JSON: in each, values are the same as the one before, or little apart from it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from timekeeper.store.calls import StoreError
from timekeeper.store.entries import LedgerEntry, entry_order
from timekeeper.store.notes import PROOFS, Ending, ending_note, read_ending

SEGMENT_ENTRIES = 1000
"""The most entries of a segment."""
VERSION = 1
MILLISECOND = 1_000_000
_HEAD = struct.Struct(">BI")
_UID = 16
_START = Ending(PROOFS[0], 0, 0)


class SegmentError(StoreError):
    """What stands in the store is no segment, or one of a later timekeeper."""


def pack_entries(entries: Sequence[LedgerEntry]) -> bytes:
    """Entries in their order as a segment; there is at least one."""
    uids = [_uid_bytes(entry.session) for entry in entries]
    columns = list(zip(*_rows(entries, uids), strict=True))
    packed = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 9)
    return _HEAD.pack(VERSION, len(packed)) + packed + b"".join(uids)


def unpack_entries(segment: bytes) -> list[LedgerEntry]:
    """The entries of a segment.

    Raises:
        SegmentError: it is none, or a later timekeeper wrote it.
    """
    try:
        version, length = _HEAD.unpack_from(segment)
        if version != VERSION:
            raise SegmentError(f"a segment of version {version}: this timekeeper reads version {VERSION}")
        columns = json.loads(zlib.decompress(segment[_HEAD.size : _HEAD.size + length]))
        uids = segment[_HEAD.size + length :]
        return list(_entries(zip(*columns, strict=True), uids))
    except (struct.error, zlib.error, ValueError, TypeError, IndexError) as error:
        raise SegmentError(f"no segment: {error!r}") from error


def _rows(entries: Iterable[LedgerEntry], uids: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    """Each entry by what it differs in from the one before."""
    before, ended = (0, 0), _START
    for entry, uid in zip(entries, uids, strict=True):
        place = entry_order(entry.id)
        ending = read_ending(entry.note)
        shown = ending or ended
        yield (
            place[0] - before[0],
            place[1],
            entry.kind,
            entry.period,
            entry.amount,
            entry.at - place[0] * MILLISECOND,
            None if uid else entry.session,
            entry.namespace,
            entry.pod,
            None if ending else entry.note,
            shown.proof,
            shown.start - ended.start,
            shown.end - shown.start,
            shown.uid,
        )
        before, ended = place, shown


def _entries(rows: Iterable[tuple[Any, ...]], uids: bytes) -> Iterator[LedgerEntry]:
    milliseconds, start, taken = 0, 0, 0
    for passed, counter, kind, period, amount, at, session, namespace, pod, note, proof, later, lasted, owner in rows:
        milliseconds += passed
        start += later
        uid = session
        if session is None:
            uid = str(UUID(bytes=uids[taken : taken + _UID]))
            taken += _UID
        yield LedgerEntry(
            id=f"{milliseconds}-{counter}",
            kind=kind,
            period=period,
            amount=amount,
            at=milliseconds * MILLISECOND + at,
            session=uid,
            namespace=namespace,
            pod=pod,
            note=ending_note(Ending(proof, start, start + lasted, owner)) if note is None else note,
        )


def _uid_bytes(text: str) -> bytes:
    """A pod's uid as bytes; none where it is written in another way than the API server does."""
    try:
        found = UUID(text)
    except ValueError:
        return b""
    return found.bytes if str(found) == text else b""
