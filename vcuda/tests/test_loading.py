"""Programs and drivers that look functions up while others do."""

import fcntl
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node import BUILD, MIB, OUT_OF_MEMORY, SANITIZERS, Container, Node, Share, ended

UNIT = BUILD / "tests" / "unit"
ANSWERS_ITSELF = 999

ASKS_NEXT = """
import ctypes, sys
before, tool = sys.argv[1:]
libraries = [ctypes.CDLL(name) for name in before.split()]
tool = ctypes.CDLL(tool)
tool.file_of_next.restype = ctypes.c_char_p
driver, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxPushCurrent_v2(context)] == [0, 0, 0]
names = b"cuMemGetInfo_v2", b"nvmlDeviceGetMemoryInfo", b"cuDriverGetVersion", b"getpid"
print(tool.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2000 << 20)),
      *[tool.file_of_next(name).decode().rpartition("/")[2] for name in names])
"""
"""A library asks for what comes next, once others were opened before it."""


def test_a_constructor_may_look_the_driver_up_while_another_thread_makes_the_first_call(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("binds", str(UNIT / "constructor.so"))) as program:
        assert program.communicate(timeout=120) == ("0 1\n", "")


@pytest.mark.parametrize("other_thread", ["dlsym", "phdr"])
def test_a_child_of_a_fork_finds_functions_whatever_lock_of_the_loaders_another_thread_held(
    node: Node, other_thread: str
) -> None:
    with ended(node.container("a").start("forks", other_thread)) as program:
        assert program.communicate(timeout=240) == ("0\n", "")


def test_a_child_of_a_fork_comes_back_whatever_lock_of_the_shims_another_thread_held(node: Node) -> None:
    with ended(node.container("a").start("forks", "calls")) as program:
        assert program.communicate(timeout=240) == ("0\n", "")


@pytest.mark.parametrize(("what", "said"), [("first", "forked"), ("cancelled", "cancelled")])
def test_functions_are_found_in_a_fork_and_after_a_cancellation_while_another_thread_looks_up_the_first(
    node: Node, what: str, said: str
) -> None:
    container = node.container("a")
    with container.ledger.open("rb") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)  # the look-up waits for it
        with ended(container.start("forks", what)) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == f"{said}\n"
            fcntl.flock(ledger, fcntl.LOCK_UN)
            assert program.communicate(timeout=240) == ("0\n", "")


@pytest.mark.parametrize("namespace", [(), ("apart",)], ids=["of all", "of its own"])
def test_the_limit_holds_where_a_program_has_its_own_walk_over_libraries(
    node: Node, namespace: tuple[str, ...]
) -> None:
    with ended(node.container("a", Share(memory=1024 * MIB)).start("own_walk", *namespace)) as program:
        assert program.communicate(timeout=120) == ("0 0 1024\n", "")


def next_to_a_tool(container: Container, *before: str, preloaded: str = "") -> list[str]:
    """Returns the answer to an allocation beyond the limit by the tool, and the files of four functions next to it."""
    tool = str(UNIT / "asks_next.so")
    container.settings["LD_PRELOAD"] = ":".join([*SANITIZERS, str(container.library), *preloaded.split()])
    command = [sys.executable, "-c", ASKS_NEXT, " ".join(before), tool]
    done = subprocess.run(command, env=container.environment(), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("before", [(), ("libcuda.so.1", "libnvidia-ml.so.1")], ids=["tool first", "driver first"])
@pytest.mark.parametrize("preloaded", ["", str(UNIT / "asks_next.so")], ids=["opened", "there from the start"])
def test_a_library_that_asks_for_the_next_function_of_the_driver_is_limited(
    node: Node, before: tuple[str, ...], preloaded: str
) -> None:
    container = node.container("a")
    shim = container.library.name
    answer, *files = next_to_a_tool(container, *before, preloaded=preloaded)
    assert answer == str(OUT_OF_MEMORY)
    assert files[:3] == [shim, shim, "libcuda.so.1"]
    assert files[3].startswith("libc.so")


def test_a_function_that_another_library_has_between_it_and_the_driver_comes_first(node: Node) -> None:
    libraries = f"{UNIT / 'asks_next.so'} {UNIT / 'answers_itself.so'}"
    answer, *_ = next_to_a_tool(node.container("a"), preloaded=libraries)
    assert answer == str(ANSWERS_ITSELF)


ASKS_WHILE_OTHERS_CLOSE = """
import ctypes, sys, threading
tool, *others = sys.argv[1:]
libraries = [ctypes.CDLL(name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
tool, loader = ctypes.CDLL(tool), ctypes.CDLL(None)
done, begun = threading.Event(), threading.Event()
tool.file_of_next.restype = ctypes.c_char_p
loader.dlopen.restype, loader.dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
loader.dlclose.argtypes = [ctypes.c_void_p]
def opens_and_closes():
    while not done.is_set():
        for handle in [loader.dlopen(name.encode(), 1) for name in others]:
            loader.dlclose(handle)
        begun.set()
thread = threading.Thread(target=opens_and_closes)
thread.start()
begun.wait()
found = {tool.file_of_next(b"cuMemAlloc_v2").decode().rpartition("/")[2] for _ in range(3000)}
done.set()
thread.join()
print(*found)
"""
"""A library asks for what comes next, behind itself but for those that come and go."""


def test_a_library_may_ask_for_the_next_function_while_another_thread_closes_libraries(node: Node) -> None:
    container = node.container("a", MALLOC_PERTURB_="165")  # what is freed is overwritten
    others = [str(shutil.copy(UNIT / "no_wipe.so", node.folder / f"other-{i}.so")) for i in range(4)]
    command = [sys.executable, "-c", ASKS_WHILE_OTHERS_CLOSE, str(UNIT / "asks_next.so"), *others]
    done = subprocess.run(command, env=container.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{container.library.name}\n", "")


def test_a_function_that_is_found_leaves_no_error_on_an_older_glibc() -> None:
    """Programs may ask dlerror alone whether dlsym found something."""
    done = subprocess.run([UNIT / "older_glibc"], capture_output=True, text=True, check=True)
    assert done.stdout == "nothing\n"


def test_outside_fairgpu_what_comes_next_is_the_drivers_own(node: Node) -> None:
    container = node.container("a")
    container.config.unlink()
    answer, *files = next_to_a_tool(container)
    assert answer == "0"
    assert files[:3] == ["libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so.1"]


if platform.machine() == "x86_64":  # the stub's jumps are of that

    def test_a_driver_that_is_a_stub_before_another_file_works_and_is_limited(node: Node) -> None:
        """WSL2's is one: it looks its functions up in libcuda.so.1.1 by dlsym."""
        folder = node.folder / "stub"
        folder.mkdir()
        real = Path(shutil.copy(BUILD / "simgpu" / "13" / "libcuda.so.1", folder / "libcuda.so.1.1"))
        shutil.copy(UNIT / "stub_driver.so", folder / "libcuda.so.1")
        node.driver = folder
        container = node.container("a", STUB_REAL=str(real))
        answers = container.run("init", "ctx", f"alloc a {500 * MIB}", f"alloc b {500 * MIB}")
        assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY]
        assert container.charged() == 756 * MIB

    @pytest.mark.parametrize("library", ["driver", "nvml"])
    def test_a_child_that_is_forked_while_a_library_is_being_bound_binds_it_anew(node: Node, library: str) -> None:
        program = str(UNIT / "fork_while_binding")
        given = {"LD_LIBRARY_PATH": str(node.driver)}
        done = subprocess.run([program, library], env=given, capture_output=True, text=True, check=True, timeout=240)
        assert done.stdout == "0\n"
