"""Interference with a node or a container changes neither the node's offer nor the container's devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairgpu import names
from nodeagent.offer import slot_ids
from nodeagent.settings import Kubelet
from tests.node.machine import CONTAINERD_SOCKET, MEMORY_MIB, NAME, OWN_PRELOAD, Machine, configure_containerd, uuid
from tests.node.pods import STAYS, container, place
from tests.support.other_plugin import another_plugin
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
def plugin_of_the_same_slots(machine: Machine) -> Iterator[None]:
    """Another plugin has registered the agent's resource with slots of the agent's names, until the end of the test."""
    with another_plugin(Kubelet().device_plugins, names.GPU, slot_ids(machine.gpus)):
        yield
    # The kubelet, when the call of a plugin ends, stops whichever it asks: it asks an agent that starts.
    with machine.servers["agent"].away():
        since = time.time()
    wait_until(lambda: machine.registered_since(since), "the kubelet knows the agent's plugin again")
    wait_until(machine.is_ready, "the node offers its GPUs again")


@pytest.mark.usefixtures("plugin_of_the_same_slots")
def test_a_plugin_that_names_its_slots_as_the_agent_does_is_noticed_by_its_first_container(
    machine: Machine, namespace: str
) -> None:
    """The kubelet notes allocations in a form of its own: here it is the kubelet that has written them."""
    ours = place(machine, namespace, [container("main", 30, 4096)], name="refused")
    messages = wait_until(lambda: node_events(machine, "ResourceTaken"), "the Node says so")
    assert any("another device plugin has registered fairgpu.io/gpu" in message for message in messages)
    assert ours.phase() == "Pending", "the runtime knows no such device"


@pytest.fixture
def foreign_slice(machine: Machine) -> Iterator[None]:
    """NVIDIA's driver for Dynamic Resource Allocation offers a GPU of this node, until the end of the test."""
    path = "/apis/resource.k8s.io/v1/resourceslices"
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": NAME,
        "pool": {"name": NAME, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "foreign"}, "spec": spec}
    machine.plane.admin.api.create(path, body)
    yield
    machine.plane.admin.api.delete(f"{path}/foreign")
    wait_until(machine.is_ready, "the node offers its GPUs again")


@pytest.mark.usefixtures("foreign_slice")
def test_a_node_whose_gpus_a_driver_for_dynamic_resource_allocation_offers_takes_no_new_pods(machine: Machine) -> None:
    wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no new GPU pods")
    messages = wait_until(lambda: node_events(machine, "ForeignDevicePlugin"), "the Node says so")
    assert any("ResourceSlices of gpu.nvidia.com" in message for message in messages)


@contextmanager
def without_cdi(machine: Machine) -> Iterator[None]:
    """A runtime that ignores CDI."""
    with machine.servers["containerd"].away():
        configure_containerd(machine, cdi=False)
    try:
        yield
    finally:
        with machine.servers["containerd"].away():
            configure_containerd(machine)


@pytest.fixture
def runtime_that_says_so(machine: Machine) -> Iterator[None]:
    """A runtime that ignores CDI, and says that it does, until the end of the test."""
    with without_cdi(machine):
        yield
    wait_until(machine.is_ready, "the node offers its GPUs again")


@pytest.mark.usefixtures("runtime_that_says_so")
def test_a_node_whose_runtime_says_that_it_ignores_cdi_takes_no_new_pods(machine: Machine) -> None:
    wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no new GPU pods")
    messages = wait_until(lambda: node_events(machine, "CDINotApplied"), "the Node says so")
    assert any("enable_cdi" in message for message in messages)


@pytest.fixture
def silent_runtime(machine: Machine) -> Iterator[None]:
    """A runtime that ignores CDI, and does not answer the agent, until the end of the test."""
    machine.runtime_socket.unlink()
    with without_cdi(machine):
        wait_until(machine.is_ready, "the node is ready again")
        yield
    machine.runtime_socket.symlink_to(CONTAINERD_SOCKET)
    with machine.servers["agent"].away():
        wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
    wait_until(machine.is_ready, "the node offers its GPUs again")


@pytest.mark.cgroups
@pytest.mark.usefixtures("silent_runtime")
def test_a_node_whose_runtime_made_a_container_without_cdi_takes_no_new_pods(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("main", 30, 4096, "exec sleep 3600")])
    (message,) = wait_until(lambda: pod.events("CDINotApplied"), "the pod says that nothing limits it")
    assert message == "the runtime made container main without its CDI device: nothing limits it"
    expected = "the runtime made container main of pod"
    wait_until(lambda: any(expected in each for each in node_events(machine, "CDINotApplied")), "the Node says so")
    wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no new GPU pods")


@pytest.fixture
def injecting_runtime(machine: Machine) -> Iterator[str]:
    """A default runtime that has the name of NVIDIA's, until the end of the test."""
    program = machine.folder / "nvidia-container-runtime"
    program.symlink_to(machine.runc)
    with machine.servers["containerd"].away():
        configure_containerd(machine, default=program)
    yield str(program)
    with machine.servers["containerd"].away():
        configure_containerd(machine)
    wait_until(machine.is_ready, "the node is ready again")


def test_a_default_runtime_that_gives_gpus_by_the_environment_is_named(
    machine: Machine, injecting_runtime: str
) -> None:
    (message,) = wait_until(lambda: node_events(machine, "DefaultRuntimeInjects"), "the Node says so")
    assert f"default runtime runc ({injecting_runtime})" in message


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


MOUNTED_OVER = ("/etc/vcuda", "/etc/vcuda/config", "/etc/ld.so.preload", "/run/vcuda", "/etc")


@pytest.mark.parametrize("path", MOUNTED_OVER)
def test_no_volume_of_the_pod_covers_the_agents_files(machine: Machine, namespace: str, path: str) -> None:
    mounts = [{"name": "out", "mountPath": "/out"}, {"name": "out", "mountPath": path, "subPath": "own"}]
    script = f"cp /etc/ld.so.preload /out/preload; {STAYS}"
    pod = place(machine, namespace, [container("main", 30, 4096, script, volumeMounts=mounts)], gpu=1)
    assert pod.found("main").share == ("main", uuid(1), 30, 4096)
    assert pod.file("preload").read_text() == "/etc/vcuda/libvcuda.so.1\n"


def test_an_images_own_preload_file_is_hidden_and_its_folder_stays(machine: Machine, namespace: str) -> None:
    script = "cp /etc/ld.so.preload /etc/vcuda/note /out; " + STAYS
    pod = place(machine, namespace, [container("main", 30, 4096, script, image=OWN_PRELOAD)])
    assert pod.found("main").share == ("main", uuid(0), 30, 4096)
    assert pod.file("ld.so.preload").read_text() == "/etc/vcuda/libvcuda.so.1\n"
    assert pod.file("note").read_text() == "of the image\n"
