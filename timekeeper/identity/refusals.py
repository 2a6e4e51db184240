"""Why a caller is not served; the REST layer turns each into a problem document."""

from __future__ import annotations


class UnauthenticatedError(RuntimeError):
    """Nobody could be recognised from what was sent; the message never holds the token."""


class ForbiddenError(RuntimeError):
    """The caller is known and may not do this; the message names the missing right."""


class TooManyRequestsError(RuntimeError):
    """The caller, or their address, has made the API server be asked too often; another is served meanwhile."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class IdentityUnavailableError(RuntimeError):
    """Who is asking cannot be found out now, since the API server or its keys cannot be reached."""
