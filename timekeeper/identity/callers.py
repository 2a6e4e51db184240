"""People and services: who they are, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from timekeeper.identity.bearer import digest
from timekeeper.identity.expiring_cache import ExpiringCache
from timekeeper.identity.refusals import ForbiddenError, UnauthenticatedError

CALLER_SECONDS = 30.0
"""How long an answered TokenReview is believed: a token that is revoked works on for at most this long."""
VERDICT_SECONDS = 10.0
"""How long an answered SubjectAccessReview is believed, allowed or not: a new role works after this long at most."""
REFUSAL_SECONDS = 5.0
"""How long a refused token stays refused without asking: a client that tries on and on costs the API server little."""
MAX_CACHED = 8192


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the API server names them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What they want to do to a resource of the group fairgpu.io; without a namespace, at cluster scope."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        where = f"in namespace {self.namespace!r}" if self.namespace else "at cluster scope"
        return f"{self.verb} {self.resource}.fairgpu.io{named} {where}"


class Authority(Protocol):
    """Who knows callers and their rights: the API server, or a folder in standalone mode."""

    def authenticate(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            UnauthenticatedError: nobody's.
            IdentityUnavailableError: that cannot be found out now.
        """

    def permits(self, caller: Caller, action: Action) -> bool:
        """Whether the caller may do this.

        Raises:
            IdentityUnavailableError: that cannot be found out now.
        """


class CachingAuthority:
    """Asks another authority, and believes its answers for a short while."""

    def __init__(self, authority: Authority, clock: Callable[[], float]) -> None:
        """`clock` is a monotonic one, in seconds."""
        self._authority = authority
        self._clock = clock
        self._callers: ExpiringCache[bytes, Caller] = ExpiringCache(MAX_CACHED)
        self._refused: ExpiringCache[bytes, str] = ExpiringCache(MAX_CACHED)
        self._verdicts: ExpiringCache[tuple[Caller, Action], bool] = ExpiringCache(MAX_CACHED)

    def authenticate(self, token: str) -> Caller:
        """Whose token it is; raises as the authority does."""
        key = digest(token)
        caller = self._callers.get(key, self._clock())
        if caller is None:
            caller = self._ask(token, key)
            self._callers.put(key, caller, self._clock() + CALLER_SECONDS)
        return caller

    def _ask(self, token: str, key: bytes) -> Caller:
        refusal = self._refused.get(key, self._clock())
        if refusal is not None:
            raise UnauthenticatedError(refusal)
        try:
            return self._authority.authenticate(token)
        except UnauthenticatedError as error:
            self._refused.put(key, str(error), self._clock() + REFUSAL_SECONDS)
            raise

    def permits(self, caller: Caller, action: Action) -> bool:
        """Whether the caller may do this; raises as the authority does."""
        verdict = self._verdicts.get((caller, action), self._clock())
        if verdict is None:
            verdict = self._authority.permits(caller, action)
            self._verdicts.put((caller, action), verdict, self._clock() + VERDICT_SECONDS)
        return verdict


def require(authority: Authority, token: str, action: Action) -> Caller:
    """The caller, who may do this.

    Raises:
        UnauthenticatedError: the token is nobody's.
        ForbiddenError: the caller lacks the right.
        IdentityUnavailableError: that cannot be found out now.
    """
    caller = authority.authenticate(token)
    if not authority.permits(caller, action):
        raise ForbiddenError(f"{caller.name!r} may not {action}: ask an administrator of the cluster for this right")
    return caller
