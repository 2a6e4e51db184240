from __future__ import annotations

import time

import jwt
import pytest

from tests.support.tokens import TokenSigner
from timekeeper.auth.signed_tokens import Issuer, KeySet
from timekeeper.auth.token_review import is_forged

CLUSTER = TokenSigner("key-1", "ES256", "https://kubernetes.default.svc")
STRANGER = TokenSigner("key-1", "ES256", CLUSTER.issuer)
ELSEWHERE = TokenSigner("key-1", "ES256", "https://login.example.org")


def keys() -> KeySet:
    return KeySet(lambda: Issuer(CLUSTER.issuer, CLUSTER.key_set()), lambda: 0.0)


FORGED = {
    "signed with another key": STRANGER.person("admin"),
    "of an unknown key": TokenSigner("key-9", "ES256", CLUSTER.issuer).person("admin"),
    "expired": CLUSTER.person("admin", exp=int(time.time()) - 60),
    "without an end": CLUSTER.person("admin", exp=None),
    "unsigned": jwt.encode(CLUSTER.claims("admin"), None, algorithm="none", headers={"kid": "key-1"}),
}
FOR_THE_API_SERVER_TO_JUDGE = {
    "good": CLUSTER.person("admin"),
    "good, for the API server itself": CLUSTER.person("admin", aud=["https://kubernetes.default.svc"]),
    "of another issuer": ELSEWHERE.person("admin"),
    "no JWT": "a-static-token",
}


@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED.keys())
def test_a_token_of_the_cluster_is_refused_without_asking_that_is(token: str) -> None:
    assert is_forged(token, keys())


@pytest.mark.parametrize("token", FOR_THE_API_SERVER_TO_JUDGE.values(), ids=FOR_THE_API_SERVER_TO_JUDGE.keys())
def test_the_api_server_is_asked_about_a_token_that_is(token: str) -> None:
    assert not is_forged(token, keys())


def test_without_keys_the_api_server_judges_every_token() -> None:
    def unreachable() -> Issuer:
        raise OSError("no route")

    assert not is_forged(STRANGER.person("admin"), KeySet(unreachable, lambda: 0.0))
