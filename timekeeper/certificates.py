"""Makes and renews the timekeeper's certificates: an authority for ten years, and server certificates under it.

A sidecar gets the authority's certificate in its environment when its pod starts, and keeps it for the life of the pod.
Therefore the authority is never replaced. Server certificates are replaced, which no sidecar notices.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import structlog

from fairgpu import names
from fairgpu.certificates import CertificateError, Pair, make_authority, make_leaf, renewal_due, serves
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.serving.tls import Chain, ChainError

AUTHORITY = "fairgpu-timekeeper-ca"
LEAF = "fairgpu-timekeeper-tls"
STORE_LEAF = "fairgpu-redis-tls"
"""The Secret with the certificate of the Redis that FairGPU's manifests bring."""
AUTHORITY_LIFE = timedelta(days=3652)
LEAF_LIFE = timedelta(days=90)
MAX_TRIES = 5

_log = structlog.get_logger()


class VaultError(RuntimeError):
    """A Vault cannot read or write a certificate with its key; a later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class StoredPair:
    """A certificate and its key, as a Vault has stored them.

    Attributes:
        pair: the certificate and the key, in PEM.
        version: a text that changes with the pair; `Vault.replace` writes only if the Vault still has this version.
    """

    pair: Pair
    version: str


class Vault(Protocol):
    """A store of certificates with their keys, each pair under a name; several replicas may use the same store at once.

    Every method may raise VaultError.
    """

    def read(self, name: str) -> StoredPair | None:
        """Returns the certificate and key under a name; None if the name has none."""

    def create(self, name: str, pair: Pair) -> bool:
        """Stores a certificate and key under a new name; returns False if another replica has stored one first."""

    def replace(self, name: str, pair: Pair, version: str) -> bool:
        """Replaces one version of a certificate and key; returns False if the name has another version or none now.

        Args:
            pair: the new certificate and key.
            version: the version to replace, as `read` returned it.
        """

    def publish(self, certificate_pem: bytes) -> None:
        """Publishes the certificate of FairGPU's authority (CA), in PEM, for the clients that must trust it."""


def service_names(service: str = names.TIMEKEEPER_SERVICE) -> list[str]:
    """Returns the three DNS names by which clients in the cluster may reach a Service of FairGPU's namespace."""
    namespace = names.SYSTEM_NAMESPACE
    return [service, f"{service}.{namespace}", f"{service}.{namespace}.svc"]


def read_chain(vault: Vault, server_names: Sequence[str], now: Callable[[], datetime]) -> Chain:
    """Returns the REST API's certificate and its key, with the certificate of the authority that signed it.

    Certificates that are missing are made, and the authority's is published. The REST API's is made anew if its renewal
    is due, if it is unreadable, or if it is not valid for these names under the authority.

    Args:
        vault: stores the certificates.
        server_names: the DNS names and addresses of the server.
        now: returns the present time, with a time zone.

    Raises:
        ChainError: the Vault cannot be read or written, or the authority's certificate cannot be used.
    """
    try:
        authority = _authority(vault, now)
        leaf = _leaf(vault, LEAF, authority, server_names, now)
    except (VaultError, CertificateError) as error:
        raise ChainError(f"the timekeeper's certificate: {error}") from error
    return Chain(leaf.certificate_pem + authority.certificate_pem, leaf.key_pem)


def keep_store_certificate(vault: Vault, server_names: Sequence[str], now: Callable[[], datetime]) -> None:
    """Makes the certificate of the Redis that FairGPU's manifests bring if it is missing, or its renewal is due.

    It is also made anew if it is unreadable, or not valid for these names under the authority. The authority is made if
    it is missing, and its certificate is published.

    Args:
        vault: stores the certificates.
        server_names: the DNS names of that Redis.
        now: returns the present time, with a time zone.

    Raises:
        ChainError: the Vault cannot be read or written, or the authority's certificate cannot be used.
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


SECRETS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/secrets"
CONFIG_MAPS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps"
CERTIFICATE_KEY = "ca.crt"
"""The key of the ConfigMap that holds the authority's certificate, in PEM."""


