"""GPUs that fail, and a driver that hangs, under pods that run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairgpu import names
from fairgpu.inventory import Health
from tests.node.machine import NAME, Machine, uuid
from tests.node.machine import vendor_spec as vendors_spec
from tests.node.pods import Placed, container, manifest, place
from tests.node.test_recovery import fresh
from tests.node.test_trials import node_events
from tests.support.processes import ending
from tests.support.waiting import wait_until


@pytest.fixture
def gpus(machine: Machine) -> Iterator[Machine]:
    """The node, whose GPUs are well again after the test."""
    yield machine
    machine.make_gpus()
    # The kubelet copies the capacity later: what is allocatable may still be of before a GPU left.
    well = {uuid(number): Health.OK for number in range(machine.gpus)}
    wait_until(lambda: inventory(machine) == well, "the inventory has all GPUs")
    wait_until(lambda: machine.allocatable("gpu-core") == "200", "all GPUs are offered again")
    wait_until(machine.is_ready, "the node is ready again")


def capacity(machine: Machine) -> str:
    found: str = machine.node()["status"]["capacity"][names.GPU_CORE]
    return found


def inventory(machine: Machine) -> dict[str, str]:
    """The health of each GPU that the inventory names."""
    written = json.loads(machine.node()["metadata"]["annotations"][names.INVENTORY])
    return {device["uuid"]: device["health"] for device in written["devices"]}


def fenced(machine: Machine) -> list[str]:
    """The GPUs that the inventory says are fenced."""
    return [each for each, health in inventory(machine).items() if health == "fenced"]


def numa_nodes(machine: Machine) -> list[int | None]:
    """The NUMA node of each GPU in the inventory."""
    written = json.loads(machine.node()["metadata"]["annotations"][names.INVENTORY])
    return [device.get("numa") for device in written["devices"]]


def test_the_inventory_names_the_numa_node_next_to_each_gpu(gpus: Machine) -> None:
    gpus.make_gpus("0 numa 1", "1 numa 0")
    wait_until(lambda: numa_nodes(gpus) == [1, 0], "the inventory says so")


def fails_again(machine: Machine, line: str) -> None:
    """One more event of the line's kind: a GPU that goes on failing stays fenced until somebody has seen it."""
    machine.make_gpus(*machine.gpu_lines, line)


@pytest.mark.parametrize("line", ["1 xid 79", "1 dbe"])
def test_a_fault_takes_its_gpu_out_of_the_capacity_until_it_has_recovered(
    gpus: Machine, namespace: str, line: str
) -> None:
    pod = place(gpus, namespace, [container("main", 30, 1024)], gpu=1)
    pod.found("main")
    pod.wait_until("Running")

    def has_left() -> bool:
        fails_again(gpus, line)
        return capacity(gpus) == "130"  # the pod's 30 percent stay

    wait_until(has_left, "the GPU has left the capacity")
    wait_until(lambda: capacity(gpus) == "200", "the GPU is back")
    assert pod.phase() == "Running"


def test_a_lost_gpu_takes_no_container_and_the_others_go_on(gpus: Machine, namespace: str) -> None:
    pods = [
        place(gpus, namespace, [container("main", 20, 1024)], name=f"on-{number}", gpu=number) for number in range(2)
    ]
    for pod in pods:
        pod.found("main")
        pod.wait_until("Running")
    gpus.make_gpus("1 lost 1")
    wait_until(lambda: fenced(gpus) == [uuid(1)], "the GPU is fenced")
    wait_until(lambda: capacity(gpus) == "120", "the GPU has left the capacity, but for what its pod holds")
    assert any(uuid(1) in message for message in node_events(gpus, "GPUFenced"))
    refused = place(gpus, namespace, [container("main", 20, 1024)], name="refused", gpu=1)
    message = refused.refusal()
    assert f"GPU {uuid(1)} is fenced" in message
    other = place(gpus, namespace, [container("main", 20, 1024)], name="other", gpu=0)
    assert other.found("main").share == ("main", uuid(0), 20, 1024)
    assert [pod.phase() for pod in pods] == ["Running", "Running"]


def test_a_driver_that_hangs_holds_up_neither_pages_nor_starts(gpus: Machine, namespace: str) -> None:
    running = place(gpus, namespace, [container("main", 30, 1024, "exec sleep 3600")], name="running")
    running.wait_until("Running")
    gpus.make_gpus("* hang 1")
    pod = place(gpus, namespace, [container("main", 30, 1024, "exec sleep 3600")], name="during")
    pod.wait_until("Running")
    wait_until(lambda: fresh(0), "the page is written")
    assert running.phase() == "Running"


