"""Reads ledger entries from the store, and packs older entries many to a value, called a segment.

The store holds an entry for the end of each session, as long as it keeps the session's period. The note of this entry
(proof, start, end and the namespace's uid) is packed into a quarter of its text.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import takewhile
from math import gcd
from typing import Any, NamedTuple
from uuid import UUID

from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import Instant, TimeError, format_exact, parse_instant
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, FencingToken, Store, StoreError, run_one
from timekeeper.ledger.codec import as_text

PROOFS = ("finished", "terminal", "deleted", "last-seen")
"""The proofs of a session's end. Their order never changes: the store holds their positions."""
_PACKED, _MASK = 0x80, 0xC0
"""The mark in the first byte of a packed note, and the mask of the bits that hold it.

A byte with this mark is a continuation byte of UTF-8, so no note that is stored as text begins with one.
"""
_TIMES = struct.Struct(">BIIII")
MILLISECOND = 1_000_000


class Ending(NamedTuple):
    """The end of a session, as the note of its ledger entry states it. Instants are nanoseconds since 1970.

    Attributes:
        proof: the evidence of the end, one of PROOFS.
        start: the session's start.
        end: its end.
        uid: the uid of the pod's namespace; empty if it was not observed.
    """

    proof: str
    start: int
    end: int
    uid: str = ""


def ending_note(ending: Ending) -> str:
    """Returns the note of a ledger entry that states how and when a session ended."""
    times = f"{ending.proof} {format_exact(ending.start)} {format_exact(ending.end)}"
    return f"{times} {ending.uid}" if ending.uid else times


def read_ending(note: str) -> Ending | None:
    """Reads a session's end from the note of a ledger entry; None for any other note.

    A note counts only if `ending_note` returns exactly this text for the end.
    """
    proof, *rest = note.split(" ")
    if proof not in PROOFS or len(rest) not in {2, 3}:
        return None
    try:
        ending = Ending(proof, parse_instant(rest[0]), parse_instant(rest[1]), *rest[2:])
        same = ending_note(ending) == note and ending.uid in {"", str(UUID(ending.uid or "0" * 32))}
    except (TimeError, ValueError):
        return None
    return ending if same else None


def pack_note(note: str | Ending) -> bytes:
    """Returns the bytes that the store holds for a ledger entry's note: packed for a session's end, else UTF-8.

    An end that does not fit the packed form becomes UTF-8, too.

    Args:
        note: the session's end, or a text. A text that `ending_note` wrote is packed as the end that it states.
    """
    ending = note if isinstance(note, Ending) else read_ending(note)
    packed = None if ending is None else _packed(ending)
    if packed is not None:
        return packed
    return (ending_note(note) if isinstance(note, Ending) else note).encode()


def _packed(ending: Ending) -> bytes | None:
    """Returns the end of a session packed into bytes; None if its uid or an instant does not fit into that form."""
    uid = _uid_bytes(ending.uid)
    if ending.uid and not uid:
        return None
    times = [part for instant in (ending.start, ending.end) for part in divmod(instant, SECOND)]
    try:
        return _TIMES.pack(_PACKED | PROOFS.index(ending.proof), *times) + uid
    except struct.error:
        return None


