"""Each name of hooks.def, resolved by cuGetProcAddress in each version of CUDA: is the address one that dlsym knows?

The shim replaces a function by its address. An address that only the resolver gives goes past it. Asked without the
shim, and without a context on the GPU.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

VCUDA = Path(__file__).resolve().parent.parent.parent
VERSIONS = (3020, 4000, 6050, 7000, 8000, 9000, 10000, 11000, 11020, 11040, 11080, 12000, 12040, 12080, 12090, 13000)
LEGACY, PER_THREAD = 1, 2
FOUND = 0


def hooked() -> list[str]:
    """Every function that the shim stands before."""
    return re.findall(r"^HOOK\((\w+)", (VCUDA / "src" / "hooks" / "hooks.def").read_text(), re.MULTILINE)


def base(name: str) -> str:
    """The name that the resolver knows: without the version and the stream's form."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


class Driver:
    """The driver's own library, asked by name and by its resolver."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.resolve = self.library.cuGetProcAddress_v2
        version = ctypes.c_int()
        self.library.cuInit(0)
        self.library.cuDriverGetVersion(ctypes.byref(version))
        self.version = version.value

    def exported(self, name: str) -> int | None:
        """The address at which dlsym finds it."""
        try:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value
        except AttributeError:
            return None

    def resolved(self, name: str, version: int, flags: int) -> int | None:
        """Returns the resolver's answer; None where it says that there is none."""
        address, status = ctypes.c_void_p(), ctypes.c_int(-1)
        error = self.resolve(
            name.encode(), ctypes.byref(address), ctypes.c_int(version), ctypes.c_uint64(flags), ctypes.byref(status)
        )
        return address.value if error == 0 and status.value == FOUND else None


def unknown(driver: Driver, names: list[str]) -> tuple[list[str], int]:
    """A line for each answer of the resolver that no exported name has, and how many answers there were."""
    exported = {name: driver.exported(name) for name in names}
    addresses = set(exported.values()) - {None}
    lines, answers = [], 0
    for name in sorted({base(name) for name in names}):
        for flags in (0, LEGACY, PER_THREAD):
            for version in sorted({*VERSIONS, driver.version}):
                address = driver.resolved(name, version, flags)
                answers += address is not None
                if address is not None and address not in addresses:
                    lines.append(f"{name} version {version} flags {flags}: {address:#x} has no exported name")
    return lines, answers
