"""Programs that we did not write, held to a slice as if it were a smaller GPU."""

import subprocess
import sys

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, until
from test_resolve import HOOKS

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
    assert launches_of(container) == 50


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


def launches_of(container: Container) -> int:
    """Launches in the container's usage record, of its first GPU."""
    until(container.usage.exists)
    return int.from_bytes(container.usage.read_bytes()[48 + 48 + 48 :][:8], "little")


def trace_of(container: Container, program: list[str], *, shim: bool, asked: str = "") -> tuple[str, list[str]]:
    """Output of a program, and the driver's functions that it calls, with those that the shim calls for it.

    Lines that begin with a space are what cuGetProcAddress was asked.
    """
    trace = container.folder / "trace"
    given = container.environment() | {"SIMGPU_TRACE": str(trace)}
    if not shim:
        del given["LD_PRELOAD"]
    command = [str(BUILD / "tests" / program[0]), *program[1:]]
    done = subprocess.run(command, env=given, input=asked, capture_output=True, text=True, check=True)
    return done.stdout, trace.read_text().splitlines()


@pytest.mark.parametrize("release", ["12", "13"])
def test_nvidias_runtime_calls_with_the_shim_what_it_calls_without_until_it_asks_for_private_tables(
    node: Node, release: str
) -> None:
    node.driver = BUILD / "simgpu" / release
    _, plain = trace_of(node.container("plain"), [f"cudart-{release}"], shim=False)
    _, held = trace_of(node.container("a"), [f"cudart-{release}"], shim=True)
    remaining = iter(held)
    assert [name for name in plain if name not in remaining] == [], "in the same order, asking for the same functions"
    assert plain[-1] == "cuGetExportTable"


def asked_by_the_runtime(node: Node, release: str) -> str:
    """The table of driver functions that NVIDIA's runtime resolves: a name, a version and flags on each line."""
    node.driver = BUILD / "simgpu" / release
    _, trace = trace_of(node.container("runtime"), [f"cudart-{release}"], shim=False)
    lines = [line.strip() for line in trace if line.startswith(" ")]
    return "".join(f"{line}\n" for line in lines if len(line.split()) == 3)


@pytest.mark.parametrize("release", ["12", "13"])
def test_each_hooked_function_in_the_table_of_nvidias_runtime_is_the_shims_and_no_other(
    node: Node, release: str
) -> None:
    asked = asked_by_the_runtime(node, release)
    answers = {}
    for shim in (False, True):
        container = node.container(f"where-{shim}")
        out, _ = trace_of(container, ["runtime_calls", "where"], shim=shim, asked=asked)
        answers[shim] = [line.split() for line in out.splitlines()]
    known = [(plain, held) for plain, held in zip(answers[False], answers[True], strict=True) if plain[3] != "-"]
    assert len(answers[False]) == len(answers[True]) == asked.count("\n") > 400
    assert len(known) > 200, "the others the simulated driver does not have"
    wrong = [
        held
        for (*_, function), held in known
        if held[3:] != ["libvcuda.so.1" if function in HOOKS else "libcuda.so.1", function]
    ]
    assert wrong == []


@pytest.mark.parametrize("release", ["12", "13"])
def test_the_runtimes_calls_come_to_the_same_with_the_shim_and_keep_to_the_slice(node: Node, release: str) -> None:
    asked = asked_by_the_runtime(node, release)
    program = ["runtime_calls", "calls"]
    out, plain = trace_of(node.container("plain"), program, shim=False, asked=asked)
    container = node.container("a")
    held_out, held = trace_of(container, program, shim=True, asked=asked)
    assert {line.rsplit(" ", 1)[1] for line in out.splitlines()} == {"0", "1", "81920"}, "every call does its work"
    refused = f"cudaMalloc of more than the slice {OUT_OF_MEMORY}"
    expected = out.replace("cudaMalloc of more than the slice 0", refused).replace("total 81920", "total 1024")
    assert held_out == expected
    plain.remove("cuMemAlloc_v2")  # the one that is refused
    remaining = iter(held)
    assert [name for name in plain if name not in remaining] == []
    assert launches_of(container) == 4
    assert node.truth("a")[1] <= 1024 * MIB
