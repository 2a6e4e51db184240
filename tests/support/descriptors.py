"""The files that this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_below(folder: Path, beginning: str) -> list[str]:
    """Returns, sorted, the names of open files below a folder whose names begin so; a removed file is still open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which the folder is read
            path = Path(str(descriptor.readlink()).removesuffix(" (deleted)"))
            if path.is_relative_to(folder) and path.name.startswith(beginning):
                found.append(path.name)
    return sorted(found)
