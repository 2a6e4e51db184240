"""Programs that may do less than others, that change their root, or that start others are held to their slices.

A program that becomes another one in a root without the shim is the exception.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, ended

ACTOR = str(BUILD / "tests" / "actor")
SYSTEM_NOT_READY = 802
WHOLE_GPU = 81920 * MIB
HALF = 500 * MIB
LINES = ("init", "ctx", f"alloc a {HALF}", f"alloc b {HALF}", f"async c {4 * MIB}", "launch spin_us_10", "wait")
"""The lines for an actor in a container of 1 GiB: the second of the two allocations is refused."""


def answers(container: Container, *command: str) -> tuple[list[int], str]:
    """Returns the results of LINES, and what was read on standard error."""
    given, lines = container.environment(), "".join(f"{line}\n" for line in LINES)
    done = subprocess.run(command, env=given, input=lines, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return [int(line.split()[0]) for line in done.stdout.splitlines()], done.stderr


def test_the_shim_makes_no_system_call_that_profiles_of_containers_refuse(node: Node) -> None:
    container = node.container("a", Share(core=50, schedule=str(node.folder / "missing")))
    results, errors = answers(container, str(BUILD / "tests" / "confined"), ACTOR)
    assert results == [0, 0, 0, OUT_OF_MEMORY, 0, 0, 0]
    assert errors.count("\n") == 1, "the page is missing"


CHANGES_ITS_ROOT = """
import ctypes, os, sys
root, order = sys.argv[1:]
def change_root():
    if os.getuid() != 0 and ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "no user namespace")
    os.chroot(root)
    os.chdir("/")
driver = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
if order == "first":
    change_root()
answers = [driver.cuInit(0)]
if order == "later":
    change_root()
answers.append(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
driver.cuCtxPushCurrent_v2(context)
answers += [driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(500 << 20)) for _ in range(2)]
print(*answers, flush=True)
sys.stdin.readline()
"""
"""Changes its root before its first call, or after cuInit."""


@pytest.mark.parametrize(
    ("order", "expected"),
    [("first", [SYSTEM_NOT_READY]), ("later", [0, 0, 0, OUT_OF_MEMORY])],
)
def test_a_program_that_changes_its_root_is_refused_or_held_as_before(
    node: Node, order: str, expected: list[int]
) -> None:
    container, root, pipe = node.container("a"), node.folder / "root", subprocess.PIPE
    root.mkdir()
    command = [sys.executable, "-c", CHANGES_ITS_ROOT, str(root), order]
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert [int(word) for word in program.stdout.readline().split()][: len(expected)] == expected
        if order == "later":
            assert [answer[0] for answer in container.run("init", "ctx", "info", "release")] == [0] * 4
            assert container.charged() == node.truth("a")[0] == 756 * MIB, "others do not take it for dead"


def other_root(folder: Path, driver: Path) -> Path:
    """A root with the actor, the libraries that it needs, and the driver; no shim."""
    needed = subprocess.run(["ldd", ACTOR], capture_output=True, text=True, check=True).stdout.split()
    libraries = [Path(word) for word in needed if word.startswith("/")]
    for file in (Path(ACTOR), *libraries, driver / "libcuda.so.1", driver / "libnvidia-ml.so.1"):
        copy = folder.joinpath(*file.parts[1:])
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return folder


BECOMES_ANOTHER = CHANGES_ITS_ROOT.partition("driver =")[0] + "change_root()\nos.execv(order, [order])\n"


def test_a_program_that_another_root_has_without_the_shim_is_not_held(node: Node) -> None:
    """The documents name it among the ways past the shim."""
    assert node.driver is not None
    container, root = node.container("a"), other_root(node.folder / "root", node.driver)
    (root / "gpu").mkdir()
    container.settings["SIMGPU_DIR"] = "/gpu"
    command = [sys.executable, "-c", BECOMES_ANOTHER, str(root), ACTOR]
    given = container.environment()
    done = subprocess.run(command, env=given, input="init\ntotal 0\n", capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["0 0 0", f"0 {WHOLE_GPU} 0"], done.stderr


STARTS_ANOTHER = """
import ctypes, os, sys
driver = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
def allocates(mib):
    return driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
answers = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
           driver.cuCtxPushCurrent_v2(context), allocates(100)]
given, lines = os.pipe()
read, written = os.pipe()
ways = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, written, 1),
        (os.POSIX_SPAWN_CLOSE, lines), (os.POSIX_SPAWN_CLOSE, read)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=ways)
os.close(written)
os.write(lines, b"init\\nctx\\nalloc a 104857600\\nalloc b 524288000\\n")
with open(read) as said:
    answers += [int(said.readline().split()[0]) for _ in range(4)]
    answers += [allocates(100), allocates(500)]
    print(*answers, flush=True)
    sys.stdin.readline()
    os.close(lines)
os.waitpid(child, 0)
"""
"""The C library starts the other program by vfork: until that begins, it runs in this one's memory."""


def test_a_program_that_is_started_by_vfork_has_a_place_of_its_own_and_takes_none_of_its_parents(node: Node) -> None:
    container, pipe = node.container("a"), subprocess.PIPE
    command = [sys.executable, "-c", STARTS_ANOTHER, ACTOR]
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert program.stdout.readline().split() == ["0"] * 7 + [str(OUT_OF_MEMORY), "0", str(OUT_OF_MEMORY)]
        assert container.living() == 2
        assert container.charged() == node.truth("a")[0] == (2 * 256 + 3 * 100) * MIB


CROWD = ("crowd", "64", "4", "20")
GPUS = 4


def four_gpus(node: Node) -> Container:
    """A container with a half of each of four GPUs."""
    node.settings["SIMGPU_DEVICES"] = str(GPUS)
    page = str(node.folder / "missing")
    return node.container("a", *(Share(core=50, ordinal=i, schedule=page) for i in range(GPUS)))


def test_sixty_four_threads_on_four_gpus_end_as_without_the_shim(node: Node) -> None:
    container = four_gpus(node)
    with ended(container.start(f"programs/{CROWD[0]}", *CROWD[1:])) as program:
        out, errors = program.communicate(timeout=240)
    assert (out.split()[0], errors.count("\n")) == ("0", GPUS), errors
    assert [container.unsettled(device) for device in range(GPUS)] == [0] * GPUS
    assert container.slots_used() == 1


def test_so_they_do_under_the_thread_sanitizer(node: Node) -> None:
    container = four_gpus(node)
    given = {key: value for key, value in container.environment().items() if key != "LD_PRELOAD"}
    command = ["setarch", "-R", str(BUILD / "tests" / "programs" / f"{CROWD[0]}-tsan"), *CROWD[1:]]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr.count("\n"), done.stdout.split()[0]) == (0, GPUS, "0"), done.stderr
    assert container.slots_used() == 1, "its calls went to the shim"
