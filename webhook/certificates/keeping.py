"""Where the webhook's CA and certificate are kept, so that all replicas have the same: a Secret, or a folder."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog

from fairgpu.certificates import expires_at
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.serving.tls import Chain, ChainError
from webhook.certificates.authority import Holding, Step, next_step, pack, take, unpack
from webhook.settings import Certificates

_log = structlog.get_logger(__name__)

ATTEMPTS = 5


class Store(Protocol):
    """Keeps named bytes for all replicas."""

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """What is kept, and the version by which to change it; raises ChainError."""

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Keeps something else, unless somebody was faster: then False; raises ChainError."""


class Keeper:
    """Gives the chain to serve, and takes whatever step is due on the way."""

    def __init__(
        self,
        store: Store,
        settings: Certificates,
        now: Callable[[], datetime],
        publish: Callable[[bytes], None],
        note_expiry: Callable[[datetime], None],
    ) -> None:
        """Names the store, a clock, what makes the API server trust a bundle, and who hears when the leaf expires."""
        self._store = store
        self._settings = settings
        self._now = now
        self._publish = publish
        self._note_expiry = note_expiry

    def chain(self) -> Chain:
        """The chain as it is to be served now.

        Raises:
            ChainError: what is kept cannot be read, written or published.
        """
        holding = self._current()
        self._publish(holding.bundle)
        self._note_expiry(expires_at(holding.leaf.certificate_pem))
        return holding.chain

    def _current(self) -> Holding:
        for _ in range(ATTEMPTS):
            data, version = self._store.load()
            holding, now = unpack(data), self._now()
            step = next_step(holding, self._settings, now)
            if holding is not None and step is Step.NOTHING:
                return holding
            changed = take(step, holding, self._settings, now)
            if self._store.save(pack(changed), version):
                _log.info("certificates changed", step=step.name)
                return changed
        raise ChainError("the certificates are changed by somebody else again and again")


class SecretStore:
    """A Secret; whoever creates it first wins, and the others read it."""

    def __init__(self, api: KubernetesAPI, namespace: str, name: str) -> None:
        self._api = api
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = name

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """The Secret's data; empty where there is none."""
        try:
            secret = self._api.get(f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.not_found:
                return {}, ""
            raise ChainError(f"Secret {self._name}: {error}") from error
        try:
            data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        except (binascii.Error, TypeError):
            data = {}
        return data, str(secret["metadata"]["resourceVersion"])

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Creates or replaces the Secret."""
        metadata: Json = {"name": self._name, "labels": {"app.kubernetes.io/part-of": "fairgpu"}}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        secret: Json = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": encoded}
        try:
            if version:
                metadata["resourceVersion"] = version
                self._api.replace(f"{self._collection}/{self._name}", secret)
            else:
                self._api.create(self._collection, secret)
        except ApiError as error:
            if error.conflict:
                return False
            raise ChainError(f"Secret {self._name}: {error}") from error
        return True


class FolderStore:
    """A folder on one machine, for standalone mode; `ca.crt` in it is what clients trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """The folder's files."""
        with self._locked():
            return self._read()

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Writes the files, unless they are no longer those that were read."""
        with self._locked():
            if self._read()[1] != version:
                return False
            for name, value in data.items():
                beside = self._folder / f".{name}"
                beside.touch(mode=0o600)
                beside.write_bytes(value)
                beside.rename(self._folder / name)
        return True

    def _read(self) -> tuple[Mapping[str, bytes], str]:
        files = sorted(file for file in self._folder.iterdir() if not file.name.startswith("."))
        data = {file.name: file.read_bytes() for file in files}
        return data, data.get("changed-at", b"").decode(errors="replace")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ChainError(f"{error.filename}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise ChainError(f"{self._folder}: {error}") from error
        finally:
            os.close(descriptor)
