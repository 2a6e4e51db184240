"""Numba's driver: contexts, arrays, modules and launches, by ctypes on the driver API."""

import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver

PTX = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin_us_100() { ret; }\n"

context = cuda.current_context()
refused = 0
try:
    cuda.device_array(800 << 20, dtype=np.uint8)
except driver.CudaAPIError as error:
    refused = error.code
kept = cuda.device_array(100 << 20, dtype=np.uint8)
copied = cuda.to_device(np.zeros(1000))
function = context.create_module_ptx(PTX).get_function("spin_us_100")
stream = context.create_stream()
for _ in range(50):
    driver.launch_kernel(function.handle, 1, 1, 1, 1, 1, 1, 0, stream.handle, [])
stream.synchronize()
sys.stdout.write(f"{refused} {context.get_memory_info().total >> 20}\n")
