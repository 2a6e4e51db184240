"""What is wrong with a manifest, said so that its author can mend it without asking anybody."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_SHOWN_LENGTH = 80


def field_path(*parts: str | int) -> str:
    """The path of a field as kubectl writes it: `spec.containers[0].resources.limits[nvidia.com/gpu]`.

    An integer is an index; a name holding a dot or a slash is a map's key and goes in brackets.
    """
    path = ""
    for part in parts:
        if isinstance(part, int) or "." in part or "/" in part:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def show(value: Any) -> str:
    """A value as it stood in the manifest, as JSON in ASCII, cut to a length that fits a message."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists a thousand deep
        text = "a value too large to show"
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 3]}..."


@dataclass(frozen=True, slots=True)
class Fault:
    """One refusal: where, what was given, what is allowed, and what to write instead."""

    path: str
    given: str
    allowed: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}: given {self.given}; allowed: {self.allowed}; write {self.instead}"


def explain(faults: Iterable[Fault]) -> str:
    """All faults as one message, one on a line and numbered where there are several."""
    lines = [str(fault) for fault in faults]
    if len(lines) == 1:
        return lines[0]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
