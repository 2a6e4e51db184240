"""Fields of containers that the decoder leaves as JSON bytes, since few of them matter to a check."""

from __future__ import annotations

from codecs import latin_1_decode
from typing import Any

import msgspec


def may_have(value: Any, texts: tuple[str, ...]) -> bool:
    """Returns whether a field of a container perhaps contains one of some texts; only then is it worth decoding.

    JSON bytes are searched for the texts. For a decoded value the result is True, and for an absent field False.

    Args:
        value: the field: JSON bytes (`msgspec.Raw`), a decoded value, or None if it is absent.
        texts: the texts to look for, in ASCII.
    """
    if not isinstance(value, msgspec.Raw):
        return value is not None
    data, _ = latin_1_decode(value)  # keeps each byte; a search in bytes costs several times one in text
    for text in texts:  # noqa: SIM110 - a generator takes longer than the search, and most containers have none
        if text in data:
            return True
    return False


def decoded(value: Any) -> Any:
    """Returns the value of a field that the decoder of reviews may have left as JSON bytes.

    Args:
        value: the field: JSON bytes (`msgspec.Raw`), which are decoded, or a decoded value, which is returned.

    Raises:
        UnicodeDecodeError, msgspec.DecodeError: the bytes are not in UTF-8, or have a number that is out of range.
    """
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
