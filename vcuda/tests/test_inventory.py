"""The node agent's readings of GPUs through nvidia-ml-py from a driver whose GPUs a test links, breaks and mends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from node import BUILD, uuid

AGENT = """
import json, sys, threading
from pathlib import Path
from nodeagent.faults import Faults
from nodeagent.vendors.nvidia import Nvidia

folder = Path(sys.argv[1])
gpus = Nvidia(Faults(folder / "faults.json"), [folder], float(sys.argv[2]), folder)
watching, fault = threading.Event(), threading.Event()
threading.Thread(target=gpus.watch, args=(lambda: watching.set() is None, fault.set), daemon=True).start()
assert watching.wait(60)  # a driver reports no event that came before the registration
for line in sys.stdin:
    if line == "event\\n":
        answer = fault.wait(30)
        fault.clear()
    else:
        offer = gpus.offer()
        answer = {
            "models": [device.model for device in offer.inventory.devices],
            "memory": [device.memory_mib for device in offer.inventory.devices],
            "numa": [device.numa for device in offer.inventory.devices],
            "links": [[link.name for link in row] for row in offer.inventory.links],
            "fenced": {device.uuid: device.why for device in offer.inventory.devices if device.why},
            "withheld": dict(offer.withheld),
        }
    print(json.dumps(answer), flush=True)
"""


class Gpus:
    """The agent's reading of two GPUs, in a process of its own."""

    def __init__(self, folder: Path, agent: subprocess.Popen[str]) -> None:
        self._control = folder / "control"
        self._agent = agent

    def say(self, *lines: str) -> None:
        """Makes these lines all that is the matter with the GPUs."""
        beside = self._control.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(self._control)

    def read(self) -> dict[str, Any]:
        """Returns what the agent would offer now."""
        answer: dict[str, Any] = self._ask("offer")
        return answer

    def event(self) -> bool:
        """Whether the driver has reported a fault since the last question, or does within 30 s."""
        return bool(self._ask("event"))

    def _ask(self, what: str) -> Any:
        assert self._agent.stdin is not None
        assert self._agent.stdout is not None
        self._agent.stdin.write(f"{what}\n")
        self._agent.stdin.flush()
        return json.loads(self._agent.stdout.readline())


@contextmanager
def agent(folder: Path, recover_seconds: float = 600) -> Iterator[Gpus]:
    """The agent's process beside a driver of two GPUs."""
    node = folder / "node"
    devices = [{"name": uuid(number), "containerEdits": {}} for number in range(2)]
    spec = folder / "nvidia.json"
    spec.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}))
    os.utime(spec, (0, 0))  # as a file that is not being written
    for number in range(2):
        bus = folder / f"0000:0{number + 1}:00.0"
        bus.mkdir()
        (bus / "numa_node").write_text(f"{number}\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(BUILD.parents[1]),
        "LD_LIBRARY_PATH": str(BUILD / "simgpu" / "13"),
        "SIMGPU_DIR": str(node),
        "SIMGPU_DEVICES": "2",
        "SIMGPU_MEMORY_MIB": "16384",
    }
    command = [sys.executable, "-c", AGENT, str(folder), str(recover_seconds)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        made = Gpus(node, process)
        made.read()
        yield made
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Gpus]:
    with agent(tmp_path) as made:
        yield made


def test_gpus_are_offered_with_model_memory_and_numa_node(gpus: Gpus) -> None:
    gpus.say("* model NVIDIA_H200", "1 model NVIDIA_A100-SXM4-80GB")
    found = gpus.read()
    assert found["models"] == ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]
    assert (found["memory"], found["numa"]) == ([16384, 16384], [0, 1])


def test_the_numa_node_is_the_drivers_and_without_one_the_kernels(gpus: Gpus) -> None:
    gpus.say("0 numa 70")
    assert gpus.read()["numa"] == [70, 1]


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("", "SYSTEM"),
        ("0 nvlink 1", "NVLINK"),
        ("* nvlink switch", "NVLINK"),
        ("0 level 1 10", "ONE_SWITCH"),
        ("0 level 1 20", "SWITCHES"),
        ("1 level 0 40", "NODE"),
    ],
)
def test_links_are_those_of_the_topology(gpus: Gpus, line: str, link: str) -> None:
    gpus.say(line)
    assert gpus.read()["links"] == [["SELF", link], [link, "SELF"]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 lost 1", "it does not answer: GPU is lost"),
        ("1 remap_failed 1", "a row of its memory could not be remapped: it needs to be replaced"),
        ("1 ecc 1", "a double-bit ECC error"),
    ],
)
def test_a_gpu_that_fails_is_fenced_and_the_other_stays(gpus: Gpus, line: str, why: str) -> None:
    gpus.say(line)
    assert gpus.read()["fenced"] == {uuid(1): why}


@pytest.mark.parametrize("line", ["1 xid 79", "1 dbe"])
def test_a_fault_is_reported_as_it_happens_and_fences_the_gpu(gpus: Gpus, line: str) -> None:
    gpus.say(line)
    assert gpus.event()
    assert list(gpus.read()["fenced"]) == [uuid(1)]


def test_an_xid_that_a_program_causes_fences_nothing(gpus: Gpus) -> None:
    gpus.say("0 xid 13", "1 xid 79")
    assert gpus.event()
    assert list(gpus.read()["fenced"]) == [uuid(1)]


def test_a_gpu_that_answers_again_is_offered_once_the_time_has_passed(tmp_path: Path) -> None:
    with agent(tmp_path, recover_seconds=0.2) as gpus:
        gpus.say("1 lost 1")
        assert list(gpus.read()["fenced"]) == [uuid(1)]
        gpus.say()
        limit = time.monotonic() + 60
        while gpus.read()["fenced"]:
            assert time.monotonic() < limit


@pytest.mark.parametrize(("line", "why"), [("0 mig 1", "MIG mode"), ("0 mps 4711", "MPS")])
def test_a_gpu_that_cannot_be_shared_is_withheld(gpus: Gpus, line: str, why: str) -> None:
    gpus.say(line)
    found = gpus.read()
    assert why in found["withheld"][uuid(0)]
    assert len(found["models"]) == 1