def unpack_note(stored: bytes) -> str:
    """Returns a ledger entry's note as text, from the bytes that `pack_note` returned."""
    if not stored or stored[0] & _MASK != _PACKED or len(stored) not in {_TIMES.size, _TIMES.size + 16}:
        return stored.decode(errors="replace")
    head, *times = _TIMES.unpack_from(stored)
    start, end = (seconds * SECOND + rest for seconds, rest in (times[:2], times[2:]))
    uid = str(UUID(bytes=stored[_TIMES.size :])) if len(stored) > _TIMES.size else ""
    return ending_note(Ending(PROOFS[head & 0x03], start, end, uid))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry of an account's ledger.

    Attributes:
        id: milliseconds of Redis's clock, a dash, and a counter; it serves as a cursor.
        kind: the reason for the entry, such as `close` or `grant`.
        period: the start of the period that the entry belongs to.
        amount: microGPU-seconds.
        at: the instant of the entry by the leader's clock.
        session: the session's uid; empty for an entry of no session.
        namespace: the namespace of the session or the correction; empty for none.
        pod: the name of the pod, grant, correction or credit that the entry concerns; empty for none of these, and for
            the rollover.
        note: a text for readers, such as the end of a session.
    """

    id: str
    kind: str
    period: Instant
    amount: int
    at: Instant
    session: str
    namespace: str
    pod: str
    note: str


def entry_order(identifier: str) -> tuple[int, int]:
    """Returns the milliseconds and the counter in a ledger entry's id, as its sort key; a missing counter is 0."""
    milliseconds, _, counter = identifier.partition("-")
    return int(milliseconds), int(counter or 0)


def is_before(entry: LedgerEntry, instant: Instant) -> bool:
    """Returns whether a ledger entry was written before an instant, by the leader's clock or by Redis's.

    The earlier of the two times counts. A leader whose clock is a year ahead stamps its entries a year late. Redis's
    clock still lets these entries, and the entries after them, be packed in time.
    """
    milliseconds, _ = entry_order(entry.id)
    return min(entry.at, (milliseconds + 1) * MILLISECOND) < instant


def read_entry(name: Any, fields: Mapping[Any, Any]) -> LedgerEntry:
    """Parses a ledger entry from the Redis stream of an account's ledger.

    Args:
        name: the entry's id in the stream.
        fields: the entry's fields, keyed by name; both are bytes or text.

    Raises:
        KeyError, ValueError: a field is missing or no number.
    """
    stored = {as_text(key): value for key, value in fields.items()}
    note = stored.pop("x")
    text = {key: as_text(value) for key, value in stored.items()}
    return LedgerEntry(
        id=as_text(name),
        kind=text["k"],
        period=int(text["p"]),
        amount=int(text["a"]),
        at=int(text["t"]),
        session=text["u"],
        namespace=text["n"],
        pod=text["d"],
        note=unpack_note(note) if isinstance(note, bytes) else note,
    )


SEGMENT_ENTRIES = 250
"""The most entries of a segment; adding a day's entries packs the whole segment again."""
VERSION = 2
_HEAD = struct.Struct(">BI")
_UID = 16
_START = Ending(PROOFS[0], 0, 0)

_Row = tuple[Any, ...]
_Column = Sequence[Any]


class SegmentError(StoreError):
    """A stored value is not a segment of packed ledger entries, or a later timekeeper wrote it."""


class _Who(NamedTuple):
    """The fields that all ledger entries of a session have in common: the session's uid, and its namespace and pod."""

    session: str
    namespace: str
    pod: str


def pack_entries(entries: Sequence[LedgerEntry]) -> bytes:
    """Packs one or more ledger entries, in their order, into one compressed value.

    The value holds three tables, column by column: the entries' own fields, the ends that notes state, and the sessions
    in the order of their first entries. An entry refers to its session by a number: 0 for a session that no earlier
    entry names, which is the next one of the table. Otherwise the number says how many places the session stands before
    that next one. Times are stored as differences from the entry before. Uids are random, so they stay uncompressed at
    the end.
    """
    sessions = {who: place for place, who in enumerate(dict.fromkeys(map(_who, entries)))}
    uids = [_uid_bytes(who.session) for who in sessions]
    named = [(None if uid else who.session, who.namespace, who.pod) for who, uid in zip(sessions, uids, strict=True)]
    endings = [read_ending(entry.note) for entry in entries]
    tables = [_columns(rows) for rows in (_rows(entries, endings, sessions), _rows_of_endings(endings), named)]
    packed = zlib.compress(json.dumps(tables, separators=(",", ":")).encode(), 9)
    return _HEAD.pack(VERSION, len(packed)) + packed + b"".join(uids)


