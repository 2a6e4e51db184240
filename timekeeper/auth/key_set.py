"""The public keys with which an issuer signs tokens, fetched anew when a token names one that is not known.

A JSON Web Key Set is RFC 7517's; the API server serves its own at /openid/v1/jwks
(https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import structlog
from jwt import PyJWK, PyJWKSet
from jwt.exceptions import PyJWTError

from timekeeper.auth.callers import IdentityUnavailableError

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures with a public key. A shared secret (HS256) is no proof from a set that everybody may read."""

MIN_REFRESH_SECONDS = 10.0
"""Forged tokens with invented key ids cause at most one fetch in this time."""
FIRST_RETRY_SECONDS = 1.0
"""The pause between fetches while there are no keys: shorter, as no token can be verified until then."""
MAX_AGE_SECONDS = 300.0
"""A key that the issuer has withdrawn is trusted at most this long, while the issuer can be reached."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer of tokens: the name in their `iss`, and its key set as a JSON object."""

    name: str
    key_set: Mapping[str, Any]


class KeySet:
    """The keys of one issuer. Safe to use from several threads; only `refresh` does I/O."""

    def __init__(self, fetch: Callable[[], Issuer], clock: Callable[[], float]) -> None:
        """`fetch` may raise OSError, RuntimeError or ValueError; `clock` is a monotonic one, in seconds."""
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
        """The name that tokens must carry; empty until keys were fetched."""
        return self._issuer

    def get(self, key_id: str) -> PyJWK | None:
        """The key of that id, if it is known.

        Raises:
            IdentityUnavailableError: no keys could be fetched yet.
        """
        if self._fetched_at is None:
            raise IdentityUnavailableError("the keys that sign tokens could not be fetched yet")
        return self._keys.get(key_id)

    def knows(self, key_id: str) -> bool:
        """Whether the key of that id was among those fetched last."""
        return key_id in self._keys

    def wants_refresh(self, key_id: str) -> bool:
        """Whether to fetch before looking for a key: it is unknown or all are old, and the last try is past."""
        now = self._clock()
        if self._tried_lately(now):
            return False
        return key_id not in self._keys or self._fetched_at is None or now - self._fetched_at >= MAX_AGE_SECONDS

    def refresh(self) -> None:
        """Fetches the keys, unless that was just tried. Where it fails, those known before stay in use."""
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
    """The keys of a set that sign with an allowed algorithm, by id; keys without an id cannot be named by a token.

    Raises:
        PyJWTError: the document holds no key that can be used.
    """
    return {
        key.key_id: key
        for key in PyJWKSet.from_dict(dict(document)).keys
        if key.key_id and key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }
