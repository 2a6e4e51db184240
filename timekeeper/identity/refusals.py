"""Why a caller is not served; the REST layer turns each into a problem document."""

from __future__ import annotations


class UnauthenticatedError(RuntimeError):
    """Nobody could be recognised from what was sent; the message never holds the token."""


class ForbiddenError(RuntimeError):
    """The caller is known and may not do this; the message names the missing right."""


class IdentityUnavailableError(RuntimeError):
    """Who is asking cannot be found out now, since the API server or its keys cannot be reached."""
