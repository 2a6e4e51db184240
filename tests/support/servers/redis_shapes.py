"""The store in its other shapes, made of real servers on loopback: a master with Sentinels, and a Redis Cluster."""

from __future__ import annotations

import contextlib
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import redis

from tests.support.ports import free_port
from tests.support.processes import kill
from tests.support.servers.redis_binaries import chosen
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until
from timekeeper.settings import ClusterSettings, RedisSettings, SentinelSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MASTER = "books"
SLOTS = 16384
PATIENCE_S = 20.0
AGAIN_S = 7.0
CALM_MS = 60_000
"""The time after which Sentinels replace a silent server if no test kills one: a busy machine is silent for seconds."""


class SentinelShape:
    """A master, its replicas, and the Sentinels that watch them."""

    def __init__(
        self, folder: Path, *settings: str, replicas: int = 1, sentinels: int = 1, watchful: bool = False
    ) -> None:
        """`settings` are the servers' further options; only watchful Sentinels replace a master that is killed."""
        self.folder = folder
        self._watchful = watchful
        self.servers = [RedisServer(_made(folder / "server-0"), *settings)]
        follow = ("--replicaof", "127.0.0.1", str(self.servers[0].port))
        for number in range(1, replicas + 1):
            self.servers.append(RedisServer(_made(folder / f"server-{number}"), *follow, *settings))
        self.ports = [free_port() for _ in range(sentinels)]
        self._ending = ExitStack()

    @property
    def settings(self) -> RedisSettings:
        nodes = tuple(f"127.0.0.1:{port}" for port in self.ports)
        return RedisSettings(sentinel=SentinelSettings(nodes=nodes, master=MASTER), timeout_seconds=10)

    def __enter__(self) -> Self:
        for server in self.servers:
            self._ending.enter_context(server)
        for port in self.ports:
            self._start_sentinel(port)
        wait_until(self.is_whole, "Sentinels, replicas and master know each other")
        for port in () if self._watchful else self.ports:
            with redis.Redis(port=port, socket_timeout=PATIENCE_S) as sentinel:
                sentinel.sentinel_set(MASTER, "down-after-milliseconds", CALM_MS)
        wait_until(self.is_whole, "no failover has begun meanwhile")
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def master(self) -> RedisServer:
        """Returns the server that the first Sentinel names as the master."""
        with redis.Redis(port=self.ports[0], socket_timeout=PATIENCE_S) as sentinel:
            port = sentinel.sentinel_masters()[MASTER]["port"]
        return next(server for server in self.servers if server.port == port)

    def promote(self) -> RedisServer:
        """Makes a replica the master while the old master runs; returns the old one once the Sentinels agree."""
        old = self.master()

        def promoted() -> bool:
            return self.master() is not old

        with redis.Redis(port=self.ports[0], socket_timeout=PATIENCE_S) as sentinel:
            wait_until(lambda: _accepted(lambda: sentinel.sentinel_failover(MASTER)), "a failover begins")
        wait_until(promoted, "a replica is promoted")
        return old

    def is_whole(self) -> bool:
        """Whether every Sentinel knows the others, and every replica follows the master."""
        try:
            for port in self.ports:
                with redis.Redis(port=port, socket_timeout=PATIENCE_S) as sentinel:
                    found = sentinel.sentinel_masters()[MASTER]
                others = (found["num-slaves"], found["num-other-sentinels"])
                if others != (len(self.servers) - 1, len(self.ports) - 1) or "s_down" in found["flags"]:
                    return False
            with self.master().client(socket_timeout=PATIENCE_S) as client:
                shown: Any = client.info("replication")
            online = [shown.get(f"slave{number}", {}).get("state") for number in range(len(self.servers) - 1)]
            return shown["role"] == "master" and set(online) <= {"online"}
        except (redis.RedisError, KeyError):
            return False

    def _start_sentinel(self, port: int) -> None:
        file = self.folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.servers[0].port} {len(self.ports) // 2 + 1}\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 3000\n"
        )
        with (self.folder / f"sentinel-{port}.log").open("ab") as log:
            process = subprocess.Popen([chosen(), str(file), "--sentinel"], stdout=log, stderr=log)
        self._ending.callback(kill, process)


