"""The ledger's entries as the store holds them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.store.notes import unpack_note


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry; `id` is its cursor, made of milliseconds of Redis's clock and a counter."""

    id: str
    kind: str
    period: int
    amount: int
    at: int
    session: str
    namespace: str
    pod: str
    note: str


def entry_order(identifier: str) -> tuple[int, int]:
    """Where an entry stands among the others, by its id; of a cursor that lacks the counter, too."""
    milliseconds, _, counter = identifier.partition("-")
    return int(milliseconds), int(counter or 0)


def read_entry(name: Any, fields: Mapping[Any, Any]) -> LedgerEntry:
    """An entry as it stands in the stream."""
    stored = {_text(key): value for key, value in fields.items()}
    note = stored.pop("x")
    text = {key: _text(value) for key, value in stored.items()}
    return LedgerEntry(
        id=_text(name),
        kind=text["k"],
        period=int(text["p"]),
        amount=int(text["a"]),
        at=int(text["t"]),
        session=text["u"],
        namespace=text["n"],
        pod=text["d"],
        note=unpack_note(note) if isinstance(note, bytes) else note,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
