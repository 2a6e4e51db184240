from __future__ import annotations

import pytest

from tests.support.tokens import TokenSigner
from timekeeper.auth.signed_tokens import (
    FIRST_RETRY_SECONDS,
    MAX_AGE_SECONDS,
    MIN_REFRESH_SECONDS,
    Issuer,
    KeySet,
    usable_keys,
)

FIRST = TokenSigner("first")
SECOND = TokenSigner("second", "ES256")


class Source:
    """An issuer whose keys change, and a clock that stands still until it is moved."""

    def __init__(self, *signers: TokenSigner) -> None:
        self.signers = signers
        self.reachable = True
        self.fetches = 0
        self.now = 1000.0
        self.keys = KeySet(self.fetch, lambda: self.now)
        self.keys.refresh()

    def fetch(self) -> Issuer:
        self.fetches += 1
        if not self.reachable:
            raise OSError("no route")
        return Issuer("issuer", {"keys": [signer.public_key() for signer in self.signers]})


def test_an_unknown_key_id_asks_for_a_refresh_that_finds_it() -> None:
    source = Source(FIRST)
    source.signers = (FIRST, SECOND)
    source.now += MIN_REFRESH_SECONDS
    assert source.keys.wants_refresh("second")
    source.keys.refresh()
    assert source.keys.get("second") is not None


def test_invented_key_ids_cause_one_fetch_in_the_shortest_interval() -> None:
    source = Source(FIRST)
    source.now += MIN_REFRESH_SECONDS
    for number in range(100):
        if source.keys.wants_refresh(f"invented-{number}"):
            source.keys.refresh()
    assert source.fetches == 2


def test_a_withdrawn_key_is_forgotten_once_the_set_is_old() -> None:
    source = Source(FIRST, SECOND)
    source.signers = (FIRST,)
    assert not source.keys.wants_refresh("second")
    source.now += MAX_AGE_SECONDS
    assert source.keys.wants_refresh("second")
    source.keys.refresh()
    assert source.keys.get("second") is None


def test_known_keys_stay_in_use_while_the_issuer_is_away() -> None:
    source = Source(FIRST)
    source.reachable = False
    source.now += MAX_AGE_SECONDS
    source.keys.refresh()
    assert source.keys.get("first") is not None
    assert source.keys.issuer == "issuer"


def test_before_the_first_keys_the_issuer_is_tried_again_soon() -> None:
    source = Source()
    assert source.fetches == 1
    source.signers = (FIRST,)
    source.now += FIRST_RETRY_SECONDS
    assert source.keys.wants_refresh("first")
    source.keys.refresh()
    assert source.keys.get("first") is not None


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "kid": "shared", "alg": "HS256", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
        {**FIRST.public_key(), "use": "enc", "kid": "encrypts"},
        {name: value for name, value in FIRST.public_key().items() if name != "kid"},
    ],
    ids=["a shared secret", "a key for encryption", "a key without an id"],
)
def test_a_key_that_may_not_sign_is_left_out(key: dict[str, str]) -> None:
    assert set(usable_keys({"keys": [key, SECOND.public_key()]})) == {"second"}
