from __future__ import annotations

import pytest

from timekeeper.auth.access_control import MAX_TOKEN_BYTES, UnauthenticatedError, bearer_token, digest


@pytest.mark.parametrize("header", ["Bearer abc.def-_~+/=", "bearer abc.def-_~+/=", "Bearer  abc.def-_~+/="])
def test_the_token_is_what_follows_the_scheme(header: str) -> None:
    assert bearer_token(header) == "abc.def-_~+/="


REFUSED = {
    "absent": None,
    "empty": "",
    "no token": "Bearer",
    "blank token": "Bearer ",
    "another scheme": "Basic dXNlcjpwYXNz",
    "two words": "Bearer a b",
    "a list": "Bearer a,b",
    "not ASCII": "Bearer ä",
    "too long": f"Bearer {'a' * (MAX_TOKEN_BYTES + 1)}",
}


@pytest.mark.parametrize("header", REFUSED.values(), ids=REFUSED.keys())
def test_a_header_without_a_token_is_refused_and_not_repeated(header: str | None) -> None:
    with pytest.raises(UnauthenticatedError) as refusal:
        bearer_token(header)
    assert "dXNlcjpwYXNz" not in str(refusal.value)


def test_a_cache_key_does_not_hold_the_token() -> None:
    assert b"secret" not in digest("secret")
    assert digest("secret") != digest("secres")
