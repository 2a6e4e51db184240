"""People and services: who they are, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from timekeeper.identity.bearer import digest
from timekeeper.identity.expiring_cache import ExpiringCache
from timekeeper.identity.limits import Buckets, Rate
from timekeeper.identity.refusals import ForbiddenError, IdentityUnavailableError, UnauthenticatedError

CALLER_SECONDS = 30.0
"""How long an answered TokenReview is believed: a token that is revoked works on for at most this long."""
VERDICT_SECONDS = 10.0
"""How long an answered SubjectAccessReview is believed, allowed or not: a new role works after this long at most."""
REFUSAL_SECONDS = 5.0
"""How long a refused token stays refused without asking: a client that tries on and on costs the API server little."""
MAX_CACHED = 8192
FAMILIAR_SECONDS = 3600.0
"""How long a token that was accepted counts as its caller's: no stranger behind the same address uses up its turn."""
CALLER_REVIEWS = Rate(burst=300, per_second=10)
"""Reviews that one caller may cause: three times what GET /v1/access asks at most, then ten a second. Per worker."""
STRANGER_REVIEWS = Rate(burst=100, per_second=5)
"""Reviews of tokens that turn out to be nobody's, from one address. Per worker."""


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


class Reviewer(Protocol):
    """Who is asked about callers and their rights."""

    def authenticate(self, token: str, /) -> Caller:
        """Whose token it is.

        Raises:
            UnauthenticatedError: nobody's.
            IdentityUnavailableError: that cannot be found out now.
        """

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Whether the caller may do this.

        Raises:
            IdentityUnavailableError: that cannot be found out now.
        """


class Authority(Protocol):
    """Who knows callers and their rights: the API server, or a folder in standalone mode."""

    def authenticate(self, token: str, origin: str = "", /) -> Caller:
        """Whose token it is, that came from this address.

        Raises:
            UnauthenticatedError: nobody's.
            IdentityUnavailableError: that cannot be found out now.
            TooManyRequestsError: it was asked for too often.
        """

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Whether the caller may do this.

        Raises:
            IdentityUnavailableError: that cannot be found out now.
            TooManyRequestsError: the caller has asked too often.
        """


class CachingAuthority:
    """Asks a reviewer, not too often for anybody, and believes its answers for a short while.

    What one caller asks is counted against that caller, and tokens that are nobody's against the address that they came
    from: a loop around `GET /v1/access` or invented tokens costs the API server little, and other callers nothing.
    """

    def __init__(self, reviewer: Reviewer, clock: Callable[[], float]) -> None:
        """`clock` is a monotonic one, in seconds."""
        self._reviewer = reviewer
        self._clock = clock
        self._callers: ExpiringCache[bytes, Caller] = ExpiringCache(MAX_CACHED)
        self._refused: ExpiringCache[bytes, str] = ExpiringCache(MAX_CACHED)
        self._familiar: ExpiringCache[bytes, str] = ExpiringCache(MAX_CACHED)
        self._verdicts: ExpiringCache[tuple[Caller, Action], bool] = ExpiringCache(MAX_CACHED)
        self._of_callers = Buckets(CALLER_REVIEWS, clock)
        self._of_strangers = Buckets(STRANGER_REVIEWS, clock)

    def authenticate(self, token: str, origin: str = "", /) -> Caller:
        """Whose token it is; raises as the reviewer does.

        Raises:
            TooManyRequestsError: its caller, or its origin, has had too many looked at.
        """
        key = digest(token)
        caller = self._callers.get(key, self._clock())
        if caller is None:
            caller = self._ask(token, key, origin)
            self._callers.put(key, caller, self._clock() + CALLER_SECONDS)
            self._familiar.put(key, _key_of(caller), self._clock() + FAMILIAR_SECONDS)
        return caller

    def _ask(self, token: str, key: bytes, origin: str) -> Caller:
        refusal = self._refused.get(key, self._clock())
        if refusal is not None:
            raise UnauthenticatedError(refusal)
        known = self._familiar.get(key, self._clock())
        if known is not None:
            self._of_callers.take(known, TOO_MANY)
        else:
            self._of_strangers.take(origin, "too many tokens from this address are nobody's")
        try:
            caller = self._reviewer.authenticate(token)
        except UnauthenticatedError as error:
            self._refused.put(key, str(error), self._clock() + REFUSAL_SECONDS)
            raise
        except IdentityUnavailableError:
            if known is None:
                self._of_strangers.give_back(origin)
            raise
        if known is None:
            self._of_strangers.give_back(origin)
            self._of_callers.take(_key_of(caller), TOO_MANY)
        return caller

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Whether the caller may do this; raises as the reviewer does.

        Raises:
            TooManyRequestsError: the caller has asked too often.
        """
        verdict = self._verdicts.get((caller, action), self._clock())
        if verdict is None:
            self._of_callers.take(_key_of(caller), TOO_MANY)
            verdict = self._reviewer.permits(caller, action)
            self._verdicts.put((caller, action), verdict, self._clock() + VERDICT_SECONDS)
        return verdict


TOO_MANY = "too many requests of this caller need the API server"


def _key_of(caller: Caller) -> str:
    """What stands for a caller in buckets: as long for all, however long their name."""
    return sha256(caller.name.encode("utf-8", "replace")).hexdigest()


def require(authority: Authority, token: str, action: Action, origin: str = "") -> Caller:
    """The caller, who may do this; `origin` is the address that the token came from.

    Raises:
        UnauthenticatedError: the token is nobody's.
        ForbiddenError: the caller lacks the right.
        IdentityUnavailableError: that cannot be found out now.
        TooManyRequestsError: it was asked for too often.
    """
    caller = authority.authenticate(token, origin)
    if not authority.permits(caller, action):
        raise ForbiddenError(f"{caller.name!r} may not {action}: ask an administrator of the cluster for this right")
    return caller
