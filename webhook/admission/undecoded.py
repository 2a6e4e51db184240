"""Fields of containers that the decoder leaves as JSON bytes, since few of them matter to a check."""

from __future__ import annotations

from typing import Any

import msgspec


def may_have(value: Any, texts: tuple[bytes, ...]) -> bool:
    """Returns false where a field is absent, or JSON bytes with none of these texts."""
    if not isinstance(value, msgspec.Raw):
        return value is not None
    data = bytes(value)
    for text in texts:  # noqa: SIM110 - a generator takes longer than the search, and most containers have none
        if text in data:
            return True
    return False


def decoded(value: Any) -> Any:
    """Returns the value of a field."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
