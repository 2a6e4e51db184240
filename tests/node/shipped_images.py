"""What deploy/images ships, laid out on this machine's Python by the Containerfiles' own words."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

from sidecar.archive import build
from tests.node.images import image

CONTAINERFILES = Path(__file__).parents[2] / "deploy" / "images"
NOT_SHIPPED = frozenset({"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages"})
"""Folders of the standard library that no service imports, and those of this machine alone."""
BYTECODE = "__pycache__"


def sidecar(folder: Path, name: str) -> Path:
    """The reporter in users' pods."""
    containerfile = CONTAINERFILES / "sidecar" / "Containerfile"
    archive = folder / "sidecar.pyz"
    build(archive)
    entry = json.loads(_last(containerfile, "ENTRYPOINT"))
    (bytecode,) = [word.partition("=")[2] for word in entry if word.startswith("pycache_prefix=")]
    files = _python(bytecode.lstrip("/")) | {entry[-1].lstrip("/"): archive}
    return image(folder / "sidecar.tar", name, entry, files, _last(containerfile, "USER"))


def _python(bytecode: str) -> dict[str, Path]:
    """Python and its standard library where the official images have them, and its bytecode below a folder."""
    library = Path(sysconfig.get_path("stdlib"))
    target = Path("usr/local/lib", library.name)
    found = {"usr/local/bin/python3": Path(sys.executable).resolve()}
    for folder, below, names in os.walk(library):
        below[:] = [name for name in below if name not in NOT_SHIPPED]
        for path in (Path(folder, name) for name in names):
            at = target / path.relative_to(library)
            is_bytecode = path.parent.name == BYTECODE
            found[str(Path(bytecode, at.parent.parent, at.name) if is_bytecode else at)] = path.resolve()
    return found


def _last(containerfile: Path, instruction: str) -> str:
    """The arguments of the last instruction of a kind."""
    lines = containerfile.read_text().splitlines()
    return [line.removeprefix(instruction).strip() for line in lines if line.startswith(f"{instruction} ")][-1]
