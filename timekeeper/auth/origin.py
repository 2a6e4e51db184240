"""Finds the address that a request came from, where trusted proxies stand between."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HOPS = 8
"""The most addresses read from a header, from its end: each proxy adds one, and the client may invent the others."""


def origin_of(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Returns the last address on a request's way that is not a trusted proxy's.

    A trusted proxy appends its client's address to `X-Forwarded-For`; the client may have invented all before that. A
    connection from any other peer counts as the peer's own address, whatever its headers say.

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
