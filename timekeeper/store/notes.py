"""Notes of ledger entries as the store holds them: the end of a session in a quarter of the room that its text takes.

There is one for every pod that ever ran: proof, start, end and the namespace's uid, most of which is the same in all.
"""

from __future__ import annotations

import struct
from uuid import UUID

from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import TimeError, format_exact, parse_instant

PROOFS = ("finished", "terminal", "deleted", "last-seen")
"""Never reordered: their places stand in the store."""
_PACKED, _MASK = 0x80, 0xC0
"""The two highest bits of what continues a character in UTF-8: no text begins so."""
_TIMES = struct.Struct(">BIIII")


def pack_note(note: str) -> bytes:
    """A note as it is stored; one that does not tell of an end stays text."""
    packed = _packed(note)
    # Whatever is written in another way than ours keeps its own.
    return packed if packed is not None and unpack_note(packed) == note else note.encode()


def unpack_note(stored: bytes) -> str:
    """The note that was packed."""
    if not stored or stored[0] & _MASK != _PACKED or len(stored) not in {_TIMES.size, _TIMES.size + 16}:
        return stored.decode(errors="replace")
    head, *times = _TIMES.unpack_from(stored)
    start, end = (seconds * SECOND + rest for seconds, rest in (times[:2], times[2:]))
    parts = [PROOFS[head & 0x03], format_exact(start), format_exact(end)]
    if len(stored) > _TIMES.size:
        parts.append(str(UUID(bytes=stored[_TIMES.size :])))
    return " ".join(parts)


def _packed(note: str) -> bytes | None:
    proof, *rest = note.split(" ")
    if proof not in PROOFS or len(rest) not in {2, 3}:
        return None
    try:
        times = [part for text in rest[:2] for part in divmod(parse_instant(text), SECOND)]
        uid = UUID(rest[2]).bytes if len(rest) > 2 else b""
        return _TIMES.pack(_PACKED | PROOFS.index(proof), *times) + uid
    except (TimeError, ValueError, struct.error):
        return None