class ClusterShape:
    """A Redis Cluster: three primaries with a replica each by default."""

    def __init__(
        self, folder: Path, *settings: str, primaries: int = 3, replicas: int = 1, watchful: bool = False
    ) -> None:
        """`settings` are the nodes' further options; only watchful nodes replace a primary that is killed."""
        self._watchful = watchful
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *settings)
        self.servers = [
            RedisServer(_made(folder / f"node-{number}"), *options) for number in range(primaries * (1 + replicas))
        ]
        self._primaries = primaries
        self._ending = ExitStack()

    @property
    def settings(self) -> RedisSettings:
        nodes = tuple(f"127.0.0.1:{server.port}" for server in self.servers)
        return RedisSettings(cluster=ClusterSettings(nodes=nodes), timeout_seconds=10)

    def __enter__(self) -> Self:
        for server in self.servers:
            self._ending.enter_context(server)
        self._join()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def promote(self, key: str) -> RedisServer:
        """Makes a replica the primary of a key's slot while the old primary runs; returns the old one."""
        old = self.primary_of(key)
        with old.client(socket_timeout=PATIENCE_S) as client:
            name = client.execute_command("CLUSTER MYID").decode()
        replica = next(server for server in self.servers if _follows(server, name))
        asked_at = 0.0

        def promoted() -> bool:
            nonlocal asked_at
            if self.primary_of(key) is not old:
                return True
            # A replica that could not take over within 5 seconds gives up, and has to be asked again.
            if time.monotonic() - asked_at > AGAIN_S and _accepted(lambda: client.execute_command("CLUSTER FAILOVER")):
                asked_at = time.monotonic()
            return False

        with replica.client(socket_timeout=PATIENCE_S) as client:
            wait_until(promoted, "a replica is promoted")
        return old

    def primary_of(self, key: str) -> RedisServer:
        """Returns the node that takes writes to a key."""
        for server in self.servers:
            with contextlib.suppress(redis.RedisError), server.client(socket_timeout=PATIENCE_S) as client:
                slot = client.execute_command("CLUSTER KEYSLOT", key)
                for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return next(server for server in self.servers if server.port == primary[1])
        raise RuntimeError("no node answers")

    def is_whole(self) -> bool:
        """Returns whether every node finds all slots served, and every replica follows its primary."""
        return all(_is_whole(server) for server in self.servers)

    def _join(self) -> None:
        clients = [server.client(socket_timeout=PATIENCE_S) for server in self.servers]
        share = SLOTS // self._primaries + 1
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER MEET", "127.0.0.1", self.servers[0].port)
            if number < self._primaries:
                slots = range(number * share, min((number + 1) * share, SLOTS))
                client.execute_command("CLUSTER ADDSLOTS", *slots)
        for number, client in enumerate(clients[self._primaries :]):
            name = clients[number % self._primaries].execute_command("CLUSTER MYID").decode()

            def follow(client: redis.Redis = client, name: str = name) -> bool:
                return _accepted(lambda: client.execute_command("CLUSTER REPLICATE", name))

            wait_until(follow, "the nodes have heard of each other")
        wait_until(self.is_whole, "the cluster is up")
        for client in clients:
            if not self._watchful:
                client.config_set("cluster-node-timeout", CALM_MS)
            client.close()
        wait_until(self.is_whole, "no failover has begun meanwhile")


def _is_whole(server: RedisServer) -> bool:
    try:
        with server.client(socket_timeout=PATIENCE_S) as client:
            shown: Any = client.info("replication")
            state = client.execute_command("CLUSTER INFO")
    except redis.RedisError:
        return False
    found = state if isinstance(state, dict) else dict(line.split(":") for line in state.decode().split())
    follows = shown["role"] == "master" or shown["master_link_status"] == "up"
    return str(found["cluster_state"]) == "ok" and follows


def _follows(server: RedisServer, name: str) -> bool:
    try:
        with server.client(socket_timeout=PATIENCE_S) as client:
            nodes: Any = client.execute_command("CLUSTER NODES")
    except redis.RedisError:
        return False
    if isinstance(nodes, dict):
        return any("myself" in node["flags"] and node["master_id"] == name for node in nodes.values())
    return any("myself" in line and name in line.split()[3] for line in nodes.decode().splitlines())


def _accepted(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except redis.ResponseError:
        return False
    return True


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
