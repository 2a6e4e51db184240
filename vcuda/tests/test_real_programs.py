"""Programs that we did not write, held to a slice as if it were a smaller GPU."""

import subprocess
import sys

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Node, Share, until

PROGRAMS = BUILD.parent / "tests" / "real"
SYSTEM_NOT_READY, SYMBOL_NOT_FOUND = "802", "500"


@pytest.mark.parametrize(
    ("program", "release"),
    [
        ("cuda_bindings.py", "12"),
        ("cuda_bindings.py", "13"),
        ("numba_driver.py", "11.8"),
        ("numba_driver.py", "12"),
        ("numba_driver.py", "13"),
    ],
)
def test_a_program_runs_within_its_slice_and_is_counted(node: Node, program: str, release: str) -> None:
    page = node.folder / "page"
    node.driver = BUILD / "simgpu" / release
    container = node.container("a", Share(schedule=str(page)))
    given = container.environment() | {"PYTHONPATH": str(BUILD / "real")}
    with Agent(node, page, Tenant("a", 0)):
        command = [sys.executable, str(PROGRAMS / program)]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(OUT_OF_MEMORY), "1024"]
    assert 356 * MIB <= node.truth("a")[1] <= 400 * MIB
    until(container.usage.exists)
    launches = int.from_bytes(container.usage.read_bytes()[48 + 48 + 48 :][:8], "little")
    assert launches == 50


@pytest.mark.parametrize(
    ("release", "linked"),
    [
        ("11.8", "dynamically"),  # its wheel has no static runtime
        ("12", "dynamically"),
        ("12", "statically"),
        ("13", "dynamically"),
        ("13", "statically"),
    ],
)
def test_nvidias_runtime_finds_the_shim_and_is_otherwise_left_as_it_is(node: Node, release: str, linked: str) -> None:
    """The simulated driver lacks tables that the runtime wants; that comes after cuInit, which the shim can refuse."""
    node.driver = BUILD / "simgpu" / release
    (library,) = (BUILD / "headers" / release).glob("libcudart.so*")
    program = ["cudart", str(library)] if linked == "dynamically" else [f"cudart-{release}"]
    container, refused = node.container("a"), node.container("b")
    refused.config.write_bytes(b"none")
    assert container.start(*program).communicate()[0].split()[0] == SYMBOL_NOT_FOUND
    assert refused.start(*program).communicate()[0].split()[0] == SYSTEM_NOT_READY


def calls_of(node: Node, program: list[str], *, shim: bool) -> list[str]:
    """The driver's functions that a program calls, with those that the shim calls for it."""
    trace = node.folder / f"calls-{shim}"
    given = node.container(f"c-{shim}", SIMGPU_TRACE=str(trace)).environment()
    if not shim:
        del given["LD_PRELOAD"]
    subprocess.run([str(BUILD / "tests" / program[0]), *program[1:]], env=given, capture_output=True, check=True)
    return trace.read_text().split()


@pytest.mark.parametrize("release", ["12", "13"])
def test_nvidias_runtime_calls_with_the_shim_what_it_calls_without_until_it_asks_for_private_tables(
    node: Node, release: str
) -> None:
    node.driver = BUILD / "simgpu" / release
    plain = calls_of(node, [f"cudart-{release}"], shim=False)
    held = iter(calls_of(node, [f"cudart-{release}"], shim=True))
    assert [name for name in plain if name not in held] == [], "in the same order"
    assert plain[-1] == "cuGetExportTable"
