"""Reads the usage files of a pod's containers, which those containers can replace by anything.

Nothing in a container's folder is followed, waited for or mapped: a symbolic link, a FIFO or a truncated file gives
an error for that container and no more.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable

from sidecar.usage_record import SIZE, TornRecordError, UsageError, UsageRecord, decode

FILE_NAME = "usage"
MAX_CONTAINERS = 64
"""The most containers of one pod that are read, which bounds the size of a report."""
MAX_FOLDER_ENTRIES = 1024
ATTEMPTS = 3
PAUSE_SECONDS = 0.003

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NAME_LENGTH = 63  # a container's name is an RFC 1123 label
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def container_names(root: str) -> tuple[str, ...]:
    """Returns the containers with a folder in the usage volume, sorted, at most MAX_CONTAINERS.

    Raises:
        OSError: the volume does not exist or cannot be listed.
    """
    names: list[str] = []
    with os.scandir(root) as entries:
        for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
            if _is_container_name(entry.name) and entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return tuple(sorted(names)[:MAX_CONTAINERS])


def read_usage(root: str, container: str, pause: Callable[[float], None] = time.sleep) -> UsageRecord | None:
    """Reads a container's present record; None where it has used no GPU yet. A torn record is read again.

    Raises:
        UsageError: the file is not a usage record, or stays torn.
        OSError: it cannot be opened or read (a symbolic link is not followed: ELOOP).
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return decode(_read(root, container))
        except TornRecordError:
            pause(PAUSE_SECONDS)
    return decode(_read(root, container))


def _read(root: str, container: str) -> bytes:
    folder = os.open(f"{root}/{container}", _FOLDER_FLAGS)
    try:
        file = os.open(FILE_NAME, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return b""
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("it is no regular file")
        if status.st_size not in (0, SIZE):
            raise UsageError(f"{status.st_size} bytes, a record has {SIZE}")
        return os.pread(file, SIZE, 0)
    finally:
        os.close(file)


def _is_container_name(name: str) -> bool:
    return 0 < len(name) <= _MAX_NAME_LENGTH and _NAME_CHARACTERS.issuperset(name) and name.strip("-") == name