class ClusterVault:
    """A `Vault` that stores certificates with their keys in Secrets of FairGPU's namespace.

    Every method may raise VaultError.
    """

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self, name: str) -> StoredPair | None:
        """Returns the certificate and key in the Secret of this name; None if there is no such Secret."""
        try:
            secret = self._api.get(f"{SECRETS}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise VaultError(str(error)) from error
        data = secret.get("data") or {}
        try:
            pair = Pair(base64.b64decode(data.get("tls.crt", "")), base64.b64decode(data.get("tls.key", "")))
        except (ValueError, TypeError) as error:
            raise VaultError(f"Secret {name}: {error}") from error
        return StoredPair(pair, str(secret["metadata"]["resourceVersion"]))

    def create(self, name: str, pair: Pair) -> bool:
        """Creates a Secret with a certificate and key; returns False if another replica has created it first."""
        try:
            self._api.create(SECRETS, _secret(name, pair))
        except ApiError as error:
            if error.conflict:
                return False
            raise VaultError(str(error)) from error
        return True

    def replace(self, name: str, pair: Pair, version: str) -> bool:
        """Replaces the certificate and key in a Secret; returns False if the Secret has another version, or is gone.

        Args:
            pair: the new certificate and key.
            version: the resourceVersion to replace.
        """
        secret = _secret(name, pair)
        secret["metadata"]["resourceVersion"] = version
        try:
            self._api.replace(f"{SECRETS}/{name}", secret)
        except ApiError as error:
            if error.conflict or error.not_found:
                return False
            raise VaultError(str(error)) from error
        return True

    def publish(self, certificate_pem: bytes) -> None:
        """Writes the authority's certificate (PEM) to a ConfigMap if the ConfigMap does not hold it yet.

        The ConfigMap is read each time, since anybody may delete it.
        """
        try:
            wanted = certificate_pem.decode("ascii")
            if self._shown() != wanted:
                self._show({"data": {CERTIFICATE_KEY: wanted}})
        except (ApiError, UnicodeDecodeError) as error:
            raise VaultError(str(error)) from error

    def _shown(self) -> object:
        try:
            return (self._api.get(f"{CONFIG_MAPS}/{AUTHORITY}").get("data") or {}).get(CERTIFICATE_KEY)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _show(self, data: Json) -> None:
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": AUTHORITY}, **data}
        try:
            self._api.create(CONFIG_MAPS, body)
        except ApiError as error:
            if not error.conflict:
                raise
            self._api.patch(f"{CONFIG_MAPS}/{AUTHORITY}", data)


def _secret(name: str, pair: Pair) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "data": {
            "tls.crt": base64.b64encode(pair.certificate_pem).decode("ascii"),
            "tls.key": base64.b64encode(pair.key_pem).decode("ascii"),
        },
    }


_BETWEEN = b"-----BEGIN PRIVATE KEY-----"


class FolderVault:
    """A `Vault` that stores each certificate with its key in one file that only the file's owner can read.

    One rename replaces certificate and key at once. In the file, the certificate comes before the key. Every method may
    raise VaultError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "certificates" / "timekeeper"

    def read(self, name: str) -> StoredPair | None:
        """Returns the certificate and key in the file of this name; None if there is no such file."""
        try:
            data = self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(str(error)) from error
        certificate, _, key = data.partition(_BETWEEN)
        return StoredPair(Pair(certificate, _BETWEEN + key), sha256(data).hexdigest())

    def create(self, name: str, pair: Pair) -> bool:
        """Creates a file with a certificate and key; returns False if a file of that name exists."""
        beside = self._write_beside(pair.certificate_pem + pair.key_pem)
        try:
            os.link(beside, self._file(name))
        except FileExistsError:
            return False
        except OSError as error:
            raise VaultError(str(error)) from error
        finally:
            beside.unlink()
        return True

    def replace(self, name: str, pair: Pair, version: str) -> bool:
        """Replaces a file if its content is still of this version; returns False if it is not, or if there is no file.

        If two replicas replace the same file at once, both get True, and the content of the later replica stays.

        Args:
            name: the certificate's name.
            pair: the new certificate and key.
            version: the version to replace, as `read` returned it.
        """
        kept = self.read(name)
        if kept is None or kept.version != version:
            return False
        self._put(pair.certificate_pem + pair.key_pem, self._file(name), 0o600)
        return True

    def publish(self, certificate_pem: bytes) -> None:
        """Writes the authority's certificate (PEM) to the file ca.crt, unless the file holds it already."""
        file = self._folder / "ca.crt"
        try:
            published = file.exists() and file.read_bytes() == certificate_pem
        except OSError as error:
            raise VaultError(str(error)) from error
        if not published:
            self._put(certificate_pem, file, 0o644)

    def _put(self, data: bytes, file: Path, mode: int) -> None:
        beside = self._write_beside(data)
        try:
            beside.chmod(mode)
            beside.replace(file)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise VaultError(str(error)) from error

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def _write_beside(self, data: bytes) -> Path:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix=".", dir=self._folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            raise VaultError(str(error)) from error
        return Path(path)
