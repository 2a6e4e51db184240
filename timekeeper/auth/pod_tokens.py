"""Authenticates a pod by the token that the kubelet projected into it, without a request to the API server.

A projected token is a JWT (RFC 7519) of the API server with the claim `kubernetes.io` naming namespace, pod and uid
(https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens).
The caller must check that the pod still runs: a signature outlives its pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jwt
from jwt import PyJWK
from jwt.exceptions import InvalidTokenError, PyJWTError

from fairgpu import names
from timekeeper.auth.access_control import ExpiringCache, UnauthenticatedError, bearer_token, digest
from timekeeper.auth.key_set import KeySet

LEEWAY_SECONDS = 10
"""The largest allowed difference between the clocks of the API server and of this machine."""
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
    """Verifies the tokens that the kubelet projects into pods, and caches the verified ones."""

    def __init__(self, keys: KeySet, clock: Callable[[], float], max_cached: int = MAX_CACHED_TOKENS) -> None:
        """Makes an empty cache; `clock` is the wall clock in Unix seconds, by which tokens expire."""
        self._keys = keys
        self._clock = clock
        self._identities: ExpiringCache[bytes, PodIdentity] = ExpiringCache(max_cached)

    def verified_pod(self, token: str) -> PodIdentity | None:
        """Returns the pod of a token that was verified before and has not expired; None for any other token."""
        return self._identities.get(digest(token), self._clock())

    def wants_keys(self, token: str) -> bool:
        """Returns whether the keys should be fetched again before a token is verified.

        Raises:
            UnauthenticatedError: the text is no JWT.
        """
        return self._keys.wants_refresh(_key_id(token))

    def has_key(self, token: str) -> bool:
        """Returns whether the issuer's key that a token names is known.

        Raises:
            UnauthenticatedError: the text is no JWT.
        """
        return self._keys.knows(_key_id(token))

    def fetch_keys(self) -> None:
        """Fetches the issuer's keys; no other method does I/O."""
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
    """Returns the pod to which a token's verified claims are bound; None where they name only a service account."""
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
"""The longest wait for fresh keys when a token's key is known; the fetch would show that the key was withdrawn."""


class PodAuthenticator:
    """Authenticates pods by their tokens in the event loop of one worker; a thread fetches the issuer's keys."""

    def __init__(self, tokens: PodTokens) -> None:
        self._tokens = tokens
        self._thread = ThreadPoolExecutor(1, "fetch-keys")
        self._fetching: asyncio.Future[None] | None = None

    async def __call__(self, authorization: str | None) -> PodIdentity:
        """Returns the pod that sent an Authorization header.

        Raises:
            UnauthenticatedError: the token is not valid.
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
        """Ends the thread that fetches keys; a fetch that has not begun is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _fetch_keys(self, seconds: float | None) -> None:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().run_in_executor(self._thread, self._tokens.fetch_keys)
        await asyncio.wait({self._fetching}, timeout=seconds)
