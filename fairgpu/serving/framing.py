"""The end of a request, on which the parser here and any proxy in front must agree.

gunicorn_h1c counts lengths in 64 bits and lets longer numbers wrap, in Content-Length and in the sizes of chunks alike:
of a body of 2^64 + 5 bytes it takes five, and the rest for the next request. The sender of the one could so smuggle in
the other (RFC 9112 sections 6.3, 7.1 and 11.2).
"""

from __future__ import annotations

from typing import Any

from gunicorn.asgi.parser import ParseError

MAX_LENGTH_DIGITS = 18
"""Any such number fits into 64 bits, and is longer than every body that is taken."""


def refuse_overflow(parser: Any) -> None:
    """Passes a request whose Content-Length is the number that was sent.

    Raises:
        ParseError: it may not be; answered with 400, and the connection is closed.
    """
    if parser.content_length is None:
        return
    get_header = getattr(parser, "get_header", None)  # the parser in Python has none, and numbers without end
    given = get_header(b"content-length") if get_header is not None else None
    if given is not None and len(given) > MAX_LENGTH_DIGITS:
        raise ParseError(f"Content-Length has {len(given)} digits; at most {MAX_LENGTH_DIGITS} are taken")
