"""Processes that a test starts are gone once the test has ended. One that SIGTERM does not end fails the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import FAIRGPU, TREE, end, ending, kill
from tests.support.waiting import LIMIT_S, wait_until

DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    print("deaf", flush=True)
time.sleep(600)
"""


def deaf(*, own_group: bool) -> subprocess.Popen[bytes]:
    """A process with a child; both ignore SIGTERM."""
    command = [sys.executable, "-I", "-S", "-c", DEAF]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=own_group)
    assert process.stdout is not None
    assert process.stdout.readline() == b"deaf\n"
    return process


def test_a_process_that_sigterm_ends_ends_with_the_block_and_shows_its_status() -> None:
    with ending(subprocess.Popen(["sleep", "600"])) as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM
    assert end(process) == -signal.SIGTERM, "it has ended: no signal is sent"


def test_a_failure_in_the_block_is_shown_and_leaves_no_process() -> None:
    process = subprocess.Popen(["sleep", "600"])
    with pytest.raises(TimeoutError, match="it listens"), ending(process):
        wait_until(lambda: False, "it listens", 0.01)
    assert process.returncode == -signal.SIGTERM


def test_a_process_that_ignores_sigterm_fails_the_test_and_is_gone_with_its_group() -> None:
    process = deaf(own_group=True)
    assert process.stdout is not None
    with process.stdout, pytest.raises(AssertionError, match="was asked to end"):
        end(process, limit_s=0.2)
    # Its child held the same pipe.
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not alive_in(process.pid), "the group is gone", LIMIT_S)


def test_a_process_of_the_tests_own_group_is_killed_alone() -> None:
    process = subprocess.Popen(["sleep", "600"])
    kill(process)
    assert process.returncode == -signal.SIGKILL


def alive_in(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended meanwhile
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(entry.parent.name))
    return found


def test_the_program_is_that_of_these_tests_tree_whatever_its_environment() -> None:
    command = [*FAIRGPU, "--help"]
    shown = subprocess.run(command, env={"PYTHONVERBOSE": "1"}, cwd="/", capture_output=True, text=True, check=True)
    assert f"{TREE}/fairgpu/commands.py" in shown.stderr
