"""The files that this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_below(folder: Path, beginning: str) -> list[str]:
    """Returns, sorted, the names of this process's open files below a folder that begin with a text.

    A file that was removed while it is open is among them.
    """
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which the folder is read
            path = Path(str(descriptor.readlink()).removesuffix(" (deleted)"))
            if path.is_relative_to(folder) and path.name.startswith(beginning):
                found.append(path.name)
    return sorted(found)
