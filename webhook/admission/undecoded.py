"""Fields of containers that the decoder leaves as JSON bytes, since few of them matter to a check."""

from __future__ import annotations

from typing import Any

import msgspec


def decoded(value: Any, *texts: bytes) -> Any:
    """Returns the value of a field; None where it is JSON bytes with none of these texts, if any are named."""
    if not isinstance(value, msgspec.Raw):
        return value
    data = bytes(value)
    return msgspec.json.decode(value) if not texts or any(text in data for text in texts) else None
