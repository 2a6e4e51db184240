"""Numba: the driver API by its own bindings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from steps import step


@cuda.jit
def add_one(values: Any) -> None:
    """Adds one to each."""
    at = cuda.grid(1)
    if at < values.size:
        values[at] += 1


def launched() -> int:
    """A hundred launches on one array."""
    values = cuda.to_device(np.zeros(1 << 16, dtype=np.int32))
    for _ in range(100):
        add_one[256, 256](values)
    return int(values.copy_to_host().sum())


def managed() -> int:
    """Memory that both sides see."""
    values = cuda.managed_array(1 << 16, dtype=np.int32)
    values[:] = 1
    add_one[256, 256](values)
    cuda.synchronize()
    return int(values.sum())


step("available", cuda.is_available)
for function in (launched, managed):
    step(function.__name__, function)
