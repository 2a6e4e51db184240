"""The public keys of an issuer of tokens, fetched again when a token names an unknown key.

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

from timekeeper.auth.access_control import IdentityUnavailableError

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""The accepted signature algorithms, all with a public key: a shared secret (HS256) in a public set proves nothing."""

MIN_REFRESH_SECONDS = 10.0
"""The shortest time between two fetches, however many forged tokens name invented keys."""
FIRST_RETRY_SECONDS = 1.0
"""The time between fetches while there are no keys, and no token can be verified."""
MAX_AGE_SECONDS = 300.0
"""The time after which keys are fetched again: a withdrawn key is trusted no longer, if the issuer answers."""

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
        """Makes an empty set; `fetch` may raise OSError, RuntimeError or ValueError, `clock` is monotonic seconds."""
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
        """Returns the public key with this id; None where the issuer has none.

        Raises:
            IdentityUnavailableError: no keys could be fetched yet.
        """
        if self._fetched_at is None:
            raise IdentityUnavailableError("the keys that sign tokens could not be fetched yet")
        return self._keys.get(key_id)

    def knows(self, key_id: str) -> bool:
        """Returns whether the last fetch returned a key with this id."""
        return key_id in self._keys

    def wants_refresh(self, key_id: str) -> bool:
        """Returns whether to fetch the keys again before a key is looked up.

        That is so where the key is unknown or the keys are old, and the last fetch is some time ago.

        Args:
            key_id: the id that the token names.
        """
        now = self._clock()
        if self._tried_lately(now):
            return False
        return key_id not in self._keys or self._fetched_at is None or now - self._fetched_at >= MAX_AGE_SECONDS

    def refresh(self) -> None:
        """Fetches the issuer's keys, unless that was tried just now; if it fails, the previous keys stay in use."""
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
    """Returns, by id, the keys of a JSON Web Key Set that sign with an allowed algorithm.

    A key without an id is left out.

    Raises:
        PyJWTError: the document contains no usable key.
    """
    return {
        key.key_id: key
        for key in PyJWKSet.from_dict(dict(document)).keys
        if key.key_id and key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }
