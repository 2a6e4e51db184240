"""Connects to the store in its three shapes: one server, servers that Sentinels watch over, a Redis Cluster."""

from __future__ import annotations

import ssl
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from timekeeper.redis_settings import CLUSTER_PORT, SENTINEL_PORT, RedisSettings, RedisTLS, address
from timekeeper.store.cluster import ClusterStore

RETRIES = 1
"""A connection that Redis has dropped is made anew; who asks is not kept waiting for a Redis that is away."""
HEALTH_SECONDS = 30
"""A connection that was idle for longer is tried before it is used."""


def connect(settings: RedisSettings) -> redis.Redis:
    """A client with bounds on every wait; answers are bytes. It connects with its first command.

    That of a Redis Cluster is no redis.Redis, and has all of its commands on keys.
    """
    if settings.cluster.nodes:
        return cast("redis.Redis", ClusterStore(lambda: _cluster(settings)))
    if settings.sentinel.nodes:
        return _behind_sentinels(settings)
    tls = _tls(settings.tls) if settings.url.startswith("rediss:") else {}
    client: redis.Redis = redis.Redis.from_url(
        settings.url, retry=_retry(), **_bounds(settings), **_identity(settings), **tls
    )
    return client


def _behind_sentinels(settings: RedisSettings) -> redis.Redis:
    """A client of whichever server the Sentinels call the master: they are asked before each new connection."""
    watched = settings.sentinel
    tls = _flag(settings.tls)
    secret = watched.password.get_secret_value() if watched.password is not None else None
    sentinels = Sentinel(
        [address(node, SENTINEL_PORT) for node in watched.nodes],
        sentinel_kwargs={
            **_bounds(settings),
            **tls,
            "retry": Retry(NoBackoff(), 0),  # the next Sentinel is asked instead
            "username": watched.username,
            "password": secret,
        },
    )
    client: redis.Redis = sentinels.master_for(
        watched.master, retry=_retry(), **_bounds(settings), **_identity(settings), **tls
    )
    return client


def _cluster(settings: RedisSettings) -> RedisCluster:
    """Asks the nodes that the settings name for the others; again and again, as their addresses may change."""
    return RedisCluster(
        startup_nodes=[ClusterNode(*address(node, CLUSTER_PORT)) for node in settings.cluster.nodes],
        dynamic_startup_nodes=False,
        retry=_retry(),
        **_bounds(settings),
        **_identity(settings),
        **_flag(settings.tls),
    )


def _retry() -> Retry:
    return Retry(NoBackoff(), RETRIES)


def _bounds(settings: RedisSettings) -> dict[str, Any]:
    return {
        "socket_timeout": settings.timeout_seconds,
        "socket_connect_timeout": settings.timeout_seconds,
        "health_check_interval": HEALTH_SECONDS,
    }


def _identity(settings: RedisSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.username is not None:
        found["username"] = settings.username
    if settings.password is not None:
        found["password"] = settings.password.get_secret_value()
    return found


def _flag(settings: RedisTLS) -> dict[str, Any]:
    return {"ssl": True, **_tls(settings)} if settings.enabled else {}


def _tls(settings: RedisTLS) -> dict[str, Any]:
    """What redis-py wants to know of TLS. It verifies the server's certificate and name unless told not to."""
    names = {
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.certificate_file,
        "ssl_keyfile": settings.key_file,
    }
    found: dict[str, Any] = {name: str(file) for name, file in names.items() if file is not None}
    return found | {"ssl_min_version": ssl.TLSVersion.TLSv1_2}


def unreached(error: Exception) -> str:
    """What a command says to whom the store does not answer: from a workstation it never does."""
    return (
        f"the store does not answer: {error}. It is reached from inside the cluster alone: put before this command\n"
        "    kubectl -n fairgpu-system exec deploy/fairgpu-timekeeper -c jobs --"
    )
