"""Killed at any instruction, a process leaves no byte uncounted, and none charged that is not held."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent import Agent, Tenant
from crowds import killed, raced
from node import BUILD, LEDGER_SIZE, MIB, OUT_OF_MEMORY, Node, Share, asked, ended, until

IN_CI = os.environ.get("CI") == "true"


def test_a_kill_after_any_instruction_leaves_a_whole_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()
    os.truncate(ledger, LEDGER_SIZE)
    stride = "1" if IN_CI else "3"
    program = str(BUILD / "tests" / "unit" / "kill_at_every_instruction")
    done = subprocess.run([program, str(ledger), stride], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500


@pytest.mark.parametrize(
    "case",
    [
        "in_flight_then_dead",
        "older_than_the_last",
        "owner_killed_in_discharge",
        "freed_then_left",
        "left_while_another_grew",
        "alive_elsewhere",
        "opened_by_the_newly_dead",
        "orphan_while_open",
        "timed_out_in_the_window",
        "leaving_amid_a_call",
        "open_when_given_up",
        "freed_while_open",
        "orphans_without_a_free_slot",
        "gone_a_moment_ago",
        "gone_and_open_elsewhere",
        "named_after_its_death",
    ],
)
def test_no_sample_frees_what_the_driver_still_holds(tmp_path: Path, case: str) -> None:
    charged, held = released(tmp_path, case)
    assert charged == held


@pytest.mark.parametrize(
    "case",
    [
        "let_go",
        "closed_when_given_up",
        "left_before_the_window",
        "torn_down_while_others_came_and_went",
        "grown_old",
        "a_slot_taken_anew",
        "gone_while_others_keep_pages_in_no_figure",
    ],
)
def test_memory_that_no_process_holds_is_freed(tmp_path: Path, case: str) -> None:
    charged, held = released(tmp_path, case)
    assert charged == held


@pytest.mark.parametrize("case", ["total_overwritten", "death_overwritten", "state_overwritten", "lock_overwritten"])
def test_a_figure_that_cannot_be_true_is_put_right_with_the_next_look(tmp_path: Path, case: str) -> None:
    charged, held = released(tmp_path, case)
    assert charged == held


def released(folder: Path, case: str) -> tuple[int, int]:
    """MiB charged at the end of a case of release_of_the_dead.c, and held by the driver then."""
    ledger = folder / "ledger"
    ledger.touch()
    os.truncate(ledger, LEDGER_SIZE)
    program = str(BUILD / "tests" / "unit" / "release_of_the_dead")
    done = subprocess.run([program, str(ledger), case], capture_output=True, text=True, check=True)
    charged, held = done.stdout.split()
    return int(charged), int(held)


def test_no_liveness_scan_runs_under_the_ledger_s_lock(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()
    os.truncate(ledger, LEDGER_SIZE)
    program = str(BUILD / "tests" / "unit" / "scan_without_the_lock")
    done = subprocess.run([program, str(ledger)], capture_output=True, text=True, check=True)
    looks, locked, dead = map(int, done.stdout.split())
    assert (looks, locked) == (3, 0)
    assert dead >= 2


def test_nothing_is_lost_or_left_over_after_random_kills(node: Node) -> None:
    page = node.folder / "page"
    with Agent(node, page, Tenant("a", 0), drives=True):
        container = node.container("a", Share(memory=1536 * MIB, schedule=str(page)))
        killed(container, 1000 if IN_CI else 60)
        assert node.truth("a")[1] <= 1536 * MIB
        with container.session() as ask:
            ask("init")
            until(lambda: ask("ctx")[0] == 0)
            until(lambda: container.charged() == 256 * MIB == node.truth("a")[0])
            assert ask("info")[1:] == [(1536 - 256) * MIB, 1536 * MIB]


def test_racing_processes_and_threads_never_pass_the_limit(node: Node) -> None:
    container = node.container("a", Share(memory=1024 * MIB, context=16 * MIB), SIMGPU_CONTEXT_MIB="16")
    race = raced(node, container, 16 if IN_CI else 4, 8, 60 if IN_CI else 1)
    assert race.allocations > 1000
    assert race.refusals > 100, "the limit was never reached"
    assert 900 * MIB < race.most <= 1024 * MIB


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_program_that_starts_right_after_another_ended_gets_the_memory_that_this_one_had(
    node: Node, ends: str
) -> None:
    node.settings["SIMGPU_TEARDOWN_MS"] = "300"
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0), drives=True):
        if ends == "killed":
            with container.session() as ask:
                assert [ask(line)[0] for line in ("init", "ctx", f"alloc a {600 * MIB}")] == [0] * 3
        else:
            assert [a[0] for a in container.run("init", "ctx", f"alloc a {600 * MIB}")] == [0] * 3
        answers = container.run("init", "ctx", "info", f"alloc b {700 * MIB}", f"alloc c {700 * MIB}")
    assert [answer[0] for answer in answers] == [0, 0, 0, 0, OUT_OF_MEMORY]
    assert answers[2][1] == 768 * MIB, "cuMemGetInfo shows what an allocation can have"
    assert node.truth("a")[1] <= 1024 * MIB


def test_memory_of_a_process_of_another_pid_namespace_is_released_after_its_death_and_not_before(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    actor = str(BUILD / "tests" / "actor")
    unprivileged = ["--user", "--map-root-user"] if os.geteuid() else []
    command = ["unshare", *unprivileged, "--pid", "--fork", "sh", "-c", f"{actor}; :"]
    pipe = subprocess.PIPE
    inside = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    with Agent(node, page, Tenant("a", 0), drives=True), container.session() as ask:
        with ended(inside):
            lines = ("init", "ctx", f"alloc a {256 * MIB}")
            assert [asked(inside, line)[0] for line in lines] == [0] * 3
            assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
            assert ask(f"alloc b {512 * MIB}")[0] == OUT_OF_MEMORY, "it lives and has its memory"
            inside.communicate("kill\n", timeout=60)
        until(lambda: container.charged() == 256 * MIB)
        assert ask(f"alloc b {512 * MIB}")[0] == 0


AS_A_DAEMON = """
import ctypes, os, signal, sys
driver, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
answers = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
           driver.cuCtxPushCurrent_v2(context), driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20))]
copy = os.dup(1)
os.closerange(3, copy)
os.closerange(copy + 1, 4096)
child = os.fork()
if child == 0:
    signal.pause()
os.write(1, f"{answers}\\n".encode())
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Closes all descriptors that it did not open, and forks a child that goes on without it."""


def test_so_it_is_of_one_that_has_closed_all_descriptors_and_left_a_child_behind(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    unprivileged = ["--user", "--map-root-user"] if os.geteuid() else []
    command = ["unshare", *unprivileged, "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; read line', "sh"]
    pipe = subprocess.PIPE
    inside = subprocess.Popen(
        [*command, sys.executable, "-c", AS_A_DAEMON], env=container.environment(), stdin=pipe, stdout=pipe, text=True
    )
    with Agent(node, page, Tenant("a", 0), drives=True), container.session() as ask, ended(inside):
        assert inside.stdin is not None
        assert inside.stdout is not None
        assert inside.stdout.readline() == "[0, 0, 0, 0]\n"
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert ask(f"alloc b {512 * MIB}")[0] == OUT_OF_MEMORY, "it lives and has its memory"
        inside.stdin.write("\n")
        inside.stdin.flush()
        until(lambda: container.charged() == 256 * MIB)
        assert ask(f"alloc b {512 * MIB}")[0] == 0
