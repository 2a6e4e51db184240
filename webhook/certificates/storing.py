"""Stores the CA and the certificate, each in a Secret or in files of a folder.

A write names the version that it replaces: of two processes that write, the second one's write is refused, since the
first has changed the version.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.serving.tls import ChainError


class Store(Protocol):
    """A store of certificates and keys as named bytes, with a version that changes whenever the bytes change."""

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """Returns the stored bytes, keyed by name, and their version, which `save` needs.

        Raises:
            ChainError: the store cannot be read.
        """

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Replaces the stored bytes; returns False, without a change, if they are no longer of the given version.

        Args:
            data: the new bytes, keyed by name.
            version: the version of the bytes to replace, as `load` returned it.

        Raises:
            ChainError: the store cannot be written.
        """


class SecretStore:
    """A store of named bytes in a Secret."""

    def __init__(self, api: KubernetesAPI, namespace: str, name: str) -> None:
        self._api = api
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = name

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """Returns the Secret's data and its resourceVersion; both are empty if there is no Secret.

        Data that is no base64 counts as empty.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """
        try:
            secret = self._api.get(f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.not_found:
                return {}, ""
            raise ChainError(f"Secret {self._name}: {error}") from error
        try:
            data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        except (ValueError, TypeError):
            data = {}
        return data, str(secret["metadata"]["resourceVersion"])

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Creates the Secret, or replaces its data; returns False, without a change, if another process has changed it.

        Args:
            data: the new bytes, keyed by the Secret's keys.
            version: the resourceVersion of the Secret to replace; empty to create the Secret.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """
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
            if error.conflict or (version and error.not_found):
                return False
            raise ChainError(f"Secret {self._name}: {error}") from error
        return True


class FolderStore:
    """A store of named bytes in the files of a folder on one machine, readable by their owner alone."""

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        """Makes a store of the files with the names in `files` in a folder; its methods touch no other file there."""
        self._folder = folder
        self._files = frozenset(files)

    def load(self) -> tuple[Mapping[str, bytes], str]:
        """Returns the bytes of the files that exist, keyed by file name, and their digest as the version.

        Raises:
            ChainError: the folder or a file cannot be read.
        """
        with self._locked():
            return self._read()

    def save(self, data: Mapping[str, bytes], version: str) -> bool:
        """Replaces the store's files; returns False, without a change, if another process has changed them.

        Args:
            data: the new bytes, keyed by file name. A file of the store that is not among the keys is removed.
            version: the digest of the bytes to replace, as `load` returned it.

        Raises:
            ChainError: the folder or a file cannot be written.
        """
        with self._locked():
            if self._read()[1] != version:
                return False
            for name in self._files - set(data):
                (self._folder / name).unlink(missing_ok=True)
            for name, value in data.items():
                beside = self._folder / f".{name}"
                beside.touch(mode=0o600)
                beside.write_bytes(value)
                beside.rename(self._folder / name)
        return True

    def _read(self) -> tuple[Mapping[str, bytes], str]:
        files = (self._folder / name for name in sorted(self._files))
        data = {file.name: file.read_bytes() for file in files if file.exists()}
        return data, sha256(repr(data).encode()).hexdigest()

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
