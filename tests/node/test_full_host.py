"""A host whose /run is full: what runs goes on, and what starts is refused until there is room."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.machine import Machine, uuid
from tests.node.pods import LOOK, container, place
from tests.node.test_recovery import fresh
from tests.support.waiting import wait_until

FOLDER = Path("/run/fairgpu-nodeagent")
PROCESSES = 12
HOLD = (
    LOOK
    + f"until [ -e /out/go ]; do sleep 0.1; done; i=0; while [ $i -lt {PROCESSES} ]; do i=$((i + 1)); "
    + "{ echo init; echo ctx $SIMULATED_GPU; until [ -e /out/end ]; do sleep 0.1; done; } | "
    + "actor > /out/process-$i || echo $? > /out/lost-$i & done; wait; exec sleep 3600"
)
"""Begins processes that use the GPU together, once it is asked to."""


@pytest.fixture
def filler(machine: Machine, namespace: str) -> Iterator[Path]:
    """A file that can fill the agent's folder, which has a file system of its own until the end of the test."""
    with restarted(machine):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12M", "tmpfs", FOLDER], check=True)
    yield FOLDER / "filler"
    (FOLDER / "filler").unlink(missing_ok=True)
    machine.plane.remove_pods(namespace)
    wait_until(lambda: not list((FOLDER / "containers").iterdir()), "the containers' files are gone")
    with restarted(machine):
        subprocess.run(["umount", FOLDER], check=True)


@contextmanager
def restarted(machine: Machine, end: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """The node without its agent, which has registered again afterwards."""
    machine.servers["agent"].process.popen.send_signal(end)
    with machine.servers["agent"].away():
        yield
        since = time.time()
    wait_until(lambda: machine.registered_since(since), "the kubelet knows the device plugin again")
    wait_until(machine.is_ready, "the node is ready again")


def fill(file: Path) -> None:
    """Leaves no room for one more byte."""
    with file.open("wb", buffering=0) as filler:
        while True:
            try:
                filler.write(bytes(4096))
            except OSError:
                return


def test_a_host_without_room_refuses_starts_and_neither_ends_a_container_nor_leaves_a_page_stale(
    machine: Machine, namespace: str, filler: Path
) -> None:
    running = place(machine, namespace, [container("main", 30, 8192, HOLD)], name="running")
    running.found("main")
    fill(filler)
    refused = place(machine, namespace, [container("main", 30, 4096)], name="refused")
    message = refused.refusal()
    assert "the node cannot write the container's files" in message
    assert "No space left" in message
    wait_until(lambda: not (FOLDER / "containers" / refused.uid).exists(), "nothing of the start is left")
    running.file("go").touch()
    numbers = range(1, PROCESSES + 1)
    wait_until(lambda: all(both(running.file(f"process-{number}")) for number in numbers), "the processes hold the GPU")
    with restarted(machine, signal.SIGKILL):
        pass
    wait_until(lambda: fresh(0), "the page is written")
    running.file("end").touch()
    filler.unlink()
    assert refused.found("main").share == ("main", uuid(0), 30, 4096)
    assert [number for number in numbers if running.file(f"lost-{number}").exists()] == []
    assert running.phase() == "Running"


def both(answers: Path) -> bool:
    """Whether a process has had both answers of the driver, each of them success."""
    return answers.exists() and [line.split()[0] for line in answers.read_text().splitlines()] == ["0", "0"]
