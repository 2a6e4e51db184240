"""Keeps pairs as files of the standalone folder, under `certificates/timekeeper/`: NAME.pem, and ca.crt to trust."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

from fairgpu.certificates import Pair
from timekeeper.certificates import StoredPair, VaultError

_BETWEEN = b"-----BEGIN PRIVATE KEY-----"


class FolderVault:
    """One file a pair, certificate before key, so that a pair is replaced in one step. Readable by its owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "certificates" / "timekeeper"

    def read(self, name: str) -> StoredPair | None:
        """The pair in a file."""
        try:
            data = self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(str(error)) from error
        certificate, _, key = data.partition(_BETWEEN)
        return StoredPair(Pair(certificate, _BETWEEN + key), sha256(data).hexdigest())

    def create(self, name: str, pair: Pair) -> bool:
        """Makes a file; a link is made only where none of that name is."""
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
        """Replaces a file of that content. Two replicas on one folder may both do so: then the later one stands."""
        kept = self.read(name)
        if kept is None or kept.version != version:
            return False
        self._write_beside(pair.certificate_pem + pair.key_pem).replace(self._file(name))
        return True

    def publish(self, certificate_pem: bytes) -> None:
        """Writes ca.crt."""
        file = self._folder / "ca.crt"
        if not file.exists() or file.read_bytes() != certificate_pem:
            beside = self._write_beside(certificate_pem)
            beside.chmod(0o644)
            beside.replace(file)

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
