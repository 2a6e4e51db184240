"""Verifies signed tokens, above all those of pods, with their issuer's public keys, without a request for each token.

A JSON Web Key Set is RFC 7517's; the API server serves its own at /openid/v1/jwks
(https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery).
The keys are fetched again when a token names an unknown key, or when they are older than MAX_AGE_SECONDS.

The kubelet projects a token into a pod. It is a JWT (RFC 7519) of the API server with the claim `kubernetes.io` naming
namespace, pod and uid
(https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens).
The caller must check that the pod still runs: a signature outlives its pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jwt
import structlog
from jwt import PyJWK, PyJWKSet
from jwt.exceptions import InvalidTokenError, PyJWTError

from fairgpu import names
from timekeeper.auth.access_control import (
    ExpiringCache,
    IdentityUnavailableError,
    UnauthenticatedError,
    bearer_token,
    digest,
)

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""The accepted signature algorithms. All use a public key: a shared secret (HS256) in a public key set proves nothing.
"""

MIN_REFRESH_SECONDS = 10.0
"""The fewest seconds between two fetches of keys, also if many forged tokens name invented keys."""
FIRST_RETRY_SECONDS = 1.0
"""The seconds between two fetches as long as no keys were fetched yet, so that no token can be verified."""
MAX_AGE_SECONDS = 300.0
"""The seconds after which keys are fetched again, so that a withdrawn key is trusted no longer if the issuer answers.
"""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer of tokens with its public keys.

    Attributes:
        name: the issuer's name, as in the `iss` of its tokens.
        key_set: the keys as a JSON Web Key Set (RFC 7517).
    """

    name: str
    key_set: Mapping[str, Any]


class KeySet:
    """The public keys of one issuer. Thread-safe; only `refresh` does I/O."""

    def __init__(self, fetch: Callable[[], Issuer], clock: Callable[[], float]) -> None:
        """Makes an empty set.

        Args:
            fetch: fetches the issuer with its keys; may raise OSError, RuntimeError or ValueError.
            clock: a monotonic clock, in seconds.
        """
        self._fetch = fetch
        self._clock = clock
        self._issuer = ""
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._refreshing = Lock()
        """Held while keys are fetched, so that a burst of unknown key ids is one fetch."""

    @property
    def issuer(self) -> str:
        """The issuer's name, which tokens must carry as `iss`; empty before the first fetch."""
        return self._issuer

    def get(self, key_id: str) -> PyJWK | None:
        """Returns the public key with this id; None if the issuer has none.

        Raises:
            IdentityUnavailableError: no keys could be fetched yet.
        """
        if self._fetched_at is None:
            raise IdentityUnavailableError("the keys that sign tokens could not be fetched yet")
        return self._keys.get(key_id)

    def knows(self, key_id: str) -> bool:
        """Returns whether the last successful fetch returned a usable key with this id."""
        return key_id in self._keys

    def wants_refresh(self, key_id: str) -> bool:
        """Returns whether the keys should be fetched again before a key is looked up.

        The keys should be fetched again if the key is unknown or the last successful fetch is MAX_AGE_SECONDS ago. The
        result is always False for MIN_REFRESH_SECONDS after an attempt to fetch (for FIRST_RETRY_SECONDS before the
        first success).

        Args:
            key_id: the id that the token names.
        """
        now = self._clock()
        if self._tried_lately(now):
            return False
        return key_id not in self._keys or self._fetched_at is None or now - self._fetched_at >= MAX_AGE_SECONDS

    def refresh(self) -> None:
        """Fetches the issuer's keys; if that fails, the previous keys stay in use.

        Nothing is fetched while `wants_refresh` returns False for every key, since the last attempt was too recent.
        """
        with self._refreshing:
            now = self._clock()
            if self._tried_lately(now):
                return
            try:
                issuer = self._fetch()
                keys = usable_keys(issuer.key_set)
            except (OSError, RuntimeError, ValueError, PyJWTError) as error:
                _log.warning("token keys not fetched", error=str(error), known=len(self._keys))
            else:
                self._issuer, self._keys, self._fetched_at = issuer.name, keys, now
            self._tried_at = now

    def _tried_lately(self, now: float) -> bool:
        pause = FIRST_RETRY_SECONDS if self._fetched_at is None else MIN_REFRESH_SECONDS
        return self._tried_at is not None and now - self._tried_at < pause


def usable_keys(document: Mapping[str, Any]) -> dict[str, PyJWK]:
    """Returns the keys of a JSON Web Key Set that may sign tokens, keyed by their id.

    A key is left out if it has no id, is not for signatures, or has an algorithm outside ALGORITHMS; the result may be
    empty.

    Raises:
        PyJWTError: the document contains no key that PyJWT can read.
    """
    return {
        key.key_id: key
        for key in PyJWKSet.from_dict(dict(document)).keys
        if key.key_id and key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }


LEEWAY_SECONDS = 10
"""The largest allowed difference between the clocks of the API server and of this machine, in seconds."""
MAX_CACHED_TOKENS = 65_536
"""The most verified tokens in the cache, of some 500 bytes each; a dropped one is verified again."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod that a projected token was made for.

    Attributes:
        namespace: the pod's namespace.
        pod: the pod's name.
        uid: the pod's uid.
        expires_at: the token's expiry, in seconds since 1970.
    """

    namespace: str
    pod: str
    uid: str
    expires_at: float


