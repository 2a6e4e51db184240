"""Faults of a manifest, in words with which its author can correct it without help."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SHOWN_LENGTH = 80
MAX_EXPLAINED = 100
"""The most faults in one message; a manifest of 3 MiB can have a hundred thousand."""
MAX_GUESSED_LENGTH = 317
"""The longest key of Kubernetes (253 for the prefix, a slash, 63 for the name); a longer one is not guessed."""


def field_path(*parts: str | int) -> str:
    """Returns the path of a field as kubectl writes it: `spec.containers[0].resources.limits[nvidia.com/gpu]`.

    Args:
        parts: the steps from the object to the field. An integer is an index of a list; a name with a dot or a slash is
            a map's key and goes in brackets.
    """
    path = ""
    for part in parts:
        if isinstance(part, int) or "." in part or "/" in part:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def show(value: Any) -> str:
    """Returns a value as JSON, cut to MAX_SHOWN_LENGTH characters.

    Characters that a terminal obeys or hides are escaped. A text that is cut is followed by its length.

    Args:
        value: a value of a manifest, of any type.
    """
    length = len(value) if isinstance(value, str) else 0
    try:
        text = json.dumps(value[:MAX_SHOWN_LENGTH] if length else value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists a thousand deep
        text = "a value too large to show"
    text = _printable(text[: MAX_SHOWN_LENGTH + 1])
    if len(text) <= MAX_SHOWN_LENGTH:
        return text
    cut = f"{text[: MAX_SHOWN_LENGTH - 3]}..."
    return f"{cut} ({length} characters)" if length else cut


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    return "\\u007f" if sign == "\x7f" else json.dumps(sign)[1:-1]


def guess(misspelt: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """Returns the known name that is most similar to a misspelt one; None if no known name is similar.

    Args:
        misspelt: the name as an author wrote it.
        known: the names that exist.
        cutoff: the least similarity, from 0 (none) to 1 (equal).
    """
    if len(misspelt) > MAX_GUESSED_LENGTH:
        return None
    near = difflib.get_close_matches(misspelt, known, n=1, cutoff=cutoff)
    return near[0] if near else None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a manifest, as texts for its author.

    Attributes:
        path: the path of the field, as `field_path` writes it.
        given: the value that the field has.
        allowed: the values that the field may have.
        instead: the value to write.
    """

    path: str
    given: str
    allowed: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}: given {self.given}; allowed: {self.allowed}; write {self.instead}"


def explain(faults: Iterable[Fault]) -> str:
    """Returns a message with a line for each of the first MAX_EXPLAINED faults, and the number of further faults."""
    listed = list(faults)
    lines = [str(fault) for fault in listed[:MAX_EXPLAINED]]
    if len(lines) == 1:
        return lines[0]
    numbered = [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    if len(listed) > MAX_EXPLAINED:
        numbered.append(f"and {len(listed) - MAX_EXPLAINED} more")
    return "\n".join(numbered)
