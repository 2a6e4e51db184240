"""The addresses on which a server listens, and the addresses of its clients."""

from __future__ import annotations

import ipaddress
import socket

FAMILIES = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - a pod's address is not known before
"""The address that stands for all addresses of this machine, keyed by address family."""


def every_address() -> tuple[str, ...]:
    """Returns the addresses on which a server must listen to be reached at every address of this machine.

    A socket on `::` takes IPv4 as well, unless the kernel has no IPv6 or keeps IPv4 and IPv6 apart
    (net.ipv6.bindv6only).
    """
    try:
        with socket.socket(socket.AF_INET6) as probe:
            is_apart = bool(probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    except OSError:
        return (FAMILIES[socket.AF_INET],)
    return tuple(FAMILIES.values()) if is_apart else (FAMILIES[socket.AF_INET6],)


def plain_address(text: str) -> str:
    """Returns a client's address as the client knows it; a text that is no address stays as it is.

    A socket that listens on `::` shows a client of IPv4 as `::ffff:10.0.0.9`. The result is then `10.0.0.9`.

    Args:
        text: the address as the socket shows it.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def limited_address(text: str) -> str:
    """Returns the text under which a limit counts a client: its IPv4 address, or its IPv6 network of 64 bits.

    An IPv6 client can send from every address of such a network: with a limit for each address, it would have 2**64
    limits. In many clusters, all pods of a node share one such network. A text that is no address stays as it is.

    Args:
        text: the client's address.
    """
    plain = plain_address(text)
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return plain
    if isinstance(address, ipaddress.IPv4Address):
        return plain
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"
