"""Checks the tokens and rights of people and services, with cached answers and a bounded rate of reviews.

A reviewer (the API server, or a folder in standalone mode) decides; `CachingAccessControl` asks it at a bounded rate.
An error's message states why a caller is not served; the REST layer turns each error into a problem document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Generic, Protocol, TypeVar

from fairgpu.serving.addresses import limited_address


class UnauthenticatedError(RuntimeError):
    """A request proves no identity; the message never contains the token."""


class ForbiddenError(RuntimeError):
    """An authenticated caller lacks a right; the message names the right."""


class TooManyRequestsError(RuntimeError):
    """A caller, or a client's address, has caused too many reviews of tokens and rights.

    Other callers are served.

    Attributes:
        retry_after_seconds: the seconds after which the caller may try again.
    """

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class IdentityUnavailableError(RuntimeError):
    """A caller's identity or rights cannot be checked now: the API server, the keys or the rules cannot be read."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """A cache of bounded size whose entries expire. Thread-safe: `get` needs no lock, as dict operations are atomic."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: dict[Key, tuple[float, Value]] = {}
        self._writing = Lock()
        """Held while entries are dropped and added, so that two threads do not drop the same oldest entry."""

    def get(self, key: Key, now: float) -> Value | None:
        """Returns the value under a key; None if there is none or it has expired.

        Args:
            now: the present time by the clock of `put`'s `ends_at`.
        """
        entry = self._entries.get(key)
        return entry[1] if entry is not None and now < entry[0] else None

    def put(self, key: Key, value: Value, ends_at: float) -> None:
        """Stores a value under a key until a time; drops the oldest value if the cache is full.

        Args:
            ends_at: the time at which the value expires, by the clock of `get`'s `now`.
        """
        with self._writing:
            self._entries.pop(key, None)
            while len(self._entries) >= self._max_entries:
                self._entries.pop(next(iter(self._entries)))
            self._entries[key] = (ends_at, value)

    def __len__(self) -> int:
        return len(self._entries)


MAX_KEPT = 8192
"""The most buckets. Beyond this number the least recently used bucket is dropped, as it had the longest time to refill.
"""


@dataclass(frozen=True, slots=True)
class CallRate:
    """The rate at which calls are allowed. A permit allows one call.

    Attributes:
        burst: the permits that a full bucket holds.
        per_second: the permits that a bucket gains per second.
    """

    burst: int
    per_second: float


