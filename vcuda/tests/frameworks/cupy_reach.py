"""Prints how far CuPy gets: NVIDIA's runtime, which is linked into it."""

from __future__ import annotations

import cupy
from reach import step

step("import", lambda: cupy.__version__)
step("version of the driver", cupy.cuda.runtime.driverGetVersion)
step("version of the runtime", cupy.cuda.runtime.runtimeGetVersion)
step("devices", cupy.cuda.runtime.getDeviceCount)
step("array", lambda: cupy.arange(10).sum())
step("pool of the driver", lambda: cupy.cuda.MemoryAsyncPool().malloc(512))
step("stream", lambda: cupy.cuda.Stream().synchronize())
