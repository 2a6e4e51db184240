"""The capacity of FairGPU's resources that a node states, so that no kubelet fails a running pod."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.allocation import Allocation, ContainerAllocation, DeviceShare, encode
from fairgpu.inventory import Device, Health
from nodeagent.node_patches import capacity, changes

CORE, MEMORY, PERCENTAGE = "fairgpu.io/gpu-core", "fairgpu.io/gpu-memory", "fairgpu.io/gpu-memory-percentage"
TWO = [Device(f"GPU-{number}", "A100", 1000, None, f"0:{number}") for number in range(2)]
FENCED = [TWO[0], Device("GPU-1", "A100", 1000, None, "0:1", Health.FENCED, "Xid 79")]


def pod(*cores: int, init: tuple[int, ...] = (), phase: str = "Running") -> dict[str, Any]:
    def container(core: int) -> dict[str, Any]:
        return {"name": "c", "resources": {"limits": {CORE: str(core), MEMORY: str(10 * core)}}}

    spec = {"containers": [container(core) for core in cores], "initContainers": [container(core) for core in init]}
    return {"metadata": {"uid": "u"}, "spec": spec, "status": {"phase": phase}}


def allocated(item: dict[str, Any], *uuids: str) -> dict[str, Any]:
    """The pod, whose container has equal parts of these GPUs."""
    devices = tuple(DeviceShare(uuid, "A100", 1000, 10, 100) for uuid in uuids)
    text = encode(Allocation("n0", (ContainerAllocation("c", devices),)))
    return item | {"metadata": item["metadata"] | {"annotations": {"fairgpu.io/allocation": text}}}


def test_healthy_gpus_are_offered_whole() -> None:
    assert capacity(TWO, []) == {CORE: 200, MEMORY: 2000, PERCENTAGE: 200}


def test_a_fenced_gpu_is_taken_out() -> None:
    assert capacity(FENCED, []) == {CORE: 100, MEMORY: 1000, PERCENTAGE: 100}


def test_the_parts_that_pods_hold_of_a_fenced_gpu_take_nothing_of_the_others() -> None:
    """kube-scheduler subtracts all that pods hold from the capacity."""
    on_fenced, on_both = allocated(pod(90), "GPU-1"), allocated(pod(40), "GPU-0", "GPU-1")
    assert capacity(FENCED, [on_fenced]) == {CORE: 190, MEMORY: 1900, PERCENTAGE: 100}
    assert capacity(FENCED, [allocated(pod(90), "GPU-0")]) == {CORE: 100, MEMORY: 1000, PERCENTAGE: 100}
    assert capacity(FENCED, [on_fenced, on_both]) == {CORE: 210, MEMORY: 2100, PERCENTAGE: 100}
    assert capacity(TWO, [on_fenced, on_both]) == {CORE: 200, MEMORY: 2000, PERCENTAGE: 200}


@pytest.mark.parametrize("text", ["{}", "no JSON", 5])
def test_a_pod_whose_allocation_is_none_counts_as_on_healthy_gpus(text: Any) -> None:
    item = pod(40)
    item["metadata"]["annotations"] = {"fairgpu.io/allocation": text}
    assert capacity(FENCED, [item])[CORE] == 100


def test_pods_keep_what_they_hold_though_their_gpu_is_fenced_or_missing() -> None:
    assert capacity(FENCED, [pod(90), pod(60)]) == {CORE: 150, MEMORY: 1500, PERCENTAGE: 100}
    assert capacity([], [pod(90)]) == {CORE: 90, MEMORY: 900, PERCENTAGE: 0}


def test_a_pod_holds_the_most_of_its_init_and_main_containers() -> None:
    assert capacity([], [pod(30, 20, init=(80,))])[CORE] == 80
    assert capacity([], [pod(30, 20, init=(10,))])[CORE] == 50


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    assert capacity([], [pod(90, phase=phase)])[CORE] == 0


def test_only_what_the_node_does_not_say_is_written() -> None:
    wanted = {CORE: 200, MEMORY: 200000, PERCENTAGE: 200}
    said = {"capacity": {CORE: "200", MEMORY: "200k", PERCENTAGE: "0"}}
    assert changes(wanted, said) == {PERCENTAGE: "200"}
    assert changes(wanted, {}) == {CORE: "200", MEMORY: "200000", PERCENTAGE: "200"}
