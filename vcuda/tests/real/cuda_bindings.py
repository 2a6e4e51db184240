"""NVIDIA's own Python binding of the driver API: a program of its users."""

import sys
from typing import Any

from cuda.bindings import driver

PTX = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin_us_100() { ret; }\n"


def done(answer: tuple[Any, ...]) -> Any:
    """Returns what a call that must work gave."""
    if int(answer[0]) != 0:
        raise SystemExit(str(answer[0]))
    return answer[1] if len(answer) > 1 else None


done(driver.cuInit(0))
device = done(driver.cuDeviceGet(0))
done(driver.cuCtxPushCurrent(done(driver.cuDevicePrimaryCtxRetain(device))))
refused = int(driver.cuMemAlloc(800 << 20)[0])
done(driver.cuMemAlloc(100 << 20))
function = done(driver.cuModuleGetFunction(done(driver.cuModuleLoadData(PTX)), b"spin_us_100"))
stream = done(driver.cuStreamCreate(0))
for _ in range(50):
    done(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
done(driver.cuStreamSynchronize(stream))
sys.stdout.write(f"{refused} {done(driver.cuDeviceTotalMem(device)) >> 20}\n")
