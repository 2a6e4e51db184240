"""Steps of a program: each prints its name and what came of it, which an error is, too, and the next goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable


def step(name: str, act: Callable[[], object]) -> None:
    """Does one thing. An error is printed with its type and the first line of what it says."""
    try:
        outcome = str(act())
    except Exception as error:  # noqa: BLE001 (any outcome is compared)
        said = str(error).strip().splitlines() or [""]
        outcome = f"{type(error).__name__}: {said[0]}"
    sys.stdout.write(f"{name}\t{outcome}\n")
    sys.stdout.flush()
