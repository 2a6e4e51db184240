"""The machine's own GPU, asked through NVIDIA's libraries alone: which is it, how much of its memory is in use?"""

from __future__ import annotations

import ctypes
import time
from functools import cache

SETTLED_READINGS, MOST_READINGS = 5, 150


class Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def real_gpu() -> tuple[str, str] | None:
    """UUID, and name with driver version, of the first GPU; None where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, version = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    raw, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
    cuda.cuDeviceGetUuid_v2(raw, device)
    cuda.cuDeviceGetName(name, 128, device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    text = bytes(raw).hex()
    uuid = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    release_for = f"{release()}for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return uuid, f"{name.value.decode()}, driver {release_for}"


def total_bytes() -> int:
    """Memory of the first GPU."""
    total = ctypes.c_size_t()
    ctypes.CDLL("libcuda.so.1").cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    return total.value


def release() -> str:
    """The driver's own version, as nvidia-smi shows it; empty where NVML does not say."""
    version = ctypes.create_string_buffer(80)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    return "" if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(version, 80) else version.value.decode() + " "


@cache
def watched(uuid: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """NVML, begun once, and its handle of the GPU.

    Raises:
        RuntimeError: NVML does not know it; with the number of its error.
    """
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    error = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
    if error:
        raise RuntimeError(f"NVML does not know {uuid}: its error {error}")
    return nvml, device


def used_bytes(uuid: str) -> int:
    """Memory of the whole GPU in use, by the driver.

    Raises:
        RuntimeError: NVML does not answer; with the number of its error.
    """
    nvml, device = watched(uuid)
    memory = Memory()
    error = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    if error:
        raise RuntimeError(f"NVML does not say the memory in use of {uuid}: its error {error}")
    return int(memory.used)


def settled_bytes(uuid: str) -> int:
    """The same, once programs that have ended are gone from it.

    Raises:
        RuntimeError: it does not come to rest; somebody else is using the GPU.
    """
    readings = [used_bytes(uuid)]
    while len(readings) < SETTLED_READINGS or len(set(readings[-SETTLED_READINGS:])) > 1:
        if len(readings) == MOST_READINGS:
            raise RuntimeError("the GPU's memory in use does not come to rest: is somebody else using it?")
        time.sleep(0.2)
        readings.append(used_bytes(uuid))
    return readings[-1]
