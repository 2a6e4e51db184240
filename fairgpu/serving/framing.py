"""Refuses requests whose end gunicorn's parser and a proxy in front of it might see differently.

gunicorn_h1c counts lengths in 64 bits and lets longer numbers wrap, in Content-Length and in the sizes of chunks. Of a
body of 2^64 + 5 bytes it reads five bytes, and takes the rest for the next request. A client could smuggle in a request
this way (RFC 9112 sections 6.3, 7.1 and 11.2).
"""

from __future__ import annotations

from typing import Any

from gunicorn.asgi.parser import ParseError

MAX_LENGTH_DIGITS = 18
"""The most digits of a length: such a number fits into 64 bits, and exceeds every accepted body."""


def refuse_overflow(parser: Any) -> None:
    """Refuses a request whose Content-Length may have wrapped in the parser.

    Args:
        parser: gunicorn's HTTP/1.1 parser after it has read the headers.

    Raises:
        ParseError: the length has too many digits; answered with 400, and the connection is closed.
    """
    if parser.content_length is None:
        return
    get_header = getattr(parser, "get_header", None)  # the parser in Python has none, and numbers without end
    given = get_header(b"content-length") if get_header is not None else None
    if given is not None and len(given) > MAX_LENGTH_DIGITS:
        raise ParseError(f"Content-Length has {len(given)} digits; at most {MAX_LENGTH_DIGITS} are taken")
