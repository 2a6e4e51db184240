"""Processes that share a listener share its connections; here they share an event loop, too."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from fairgpu.serving.accepting import Acceptor, Serve, address_of, batch
from fairgpu.serving.handshakes import Handshakes
from tests.support.waiting import LIMIT_S

CLIENTS = 8
CROWD = 500


async def spread(first_holds: int) -> tuple[int, int]:
    """Returns the number of connections that each of two acceptors takes, where the first has some already."""
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
            held = lambda mine=mine, more=more: len(mine) + more  # noqa: E731 - bound to its own list
            acceptors.append(Acceptor(loop, its, keeping(mine), held, Handshakes(CLIENTS, CLIENTS)))
        # All of them wait already when the first is taken.
        clients = [socket.create_connection(listener.getsockname()) for _ in range(CLIENTS)]
        for acceptor in acceptors:
            acceptor.start()
        async with asyncio.timeout(LIMIT_S):
            await complete.wait()
        for acceptor in acceptors:
            acceptor.close()
        for connection in (*clients, *taken[0], *taken[1]):
            connection.close()
    return len(taken[0]), len(taken[1])


def test_connections_that_wait_together_are_shared_evenly() -> None:
    first, second = uvloop.run(spread(first_holds=0))
    assert abs(first - second) <= 2


def test_a_worker_that_holds_fewer_takes_the_next() -> None:
    first, second = uvloop.run(spread(first_holds=6))
    assert second > first


async def turns_for_a_crowd() -> int:
    """Returns the number of times that an acceptor waits until it has taken a crowd of silent clients."""
    loop = asyncio.get_running_loop()
    taken: list[socket.socket] = []
    turns = 0
    complete = asyncio.Event()
    handshakes = Handshakes(2 * CROWD, 2 * CROWD)

    def held() -> int:
        nonlocal turns
        turns += 1
        return 0

    async def serve(connection: socket.socket) -> None:
        taken.append(connection)
        if len(taken) == CROWD:
            complete.set()
        await asyncio.Event().wait()

    with socket.create_server(("127.0.0.1", 0), backlog=CROWD) as listener:
        listener.setblocking(False)
        acceptor = Acceptor(loop, listener, serve, held, handshakes)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
        acceptor.start()
        async with asyncio.timeout(LIMIT_S):
            await complete.wait()
        acceptor.close()
        while handshakes.end_one():
            pass
        for connection in (*clients, *taken):
            connection.close()
    return turns


def test_a_crowd_that_says_nothing_is_taken_in_a_few_turns() -> None:
    assert uvloop.run(turns_for_a_crowd()) < 40


def test_a_batch_doubles_where_patience_does_not_empty_the_queue() -> None:
    assert [batch(turns) for turns in range(16)] == [1] * 16
    assert [batch(turns) for turns in (16, 17, 18, 24, 25, 10_000)] == [1, 2, 4, 256, 256, 256]


async def survivors(addresses: list[str], limit: int, limit_of_address: int) -> list[int]:
    """Returns the handshakes from these addresses, begun in this order, that are under way in the end."""
    handshakes = Handshakes(limit, limit_of_address)
    forever = asyncio.Event()

    async def hesitate() -> None:
        await forever.wait()

    begun = []
    for address in addresses:
        begun.append(asyncio.create_task(hesitate()))
        handshakes.add(begun[-1], address)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    alive = [number for number, handshake in enumerate(begun) if not handshake.cancelling()]
    assert len(handshakes) == len(alive) <= limit
    forever.set()
    await asyncio.gather(*begun, return_exceptions=True)
    assert len(handshakes) == 0
    return alive


def test_the_oldest_handshake_of_an_address_makes_room_for_its_next() -> None:
    assert asyncio.run(survivors(["a", "b", "a", "a"], limit=9, limit_of_address=2)) == [1, 2, 3]


def test_where_all_places_are_taken_the_address_that_has_most_makes_room() -> None:
    assert asyncio.run(survivors(["b", "a", "a", "a", "c", "d"], limit=4, limit_of_address=9)) == [0, 3, 4, 5]


def test_connections_from_one_network_of_ipv6_count_as_one_clients() -> None:
    peers = [("2001:db8:1:2::1", 4000, 0, 0), ("2001:db8:1:2:ffff::9", 4001, 0, 0), ("2001:db8:1:3::1", 4000, 0, 0)]
    first, second, other = map(address_of, peers)
    assert first == second != other
    assert address_of(("::ffff:10.0.0.9", 4000, 0, 0)) == address_of(("10.0.0.9", 4000))
    assert address_of("") == ""