def unpack_entries(segment: bytes) -> list[LedgerEntry]:
    """Returns the ledger entries of a compressed value that `pack_entries` made, in their order.

    Values of version 1, in which each entry has its session's uid, namespace and pod, are read, too.

    Raises:
        SegmentError: these bytes are not such a value, or a later timekeeper wrote it.
    """
    try:
        version, length = _HEAD.unpack_from(segment)
        read = {1: _entries_of_1, VERSION: _entries}.get(version)
        if read is None:
            raise SegmentError(f"a segment of version {version}: this timekeeper reads versions up to {VERSION}")
        document = json.loads(zlib.decompress(segment[_HEAD.size : _HEAD.size + length]))
        return list(read(document, segment[_HEAD.size + length :]))
    except (struct.error, zlib.error, ValueError, TypeError, IndexError) as error:
        raise SegmentError(f"no segment: {error!r}") from error


def _who(entry: LedgerEntry) -> _Who:
    return _Who(entry.session, entry.namespace, entry.pod)


def _rows(
    entries: Iterable[LedgerEntry], endings: Iterable[Ending | None], sessions: Mapping[_Who, int]
) -> Iterator[_Row]:
    """Yields, for each entry, its own fields as `pack_entries` stores them; a note that states an end is None.

    Args:
        entries: the ledger entries to pack.
        endings: the end that each entry's note states; None for any other note.
        sessions: the number of each session, in the order in which the entries name them first.
    """
    before, lag_before, known = 0, 0, 0
    for entry, ending in zip(entries, endings, strict=True):
        milliseconds, counter = entry_order(entry.id)
        lag = entry.at - milliseconds * MILLISECOND
        session = sessions[_who(entry)]
        ago = known - session
        known = max(known, session + 1)
        note = None if ending else entry.note
        passed, change = milliseconds - before, lag - lag_before
        yield passed, counter, entry.kind, entry.period, entry.amount, change, ago, note
        before, lag_before = milliseconds, lag


def _rows_of_endings(endings: Iterable[Ending | None]) -> Iterator[_Row]:
    """Yields a row for each end of a session; its uid is None if the end before has the same uid."""
    before = _START
    for ending in endings:
        if ending is not None:
            uid = None if ending.uid == before.uid else ending.uid
            yield ending.proof, ending.start - before.start, ending.end - ending.start, uid
            before = ending


def _columns(rows: Iterable[_Row]) -> list[_Column]:
    """Returns the columns of rows.

    A column of whole numbers becomes a pair, which takes less room: their greatest common divisor, and the quotients.
    """
    return [_divided(column) for column in zip(*rows, strict=True)]


