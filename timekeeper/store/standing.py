"""What a period of an account stands at, as the store's scripts answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timekeeper.store.calls import ScriptError, StoreError


@dataclass(frozen=True, slots=True)
class Standing:
    """What a period of an account stands at.

    Attributes:
        total: spent, in microGPU-seconds; below 0 where a correction and a session that gave back came together.
        granted: added by grants, and by what was carried into it; negative where more was taken.
        gone: the part of the total whose pods have left the API server: what a checkpoint must hold.
        exhausted_at: when spending first reached what was available; None while it has not.
        struck: what the period before it had spent when what it left was carried over; None where nothing was yet.
        terms: the allowance of the period before it and how much of it could be rolled over, as they were then.
        new: whether the account was not in the store, or the grant not applied, before this change.
        version: how often the account had been changed.
    """

    total: int
    granted: int
    gone: int
    exhausted_at: int | None
    struck: int | None = None
    new: bool = False
    version: int = 0
    terms: tuple[int, int] | None = None


def read_standing(sums: Sequence[Any], *, new: bool = False) -> Standing:
    """The sums of a period as the store answers them: total, granted, gone, exhausted, struck, terms, version."""
    texts = ("" if value is None else _text(value) for value in sums)
    total, granted, gone, exhausted, struck, terms, version = texts
    allowance, _, rollover = terms.partition(" ")
    return Standing(
        int(total),
        int(granted),
        int(gone),
        int(exhausted) if exhausted else None,
        int(struck) if struck else None,
        new,
        int(version or 0),
        (int(allowance), int(rollover)) if terms else None,
    )


def standing_or_error(answer: Any) -> Standing | StoreError:
    """A script's answer read; an error stays one, and what cannot be read is one."""
    return answer if isinstance(answer, StoreError) else _read_or_error(answer)


def standing_with_flag_or_error(answer: Any) -> Standing | StoreError:
    """The same, of an answer that begins with whether the change was done only now."""
    return answer if isinstance(answer, StoreError) else _read_or_error(answer[1:], new=answer[0] == 1)


def _read_or_error(sums: Sequence[Any], *, new: bool = False) -> Standing | StoreError:
    try:
        return read_standing(sums, new=new)
    except ValueError as error:
        return ScriptError(f"the sums of this period cannot be read: {error}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
