"""Connects to the store, and asks its servers about themselves: identity, clock, replicas and memory.

Every function that asks raises redis.RedisError if the store does not answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys
from timekeeper.ledger.client import FencingToken, Store
from timekeeper.ledger.redis_cluster import ClusterStore
from timekeeper.settings import CLUSTER_PORT, SENTINEL_PORT, RedisSettings, RedisTLS, address

MOST_MARKS = 100_000
"""The most keys to try until one lies on a given node. A node that takes writes has slots, so few tries suffice."""

Answer = TypeVar("Answer")


def servers_of(client: Store, accounts: Sequence[str] | None = None) -> list[tuple[Store, str]]:
    """Returns, for each server of the store that takes writes, a client of the server and the name of its mark.

    The mark is a key on that server. The function `replicated` writes the mark, to find out whether a replica has all
    earlier writes.

    Args:
        accounts: the accounts whose servers are wanted; None for all servers.
    """
    cluster: Any = client
    if not isinstance(cluster, ClusterStore):
        return [(client, keys.MARK)]
    wanted = None if accounts is None else {cluster.address_of(keys.AccountKeys(name).head) for name in accounts}
    return [
        (server, _mark_at(cluster, address))
        for address, server in cluster.primaries()
        if wanted is None or address in wanted
    ]


def ask_each(client: Store, question: Callable[[redis.Redis], Answer]) -> list[Answer]:
    """Returns the answer of each server of the store that takes writes.

    If a node of a Redis Cluster does not answer, the list of nodes is read anew, and each server is asked once more.

    Args:
        question: gets the client of one server, and returns the server's answer.
    """
    cluster: Any = client
    try:
        return [question(server) for server, _ in servers_of(client)]
    except (redis.ConnectionError, redis.TimeoutError):
        if not isinstance(cluster, ClusterStore):
            raise
        cluster.look_again()
        return [question(server) for server, _ in servers_of(client)]


def identity(client: Store) -> tuple[str, bool]:
    """Returns the ids of the runs of the store's servers as one text, and whether the store has a fencing token.

    The text changes if data may be lost: a restarted server has another run_id, and a promoted replica has another
    run_id and another replication id (https://redis.io/docs/latest/commands/info/).
    """
    return " ".join(ask_each(client, _run_of)), bool(client.exists(keys.BOOK_FENCING_TOKEN))


def store_clock(client: Store) -> Instant:
    """Returns the time by the clock of the store's server; with several servers, the earliest of their times."""
    return min(ask_each(client, _clock_of))


def _clock_of(server: redis.Redis) -> int:
    seconds, microseconds = server.time()
    return (int(seconds) * 1_000_000 + int(microseconds)) * 1000


def _run_of(server: redis.Redis) -> str:
    pipeline = server.pipeline(transaction=False)
    pipeline.info("server")
    pipeline.info("replication")
    of_server, of_replication = pipeline.execute()
    return f"{of_server['run_id']}/{of_replication['master_replid']}"


def _mark_at(cluster: ClusterStore, address: str) -> str:
    """Returns the first of the keys `keys.mark(0)`, `keys.mark(1)`, … that lies on the node with this address.

    Raises:
        redis.ConnectionError: no key lies there, since the cluster has changed.
    """
    for key in map(keys.mark, range(MOST_MARKS)):
        if cluster.address_of(key) == address:
            return key
    raise redis.ConnectionError(f"{address} has no slots any more: the cluster has changed meanwhile")


MARK_SECONDS = 10 * 365 * 86400
"""The time for which the store keeps a mark, in seconds."""


def replicated(
    client: Store, fencing_token: FencingToken, seconds: float, accounts: Sequence[str] | None = None
) -> bool:
    """Waits until a replica of each server of the store holds all writes from before this call; returns True then.

    The result is False if that is not known in time. A server without replicas counts as if a replica held them.

    Redis's command WAIT covers only writes of its own connection (https://redis.io/commands/wait). The writes in
    question may have used another connection, or come from an earlier attempt. Therefore this call writes a key and
    waits for that write: replicas apply writes in the server's order, and a replica with the key has every earlier
    write.

    Args:
        fencing_token: the value that the key gets; nothing reads it.
        seconds: the longest wait for one server; 0 returns True without a wait. It must be less than the client's
            timeout.
        accounts: the accounts that were written to. Only the servers that hold them are asked; None asks all servers.
    """
    milliseconds = int(seconds * 1000)
    if milliseconds == 0:
        return True
    return all(_holds(server, mark, fencing_token, milliseconds) for server, mark in servers_of(client, accounts))


def _holds(server: redis.Redis, mark: str, fencing_token: FencingToken, milliseconds: int) -> bool:
    if not _has_replica(server):
        return True
    pipeline = server.pipeline(transaction=False)
    pipeline.set(mark, str(fencing_token))
    pipeline.expire(mark, MARK_SECONDS)
    pipeline.wait(1, milliseconds)
    *written, holders = pipeline.execute(raise_on_error=False)
    for answer in (*written, holders):
        # Without free memory a server refuses both writes, so that the mark keeps its old value and expiry.
        if isinstance(answer, Exception) and not isinstance(answer, redis.exceptions.OutOfMemoryError):
            raise answer
    return int(holders) >= 1


def _has_replica(server: redis.Redis) -> bool:
    replication: Any = server.info("replication")
    return int(replication.get("connected_slaves", 0)) > 0


PODS_SHARE = 0.8
"""The part of a server's maxmemory up to which the timekeeper writes reports and new sessions."""
ASK_SECONDS = 1.0
"""The time for which an answer about memory is used again, in seconds."""


def is_full_for_pods(client: Store) -> bool:
    """Returns whether a server of the store is too full for reports and new sessions.

    A server is too full from PODS_SHARE of its maxmemory on; a server without a maxmemory is never too full.
    """
    return any(ask_each(client, lambda server: _is_full(server.info("memory"))))


class MemoryWatch:
    """Answers whether a server of the store is too full for pods; asks the servers at most once in ASK_SECONDS.

    Not thread-safe.
    """

    def __init__(self, client: Store, clock: Callable[[], float]) -> None:
        """Makes a watch that has asked nothing yet; `clock` is monotonic, in seconds."""
        self._client = client
        self._clock = clock
        self._asked_at = float("-inf")
        self._full = False

    def is_full(self) -> bool:
        """Returns whether a server is too full for reports and new sessions, by an answer of up to ASK_SECONDS ago."""
        now = self._clock()
        if now - self._asked_at >= ASK_SECONDS:
            self._full, self._asked_at = is_full_for_pods(self._client), now
        return self._full


def _is_full(info: Any) -> bool:
    """Whether a server uses PODS_SHARE of its maxmemory or more; False for a server without a maxmemory.

    The used memory is the figure that Redis itself compares with maxmemory: without the buffers of replicas and of the
    append-only file.

    Args:
        info: Redis's answer to INFO memory, keyed by field.
    """
    limit = int(info.get("maxmemory", 0))
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    return limit > 0 and used >= PODS_SHARE * limit


RETRIES = 1
"""One retry renews a connection that Redis has dropped; more would delay callers while Redis does not answer."""
HEALTH_SECONDS = 30
"""The idle time, in seconds, after which a connection is tested before it is used."""


class _NotingRetry(Retry):
    """redis-py's policy of retries, which also calls a function after each attempt, in the thread that made it."""

    def __init__(self, retries: int, answered: Callable[[], None]) -> None:
        super().__init__(NoBackoff(), retries)
        self._answered = answered

    def __deepcopy__(self, _memo: object) -> _NotingRetry:
        """Returns a copy that calls the same function: redis-py gives each connection a deep copy."""
        return _NotingRetry(self._retries, self._answered)

    def call_with_retry(self, do: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        """Runs `do`, and again if the connection failed or timed out, up to `retries` times; returns its result."""

        def attempt() -> Any:
            try:
                return do()
            finally:
                self._answered()

        return super().call_with_retry(attempt, *arguments, **options)


def connect(settings: RedisSettings, answered: Callable[[], None] = lambda: None) -> Store:
    """Returns a client of the store with a time limit on every wait.

    The client connects with its first command. The client of a Redis Cluster is a ClusterStore, which has redis.Redis's
    commands on keys.

    Args:
        settings: the addresses, credentials and time limit.
        answered: called after each answer and each failure, in the thread that asked.
    """
    if settings.cluster.nodes:
        return cast("redis.Redis", ClusterStore(lambda: _cluster(settings), answered))
    if settings.sentinel.nodes:
        return _behind_sentinels(settings, answered)
    tls = _tls(settings.tls) if settings.url.startswith("rediss:") else {}
    client: redis.Redis = redis.Redis.from_url(
        settings.url, retry=_NotingRetry(RETRIES, answered), **_bounds(settings), **_credentials(settings), **tls
    )
    return client


def _behind_sentinels(settings: RedisSettings, answered: Callable[[], None]) -> redis.Redis:
    """Returns a client of the server that the Sentinels name as master; each new connection asks them which it is."""
    watched = settings.sentinel
    tls = _flag(settings.tls)
    secret = watched.password.get_secret_value() if watched.password is not None else None
    sentinels = Sentinel(
        [address(node, SENTINEL_PORT) for node in watched.nodes],
        sentinel_kwargs={
            **_bounds(settings),
            **tls,
            "retry": _NotingRetry(0, answered),  # the next Sentinel is asked instead
            "username": watched.username,
            "password": secret,
        },
    )
    client: redis.Redis = sentinels.master_for(
        watched.master, retry=_NotingRetry(RETRIES, answered), **_bounds(settings), **_credentials(settings), **tls
    )
    return client


def _cluster(settings: RedisSettings) -> RedisCluster:
    """Returns a client of a Redis Cluster.

    The client always asks the configured nodes for the addresses of the other nodes, since these addresses may change.
    """
    return RedisCluster(
        startup_nodes=[ClusterNode(*address(node, CLUSTER_PORT)) for node in settings.cluster.nodes],
        dynamic_startup_nodes=False,
        retry=Retry(NoBackoff(), RETRIES),
        **_bounds(settings),
        **_credentials(settings),
        **_flag(settings.tls),
    )


def _bounds(settings: RedisSettings) -> dict[str, Any]:
    return {
        "socket_timeout": settings.timeout_seconds,
        "socket_connect_timeout": settings.timeout_seconds,
        "health_check_interval": HEALTH_SECONDS,
    }


def _credentials(settings: RedisSettings) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    return options


def _flag(settings: RedisTLS) -> dict[str, Any]:
    return {"ssl": True, **_tls(settings)} if settings.enabled else {}


def _tls(settings: RedisTLS) -> dict[str, Any]:
    """Returns redis-py's options for TLS. By its defaults, redis-py verifies the server's certificate and name."""
    names = {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.certificate_file,
        "ssl_keyfile": settings.key_file,
    }
    options: dict[str, Any] = {name: str(file) for name, file in names.items() if file is not None}
    return options | {"ssl_min_version": ssl.TLSVersion.TLSv1_2}


def unreachable_message(error: Exception) -> str:
    """Returns the text that a command prints if it cannot reach the store, which answers only inside the cluster.

    Args:
        error: the error of the attempt to reach it.
    """
    cause = str(error).rstrip(".")  # redis-py ends some of its errors with a full stop
    return (
        f"the store does not answer: {cause}. It is reached from inside the cluster alone: put before this command\n"
        "    kubectl -n fairgpu-system exec deploy/fairgpu-timekeeper -c jobs --"
    )
