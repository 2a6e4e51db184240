"""Random choices of tests that hypothesis does not make: they follow from the seed of the run."""

from __future__ import annotations

import os
from random import Random

SEED = int(os.environ.get("FAIRGPU_SEED", "0"))
"""`make test SEED=n` sets it; 0 where pytest is started by itself."""


def chance(number: int) -> Random:
    """One of the run's sequences of random choices, by number."""
    return Random(f"{SEED} {number}")
