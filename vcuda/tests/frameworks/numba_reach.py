"""Prints how far Numba gets: the driver API by its own bindings, with a module in PTX.

Numba's compiler would need NVIDIA's libNVVM.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver
from reach import step

PTX = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin_us_100() { ret; }\n"


def launches() -> str:
    """Fifty kernels on a stream of their own."""
    context = cuda.current_context()
    function = context.create_module_ptx(PTX).get_function("spin_us_100")
    stream = context.create_stream()
    for _ in range(50):
        driver.launch_kernel(function.handle, 1, 1, 1, 1, 1, 1, 0, stream.handle, [])
    stream.synchronize()
    return "done"


def copies() -> str:
    """To the device and back, and pinned and managed memory."""
    cuda.to_device(np.zeros(1000)).copy_to_host()
    cuda.pinned_array(1000)[:] = 1
    cuda.managed_array(1000)[:] = 1
    return "done"


def compiles() -> str:
    """As a decorated function of a program is."""
    cuda.jit("void(int32[:])")(lambda _: None)
    return "done"


step("import", lambda: numba.__version__)
step("devices", lambda: len(cuda.gpus))
step("memory, MiB", lambda: cuda.current_context().get_memory_info().total >> 20)
step("100 MiB", lambda: cuda.device_array(100 << 20, dtype=np.uint8).nbytes)
step("launches", launches)
step("copies", copies)
step("its compiler", compiles)
