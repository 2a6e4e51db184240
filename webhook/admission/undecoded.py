"""Fields of containers that the decoder leaves as JSON bytes, since few of them matter to a check."""

from __future__ import annotations

from typing import Any

import msgspec


def may_have(value: Any, texts: tuple[str, ...]) -> bool:
    """Returns whether a field may contain one of the texts: not where it is absent, or is JSON bytes without them.

    The texts are ASCII.
    """
    if not isinstance(value, msgspec.Raw):
        return value is not None
    data = str(value, "latin-1")  # keeps each byte; a search in bytes costs several times one in text
    for text in texts:  # noqa: SIM110 - a generator takes longer than the search, and most containers have none
        if text in data:
            return True
    return False


def decoded(value: Any) -> Any:
    """Returns the value of a field that may still be JSON bytes."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
