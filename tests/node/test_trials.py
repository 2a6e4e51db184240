"""What others do to a node or a container changes neither what the node offers nor what the container gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairgpu import names
from tests.node.machine import MEMORY_MIB, NAME, OWN_PRELOAD, Machine, configure_containerd, uuid
from tests.node.pods import STAYS, container, place
from tests.support.waiting import wait_until

NODE = f"/api/v1/nodes/{NAME}"


@pytest.fixture
def foreign_plugin(machine: Machine) -> Iterator[None]:
    """Another plugin offers a GPU of this node, until the end of the test."""
    patch = {"status": {"capacity": {"nvidia.com/gpu": "1"}}}
    machine.plane.admin.api.patch(f"{NODE}/status", patch)
    yield
    machine.plane.admin.api.patch(f"{NODE}/status", {"status": {"capacity": {"nvidia.com/gpu": None}}})
    wait_until(machine.is_ready, "the node offers its GPUs again")


def node_events(machine: Machine, reason: str) -> list[str]:
    query = {"fieldSelector": f"involvedObject.name={NAME},reason={reason}"}
    found = machine.plane.admin.api.get("/api/v1/namespaces/default/events", query)
    return [event["message"] for event in found["items"]]


def test_capacity_that_was_taken_away_is_written_again(machine: Machine) -> None:
    taken = {"fairgpu.io/gpu-core": "0", "fairgpu.io/gpu-memory": "0"}
    machine.plane.admin.api.patch(f"{NODE}/status", {"status": {"capacity": taken, "allocatable": taken}})
    wanted = ("200", str(2 * MEMORY_MIB))
    wait_until(
        lambda: (machine.allocatable("gpu-core"), machine.allocatable("gpu-memory")) == wanted,
        "the node says again what it offers",
    )


def test_the_agent_removes_the_startup_taint_and_no_other(machine: Machine) -> None:
    taints = [{"key": key, "effect": "PreferNoSchedule"} for key in (names.STARTUP_TAINT, "example.org/other")]
    machine.plane.admin.api.patch(NODE, {"spec": {"taints": taints}})
    wait_until(
        lambda: [taint["key"] for taint in machine.node()["spec"]["taints"]] == ["example.org/other"],
        "the startup taint is removed",
    )
    machine.plane.admin.api.patch(NODE, {"spec": {"taints": None}})


@pytest.mark.usefixtures("foreign_plugin")
def test_a_node_whose_gpus_another_plugin_offers_takes_no_new_pods(machine: Machine) -> None:
    (message,) = wait_until(lambda: node_events(machine, "ForeignDevicePlugin"), "the Node says so")
    assert "nvidia.com/gpu" in message
    wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no new GPU pods")


@pytest.fixture
def without_cdi(machine: Machine) -> Iterator[None]:
    """A runtime that ignores CDI, until the end of the test."""
    with machine.servers["containerd"].away():
        configure_containerd(machine, cdi=False)
    wait_until(machine.is_ready, "the node is ready again")
    yield
    with machine.servers["containerd"].away():
        configure_containerd(machine)
    with machine.servers["agent"].away():
        wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
    wait_until(machine.is_ready, "the node offers its GPUs again")


@pytest.mark.usefixtures("without_cdi")
def test_a_node_whose_runtime_ignores_cdi_takes_no_new_pods(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("main", 30, 4096, "exec sleep 3600")])
    (message,) = wait_until(lambda: pod.events("CDINotApplied"), "the pod says that nothing limits it")
    assert message == "the runtime made container main without its CDI device: nothing limits it"
    assert wait_until(lambda: node_events(machine, "CDINotApplied"), "the Node says so")
    wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no new GPU pods")


EVASIONS = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "SIMULATED_GPU": "0",
    "VCUDA_CONFIG": "/out/config",
    "LD_PRELOAD": "",
}


@pytest.mark.parametrize("annotations", [{}, {"cdi.k8s.io/other": "nvidia.com/gpu=all"}])
def test_neither_environment_nor_annotations_change_what_a_container_gets(
    machine: Machine, namespace: str, annotations: dict[str, str]
) -> None:
    environment = [{"name": name, "value": value} for name, value in EVASIONS.items()]
    pod = place(machine, namespace, [container("main", 30, 4096, env=environment)], gpu=1, annotations=annotations)
    found = pod.found("main")
    assert found.share == ("main", uuid(1), 30, 4096)
    assert {"NVIDIA_VISIBLE_DEVICES=void", "SIMULATED_GPU=1"} <= found.environment
    assert "NVIDIA_VISIBLE_DEVICES=all" not in found.environment


def test_an_images_own_preload_file_is_hidden_and_its_folder_stays(machine: Machine, namespace: str) -> None:
    script = "cp /etc/ld.so.preload /etc/vcuda/note /out; " + STAYS
    pod = place(machine, namespace, [container("main", 30, 4096, script, image=OWN_PRELOAD)])
    assert pod.found("main").share == ("main", uuid(0), 30, 4096)
    assert pod.file("ld.so.preload").read_text() == "/etc/vcuda/libvcuda.so.1\n"
    assert pod.file("note").read_text() == "of the image\n"
