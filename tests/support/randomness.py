"""Random choices that tests make without hypothesis; they follow from the seed of the run."""

from __future__ import annotations

import os
from random import Random

SEED = int(os.environ.get("FAIRGPU_SEED", "0"))
"""The seed of the run: the n of `make test SEED=n`; 0 if pytest is started by itself."""


def chance(number: int) -> Random:
    """Returns a generator of random choices, which follow from the seed and the number: each call begins them anew."""
    return Random(f"{SEED} {number}")