def test_a_container_that_fills_or_truncates_its_ledger_changes_nothing_for_the_others(
    machine: Machine, namespace: str
) -> None:
    script = {
        "filled": "cp /usr/bin/actor /run/vcuda/ledger; echo > /out/over; exec sleep 3600",
        "truncated": ": > /run/vcuda/ledger; echo > /out/over; exec sleep 3600",
        "replaced": "mv /usr/bin/actor /run/vcuda/ledger || echo refused > /out/over; exec sleep 3600",
    }
    pods = {
        name: place(machine, namespace, [container("main", 20, 1024, text)], name=name) for name, text in script.items()
    }
    for pod in pods.values():
        wait_until(pod.file("over").exists, f"{pod.name} has done so")
    honest = place(machine, namespace, [container("main", 20, 1024)], name="honest")
    assert honest.found("main").share == ("main", uuid(0), 20, 1024)
    assert pods["replaced"].file("over").read_text() == "refused\n"
    wait_until(lambda: fresh(0), "the page is written")
    wait_until(lambda: [pod.phase() for pod in pods.values()] == ["Running"] * 3, "the kubelet says that all three run")


def test_an_idle_daemon_of_mps_withholds_the_gpus_while_it_runs(gpus: Machine, namespace: str, tmp_path: Path) -> None:
    pod = place(gpus, namespace, [container("main", 30, 1024)], gpu=1)
    pod.found("main")
    pod.wait_until("Running")
    daemon = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "", daemon)
    with ending(subprocess.Popen([daemon, "3600"])):
        wait_until(lambda: inventory(gpus) == {}, "no GPU is offered")
        reason = "nvidia-cuda-mps-control runs on this node"
        wait_until(lambda: any(reason in each for each in node_events(gpus, "GPUNotOffered")), "the Node says so")
        assert int(capacity(gpus)) >= 30, "what bound pods hold stays in the capacity"
        assert pod.phase() == "Running"
    wait_until(lambda: capacity(gpus) == "200", "both are offered again")


NAMED_LIKE_MPS = "echo nvidia-cuda-mps >/proc/self/comm; : >/out/done; while sleep 1; do :; done"


def named_like_mps(machine: Machine, namespace: str, name: str, *, privileged: bool) -> Placed:
    """A pod without a GPU whose first process has taken the name of the daemon of MPS."""
    main = {
        **container("main", 0, 0, securityContext={"privileged": privileged}),
        "command": ["/bin/sh", "-c", NAMED_LIKE_MPS],
        "resources": {},
    }
    body = manifest(name, [main])
    body["spec"] |= {"nodeName": NAME, "schedulerName": "default-scheduler"}
    pod = machine.plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    placed = Placed(machine, namespace, name, pod["metadata"]["uid"])
    wait_until(placed.file("done").exists, f"{name} has the name")
    return placed


def test_a_name_like_that_of_mps_withholds_the_gpus_in_a_privileged_container_alone(
    gpus: Machine, namespace: str
) -> None:
    ordinary = named_like_mps(gpus, namespace, "ordinary", privileged=False)
    ordinary.wait_until("Running")
    privileged = named_like_mps(gpus, namespace, "privileged", privileged=True)
    wait_until(lambda: inventory(gpus) == {}, "no GPU is offered")
    privileged.delete()
    wait_until(lambda: len(inventory(gpus)) == gpus.gpus, "all are offered again")
    assert ordinary.phase() == "Running"


@pytest.fixture
def vendor_spec(gpus: Machine) -> Iterator[Path]:
    """The CDI spec that the vendor's toolkit wrote, which is there again after the test."""
    path = gpus.folder / "cdi" / "nvidia.json"
    content = path.read_text()
    yield path
    path.write_text(content)


@pytest.mark.parametrize("content", [None, json.dumps({**vendors_spec(2), "devices": vendors_spec(1)["devices"]})])
def test_a_gpu_that_the_vendors_spec_does_not_name_is_offered_no_more_and_its_containers_go_on(
    gpus: Machine, namespace: str, vendor_spec: Path, content: str | None
) -> None:
    pod = place(gpus, namespace, [container("main", 30, 1024)], gpu=1)
    pod.found("main")
    pod.wait_until("Running")
    if content is None:
        vendor_spec.unlink()
        wait_until(lambda: gpus.allocatable("gpu") == "0", "the node has no GPU to offer")
    else:
        vendor_spec.write_text(content)
    wait_until(lambda: uuid(1) not in inventory(gpus), "the GPU has left the inventory")
    why = f"GPU {uuid(1)} is not offered"
    wait_until(lambda: any(why in each for each in node_events(gpus, "GPUNotOffered")), "the Node says so")
    if content is not None:
        refused = place(gpus, namespace, [container("main", 20, 1024)], name="refused", gpu=1)
        message = refused.refusal()
        assert f"GPU {uuid(1)} is not offered by this node" in message
    assert int(capacity(gpus)) >= 30, "what bound pods hold stays in the capacity"
    assert pod.phase() == "Running"
    wait_until(lambda: fresh(1), "the page is written")
