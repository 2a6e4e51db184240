"""Steps of a program: each prints its name and what came of it, and the next goes on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable


def step(name: str, act: Callable[[], object]) -> None:
    """Does one thing. What it raises is an outcome, too: a program must fail alike with the shim and without."""
    try:
        outcome = act()
    except Exception as error:  # noqa: BLE001 (any outcome is compared)
        traceback.print_exc()
        outcome = type(error).__name__
    sys.stdout.write(f"{name} {outcome}\n")
    sys.stdout.flush()
