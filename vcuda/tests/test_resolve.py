"""However a program looks for the driver's functions, it finds the shim's, or the driver's where there is none."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from node import BUILD, Container, Node

ROOT = BUILD.parent
LIBRARIES = ["libvcuda.so.1", "shipped/x86_64/libvcuda.so.1", "shipped/aarch64/libvcuda.so.1"]


def listed(table: str) -> list[str]:
    """The functions that a table of hooks names."""
    return re.findall(r"^HOOK\((\w+)\)$", (ROOT / "src" / "hooks" / table).read_text(encoding="utf-8"), re.MULTILINE)


HOOKS, NVML_HOOKS = listed("hooks.def"), listed("nvml_hooks.def")


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_addresses_from_linking_dlsym_and_the_resolver_agree(node: Node, release: str) -> None:
    node.driver = BUILD / "simgpu" / release
    container = node.container("a")
    out, errors = container.start("resolve").communicate(timeout=240)
    assert (out, errors) == ("10 3\n", "")


def test_outside_fairgpu_the_resolver_gives_the_drivers_own_functions(node: Node) -> None:
    container = node.container("a")
    container.config.unlink()
    out, _ = container.start("resolve").communicate(timeout=240)
    assert out.endswith("0 13\n")


def test_the_next_function_is_next_to_the_caller_and_not_to_the_shim(node: Node) -> None:
    container = node.container("a")
    between = BUILD / "tests" / "unit" / "full_disk.so"
    container.settings["LD_PRELOAD"] = f"{between}:{container.library}"
    assert container.start("resolve", "next", "fallocate").communicate(timeout=240) == (f"{between.name}\n", "")


def test_a_library_of_its_own_scope_finds_what_is_in_it(node: Node) -> None:
    library = BUILD / "tests" / "unit" / "finds_itself.so"
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}, mode=0).finds_itself())"
    given = node.container("a").environment()
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def names_found(container: Container, *, shim: bool) -> list[str]:
    """Hooked functions that dlsym finds in the driver."""
    given = container.environment()
    if not shim:
        del given["LD_PRELOAD"]
    program = (
        "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); print(*[n for n in sys.argv if hasattr(cuda, n)])"
    )
    command = [sys.executable, "-c", program, *HOOKS]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_a_function_that_the_driver_lacks_is_not_made_up(node: Node, release: str) -> None:
    node.driver = BUILD / "simgpu" / release
    container = node.container("a")
    with_shim = names_found(container, shim=True)
    assert with_shim == names_found(container, shim=False)
    assert "cuInit" in with_shim


def prototypes(release: str, header: str) -> dict[str, list[str]]:
    """Parameter types of every function that a release's header declares, names left out."""
    path = BUILD / "headers" / release / header
    flags = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", str(path)]
    text = " ".join(subprocess.run(flags, capture_output=True, text=True, check=True).stdout.split())
    found = {}
    for name, parameters in re.findall(r"(?:CUresult|nvmlReturn_t) (?:CUDAAPI )?(\w+) ?\(([^;]*)\);", text):
        types = [re.sub(r"\s*\w+\s*$", "", one) if one != "void" else "" for one in parameters.split(",")]
        found[name] = [re.sub(r"\s+", "", one).replace("_v1", "") for one in types]
    return found


@pytest.mark.parametrize("release", ["11.8", "12"])
@pytest.mark.parametrize(("header", "hooks"), [("cuda.h", HOOKS), ("nvml.h", NVML_HOOKS)], ids=["CUDA", "NVML"])
def test_hooks_have_the_same_prototype_in_every_release(release: str, header: str, hooks: list[str]) -> None:
    ours, theirs = prototypes("13", header), prototypes(release, header)
    assert set(hooks) <= set(ours)
    differing = {name: (ours[name], theirs[name]) for name in hooks if name in theirs and ours[name] != theirs[name]}
    assert differing == {}


STANDS_BEFORE = {
    "resolve": r"cuGetProcAddress",
    "contexts": r"cuInit|cuCtx(Create|Destroy|Detach|SetLimit)|cuDevicePrimaryCtx(Retain|Release|Reset)"
    r"|cuGreenCtx(Create|Destroy)",
    "report": r"cuMemGetInfo|cuDeviceTotalMem",
    "linear": r"cuMem(Alloc|AllocPitch|Free|AllocManaged)",
    "pools": r"cuMem(AllocAsync|AllocFromPoolAsync|FreeAsync)"
    r"|cuMemPool(Create|Destroy|TrimTo|SetAttribute|ImportFromShareableHandle|ExportToShareableHandle|ImportPointer)",
    "virtual memory": r"cuMem(Create|Release|Map|Unmap|RetainAllocationHandle|MapArrayAsync)"
    r"|cuMem(ExportTo|ImportFrom)ShareableHandle|cuMulticast[A-Za-z]+",
    "arrays": r"cuArray(3D)?Create|cuArrayDestroy|cuMipmappedArray(Create|Destroy)",
    "sharing": r"cuIpc(Get|Open|Close)MemHandle|cu(Import|Destroy)ExternalMemory",
    "launches": r"cuLaunch(Kernel(Ex)?|CooperativeKernel(MultiDevice)?|Grid(Async)?)?|cuGraphLaunch",
    "graphs": r"cuGraph(Instantiate[A-Za-z]*|Upload|ExecDestroy|AddMemAllocNode|AddNode)|cuDeviceGraphMemTrim",
    "streams": r"cuStream(BeginCapture|BeginCaptureToGraph|EndCapture|Destroy)",
    "waits": r"cuLaunchHostFunc|cuStream(AddCallback|WaitEvent|WaitValue(32|64)|BatchMemOp)"
    r"|cuWaitExternalSemaphoresAsync",
}
"""Everything by which a program comes by memory, launches, waits in a stream, or learns the size of its device."""


