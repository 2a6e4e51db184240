"""Takes the token out of an Authorization header (RFC 6750 section 2.1)."""

from __future__ import annotations

import re
from hashlib import sha256

from timekeeper.identity.refusals import UnauthenticatedError

MAX_TOKEN_BYTES = 16 * 1024
"""Tokens of an API server are one to two KiB; those of an OpenID provider with many groups a few more."""

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


def bearer_token(header: str | None) -> str:
    """The token of `Bearer TOKEN`.

    Raises:
        UnauthenticatedError: there is no such header, or it holds no token.
    """
    if not header:
        raise UnauthenticatedError("no token was sent: add the header Authorization: Bearer TOKEN")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise UnauthenticatedError("the Authorization header is of another scheme: write Authorization: Bearer TOKEN")
    token = token.strip(" ")
    if len(token) > MAX_TOKEN_BYTES:
        raise UnauthenticatedError(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    if not _TOKEN.fullmatch(token):
        raise UnauthenticatedError("the Authorization header holds no token: write Authorization: Bearer TOKEN")
    return token


def digest(token: str) -> bytes:
    """What stands for a token in memory: caches are keyed by this, so that no dump of them holds a credential."""
    return sha256(token.encode("ascii", "replace")).digest()
