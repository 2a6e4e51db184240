"""A request counts against the client's bucket, also behind a trusted proxy."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.api.application import MOST_HOPS, behind_proxies, origin_of

TRUSTED = tuple(map(ipaddress.ip_network, ("10.0.0.0/24", "fd00::/64")))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("10.0.0.9", "", "10.0.0.9"),
        ("10.0.0.9", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.9", "1.2.3.4, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.9", "198.51.100.1, 10.0.0.7", "198.51.100.1"),
        ("::ffff:10.0.0.9", "198.51.100.1", "198.51.100.1"),
        ("::ffff:203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("fd00::7", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.9", "198.51.100.1, garbage", "10.0.0.9"),
        ("10.0.0.9", "198.51.100.1,", "10.0.0.9"),
        ("", "198.51.100.1", ""),
        ("10.0.0.9", ", ".join(["198.51.100.1", *["10.0.0.7"] * MOST_HOPS]), "10.0.0.7"),
    ],
)
def test_the_origin_is_the_last_address_that_no_trusted_proxy_has(peer: str, forwarded: str, expected: str) -> None:
    assert origin_of(peer, forwarded, TRUSTED) == expected


@given(st.text(max_size=200))
def test_a_strangers_own_address_counts_whatever_they_send(forwarded: str) -> None:
    assert origin_of("203.0.113.5", forwarded, TRUSTED) == "203.0.113.5"
    assert origin_of("10.0.0.9", f"{forwarded},203.0.113.5", TRUSTED) == "203.0.113.5"
    assert origin_of("10.0.0.9", "203.0.113.5", ()) == "10.0.0.9"


def test_a_request_is_served_as_from_the_client_behind_the_proxy() -> None:
    headers = ((b"x-forwarded-for", b"1.2.3.4"), (b"accept", b"*/*"), (b"x-forwarded-for", b"198.51.100.1"))
    scope = {"type": "http", "client": ("10.0.0.9", 40000), "headers": headers}
    assert behind_proxies(scope, TRUSTED) == {**scope, "client": ("198.51.100.1", 40000)}
    assert behind_proxies({"type": "http", "client": None}, TRUSTED)["client"] == ("", 0)