class PodTokens:
    """Verifies the tokens that the kubelet projects into pods, and caches the pods of verified tokens."""

    def __init__(self, keys: KeySet, clock: Callable[[], float], max_cached: int = MAX_CACHED_TOKENS) -> None:
        """Makes an empty cache; `clock` is the wall clock in Unix seconds, by which tokens expire."""
        self._keys = keys
        self._clock = clock
        self._identities: ExpiringCache[bytes, PodIdentity] = ExpiringCache(max_cached)

    def verified_pod(self, token: str) -> PodIdentity | None:
        """Returns the pod of a token that was verified before and has not expired; None for any other token.

        A cached token counts until it expires, even if the issuer withdraws its key.
        """
        return self._identities.get(digest(token), self._clock())

    def wants_keys(self, token: str) -> bool:
        """Returns whether the keys should be fetched again before a token is verified.

        Raises:
            UnauthenticatedError: the text is no JWT.
        """
        return self._keys.wants_refresh(_key_id(token))

    def has_key(self, token: str) -> bool:
        """Returns whether the last successful fetch returned the key that a token names.

        Raises:
            UnauthenticatedError: the text is no JWT.
        """
        return self._keys.knows(_key_id(token))

    def fetch_keys(self) -> None:
        """Fetches the issuer's keys, unless the last attempt was a moment ago; no other method does I/O.

        If that fails, the failure is logged and the previous keys stay in use.
        """
        self._keys.refresh()

    def verify(self, token: str) -> PodIdentity:
        """Verifies a token; returns the pod that it was made for.

        Raises:
            UnauthenticatedError: the token is forged, expired, for another audience, or not bound to a pod.
            IdentityUnavailableError: there are no keys yet.
        """
        key = self._keys.get(_key_id(token))
        if key is None:
            raise UnauthenticatedError("the token is not signed with a key of this cluster's API server")
        claims = verified_claims(token, key, self._keys.issuer)
        identity = pod_of(claims)
        if identity is None:
            raise UnauthenticatedError("the token is not bound to a pod: send the one projected into the pod")
        self._identities.put(digest(token), identity, identity.expires_at)
        return identity


def verified_claims(token: str, key: PyJWK, issuer: str) -> dict[str, Any]:
    """Checks a token's signature, issuer, audience and times (RFC 8725); returns its claims.

    Args:
        token: the bearer token, a JWT.
        key: the public key that the token names.
        issuer: the name that the token must carry as `iss`.

    Raises:
        UnauthenticatedError: a check failed.
    """
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=names.TOKEN_AUDIENCE,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except InvalidTokenError as error:
        raise UnauthenticatedError(f"the token is not valid: {error}") from error
    except PyJWTError as error:
        raise UnauthenticatedError("the token cannot be verified") from error
    return claims


def pod_of(claims: Mapping[str, Any]) -> PodIdentity | None:
    """Returns the pod to which a token's verified claims are bound; None if they name only a service account."""
    bound = claims.get("kubernetes.io")
    pod = bound.get("pod") if isinstance(bound, dict) else None
    if not isinstance(bound, dict) or not isinstance(pod, dict):
        return None
    values = (bound.get("namespace"), pod.get("name"), pod.get("uid"))
    namespace, name, uid = (value if isinstance(value, str) else "" for value in values)
    if not (namespace and name and uid):
        return None
    return PodIdentity(namespace, name, uid, float(claims["exp"]))


def _key_id(token: str) -> str:
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except PyJWTError as error:
        raise UnauthenticatedError("the token is no JWT") from error
    return key_id if isinstance(key_id, str) else ""


PATIENCE_SECONDS = 1.0
"""The most seconds to wait for a fetch of keys if the token's key is known; the fetch can only show that it was
withdrawn.
"""


class PodAuthenticator:
    """Authenticates pods by their tokens in the event loop of one worker; a thread fetches the issuer's keys."""

    def __init__(self, tokens: PodTokens) -> None:
        self._tokens = tokens
        self._thread = ThreadPoolExecutor(1, "fetch-keys")
        self._fetching: asyncio.Future[None] | None = None

    async def __call__(self, authorization: str | None) -> PodIdentity:
        """Returns the pod that sent an Authorization header.

        Args:
            authorization: the header's value; None if there is none.

        Raises:
            UnauthenticatedError: the header has no token, or its token is not valid.
            IdentityUnavailableError: there are no keys yet.
        """
        token = bearer_token(authorization)
        pod = self._tokens.verified_pod(token)
        if pod is None:
            if self._tokens.wants_keys(token):
                await self._fetch_keys(PATIENCE_SECONDS if self._tokens.has_key(token) else None)
            pod = self._tokens.verify(token)
        return pod

    def close(self) -> None:
        """Ends the thread that fetches keys, without waiting for a fetch that runs; drops one that has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _fetch_keys(self, seconds: float | None) -> None:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().run_in_executor(self._thread, self._tokens.fetch_keys)
        await asyncio.wait({self._fetching}, timeout=seconds)
