"""The interface of a destination of exported months, and a destination that is a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from timekeeper.settings import ExportSettings

LOCK = ".fairgpu-writes"
"""The file that a process locks while it writes to a folder."""
BESIDE = ".new"


class ExportError(RuntimeError):
    """A destination of exported months cannot be read or written now.

    The message contains no credentials.
    """


class ChangedError(ExportError):
    """The file to replace is not the expected one, since another process has changed, deleted or made it.

    The file stays as it is.
    """


class MonthUnavailableError(ExportError):
    """An exported month cannot be read now; the message names only the month.

    Attributes:
        reason: the reason, for the log.
    """

    def __init__(self, month: str, reason: str) -> None:
        super().__init__(f"the exported month {month} cannot be read")
        self.reason = reason


class DeposedError(ExportError):
    """A leader that has been replaced tried to write a file; the file stays as it is."""


MayWrite = Callable[[], bool]
"""Returns whether this process still leads: while it was paused, another process may have become the leader."""


class Stored(NamedTuple):
    """A file of a destination, as it was read.

    Attributes:
        body: the file's bytes.
        tag: a text that changes whenever the content under the file's name changes, such as an ETag.
    """

    body: bytes
    tag: str


class Destination(Protocol):
    """A place for the files of exported months. Every method may raise ExportError."""

    def names(self) -> list[str]:
        """Returns the names of all files of the destination."""

    def tag(self, name: str) -> str | None:
        """Returns the tag of the file with this name, which changes with its content; None without such a file."""

    def read(self, name: str) -> Stored | None:
        """Returns the file with this name, and its tag; None if there is no such file."""

    def write(self, name: str, body: bytes, replacing: str | None, may_write: MayWrite) -> str:
        """Writes a file whole or not at all; returns its new tag.

        Args:
            replacing: the tag of the file to replace; None if there must be no file of this name.
            may_write: returns whether this process still leads; called right before the file is replaced.

        Raises:
            ChangedError: the present file has another tag than `replacing`.
            DeposedError: `may_write` returned False.
        """


class Folder:
    """A folder for the files of exported months, such as a mounted volume.

    Only one process at a time can write to the folder: while it writes, it holds a lock on a file in the folder. Every
    method may raise ExportError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Returns the sorted names of all files in the folder, among them the lock and temporary files."""
        try:
            return sorted(file.name for file in self._folder.iterdir() if file.is_file())
        except OSError as error:
            raise _failed(self._folder, error) from error

    def tag(self, name: str) -> str | None:
        """Returns the tag of the file with this name; None if there is no such file.

        The tag consists of the file's inode number, time of modification, and size.
        """
        try:
            return _tag((self._folder / name).stat())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self._folder / name, error) from error

    def read(self, name: str) -> Stored | None:
        """Returns the folder's file with this name, and its tag; None if there is no such file."""
        try:
            with (self._folder / name).open("rb") as file:
                return Stored(file.read(), _tag(os.fstat(file.fileno())))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self._folder / name, error) from error

    def write(self, name: str, body: bytes, replacing: str | None, may_write: MayWrite) -> str:
        """Writes a file into the folder whole or not at all; returns its new tag.

        The new content goes into a temporary file, which is renamed once it is on the disk.

        The process holds a lock from before it compares the present file's tag with `replacing` until after the rename,
        so no other process writes in between. A process that is paused in between keeps the lock, but may lose its
        lead, so `may_write` is called before the rename. The kernel releases the lock when the process ends.

        Args:
            replacing: the tag of the file to replace; None if there must be no file of this name.
            may_write: returns whether this process still leads; called right before the rename.

        Raises:
            ChangedError: the present file has another tag than `replacing`.
            DeposedError: `may_write` returned False.
            ExportError: another process is writing to the folder, or the folder cannot be written.
        """
        try:
            with self._locked():
                if self.tag(name) != replacing:
                    raise ChangedError(f"{self._folder / name} is not what it was")
                self._replace(name, body, may_write)
                return self.tag(name) or ""
        except OSError as error:
            raise _failed(self._folder / name, error) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ExportError(f"{self._folder}: another timekeeper is writing there") from None
            yield
        finally:
            os.close(lock)

    def _replace(self, name: str, body: bytes, may_write: MayWrite) -> None:
        for left in self._folder.glob(f".{name}.*{BESIDE}"):
            left.unlink(missing_ok=True)  # a killed process left it: only the lock's holder writes
        beside = None
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=f".{name}.", suffix=BESIDE, delete=False) as file:
                beside = Path(file.name)
                file.write(body)
                file.flush()
                os.fchmod(file.fileno(), 0o640)
                os.fsync(file.fileno())
            if not may_write():
                raise DeposedError(f"{self._folder / name} is left to the leader")
            beside.rename(self._folder / name)
            beside = None
            _sync(self._folder)
        finally:
            if beside is not None:
                with contextlib.suppress(OSError):
                    beside.unlink(missing_ok=True)


def _tag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(path: Path, error: OSError) -> ExportError:
    return ExportError(f"{path}: {error.strerror or type(error).__name__}")


def destination(settings: ExportSettings) -> Destination | None:
    """Returns the destination of exported months; None if none is configured."""
    if settings.folder is not None:
        return Folder(settings.folder)
    if settings.bucket.name is not None:
        from timekeeper.export.bucket import Bucket  # noqa: PLC0415 - few export to a bucket

        return Bucket(settings.bucket.name, settings.bucket)
    return None
