"""Loopback ports for the servers that tests start: no two test processes of the machine get the same ports.

A port is chosen some time before its server listens there, and a server that was killed listens there again later. Each
process therefore has its own range of ports. It claims the range by a name in the abstract namespace of Unix sockets:
like a port, such a name is known in one network namespace, and gone with its process (unix(7)).
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from functools import cache

FIRST, SIZE, RANGES = 10240, 64, 74
BUS = 10_000
"""The distance from a node's port to the port of its Redis Cluster's bus."""


def free_port() -> int:
    """Returns a port without a listener; the port that the bus of a Redis Cluster would then use has none, either.

    Both are below 32768, where Linux by default takes no port for outgoing connections.
    """
    return next(port for port in _own_range() if _is_free(port) and _is_free(port + BUS))


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports without a listener, at most SIZE."""
    return [free_port() for _ in range(count)]


@cache
def _own_range() -> Iterator[int]:
    """Claims a range of ports for this process; returns an endless iterator over its ports.

    Raises:
        RuntimeError: other processes have claimed all ranges.
    """
    for number in range(RANGES):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0fairgpu-test-ports-{number}")
        except OSError:
            claim.close()
            continue
        claim.detach()  # the kernel closes it when the process ends
        first = FIRST + number * SIZE
        return itertools.cycle(range(first, first + SIZE))
    raise RuntimeError(f"{RANGES} test processes have all the ports there are for tests: wait until some have ended")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: what is left of closed connections is in no server's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
