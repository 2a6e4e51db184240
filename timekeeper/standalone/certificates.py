"""Stores certificates with keys as files of the standalone folder: certificates/timekeeper/NAME.pem, and ca.crt."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

from fairgpu.certificates import Pair
from timekeeper.certificates import StoredPair, VaultError

_BETWEEN = b"-----BEGIN PRIVATE KEY-----"


class FolderVault:
    """Stores each pair in one file, certificate before key, so that one step replaces it; its owner alone reads it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "certificates" / "timekeeper"

    def read(self, name: str) -> StoredPair | None:
        """Returns the pair in a file; None where there is none."""
        try:
            data = self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise VaultError(str(error)) from error
        certificate, _, key = data.partition(_BETWEEN)
        return StoredPair(Pair(certificate, _BETWEEN + key), sha256(data).hexdigest())

    def create(self, name: str, pair: Pair) -> bool:
        """Creates a file with the pair, unless one of that name exists."""
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
        """Replaces a file that still has that content. Of two replicas that do so at once, the later one's stays."""
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
