"""Another version of the node agent: this one, as a later one may be, or an earlier one whose sources are named.

A later version writes fields that this one does not know into each file that they share, and brings another shim.
`FAIRGPU_OTHER_AGENT` names a checkout of another version in its place, such as one that `git worktree add` makes of an
earlier commit.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.node.machine import SHIM
from tests.node.shipped_images import CONTAINERFILES, ROOT, nodeagent, packages_of

SOURCES = "FAIRGPU_OTHER_AGENT"
BYTECODE = "__pycache__"
LATER = (
    ("nodeagent/containers/records.py", '"v": VERSION,', '"v": VERSION, "madeBy": "later",'),
    ("nodeagent/publishing.py", '"device": index,', '"device": index, "weight": 1,'),
    ("nodeagent/figures_file.py", '"key": key,', '"key": key, "samples": 3,'),
    ("fairgpu/inventory.py", '"v": VERSION,', '"v": VERSION, "madeBy": "later",'),
)
"""The changes of a later version: a file of the sources, a line of it, and the line in its place."""


def other_agent(folder: Path, name: str) -> Path:
    """The image of the other version."""
    folder.mkdir()
    shim = folder / "libvcuda.so.1"
    shim.write_bytes(SHIM.read_bytes() + b"of another version")  # nothing loads what follows an ELF file's sections
    named = os.environ.get(SOURCES)
    return nodeagent(folder, name, shim, Path(named).absolute() if named else _later(folder / "sources"))


def _later(target: Path) -> Path:
    for package in packages_of(CONTAINERFILES / "nodeagent" / "Containerfile"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns(BYTECODE))
    for path, line, later in LATER:
        text = (target / path).read_text()
        if text.count(line) != 1:
            raise ValueError(f"{path} has {line!r} {text.count(line)} times, not once: LATER describes another source")
        (target / path).write_text(text.replace(line, later))
    return target
