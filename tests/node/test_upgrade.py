"""The agent as deploy/nodes ships it: its image in its DaemonSet, rolled to another version and back under load."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from nodeagent import schedule_page
from nodeagent.containers.folders import SHIM_TARGET
from nodeagent.runtime.devices import PROOFS
from tests.node import shipped_images
from tests.node.machine import DRIVER, NAME, SHIM, SIMULATED, Machine, uuid
from tests.node.other_version import other_agent
from tests.node.pods import ENDS, LOOK, Placed, container, place
from tests.node.service_proxy import api_server_service
from tests.node.test_gpu_processes import HOLDS
from tests.node.test_recovery import BUNDLES, content_of, page
from tests.node.test_trials import without_cdi
from tests.support.waiting import LIMIT_S, wait_until

NODES = "/api/v1/nodes"
DAEMON_SET = "/apis/apps/v1/namespaces/fairgpu-nodes/daemonsets/fairgpu-nodeagent"
AGENTS = "/api/v1/namespaces/fairgpu-nodes/pods"
IMAGE, OTHER = "fairgpu.invalid/nodeagent:0.1.0", "fairgpu.invalid/nodeagent:other"
GPU_NODE = "nvidia.com/gpu.present"
CONTAINERS = Path("/run/fairgpu-nodeagent/containers")
SIMULATION = {"simulated": str(SIMULATED), "driver": str(DRIVER)}
"""The volumes that NVIDIA's container toolkit would bring to the agent: the device nodes and the driver's libraries."""


def simulated(machine: Machine) -> dict[str, Any]:
    """Adds to the manifest the simulated GPU: its driver, and the places of its GPUs and of its CDI spec."""
    environment = {
        "SIMGPU_DIR": f"{SIMULATED}/node",
        "LD_LIBRARY_PATH": str(DRIVER),
        "FAIRGPU_NODEAGENT_LOOK_SECONDS": str(LOOK_SECONDS),
    }
    volumes = [{"name": name, "hostPath": {"path": path, "type": ""}} for name, path in SIMULATION.items()]
    spec = {
        "containers": [
            {
                "name": "nodeagent",
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in SIMULATION.items()],
            }
        ],
        "volumes": [
            *volumes,
            {"name": "vendor-cdi", "hostPath": {"path": str(machine.folder / "cdi"), "type": "Directory"}},
        ],
    }
    return {"spec": {"template": {"spec": spec}}}


LOOK_SECONDS = 2
"""The interval at which the agent asks the runtime: a test waits for its next question."""


@pytest.fixture(scope="module")
def shipped(machine: Machine) -> Iterator[Machine]:
    """The node with the agent of the DaemonSet in place of the process that other tests have."""
    api = machine.plane.admin.api
    machine.import_image(shipped_images.nodeagent(machine.folder, IMAGE, SHIM))
    machine.import_image(other_agent(machine.folder / "other", OTHER))
    runtime_class = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
    api.patch(DAEMON_SET, simulated(machine), "application/strategic-merge-patch+json")
    with api_server_service(int(machine.plane.server.rpartition(":")[2])), machine.servers["agent"].away():
        wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
        api.patch(f"{NODES}/{NAME}", {"metadata": {"labels": {GPU_NODE: "true"}}})
        wait_until(lambda: agents(machine) == [IMAGE], "the agent runs in its pod")
        wait_until(lambda: machine.allocatable("gpu") != "0", "the node offers its GPUs")
        yield machine
        api.patch(f"{NODES}/{NAME}", {"metadata": {"labels": {GPU_NODE: None}}})
        wait_until(lambda: not api.get(AGENTS, SELECTED)["items"], "the agent's pod is gone")
        wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
    wait_until(machine.is_ready, "the node is ready with the process again")


SELECTED = {"labelSelector": "app.kubernetes.io/name=fairgpu-nodeagent"}


def agents(machine: Machine) -> list[str]:
    """The images of the agent's pods, once each of them is ready and none is being deleted."""
    pods = machine.plane.admin.api.get(AGENTS, SELECTED)["items"]
    ready = [
        pod["spec"]["containers"][0]["image"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and all(each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": False}]))
    ]
    return ready if len(ready) == len(pods) else []


def rolled(machine: Machine, image: str) -> Iterator[None]:
    """Rolls the DaemonSet to an image; yields again and again until the agent of that image is alone."""
    template = {"spec": {"containers": [{"name": "nodeagent", "image": image}]}}
    patch = {"spec": {"template": template}}
    machine.plane.admin.api.patch(DAEMON_SET, patch, "application/strategic-merge-patch+json")
    limit = time.monotonic() + LIMIT_S
    while agents(machine) != [image]:
        assert time.monotonic() < limit, f"the agent of {image} is not alone"
        yield


def admitted(machine: Machine, namespace: str, name: str) -> Placed:
    """A pod that the kubelet takes: the agent that is alone in its pod need not have registered yet.

    The kubelet refuses pods until then, and a controller makes others.
    """
    numbers = itertools.count()

    def taken() -> Placed | None:
        pod = place(machine, namespace, [container("main", 20, 1024)], name=f"{name}-{next(numbers)}")
        phase = wait_until(lambda: (found := pod.phase()) != "Pending" and found, f"{pod.name} runs, or is refused")
        if phase == "Running":
            return pod
        assert ended(pod) == ("Failed", "UnexpectedAdmissionError")
        return None

    return wait_until(taken, f"the kubelet takes a pod {name}")


class Ages:
    """Reads a GPU's page all the time: the greatest age at which it was read.

    The clock is read before the page: a reader that has to wait for a processor makes no page older.
    """

    def __init__(self, number: int) -> None:
        self.oldest_ns = 0
        self._number = number
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(0.005):
            now_ns = time.monotonic_ns()
            shown = page(self._number)
            if shown is not None:
                self.oldest_ns = max(self.oldest_ns, now_ns - shown.heartbeat_ns)


def restarts(pod: Placed) -> int:
    (status,) = pod.read()["status"]["containerStatuses"]
    assert "running" in status["state"]
    count: int = status["restartCount"]
    return count


def test_the_shipped_agent_gives_a_container_its_share_with_the_rights_that_it_has(
    shipped: Machine, namespace: str
) -> None:
    pod = place(shipped, namespace, [container("main", 30, 4096)], gpu=1)
    assert pod.found("main").share == ("main", uuid(1), 30, 4096)
    inventory = json.loads(shipped.node()["metadata"]["annotations"]["fairgpu.io/inventory"])
    assert [device["uuid"] for device in inventory["devices"]] == [uuid(0), uuid(1)]


def test_the_shipped_agent_asks_the_containerd_that_runs_though_another_one_ran_when_it_started(
    shipped: Machine,
) -> None:
    with without_cdi(shipped):
        wait_until(lambda: shipped.allocatable("gpu") == "0", "a containerd that ignores CDI gets no new GPU pods")
    wait_until(lambda: shipped.allocatable("gpu") != "0", "the node offers its GPUs again")


WORKS = LOOK + (
    "{ echo init; echo ctx $SIMULATED_GPU; "
    "until [ -e /out/end ]; do echo launch spin_ms_5; sleep 0.01; done; } | actor > /dev/null"
)
"""Works on the GPU until it is asked to end."""


def ended(pod: Placed) -> tuple[str, str | None] | None:
    """The phase in which a pod has ended, and the reason of its status; None before."""
    status = pod.read()["status"]
    return (status["phase"], status.get("reason")) if status["phase"] in ("Succeeded", "Failed") else None


def shim_of(pod: Placed) -> str:
    """The digest of the shim that the pod's container has mounted."""
    documents = (json.loads(content_of(path) or "{}") for path in BUNDLES.glob("*/config.json"))
    mounted = ({mount["destination"]: mount.get("source") for mount in each.get("mounts", [])} for each in documents)
    (shim,) = [each[SHIM_TARGET] for each in mounted if f"/{pod.uid}/" in (each.get(PROOFS[0]) or "")]
    return Path(shim).parent.name


def test_a_roll_to_another_version_and_back_under_load_ends_no_container_and_leaves_no_page_stale(
    shipped: Machine, namespace: str
) -> None:
    """Each version takes over the files that the other wrote, and gives new containers its own shim."""
    running = [
        place(shipped, namespace, [container("main", 20, 1024, WORKS)], name=f"pod-{number}") for number in range(2)
    ]
    for pod in running:
        pod.found("main")
    shims = {IMAGE: {shim_of(pod) for pod in running}}
    for number, image in enumerate((OTHER, IMAGE)):
        ends = []
        with Ages(0) as ages:
            for start, _ in enumerate(rolled(shipped, image)):
                pod = place(
                    shipped, namespace, [container("main", 20, 1024, ENDS)], name=f"during-{number}-{start}", gpu=1
                )
                ends.append(wait_until(lambda pod=pod: ended(pod), f"{pod.name} has ended"))
        assert ages.oldest_ns < schedule_page.STALE_AFTER_NS
        # The kubelet refuses pods that come while no agent is registered, which may be all; a controller makes others.
        assert set(ends) <= {("Succeeded", None), ("Failed", "UnexpectedAdmissionError")}
        after = admitted(shipped, namespace, f"after-{number}")
        assert after.found("main").share == ("main", uuid(0), 20, 1024)
        shims.setdefault(image, set()).add(shim_of(after))
    assert [len(digests) for digests in shims.values()] == [1, 1]
    assert shims[IMAGE] != shims[OTHER]
    assert {shim_of(pod) for pod in running} == shims[IMAGE]
    assert [restarts(pod) for pod in running] == [0, 0]
    shown = wait_until(lambda: page(0), "the page can be read")
    assert [(slot.core_percent, slot.active) for slot in shown.slots[:2]] == [(20, True)] * 2
    assert {path.name for pod in running for path in (CONTAINERS / pod.uid / "main").iterdir() if path.is_dir()} == {
        "1"
    }
    for pod in running:
        pod.file("end").touch()
    inventory = json.loads(shipped.node()["metadata"]["annotations"]["fairgpu.io/inventory"])
    assert [device["uuid"] for device in inventory["devices"]] == [uuid(0), uuid(1)]


@pytest.mark.parametrize(
    ("label", "value"), [("fairgpu.io/agent", "off"), ("nvidia.com/gpu.deploy.client", "paused-for-driver-upgrade")]
)
def test_the_shipped_agent_leaves_its_node_by_a_label_and_comes_back_and_ends_no_container(
    shipped: Machine, namespace: str, label: str, value: str
) -> None:
    """By the first an admin takes it away, by the second NVIDIA's GPU operator, so that the driver can be unloaded."""
    api = shipped.plane.admin.api
    running = admitted(shipped, namespace, "running")
    api.patch(f"{NODES}/{NAME}", {"metadata": {"labels": {label: value}}})
    wait_until(lambda: not api.get(AGENTS, SELECTED)["items"], "the agent has left the node")
    wait_until(lambda: shipped.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
    api.patch(f"{NODES}/{NAME}", {"metadata": {"labels": {label: None}}})
    wait_until(lambda: agents(shipped) == [IMAGE], "the agent is back")
    wait_until(lambda: shipped.allocatable("gpu") != "0", "the node offers its GPUs")
    assert running.phase() == "Running"
    assert admitted(shipped, namespace, "next").found("main").share == ("main", uuid(0), 20, 1024)


KILLS: dict[str, Any] = {
    "name": "nodeagent",
    "env": [{"name": "FAIRGPU_NODEAGENT_UNSLOTTED_PROCESSES", "value": "kill"}],
    "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["KILL"]}},
}
"""The agent's container as docs/nodes.md says that an overlay has it which ends processes."""
OTHER_USER = 1000


@pytest.fixture
def killing(shipped: Machine) -> Iterator[Machine]:
    """The node with an agent that ends processes, and a GPU that all users may open, as NVIDIA's driver makes it."""
    for path in (SIMULATED, *SIMULATED.rglob("*")):
        path.chmod(0o777)
    began = time.time()
    template = {"spec": {"containers": [KILLS]}}
    shipped.plane.admin.api.patch(
        DAEMON_SET, {"spec": {"template": template}}, "application/strategic-merge-patch+json"
    )
    wait_until(
        lambda: rolled_out(shipped) and agents(shipped) == [IMAGE], "the agent of the changed DaemonSet is alone"
    )
    wait_until(lambda: shipped.registered_since(began), "the kubelet knows its device plugin")
    wait_until(lambda: shipped.allocatable("gpu") != "0", "the node offers its GPUs")
    return shipped


def rolled_out(machine: Machine) -> bool:
    """Whether each pod of the DaemonSet is of its present template."""
    found = machine.plane.admin.api.get(DAEMON_SET)
    status = found["status"]
    wanted = status["desiredNumberScheduled"]
    return status.get("observedGeneration") == found["metadata"]["generation"] and 0 < wanted == status.get(
        "updatedNumberScheduled"
    ) == status.get("numberAvailable")


def test_the_shipped_agent_with_one_capability_ends_a_process_of_another_user_that_nothing_limits(
    killing: Machine, namespace: str
) -> None:
    fields = {"securityContext": {"runAsUser": OTHER_USER}}
    pod = place(killing, namespace, [container("main", 30, 4096, HOLDS % "round-the-shim actor", **fields)])
    (message,) = wait_until(lambda: pod.events("GPUProcessWithoutSlot"), "the pod has the event")
    assert f"a process of container main works on GPU {uuid(0)}" in message
    wait_until(pod.file("over").exists, "the process was ended")
    assert pod.file("over").stat().st_uid == OTHER_USER
    assert pod.phase() == "Running"
