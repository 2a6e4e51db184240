"""CuPy: kernels of its own and of the program, its pool, the driver's pool."""

from __future__ import annotations

import cupy
from steps import step


def compiled() -> int:
    """A kernel that is compiled as the program runs."""
    kernel = cupy.RawKernel('extern "C" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }', "twice")
    value = cupy.ones(64, dtype=cupy.int32)
    kernel((1,), (64,), (value,))
    return int(value.sum())


def ordered() -> int:
    """From the driver's pool, in the order of a stream."""
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    total = 0
    for _ in range(50):
        total += int(cupy.ones(1 << 20, dtype=cupy.int32).sum() >> 20)
    return total


def freed() -> int:
    """Its own pool, given back."""
    pool = cupy.get_default_memory_pool()
    cupy.ones(1 << 24, dtype=cupy.int32)
    pool.free_all_blocks()
    return int(pool.used_bytes())


step("devices", cupy.cuda.runtime.getDeviceCount)
step("sum", lambda: int(cupy.arange(1 << 20).sum()))
for function in (compiled, ordered, freed):
    step(function.__name__, function)