ASKS = {"cuMipmappedArrayGetLevel", "cuMipmappedArrayGetMemoryRequirements", "cuMipmappedArrayGetSparseProperties"}
"""They allocate and free nothing: a level goes with its array, and neither of the others gives the device's size."""


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_calls_for_mipmapped_arrays_that_only_ask_are_the_drivers_own(release: str) -> None:
    forms = {name for name in prototypes(release, "cuda.h") if name.startswith("cuMipmappedArray")}
    assert forms - set(HOOKS) == ASKS


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
@pytest.mark.parametrize("group", STANDS_BEFORE)
def test_every_form_of_a_call_in_every_release_has_its_hook(release: str, group: str) -> None:
    form = re.compile(rf"(?:{STANDS_BEFORE[group]})(?:_v\d+)?(?:_ptsz|_ptds)?")
    forms = {name for name in prototypes(release, "cuda.h") if form.fullmatch(name)}
    assert forms
    assert forms - set(HOOKS) == set()


OF_NVML = (
    r"nvmlDeviceGet(?:Count|HandleBy(?:Index|UUIDV?|Serial|PciBusId)|MemoryInfo|(?:Compute|Graphics|MPSCompute)RunningProcesses"
    r"|RunningProcessDetailList|UtilizationRates|ProcessUtilization|ProcessesUtilizationInfo)(?:_v\d+)?"
)
"""All that answers about devices, their memory and work, and the processes on them."""


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_every_form_of_what_nvml_tells_in_every_release_has_its_hook(release: str) -> None:
    forms = {name for name in prototypes(release, "nvml.h") if re.fullmatch(OF_NVML, name)}
    assert {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCount"} <= forms
    assert forms - set(NVML_HOOKS) == set()


def dynamic(library: Path, *what: str) -> str:
    """Returns what readelf says of a library, whichever processor it is for."""
    command = ["readelf", "-W", *what, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("library", LIBRARIES, ids=str)
def test_the_shim_exports_its_hooks_and_nothing_else(library: str) -> None:
    rows = [line.split() for line in dynamic(BUILD / library, "--dyn-syms").splitlines()]
    exported = {row[7].split("@")[0] for row in rows if len(row) == 8 and row[4] == "GLOBAL" and row[6].isdigit()}
    assert exported == {*HOOKS, *NVML_HOOKS, "dlsym", "dlvsym"}


@pytest.mark.parametrize("library", LIBRARIES, ids=str)
def test_the_shim_carries_no_version_names_of_its_own(library: str) -> None:
    # With a named version the loader would not take its dlsym for the C library's.
    assert "Version definition" not in dynamic(BUILD / library, "-V")


@pytest.mark.parametrize("library", LIBRARIES, ids=str)
def test_the_shim_in_use_reads_nothing_from_the_environment(library: str) -> None:
    assert "getenv" not in dynamic(BUILD / library, "--dyn-syms")


def test_the_shim_as_it_is_shipped_loads_and_hands_on(node: Node) -> None:
    container = node.container("a")
    container.library = BUILD / "shipped" / platform.machine() / "libvcuda.so.1"
    out, errors = container.start("resolve").communicate(timeout=240)
    assert (out.split()[-2:], errors) == (["0", "13"], "")


def test_no_hook_is_entered_by_the_shim_itself() -> None:
    for source in (ROOT / "src").rglob("*.c"):
        text = re.sub(r"/\*.*?\*/", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        calls = re.findall(r"(?<![\w(\"])(cu[A-Z]\w+)\(", text)
        defined = re.findall(r"EXPORT CUresult (cu\w+)\(", text)
        assert sorted(calls) == sorted(defined), source.name
        assert not re.search(r"(?<!\w)dlv?sym\(", text), f"{source.name} asks itself"


def test_a_program_with_a_sanitizer_of_its_own_works(node: Node) -> None:
    container = node.container("a")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    container.settings["LD_PRELOAD"] = f"{runtime.strip()}:{container.library}"
    out, errors = container.start("actor-asan").communicate(
        "init\nctx\nalloc a 5000000000\nalloc a 1000\n", timeout=240
    )
    assert [line.split()[0] for line in out.splitlines()] == ["0", "0", "2", "0"]
    assert errors == ""
