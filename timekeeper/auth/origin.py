"""The address that a request came from, also where a proxy stands in between."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HOPS = 8
"""Addresses of a header that are looked at, from its end: a proxy of ours adds one, and the rest is anybody's text."""


def origin_of(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """The last address that no trusted proxy has, of those that a request came through.

    A proxy that is trusted writes at the end of `X-Forwarded-For` whom it was asked by; what stands before that may be
    of the client's invention. A connection from anybody else counts as its own address, whatever its headers say.

    Args:
        peer: the address that the connection comes from.
        forwarded: the header `X-Forwarded-For`, all its lines joined by commas; empty where there is none.
        trusted: the networks of the proxies.
    """
    origin = peer
    for hop in reversed(forwarded.rsplit(",", MOST_HOPS)[-MOST_HOPS:]):
        if not _among(origin, trusted):
            break
        address = _address(hop)
        if address is None:
            break
        origin = address
    return origin


def _among(text: str, networks: Sequence[Network]) -> bool:
    address = _address(text)
    return address is not None and any(ipaddress.ip_address(address) in network for network in networks)


def _address(text: str) -> str | None:
    try:
        found = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
