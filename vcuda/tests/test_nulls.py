"""A driver decides itself which pointers may be NULL: the shim changes none of its answers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from node import BUILD, Container, Node

HOOKS = re.findall(r"^HOOK\((\w+)\)", (BUILD.parent / "src" / "hooks" / "hooks.def").read_text(), re.MULTILINE)
ENDS_CONTEXTS = re.compile("cuCtxDe|cuDevicePrimaryCtxRe(lease|set)|cuGreenCtxDestroy")

CALLS = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
nothing, some = ctypes.c_void_p(), ctypes.c_size_t(4096)
print("cuInit", driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
      driver.cuCtxPushCurrent_v2(context), flush=True)
for name in sys.argv[1:]:
    print(name, getattr(driver, name)(*[nothing] * 12) if hasattr(driver, name) else "missing", flush=True)
narrow = ctypes.c_uint()
print("of sizes", driver.cuMemAlloc_v2(nothing, some), driver.cuMemAllocManaged(nothing, some, 1),
      driver.cuMemAllocPitch_v2(nothing, nothing, some, some, 4), driver.cuMemAllocAsync(nothing, some, nothing),
      driver.cuMemCreate(nothing, some, nothing, some), flush=True)
print("of memory", driver.cuMemGetInfo_v2(ctypes.byref(free), nothing),
      driver.cuMemGetInfo_v2(nothing, ctypes.byref(total)),
      driver.cuMemGetInfo_v2(nothing, nothing), driver.cuMemGetInfo(ctypes.byref(narrow), nothing),
      driver.cuMemGetInfo(nothing, ctypes.byref(narrow)), driver.cuMemGetInfo(nothing, nothing), flush=True)
print(free.value, total.value, narrow.value)
"""


def answers(container: Container, *, shim: bool) -> list[str]:
    """One line for each call."""
    given = container.environment()
    if not shim:
        del given["LD_PRELOAD"]
    names = [name for name in HOOKS if not ENDS_CONTEXTS.match(name)]
    done = subprocess.run([sys.executable, "-c", CALLS, *names], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-400:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("release", ["11.8", "13"])
def test_every_call_takes_null_where_the_driver_does(node: Node, release: str) -> None:
    node.driver = Path(BUILD / "simgpu" / release)
    container = node.container("a")
    *plain, _ = answers(container, shim=False)
    *held, seen = answers(container, shim=True)
    assert held == plain
    assert held[-1] == "of memory 0 0 0 0 0 0", "either output of cuMemGetInfo may be NULL"
    limit = container.shares[0].memory
    assert [int(word) for word in seen.split()] == [limit - container.shares[0].context, limit, limit]
