"""A driver decides itself which pointers may be NULL: the shim changes none of its answers, and reads none first."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node import BUILD, Container, Node
from test_resolve import prototypes

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


UNREADABLE = """
import ctypes, json, sys
driver, calls = ctypes.CDLL("libcuda.so.1"), json.loads(sys.argv[1])
driver.arguments_of.restype = ctypes.POINTER(ctypes.c_long)
buffers = [ctypes.create_string_buffer(65536) for _ in range(12)]
driver.cuInit(0)
for name, arguments in calls:
    given = [ctypes.addressof(buffers[at]) if word == "readable" else word for at, word in enumerate(arguments)]
    print(name, *arguments, end=" ", flush=True)
    result = getattr(driver, name)(*[ctypes.c_void_p(word) for word in given])
    came = driver.arguments_of(name.encode())
    different = [at for at, word in enumerate(given) if came and (came[at] ^ word) & (-1 if word > 255 else 255)]
    to = "nobody" if not came else f"the driver, but {different}" if different else "the driver"
    print("gives", result, "to", to)
"""
"""Makes calls of a driver that refuses them all, and says what came to it."""
NOWHERE = 16
"""An address at which nothing can be read or written."""
BOXES_NOW = ("2D_v2", "2DUnaligned_v2", "3D_v2", "3DPeer")
BOXES_LATER = ("2DAsync_v2", "3DAsync_v2", "3DPeerAsync", "3DWithAttributesAsync")
FORMS_OF_BATCHES = ("", "_ptsz", "_v2", "_v2_ptsz")
READ_FIRST = {
    "cuMemCreate": (2,),
    "cuMemPoolCreate": (1,),
    "cuImportExternalMemory": (1,),
    "cuArrayCreate": (1,),
    "cuArrayCreate_v2": (1,),
    "cuArray3DCreate": (1,),
    "cuArray3DCreate_v2": (1,),
    "cuMipmappedArrayCreate": (1,),
    "cuLaunchKernelEx": (0,),
    "cuLaunchKernelEx_ptsz": (0,),
    "cuLaunchCooperativeKernelMultiDevice": (0,),
    "cuGraphInstantiateWithParams": (2,),
    "cuGraphInstantiateWithParams_ptsz": (2,),
    "cuGraphAddMemAllocNode": (4,),
    "cuGraphAddNode": (4,),
    "cuGraphAddNode_v2": (5,),
    "cuGraphAddNode_v3": (5,),
    **dict.fromkeys((f"cuMemcpy{each}{twin}" for each in BOXES_NOW for twin in ("", "_ptds")), (0,)),
    **dict.fromkeys((f"cuMemcpy{each}{twin}" for each in BOXES_LATER for twin in ("", "_ptsz")), (0,)),
    **dict.fromkeys((f"cuMemcpyBatchAsync{form}" for form in FORMS_OF_BATCHES), (0, 1, 2)),
    **dict.fromkeys((f"cuMemcpy3DBatchAsync{form}" for form in FORMS_OF_BATCHES), (1,)),
}
"""The parameters that say what is to be charged, into which stream is launched, or how much is copied from where to
where: read before the driver is called, but not where one is NULL."""
BY_VALUE = {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"}
"""They take a handle of 64 bytes by its value."""
NEEDS_ANOTHER = {"cuGreenCtxCreate"}
"""The shim makes the primary context first, which this driver refuses."""
KEPT_BACK = {"cuMemGetInfo", "cuMemGetInfo_v2"}
"""They give the driver variables of the shim's: the program sees its slice, or nothing."""


def with_pointers() -> dict[str, list[str]]:
    """The kinds of parameters, a pointer, a device or another word, of each function that has a pointer."""
    types = prototypes("13", "cuda.h")
    kinds = {
        name: [
            "pointer" if one.endswith(("*", "[]")) else "device" if one == "CUdevice" else "word" for one in types[name]
        ]
        for name in HOOKS
        if name not in BY_VALUE | NEEDS_ANOTHER
    }
    return {name: each for name, each in kinds.items() if "pointer" in each}


def arguments(kinds: list[str], pointer: object, others: dict[int, object]) -> list[object]:
    """One for each parameter."""
    words = [{"pointer": pointer, "device": 0}.get(kind, 100 + at) for at, kind in enumerate(kinds)]
    return [others.get(at, word) for at, word in enumerate(words)]


def refused(node: Node, calls: list[tuple[str, list[object]]]) -> list[str]:
    """A line for each call: what it answered, and what came to the driver."""
    driver = node.folder / "driver"
    driver.mkdir()
    shutil.copy(BUILD / "tests" / "unit" / "refusing_driver.so", driver / "libcuda.so.1")
    node.driver = driver
    command = [sys.executable, "-c", UNREADABLE, json.dumps(calls)]
    given = node.container("a").environment()
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-400:]
    return done.stdout.splitlines()


def test_no_hook_reads_or_writes_what_a_program_points_to_before_the_driver_has_accepted_it(node: Node) -> None:
    calls = [
        (name, arguments(kinds, NOWHERE, dict.fromkeys(READ_FIRST.get(name, ()), "readable")))
        for name, kinds in with_pointers().items()
    ]
    assert wrong(refused(node, calls)) == []


def test_nor_where_one_pointer_of_a_call_is_null(node: Node) -> None:
    calls = [
        (name, arguments(kinds, "readable", {at: 0}))
        for name, kinds in with_pointers().items()
        for at, kind in enumerate(kinds)
        if kind == "pointer"
    ]
    assert wrong(refused(node, calls)) == []


def wrong(lines: list[str]) -> list[str]:
    """Those of calls that did not come to the driver as they were made, or were not answered by it."""
    return [line for line in lines if not line.endswith(" gives 1 to the driver") and line.split()[0] not in KEPT_BACK]
