"""Packs the sidecar into one file that Python runs without an installation: `python -m sidecar.archive FILE`.

Any Python from 3.11 on can run the file.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_NOT_IN_ARCHIVE = {"archive.py"}
_START = """\
import os
import signal

# A container's first process gets no SIGTERM that it has no handler for (pid_namespaces(7)); imports take a while.
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))

import sys

from sidecar.__main__ import main

sys.exit(main())
"""
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def build(target: Path) -> None:
    """Writes the sidecar to a path as one zip archive that Python runs; missing folders on the path are created.

    This module, which only builds the archive, is left out of it.

    The sidecar runs as `python -I -S`, which finds modules in an archive, but not in the folder of a script.
    """
    package = Path(__file__).parent
    sources = {f"sidecar/{path.name}": path.read_text() for path in sorted(package.glob("*.py"))}
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in {"__main__.py": _START, **sources}.items():
            if Path(name).name not in _NOT_IN_ARCHIVE:
                archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), text, zipfile.ZIP_DEFLATED)


def main() -> int:
    """Builds the sidecar's archive at the path that the one argument names; returns the exit status 0.

    Returns 2 if the command line does not have exactly one argument.
    """
    if len(sys.argv) != 2:
        print("usage: python -m sidecar.archive FILE", file=sys.stderr)  # noqa: T201 - a command's own message
        return 2
    build(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
