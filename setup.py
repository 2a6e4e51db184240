"""Compiles with mypyc the pure functions of the services that FAIRGPU_COMPILE names; setup.cfg says everything else.

`FAIRGPU_COMPILE="webhook scheduler"` names two services, whose images are built so. Without it nothing is compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from setuptools import setup

HERE = Path(__file__).parent
SHARED = (
    "fairgpu/asks.py",
    "fairgpu/choices.py",
    "fairgpu/container_parser.py",
    "fairgpu/demand.py",
    "fairgpu/dialects/*.py",
    "fairgpu/faults.py",
    "fairgpu/json_values.py",
    "fairgpu/names.py",
    "fairgpu/permissions.py",
    "fairgpu/pod.py",
    "fairgpu/pod_faults.py",
    "fairgpu/quantity.py",
    "fairgpu/request.py",
)
COMPILED = {
    "webhook": (*SHARED, "webhook/admission/*.py"),
    "timekeeper": SHARED,
    "scheduler": SHARED,
}
"""By service: the files that are worth compiling, as patterns from this folder."""

LEFT = ("__init__.py", "excerpt.py")
"""A package's own module, and one whose annotations are read while it is imported: mypyc keeps none."""


def sources(services: list[str]) -> list[str]:
    """The files to compile for the services, each once.

    Raises SystemExit where it does not know a service.
    """
    unknown = sorted(set(services) - set(COMPILED))
    if unknown:
        raise SystemExit(f"FAIRGPU_COMPILE={' '.join(services)}: {unknown[0]} is none of {', '.join(sorted(COMPILED))}")
    patterns = {pattern for service in services for pattern in COMPILED[service]}
    files = {file for pattern in patterns for file in HERE.glob(pattern) if file.name not in LEFT}
    return sorted(str(file.relative_to(HERE)) for file in files)


def extensions() -> list[Any]:
    """The extension modules; none where nothing is to be compiled."""
    services = os.environ.get("FAIRGPU_COMPILE", "").split()
    if not services:
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - only who compiles needs it

    return list(mypycify(sources(services), group_name="fairgpu", debug_level="0"))


setup(ext_modules=extensions())
