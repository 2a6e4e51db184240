"""The driver's list of processes, beside the containers' own figures."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from nodeagent import schedule_page
from tests.node.machine import DRIVER, LIBRARIES, PROGRAMS, SIMULATED, Machine, uuid
from tests.node.pods import Placed, container, place, static_pod
from tests.node.test_recovery import page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cgroups

MIB = 1 << 20
HELD = 1000 * MIB
HOLDS = (
    f"{{ echo init; echo ctx; echo alloc a {HELD}; "
    "until [ -e /out/end ]; do echo info; sleep 0.2; done; } | %s > /dev/null; "
    "echo > /out/over; exec sleep 3600"
)
"""Holds device memory through a program until it is asked to end, or is ended."""
METRICS = "http://127.0.0.1:9090/metrics"


def slot(number: int) -> schedule_page.PageSlot | None:
    """The one container on a GPU's page."""
    found = page(number)
    return found.slots[0] if found is not None and len(found.slots) == 1 else None


def metrics(name: str) -> dict[str, float]:
    """The agent's samples of a name, by their labels."""
    with urllib.request.urlopen(METRICS, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
    return {labels: float(value) for labels, value in samples}


def test_the_page_says_what_the_driver_holds_for_each_container(machine: Machine, namespace: str) -> None:
    pod = place(machine, namespace, [container("main", 30, 4096, HOLDS % "actor")])
    labels = f'{{container_name="main",pod_name="train",pod_namespace="{namespace}",uuid="{uuid(0)}"}}'
    held = lambda: metrics("fairgpu_nodeagent_container_memory_bytes").get(labels, 0)  # noqa: E731
    context = wait_until(lambda: max(held() - HELD, 0), "the metric names the process's memory")
    assert context < 512 * MIB, "the driver holds the container's memory and its context"
    wait_until(lambda: _driver_bytes() == HELD + context, "the page has the same figure")
    pod.file("end").touch()
    wait_until(lambda: _driver_bytes() == 0, "the memory is free")
    assert pod.events("GPUProcessWithoutSlot") == []


def test_a_process_that_goes_round_the_shim_is_reported_and_ended(machine: Machine, namespace: str) -> None:
    """Its loader reads no preload file, as no program does that is linked statically."""
    honest = place(machine, namespace, [container("main", 30, 4096, HOLDS % "actor")], name="honest")
    bypass = place(machine, namespace, [container("main", 30, 4096, HOLDS % "round-the-shim actor")], name="bypass")
    (message,) = wait_until(lambda: bypass.events("GPUProcessWithoutSlot"), "the pod has the event")
    assert f"a process of container main works on GPU {uuid(0)}" in message
    wait_until(bypass.file("over").exists, "the process was ended")
    wait_until(lambda: metrics("fairgpu_nodeagent_processes_ended_total") == {"": 1}, "the metric counts it")
    for pod in (bypass, honest):
        pod.wait_until("Running")
    assert not honest.file("over").exists()
    wait_until(lambda: _strays("not_shimmed") == 0, "every process is under the shim")


def test_a_pod_that_reached_a_gpu_by_itself_is_reported(machine: Machine, namespace: str) -> None:
    pod = unallotted(machine, namespace)
    (message,) = wait_until(lambda: pod.events("GPUProcessWithoutSlot"), "the pod has the event")
    assert f"a process of container main works on GPU {uuid(0)}, of which the container has no piece" in message
    wait_until(pod.file("over").exists, "the process was ended")


def test_a_static_pod_that_reached_a_gpu_by_itself_is_reported_at_its_mirror(machine: Machine, namespace: str) -> None:
    """Its cgroup bears the uid that the kubelet gave it, and its mirror on the API server another."""
    with static_pod(machine, namespace, unallotted_body()) as pod:
        (message,) = wait_until(lambda: pod.events("GPUProcessWithoutSlot"), "the mirror has the event")
        assert f"a process of container main works on GPU {uuid(0)}, of which the container has no piece" in message
        assert "GPUProcessWithoutSlot" in pod.described()


def _driver_bytes() -> int:
    """Returns the driver's figure for the one container on the first GPU, from the page; -1 while it cannot be read."""
    shown = slot(0)
    return -1 if shown is None else shown.driver_bytes


def _strays(standing: str) -> float:
    return metrics("fairgpu_nodeagent_unslotted_processes")[f'{{standing="{standing}"}}']


def unallotted(machine: Machine, namespace: str) -> Placed:
    """A pod that asks for no GPU, and mounts the driver and the devices from the host."""
    pod = machine.plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", unallotted_body())
    return Placed(machine, namespace, "reaches", pod["metadata"]["uid"])


def unallotted_body() -> dict[str, Any]:
    """The manifest of that pod."""
    mounts = {f"{LIBRARIES}/libcuda.so.1": DRIVER / "libcuda.so.1", str(SIMULATED): SIMULATED}
    volumes: list[dict[str, Any]] = [
        {"name": f"host-{number}", "hostPath": {"path": str(source)}} for number, source in enumerate(mounts.values())
    ]
    mounted = [{"name": f"host-{number}", "mountPath": target} for number, target in enumerate(mounts)]
    main = {
        "name": "main",
        "image": PROGRAMS,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", HOLDS % "actor"],
        "env": [{"name": "SIMGPU_DIR", "value": f"{SIMULATED}/node"}],
        "volumeMounts": [{"name": "out", "mountPath": "/out"}, *mounted],
    }
    spec = {
        "nodeName": "gpu-node",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "containers": [main],
        "volumes": [{"name": "out", "emptyDir": {}}, *volumes],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reaches"}, "spec": spec}
