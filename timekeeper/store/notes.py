"""Notes of ledger entries as the store holds them: the end of a session in a quarter of the room that its text takes.

There is one for every pod that ever ran: proof, start, end and the namespace's uid, most of which is the same in all.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import TimeError, format_exact, parse_instant

PROOFS = ("finished", "terminal", "deleted", "last-seen")
"""Never reordered: their places stand in the store."""
_PACKED, _MASK = 0x80, 0xC0
"""The two highest bits of what continues a character in UTF-8: no text begins so."""
_TIMES = struct.Struct(">BIIII")


class Ending(NamedTuple):
    """What the note of an ended session tells; instants are nanoseconds since 1970, `uid` is the namespace's."""

    proof: str
    start: int
    end: int
    uid: str = ""


def ending_note(ending: Ending) -> str:
    """An ending as a note."""
    times = f"{ending.proof} {format_exact(ending.start)} {format_exact(ending.end)}"
    return f"{times} {ending.uid}" if ending.uid else times


def read_ending(note: str) -> Ending | None:
    """The ending that a note tells of; None where it tells of none, or not in the very way of `ending_note`."""
    proof, *rest = note.split(" ")
    if proof not in PROOFS or len(rest) not in {2, 3}:
        return None
    try:
        found = Ending(proof, parse_instant(rest[0]), parse_instant(rest[1]), *rest[2:])
        same = ending_note(found) == note and found.uid in {"", str(UUID(found.uid or "0" * 32))}
    except (TimeError, ValueError):
        return None
    return found if same else None


def pack_note(note: str) -> bytes:
    """A note as it is stored; one that does not tell of an end stays text."""
    ending = read_ending(note)
    if ending is None:
        return note.encode()
    times = [part for instant in (ending.start, ending.end) for part in divmod(instant, SECOND)]
    try:
        head = _TIMES.pack(_PACKED | PROOFS.index(ending.proof), *times)
    except struct.error:
        return note.encode()
    return head + (UUID(ending.uid).bytes if ending.uid else b"")


def unpack_note(stored: bytes) -> str:
    """The note that was packed."""
    if not stored or stored[0] & _MASK != _PACKED or len(stored) not in {_TIMES.size, _TIMES.size + 16}:
        return stored.decode(errors="replace")
    head, *times = _TIMES.unpack_from(stored)
    start, end = (seconds * SECOND + rest for seconds, rest in (times[:2], times[2:]))
    uid = str(UUID(bytes=stored[_TIMES.size :])) if len(stored) > _TIMES.size else ""
    return ending_note(Ending(PROOFS[head & 0x03], start, end, uid))
