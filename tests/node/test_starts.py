"""Containers get their devices from a real kubelet and a real containerd through the node agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.machine import MEMORY_MIB, Machine, uuid
from tests.node.pods import ENDS, STAYS, Placed, container, manifest, place, static_pod

CONTAINERS = Path("/run/fairgpu-nodeagent/containers")


def test_the_node_says_what_it_offers(machine: Machine) -> None:
    node = machine.node()
    inventory = json.loads(node["metadata"]["annotations"]["fairgpu.io/inventory"])
    assert [device["uuid"] for device in inventory["devices"]] == [uuid(0), uuid(1)]
    allocatable = node["status"]["allocatable"]
    assert allocatable["fairgpu.io/gpu"] == "128"
    assert (allocatable["fairgpu.io/gpu-core"], allocatable["fairgpu.io/gpu-memory"]) == ("200", str(2 * MEMORY_MIB))


@pytest.mark.cgroups
def test_a_container_gets_its_share_and_the_driver_shows_it_no_more(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("main", 30, 4096)], gpu=1)
    found = pod.found("main")
    assert (found.share, found.result) == (("main", uuid(1), 30, 4096), 0)
    assert {"NVIDIA_VISIBLE_DEVICES=void", "SIMULATED_GPU=1"} <= found.environment
    pod.wait_until("Running")


def test_two_containers_of_a_pod_each_get_their_own_share(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("one", 30, 2048), container("two", 60, 8192)])
    assert pod.found("one").share == ("one", uuid(0), 30, 2048)
    assert pod.found("two").share == ("two", uuid(0), 60, 8192)


@pytest.mark.cgroups
def test_a_main_container_gets_more_than_the_init_container_before_it(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("main", 20, 2048)], [container("init", 10, 1024, ENDS)])
    assert pod.found("init").share == ("init", uuid(0), 10, 1024)
    assert pod.found("main").share == ("main", uuid(0), 20, 2048)


def test_a_native_sidecar_keeps_its_share_beside_the_main_container(machine: Machine, namespace: str) -> None:
    sidecar = container("side", 10, 1024, restartPolicy="Always")
    pod = place(machine, namespace, [container("main", 20, 2048)], [sidecar, container("init", 70, 4096, ENDS)])
    assert pod.found("side").share == ("side", uuid(0), 10, 1024)
    assert pod.found("init").share == ("init", uuid(0), 70, 4096)
    assert pod.found("main").share == ("main", uuid(0), 20, 2048)


@pytest.fixture
def slow_reading(namespace: str) -> Iterator[str]:
    """A namespace; until the end of the test containerd has many specs of another vendor to read after each change."""
    options = ["ro", "nosuid", "nodev", "rbind"]
    paths = [f"/usr/lib/x86_64-linux-gnu/library-{number}.so" for number in range(100)]
    edits = {"mounts": [{"hostPath": path, "containerPath": path, "options": options} for path in paths]}
    files = [Path("/var/run/cdi") / f"example.org-device_{number}.json" for number in range(40)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        devices = [{"name": str(number), "containerEdits": edits}]
        file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "example.org/device", "devices": devices}))
    yield namespace
    for file in files:
        file.unlink()


def test_a_main_container_right_after_its_init_container_is_not_made_by_the_spec_of_that_one(
    machine: Machine, slow_reading: str
) -> None:
    """A container that containerd cannot start ends its pod, which is not restarted."""
    pods = [
        place(machine, slow_reading, [container("main", 20, 2048)], [container("init", 10, 1024, "exit 0")], name=name)
        for name in ("one", "two", "three")
    ]
    for pod in pods:
        assert pod.found("main").share == ("main", uuid(0), 20, 2048)


@pytest.mark.cgroups
def test_a_container_that_restarts_gets_its_share_again_with_a_new_ledger(machine: Machine, namespace: str) -> None:
    script = 'echo run >> /out/runs; [ "$(cat /out/runs)" = run ] && exit 1; ' + STAYS
    pod = place(machine, namespace, [container("main", 30, 4096, script)], restart="Always")
    assert pod.found("main").share == ("main", uuid(0), 30, 4096)
    assert pod.file("runs").read_text().count("run") == 2
    assert [path.name for path in (CONTAINERS / pod.uid / "main").iterdir() if path.is_dir()] == ["2"]


def test_fifty_pods_at_once_each_get_exactly_their_own(machine: Machine, namespace: str) -> None:
    pods = {
        number: place(
            machine, namespace, [container("main", 1 + number % 3, 100 + number)], name=f"pod-{number}", gpu=number % 2
        )
        for number in range(50)
    }
    for number, pod in pods.items():
        assert pod.found("main").share == ("main", uuid(number % 2), 1 + number % 3, 100 + number)


def refused(pod: Placed) -> str:
    """The event that says why the pod does not start; it has written nothing."""
    message = pod.refusal()
    assert not pod.file("main.done").exists()
    return message


def given(**fields: Any) -> dict[str, Any]:
    device = {"uuid": uuid(0), "model": "A100", "totalMiB": MEMORY_MIB, "core": 30, "memoryMiB": 4096, **fields}
    return {"v": 1, "node": "gpu-node", "containers": [{"name": "main", "devices": [device]}]}


@pytest.mark.parametrize(
    ("allocation", "why"),
    [
        ("", "no annotation fairgpu.io/allocation"),
        ("{", "no JSON"),
        ({**given(), "node": "other-node"}, "the allocation is of node other-node"),
        (given(uuid="GPU-none"), "GPU GPU-none is not offered by this node"),
        (given(core=31), "the limits of container main say 30 percent and 4096 MiB of each GPU"),
        (given(memoryMiB=4097), "the limits of container main say 30 percent and 4096 MiB of each GPU"),
    ],
    ids=["none", "no JSON", "of another node", "a GPU that is not there", "more core", "more memory"],
)
def test_a_pod_whose_allocation_cannot_be_is_refused_and_says_why(
    machine: Machine, namespace: str, allocation: Any, why: str
) -> None:
    pod = place(machine, namespace, [container("main", 30, 4096)], allocation=allocation)
    assert why in refused(pod)


def test_a_pod_that_asks_for_more_memory_than_its_gpu_has_is_refused_and_says_why(
    machine: Machine, namespace: str
) -> None:
    more = MEMORY_MIB + 1
    pod = place(machine, namespace, [container("main", 30, more)], allocation=given(memoryMiB=more, totalMiB=more))
    assert f"offers {MEMORY_MIB} MiB" in refused(pod)


@pytest.fixture
def static(machine: Machine, namespace: str) -> Iterator[Placed]:
    """A static pod with a GPU, until the end of the test: its mirror on the API server."""
    with static_pod(machine, namespace, manifest("static", [container("main", 30, 4096)])) as pod:
        yield pod


def test_a_static_pod_is_refused_and_its_mirror_says_why(static: Placed) -> None:
    assert "was not placed by fairgpu-scheduler" in refused(static)
    assert "PlacementRefused" in static.described()


def test_a_pod_that_overlaps_starts_once_the_other_has_gone(machine: Machine, namespace: str) -> None:
    first = place(machine, namespace, [container("main", 60, 4096)], name="first")
    first.found("main")
    second = place(machine, namespace, [container("main", 60, 4096)], name="second", restart="Always")
    assert "has 40 percent of its time left, not 60" in refused(second)
    first.delete()
    assert second.found("main").share == ("main", uuid(0), 60, 4096)