def _divided(column: _Column) -> _Column:
    if not all(type(value) is int for value in column):
        return column
    unit = gcd(*column) or 1
    return [unit, [value // unit for value in column]]


def _rows_of(columns: Iterable[_Column]) -> Iterator[_Row]:
    """Yields the rows of columns that `_columns` returned."""
    return zip(*map(_multiplied, columns), strict=True)


def _multiplied(column: _Column) -> _Column:
    match column:
        case [int(unit), [*values]]:
            return [unit * value for value in values]
    return column


def _entries(tables: Sequence[Sequence[_Column]], uids: bytes) -> Iterator[LedgerEntry]:
    """Yields the entries of a segment of version 2 from its tables, which `pack_entries` describes, and its uids."""
    rows, endings, named = map(_rows_of, tables)
    sessions = list(_sessions(named, uids))
    milliseconds, lag, known, ended = 0, 0, 0, _START
    for passed, counter, kind, period, amount, change, ago, note in rows:
        milliseconds += passed
        lag += change
        who = sessions[known - ago]
        known += ago == 0
        if note is None:
            proof, later, lasted, uid = next(endings, ())
            start = ended.start + later
            ended = Ending(proof, start, start + lasted, ended.uid if uid is None else uid)
        yield LedgerEntry(
            id=f"{milliseconds}-{counter}",
            kind=kind,
            period=period,
            amount=amount,
            at=milliseconds * MILLISECOND + lag,
            session=who.session,
            namespace=who.namespace,
            pod=who.pod,
            note=ending_note(ended) if note is None else note,
        )


def _sessions(named: Iterable[_Row], uids: bytes) -> Iterator[_Who]:
    """Yields the sessions of a segment. A uid in the API server's form is stored apart from its session.

    Args:
        named: the uid, namespace and pod of each session; None in place of a uid that is stored apart.
        uids: the uids that are stored apart, as bytes, in the order of their sessions.
    """
    offset = 0
    for session, namespace, pod in named:
        uid = session
        if session is None:
            uid = str(UUID(bytes=uids[offset : offset + _UID]))
            offset += _UID
        yield _Who(uid, namespace, pod)


def _entries_of_1(columns: Sequence[_Column], uids: bytes) -> Iterator[LedgerEntry]:
    """Yields the entries of a segment of version 1, from its columns and from the uids behind them."""
    milliseconds, start, uid_offset = 0, 0, 0
    rows = zip(*columns, strict=True)
    for passed, counter, kind, period, amount, at, session, namespace, pod, note, proof, later, lasted, owner in rows:
        milliseconds += passed
        start += later
        uid = session
        if session is None:
            uid = str(UUID(bytes=uids[uid_offset : uid_offset + _UID]))
            uid_offset += _UID
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
    """Returns a pod's uid as bytes; empty if the text is not in the API server's form."""
    try:
        uid = UUID(text)
    except ValueError:
        return b""
    return uid.bytes if str(uid) == text else b""


def pack_ledger(client: Store, fencing_token: FencingToken, account: str, before: Instant) -> bool:
    """Packs ledger entries of an account that were written before an instant; returns True once all are packed.

    One call packs at most SEGMENT_ENTRIES entries. The caller repeats the call after False: more entries may be due, or
    the ledger changed meanwhile and nothing was packed. An entry stays as long as one before it is not due.

    Args:
        before: nanoseconds since 1970, by the clock of the leaders that wrote the entries or by Redis's.

    Raises:
        StoreError: the store refused the change, or Redis does not answer.
        SegmentError: the entries that were packed last cannot be read.
        KeyError, ValueError: an entry that is not packed yet cannot be read.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    due = _due(client, names, 1, before) and _due(client, names, SEGMENT_ENTRIES, before)
    if not due:
        return True
    segments: Any = client.hkeys(names.segments)
    old_name = max(segments, key=_last_of, default=b"")
    old: Any = client.hget(names.segments, old_name) if old_name else None
    grown = unpack_entries(old) if old is not None else []
    if len(grown) >= SEGMENT_ENTRIES:
        old_name, old, grown = b"", None, []
    to_pack = due[: SEGMENT_ENTRIES - len(grown)]
    entries = [*grown, *to_pack]
    replaced = (old_name.decode(), sha1(old, usedforsecurity=False).hexdigest()) if old is not None else ("", "")
    name = f"{to_pack[-1].id} {max(entry.period for entry in entries)}"
    arguments = (fencing_token, to_pack[0].id, to_pack[-1].id, name, pack_entries(entries), *replaced)
    done = run_one(
        client, Call("pack_ledger", (names.head, names.ledger, names.segments, names.segment_order), arguments)
    )
    return bool(done) and len(to_pack) == len(due) < SEGMENT_ENTRIES


def _due(client: Store, names: keys.AccountKeys, most: int, before: int) -> list[LedgerEntry]:
    """Returns the oldest entries that are not packed yet, up to the first that was not written before an instant.

    Args:
        most: the most entries to return.
        before: the instant, in nanoseconds since 1970.
    """
    entries: Any = client.xrange(names.ledger, "-", "+", most)
    return list(takewhile(lambda entry: is_before(entry, before), (read_entry(*each) for each in entries)))


def _last_of(name: bytes) -> tuple[int, int]:
    return entry_order(name.decode().partition(" ")[0])
