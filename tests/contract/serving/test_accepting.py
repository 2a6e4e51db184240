"""Processes that share a listener share its connections; here they share an event loop, too."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from fairgpu.serving.accepting import Acceptor, Serve

CLIENTS = 8
LIMIT_SECONDS = 20.0


async def spread(first_holds: int) -> tuple[int, int]:
    """How many connections each of two acceptors takes, where the first has so many already."""
    loop = asyncio.get_running_loop()
    taken: tuple[list[socket.socket], list[socket.socket]] = ([], [])
    complete = asyncio.Event()

    def keeping(mine: list[socket.socket]) -> Serve:
        async def serve(connection: socket.socket) -> None:
            mine.append(connection)
            if sum(map(len, taken)) == CLIENTS:
                complete.set()

        return serve

    with socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as listener, listener.dup() as same:
        acceptors = []
        for its, mine, more in zip((listener, same), taken, (first_holds, 0), strict=True):
            its.setblocking(False)
            acceptors.append(Acceptor(loop, its, keeping(mine), lambda mine=mine, more=more: len(mine) + more))
        # All of them wait already when the first is taken.
        clients = [socket.create_connection(listener.getsockname()) for _ in range(CLIENTS)]
        for acceptor in acceptors:
            acceptor.start()
        async with asyncio.timeout(LIMIT_SECONDS):
            await complete.wait()
        for acceptor in acceptors:
            acceptor.close()
        for connection in (*clients, *taken[0], *taken[1]):
            connection.close()
    return len(taken[0]), len(taken[1])


def test_connections_that_wait_together_are_shared_evenly() -> None:
    first, second = uvloop.run(spread(first_holds=0))
    assert abs(first - second) <= 2


def test_who_holds_fewer_takes_the_next() -> None:
    first, second = uvloop.run(spread(first_holds=6))
    assert second > first
