"""Where the ledger is stored: one Redis, one that Sentinels watch over, or a Redis Cluster; and how it is spoken to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from fairgpu.settings import Section

SCHEMES = ("redis", "rediss", "unix")
BUNDLED_URL = "rediss://fairgpu-redis.fairgpu-system.svc:6379/0"
"""The store that the manifests bring."""
BUNDLED_USER = "timekeeper"
BUNDLED_CA_FILE = "/etc/fairgpu-timekeeper-ca/ca.crt"
"""Where the Deployment mounts the authority that signed for that store."""
SENTINEL_PORT = 26379
CLUSTER_PORT = 6379


def address(node: str, port: int) -> tuple[str, int]:
    """Host and port of a node written as `host`, `host:port` or `[IPv6]:port`; `port` where none is written.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(f"//{node}")
    written = parts.port  # raises ValueError where it is no port
    if not parts.hostname or parts.path or parts.query or parts.fragment or "@" in node:
        raise ValueError("no node")
    return parts.hostname, port if written is None else written


def _node(node: str) -> str:
    try:
        address(node, SENTINEL_PORT)
    except ValueError as error:
        raise ValueError(f"{node!r} is no node: write its host and port, such as redis-0.redis:6379") from error
    return node


Nodes = tuple[Annotated[str, AfterValidator(_node)], ...]


def _has_nodes(given: Any) -> bool:
    return bool(given.get("nodes") if isinstance(given, dict) else getattr(given, "nodes", ()))


class SentinelSettings(Section):
    """Sentinels that know which of several servers is the master (https://redis.io/docs/latest/develop/reference/sentinel-clients)."""

    nodes: Nodes = ()
    """Each Sentinel as host:port; 26379 where no port is written. Where any is named, `redis.url` is not used."""
    master: str = "fairgpu"
    """The name by which they know the master."""
    username: str | None = None
    """The ACL user at the Sentinels, not at the servers."""
    password: SecretStr | None = None
    """The password at the Sentinels; that of the servers is `redis.password`."""


class ClusterSettings(Section):
    """A Redis Cluster (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)."""

    nodes: Nodes = ()
    """Some of its nodes as host:port, which know the others; 6379 where no port is written. Then `redis.url` is not
    used."""


class RedisTLS(Section):
    """TLS to servers and Sentinels. Their certificates are always verified, and must be for the names asked for."""

    enabled: bool = False
    """Whether nodes under `sentinel` and `cluster` speak TLS; in `redis.url` the scheme rediss:// says it."""
    ca_file: Path | None = None
    """The certificates of the authorities that signed theirs, in PEM; the system's where none is named."""
    certificate_file: Path | None = None
    """The certificate that this client shows, in PEM, where the servers want one (tls-auth-clients)."""
    key_file: Path | None = None
    """Its key."""


class RedisSettings(Section):
    """Where the ledger is stored."""

    url: str = BUNDLED_URL
    """One server: redis:// or rediss:// (TLS); user and password stand in `username` and `password`, not here."""
    sentinel: SentinelSettings = SentinelSettings()
    cluster: ClusterSettings = ClusterSettings()
    tls: RedisTLS = RedisTLS()
    username: str | None = None
    """The ACL user; `default` where none is named. Of the store that the manifests bring it is `timekeeper`."""
    password: SecretStr | None = None
    """The password at the servers; from a Secret, in the environment."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """How long one answer of Redis may take."""
    replica_wait_seconds: Annotated[float, Field(ge=0, le=30)] = 1.0
    """How long the end of a session, or a grant, waits for one of Redis's replicas, if it has any; 0 for not at all."""

    @property
    def is_bundled(self) -> bool:
        """Whether this is the store that the manifests bring."""
        return self.url == BUNDLED_URL and not (self.sentinel.nodes or self.cluster.nodes)

    @model_validator(mode="before")
    @classmethod
    def _bundled_is_as_the_manifests_have_it(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("url", BUNDLED_URL) != BUNDLED_URL:
            return given
        if any(_has_nodes(given.get(shape)) for shape in ("sentinel", "cluster")):
            return given
        tls = given.get("tls", {})
        found = {"ca_file": BUNDLED_CA_FILE, **tls} if isinstance(tls, dict) else tls
        return {"username": BUNDLED_USER, **given, "tls": found}

    @model_validator(mode="after")
    def _waits_within_an_answer(self) -> Self:
        if self.replica_wait_seconds >= self.timeout_seconds:
            raise ValueError(
                f"replica_wait_seconds is {self.replica_wait_seconds:g}, and must be less than timeout_seconds, which "
                f"is {self.timeout_seconds:g}: the answer would be given up before the replica is"
            )
        return self

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        named = [name for name in ("url", "sentinel", "cluster") if self._names(name)]
        if len(named) > 1:
            raise ValueError(
                f"{' and '.join(named)} name different stores: keep one of url, sentinel.nodes and cluster.nodes"
            )
        return self

    @model_validator(mode="after")
    def _url_can_be_used(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"url begins with {parts.scheme!r}: write redis://, or rediss:// for TLS")
        if parts.username or parts.password:
            raise ValueError("url holds a user or a password, which logs would show: write them in username, password")
        if self.tls.enabled and parts.scheme == "redis" and not (self.sentinel.nodes or self.cluster.nodes):
            raise ValueError("tls.enabled is true and url begins with redis://, without TLS: write rediss://")
        return self

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> Self:
        if (self.tls.certificate_file is None) != (self.tls.key_file is None):
            raise ValueError("tls.certificate_file and tls.key_file go together: name both, or neither")
        return self

    def _names(self, place: str) -> bool:
        if place == "url":
            return "url" in self.model_fields_set
        return bool((self.sentinel if place == "sentinel" else self.cluster).nodes)