class Buckets:
    """Limits calls by key: each key has a bucket of permits, full at first, and each call takes a permit. Thread-safe.

    The algorithm is https://en.wikipedia.org/wiki/Token_bucket, whose tokens are called permits here.
    """

    def __init__(self, rate: CallRate, clock: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        """Makes the buckets.

        Args:
            rate: the size of each bucket, and the rate at which it is filled again.
            clock: a monotonic clock, in seconds.
            max_kept: the most buckets that are remembered; a forgotten bucket counts as full.
        """
        self._rate = rate
        self._clock = clock
        self._max_kept = max_kept
        self._levels: dict[str, tuple[float, float]] = {}
        self._changing = Lock()
        """Guards a bucket's level between its being read and written."""

    def take(self, key: str, what: str) -> None:
        """Takes one permit from the bucket of a key.

        Args:
            key: the caller or the address against which the call counts.
            what: the beginning of the error's message, such as TOO_MANY.

        Raises:
            TooManyRequestsError: the bucket is empty.
        """
        with self._changing:
            level = self._level(key)
            if level < 1:
                seconds = math.ceil((1 - level) / self._rate.per_second)
                raise TooManyRequestsError(f"{what}; try again in {seconds} s", seconds)
            self._keep(key, level - 1)

    def give_back(self, key: str) -> None:
        """Returns a permit to the bucket of a key, for a call that turned out not to count against this key."""
        with self._changing:
            self._keep(key, self._level(key) + 1)

    def __len__(self) -> int:
        return len(self._levels)

    def _level(self, key: str) -> float:
        level, at = self._levels.get(key, (float(self._rate.burst), 0.0))
        return min(level + (self._clock() - at) * self._rate.per_second, self._rate.burst)

    def _keep(self, key: str, level: float) -> None:
        self._levels.pop(key, None)
        while len(self._levels) >= self._max_kept:
            self._levels.pop(next(iter(self._levels)))
        self._levels[key] = (min(level, self._rate.burst), self._clock())


MAX_TOKEN_BYTES = 16 * 1024
"""The largest size of a token, in bytes: an API server's takes one to two KiB, an OpenID provider's a few more."""

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


def bearer_token(header: str | None) -> str:
    """Returns the token of an Authorization header of the form `Bearer TOKEN`.

    Args:
        header: the header's value; None if there is none.

    Raises:
        UnauthenticatedError: there is no such header, or it holds no token of at most MAX_TOKEN_BYTES.
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
    """Returns the SHA-256 of a token, its key in caches, so that no dump of a cache contains a credential."""
    return sha256(token.encode("ascii", "replace")).digest()


CALLER_SECONDS = 30.0
"""The seconds for which an answered TokenReview is used; a revoked token works for at most so long."""
VERDICT_SECONDS = 10.0
"""The seconds for which an answered SubjectAccessReview is used, allowed or not; a new role works at the latest after
them.
"""
REFUSAL_SECONDS = 5.0
"""The seconds for which a refused token stays refused without a review, so that a client that repeats it costs little.
"""
MAX_CACHED = 8192
FAMILIAR_SECONDS = 3600.0
"""The seconds for which reviews of an accepted token count against its caller, and not against the client's address."""
CALLER_REVIEWS = CallRate(burst=300, per_second=10)
"""The rate of reviews that one caller may cause in each worker; the burst is three times the reviews that one GET
/v1/access causes at most.
"""
STRANGER_REVIEWS = CallRate(burst=100, per_second=5)
"""The rate of reviews of invalid tokens that one address may cause in each worker."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who sends a request, as a reviewer identifies them, such as the API server in a TokenReview.

    Attributes:
        name: the user's name.
        uid: the user's uid; empty if there is none.
        groups: the user's groups.
        extra: further fields, as pairs of a key and its values.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """An action on a resource of the API group fairgpu.io.

    Attributes:
        verb: the verb, such as get or create.
        resource: the collection, such as gpubudgets.
        namespace: the namespace; empty for cluster scope.
        name: the object's name; empty for all objects.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        where = f"in namespace {self.namespace!r}" if self.namespace else "at cluster scope"
        return f"{self.verb} {self.resource}.fairgpu.io{named} {where}"


class Reviewer(Protocol):
    """Authenticates callers and decides their rights, without a cache: the API server, or a folder."""

    def authenticate(self, token: str, /) -> Caller:
        """Returns the caller whom a token identifies.

        Raises:
            UnauthenticatedError: the token is not valid.
            IdentityUnavailableError: the reviewer cannot be asked now.
        """

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Returns whether the caller may do an action.

        Raises:
            IdentityUnavailableError: the reviewer cannot be asked now.
        """


class AccessControl(Protocol):
    """Authenticates callers and decides their rights, as a reviewer does, and may limit how often a caller asks."""

    def authenticate(self, token: str, origin: str = "", /) -> Caller:
        """Returns the caller whom a token identifies.

        Args:
            origin: the address from which the token came; reviews of invalid tokens count against this address.

        Raises:
            UnauthenticatedError: the token is not valid.
            IdentityUnavailableError: the reviewer cannot be asked now.
            TooManyRequestsError: the caller, or the address, has caused too many reviews.
        """

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Returns whether the caller may do an action.

        Raises:
            IdentityUnavailableError: the reviewer cannot be asked now.
            TooManyRequestsError: the caller has caused too many reviews.
        """


class CachingAccessControl:
    """Asks a reviewer about tokens and rights at a bounded rate, and caches its answers for a short while.

    A caller's reviews count against that caller. Reviews of invalid tokens count against the address from which the
    tokens came; an IPv6 address counts as its network of 64 bits. Therefore a loop around `GET /v1/access`, or invented
    tokens, cost the API server little and other callers nothing.
    """

    def __init__(self, reviewer: Reviewer, clock: Callable[[], float]) -> None:
        """Makes an access control over a reviewer, with an empty cache; `clock` is monotonic, in seconds."""
        self._reviewer = reviewer
        self._clock = clock
        self._callers: ExpiringCache[bytes, Caller] = ExpiringCache(MAX_CACHED)
        self._refused: ExpiringCache[bytes, str] = ExpiringCache(MAX_CACHED)
        self._familiar: ExpiringCache[bytes, str] = ExpiringCache(MAX_CACHED)
        self._verdicts: ExpiringCache[tuple[Caller, Action], bool] = ExpiringCache(MAX_CACHED)
        self._of_callers = Buckets(CALLER_REVIEWS, clock)
        self._of_strangers = Buckets(STRANGER_REVIEWS, clock)

    def authenticate(self, token: str, origin: str = "", /) -> Caller:
        """Returns the caller whom a token identifies, by the cache or by the reviewer.

        Args:
            origin: the address from which the token came; reviews of invalid tokens count against this address.

        Raises:
            UnauthenticatedError: the token is not valid.
            IdentityUnavailableError: the reviewer cannot be asked now.
            TooManyRequestsError: the caller, or the address, has caused too many reviews.
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
        familiar = self._familiar.get(key, self._clock())
        if familiar is not None:
            self._of_callers.take(familiar, TOO_MANY)
        else:
            self._of_strangers.take(limited_address(origin), "too many tokens from this address belong to no account")
        try:
            caller = self._reviewer.authenticate(token)
        except UnauthenticatedError as error:
            self._refused.put(key, str(error), self._clock() + REFUSAL_SECONDS)
            raise
        except IdentityUnavailableError:
            if familiar is None:
                self._of_strangers.give_back(limited_address(origin))
            raise
        if familiar is None:
            self._of_strangers.give_back(limited_address(origin))
            self._of_callers.take(_key_of(caller), TOO_MANY)
        return caller

    def permits(self, caller: Caller, action: Action, /) -> bool:
        """Returns whether the caller may do an action, by the cache or by the reviewer.

        Raises:
            IdentityUnavailableError: the reviewer cannot be asked now.
            TooManyRequestsError: the caller has caused too many reviews.
        """
        verdict = self._verdicts.get((caller, action), self._clock())
        if verdict is None:
            self._of_callers.take(_key_of(caller), TOO_MANY)
            verdict = self._reviewer.permits(caller, action)
            self._verdicts.put((caller, action), verdict, self._clock() + VERDICT_SECONDS)
        return verdict


TOO_MANY = "too many requests of this caller need the API server"


def _key_of(caller: Caller) -> str:
    """Returns the key of a caller in `Buckets`: a hash of the name, so that long names take no more memory."""
    return sha256(caller.name.encode("utf-8", "replace")).hexdigest()


def require(access: AccessControl, token: str, action: Action, origin: str = "") -> Caller:
    """Returns the caller whom a token identifies; raises an error if that caller has no right to an action.

    Args:
        access: authenticates the caller and decides the caller's rights.
        origin: the address from which the token came.

    Raises:
        UnauthenticatedError: the token is not valid.
        ForbiddenError: the caller lacks the right.
        IdentityUnavailableError: the reviewer cannot be asked now.
        TooManyRequestsError: the caller, or the address, has caused too many reviews.
    """
    caller = access.authenticate(token, origin)
    if not access.permits(caller, action):
        raise ForbiddenError(f"{caller.name!r} may not {action}: ask an administrator of the cluster for this right")
    return caller
