"""Compiles admission's pure functions with mypyc where FAIRGPU_COMPILE=1; setup.cfg says everything else.

What is compiled is what runs between the body of a review and its answer, with the vocabulary that it speaks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from setuptools import setup

HERE = Path(__file__).parent
FOLDERS = ("fairgpu/dialects", "webhook/admission")
MODULES = (
    "asks",
    "choices",
    "container_parser",
    "json_values",
    "demand",
    "faults",
    "names",
    "permissions",
    "pod",
    "pod_faults",
    "quantity",
    "request",
)


LEFT = ("__init__.py", "excerpt.py")
"""A package's own module, and one whose annotations are read while it is imported: mypyc keeps none."""


def sources() -> list[str]:
    """The files to compile."""
    files = [HERE / "fairgpu" / f"{module}.py" for module in MODULES]
    for folder in FOLDERS:
        files += [file for file in (HERE / folder).glob("*.py") if file.name not in LEFT]
    return sorted(str(file.relative_to(HERE)) for file in files)


def extensions() -> list[Any]:
    """The extension modules; none where nothing is to be compiled."""
    if os.environ.get("FAIRGPU_COMPILE") != "1":
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - only who compiles needs it

    return list(mypycify(sources(), group_name="fairgpu", debug_level="0"))


setup(ext_modules=extensions())
