from __future__ import annotations

import time
from typing import Any

import jwt
import pytest

from tests.support.tokens import TokenSigner
from timekeeper.auth.access_control import IdentityUnavailableError, UnauthenticatedError
from timekeeper.auth.signed_tokens import Issuer, KeySet, PodIdentity, PodTokens

SIGNER = TokenSigner()
ELLIPTIC = TokenSigner("key-2", "ES256")
STRANGER = TokenSigner()
"""Signs with a key of its own under the id of a known one."""


def tokens_of(*signers: TokenSigner, clock: Any = time.time, max_cached: int = 100) -> PodTokens:
    keys = KeySet(lambda: Issuer(SIGNER.issuer, {"keys": [signer.public_key() for signer in signers]}), lambda: 0.0)
    keys.refresh()
    return PodTokens(keys, clock, max_cached)


@pytest.mark.parametrize("signer", [SIGNER, ELLIPTIC], ids=["RS256", "ES256"])
def test_a_projected_token_names_its_pod(signer: TokenSigner) -> None:
    token = signer.pod("team-a", "train-0", "uid-1", exp=int(time.time()) + 60)
    identity = tokens_of(SIGNER, ELLIPTIC).verify(token)
    assert (identity.namespace, identity.pod, identity.uid) == ("team-a", "train-0", "uid-1")


def unsigned() -> str:
    return jwt.encode(SIGNER.claims("x"), None, algorithm="none", headers={"kid": SIGNER.key_id})


def signed_with_the_public_key_as_a_shared_secret() -> str:
    return jwt.encode(SIGNER.claims("x"), SIGNER.public_key()["n"], algorithm="HS256", headers={"kid": SIGNER.key_id})


def with_changed_claims() -> str:
    header, _, signature = SIGNER.pod("team-a", "train-0", "uid-1").split(".")
    _, claims, _ = STRANGER.pod("team-b", "other", "uid-2").split(".")
    return f"{header}.{claims}.{signature}"


NOW = int(time.time())
REFUSED = {
    "signed with another key under a known id": STRANGER.pod("team-a", "train-0", "uid-1"),
    "under an unknown key id": TokenSigner("key-9", "ES256").pod("team-a", "train-0", "uid-1"),
    "without a key id": jwt.encode(SIGNER.claims("x"), SIGNER.private_key, algorithm="RS256"),
    "with the signature of other claims": with_changed_claims(),
    "unsigned": unsigned(),
    "signed with a shared secret": signed_with_the_public_key_as_a_shared_secret(),
    "expired": SIGNER.pod("team-a", "train-0", "uid-1", exp=NOW - 60),
    "without an end": SIGNER.pod("team-a", "train-0", "uid-1", exp=None),
    "not yet valid": SIGNER.pod("team-a", "train-0", "uid-1", nbf=NOW + 36_000),
    "issued in the future": SIGNER.pod("team-a", "train-0", "uid-1", iat=NOW + 36_000),
    "for the API server": SIGNER.pod("team-a", "train-0", "uid-1", aud=["https://kubernetes.default.svc"]),
    "for nobody": SIGNER.pod("team-a", "train-0", "uid-1", aud=None),
    "of another issuer": SIGNER.pod("team-a", "train-0", "uid-1", iss="https://other.example"),
    "of an account, not a pod": SIGNER.person("system:serviceaccount:team-a:default"),
    "bound to a pod without a uid": SIGNER.pod("team-a", "train-0", ""),
    "bound to nothing readable": SIGNER.sign(SIGNER.claims("x", **{"kubernetes.io": ["pod"]})),
    "no JWT": "not-a-token",
    "no JWT, but dots": "a.b.c",
    "an empty text": "",
}


@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED.keys())
def test_a_token_is_refused_that_is(token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        tokens_of(SIGNER, ELLIPTIC).verify(token)


def test_a_verified_token_is_known_until_it_expires() -> None:
    now = time.time()
    clock = iter([now, now + 50, now + 61])
    tokens = tokens_of(SIGNER, clock=lambda: next(clock))
    token = SIGNER.pod("team-a", "train-0", "uid-1", exp=int(now) + 60)
    assert tokens.verified_pod(token) is None
    identity = tokens.verify(token)
    assert tokens.verified_pod(token) == identity
    assert tokens.verified_pod(token) is None


def test_a_refused_token_is_not_known() -> None:
    tokens = tokens_of(SIGNER)
    forged = STRANGER.pod("team-a", "train-0", "uid-1")
    with pytest.raises(UnauthenticatedError):
        tokens.verify(forged)
    assert tokens.verified_pod(forged) is None


def test_the_oldest_token_falls_out_of_a_full_cache() -> None:
    tokens = tokens_of(SIGNER, max_cached=2)
    signed = [SIGNER.pod("team-a", f"train-{number}", f"uid-{number}") for number in range(3)]
    for token in signed:
        tokens.verify(token)
    assert [isinstance(tokens.verified_pod(token), PodIdentity) for token in signed] == [False, True, True]


def test_without_keys_a_token_is_neither_accepted_nor_refused() -> None:
    def unreachable() -> Issuer:
        raise OSError("no route")

    keys = KeySet(unreachable, lambda: 0.0)
    keys.refresh()
    with pytest.raises(IdentityUnavailableError):
        PodTokens(keys, time.time).verify(SIGNER.pod("team-a", "train-0", "uid-1"))
