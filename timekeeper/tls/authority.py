"""An authority that lasts ten years, and server certificates under it that rotate.

Sidecars carry the authority's certificate in their environment for as long as their pods live, so it stays; what
rotates is the leaf, and no sidecar notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from fairgpu import names
from fairgpu.certificates import CertificateError, Pair, make_authority, make_leaf, renewal_due, serves
from fairgpu.serving.tls import Chain, ChainError

AUTHORITY = "fairgpu-timekeeper-ca"
LEAF = "fairgpu-timekeeper-tls"
STORE_LEAF = "fairgpu-redis-tls"
"""Of the Redis that the manifests bring, which mounts it."""
AUTHORITY_LIFE = timedelta(days=3652)
LEAF_LIFE = timedelta(days=90)
MAX_TRIES = 5

_log = structlog.get_logger()


class VaultError(RuntimeError):
    """What is kept cannot be read or written now."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A pair as it is kept, and which version of it that is."""

    pair: Pair
    version: str


class Vault(Protocol):
    """Keeps pairs by name, safely between replicas. Every method may raise VaultError."""

    def read(self, name: str) -> Kept | None:
        """What is kept under a name."""

    def create(self, name: str, pair: Pair) -> bool:
        """Keeps a pair under a name that is not taken; False where another replica was first."""

    def replace(self, name: str, pair: Pair, version: str) -> bool:
        """Keeps another pair instead of a version; False where another replica was first."""

    def publish(self, certificate_pem: bytes) -> None:
        """Shows the authority's certificate to those who are to trust it."""


def service_names(service: str = names.TIMEKEEPER_SERVICE) -> list[str]:
    """The names under which a Service of FairGPU's namespace is reached inside a cluster."""
    namespace = names.SYSTEM_NAMESPACE
    return [service, f"{service}.{namespace}", f"{service}.{namespace}.svc"]


def read_chain(vault: Vault, server_names: Sequence[str], now: Callable[[], datetime]) -> Chain:
    """The chain to present now, made or renewed where that is due.

    Raises:
        ChainError: what is kept cannot be read, written or used.
    """
    try:
        authority = _authority(vault, now)
        leaf = _leaf(vault, LEAF, authority, server_names, now)
    except (VaultError, CertificateError) as error:
        raise ChainError(f"the timekeeper's certificate: {error}") from error
    return Chain(leaf.certificate_pem + authority.certificate_pem, leaf.key_pem)


def keep_store_certificate(vault: Vault, server_names: Sequence[str], now: Callable[[], datetime]) -> None:
    """Makes or renews the store's certificate under the same authority, where that is due.

    Raises:
        ChainError: what is kept cannot be read, written or used.
    """
    try:
        _leaf(vault, STORE_LEAF, _authority(vault, now), server_names, now)
    except (VaultError, CertificateError) as error:
        raise ChainError(f"the store's certificate: {error}") from error


def _authority(vault: Vault, now: Callable[[], datetime]) -> Pair:
    kept = vault.read(AUTHORITY)
    if kept is None:
        made = make_authority("FairGPU timekeeper", now(), AUTHORITY_LIFE)
        if vault.create(AUTHORITY, made):
            _log.info("certificate authority made", name=AUTHORITY)
        kept = vault.read(AUTHORITY)
    if kept is None:
        raise VaultError(f"{AUTHORITY} was removed while it was read")
    vault.publish(kept.pair.certificate_pem)
    return kept.pair


def _leaf(vault: Vault, name: str, authority: Pair, server_names: Sequence[str], now: Callable[[], datetime]) -> Pair:
    for _ in range(MAX_TRIES):
        kept = vault.read(name)
        if kept is not None and _usable(kept.pair, authority, server_names, now()):
            return kept.pair
        made = make_leaf(authority, server_names, now(), LEAF_LIFE)
        if vault.create(name, made) if kept is None else vault.replace(name, made, kept.version):
            _log.info("certificate made", name=name)
            return made
    raise VaultError(f"{name} is changed again and again by somebody else")


def _usable(leaf: Pair, authority: Pair, server_names: Sequence[str], now: datetime) -> bool:
    try:
        certificate = leaf.certificate_pem
        return serves(certificate, authority.certificate_pem, server_names) and not renewal_due(certificate, now)
    except CertificateError:
        return False
