"""Volcano: its scheduler, with the plugin that shares GPUs, and its controllers, which make PodGroups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import OF_OTHERS_S, Process, running
from tests.cluster.control_plane.stand_ins import StandInNode, now
from tests.cluster.installation import Manifest, apply, named, served
from tests.cluster.look.devices import create_node
from tests.cluster.other_schedulers.sources import manifests, program, version
from tests.cluster.other_schedulers.stack import Stack, pod_groups, run_pod
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCHEDULER = "volcano"
PROGRAMS = ("vc-scheduler", "vc-controller-manager")
NAMESPACE = "volcano-system"
NODE = "volcano-node"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1"
INSTALLER = "installer/volcano-development.yaml"
KINDS = (
    "Namespace",
    "ServiceAccount",
    "ConfigMap",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "CustomResourceDefinition",
)
MEMORY_MIB = 16000
GPUS = 8
CAPACITY = {
    "volcano.sh/vgpu-number": str(10 * GPUS),
    "volcano.sh/vgpu-memory": str(GPUS * MEMORY_MIB),
    "volcano.sh/vgpu-cores": str(100 * GPUS),
}
QUARTER = {
    "volcano.sh/vgpu-number": "1",
    "volcano.sh/vgpu-memory": str(MEMORY_MIB // 4),
    "volcano.sh/vgpu-cores": "25",
}
WHOLE = {"volcano.sh/vgpu-number": "1"}


@contextmanager
def running_volcano(plane: ControlPlane, checkout: Path, programs: Path) -> Iterator[Stack]:
    """Runs Volcano, with a node whose plugin and kubelet this program plays."""
    scheduler_program, controllers_program = (program(programs, name) for name in PROGRAMS)
    installed = manifests(checkout, [INSTALLER], KINDS)
    apply(plane, sorted(installed, key=lambda item: KINDS.index(item["kind"])))
    for resource in ("podgroups", "queues"):
        wait_until(lambda resource=resource: served(plane, f"{GROUPS}/{resource}"), f"{resource} are served")
    devices = "".join(f"GPU-{at},10,{MEMORY_MIB},NVIDIA-Tesla V100,true,hami-core:" for at in range(GPUS))
    create_node(plane, NODE, CAPACITY, {}, {"volcano.sh/node-vgpu-register": devices})
    kubelet = StandInNode(NODE, plane.node(NODE))
    given = named(installed, "ConfigMap", "volcano-scheduler-configmap")["data"]["volcano-scheduler.conf"]
    (plane.folder / "volcano.conf").write_text(_sharing_gpus(given))
    metrics, other_metrics = free_ports(2)

    def command(name: Path, account: str, port: int, *more: str) -> list[str | Path]:
        kubeconfig = plane.service_account(NAMESPACE, account).kubeconfig
        common = ("--leader-elect=false", "--logtostderr=true", f"--listen-address=127.0.0.1:{port}")
        return [name, f"--kubeconfig={kubeconfig}", *common, *more]

    conf = f"--scheduler-conf={plane.folder / 'volcano.conf'}"
    scheduler = command(scheduler_program, "volcano-scheduler", metrics, conf, "--cache-dumper=false", "-v=3")
    controllers = command(controllers_program, "volcano-controllers", other_metrics, "-v=3")
    environment = {"DEBUG_SOCKET_DIR": str(plane.folder), "HOME": str(plane.folder)}

    with ExitStack() as stack:
        logs = plane.folder / "volcano.log", plane.folder / "volcano-controllers.log"
        places = stack.enter_context(running("vc-scheduler", scheduler, logs[0], environment, OF_OTHERS_S))
        makes = stack.enter_context(running("vc-controller-manager", controllers, logs[1], environment, OF_OTHERS_S))
        queue = f"{GROUPS}/queues/default"
        wait_until(lambda: plane.exists(queue), "Volcano's scheduler has made its queue")
        wait_until(
            lambda: _beats(kubelet) and _knows_devices(places), "Volcano's scheduler has read the node's devices"
        )
        processes, bound = (places, makes), partial(run_pod, kubelet)
        group = pod_groups(plane, "scheduling.volcano.sh/v1beta1", "default", "scheduling.k8s.io/group-name")
        more = ((_asking("whole", WHOLE), Fraction(1)),)
        yield Stack("volcano", version(checkout), SCHEDULER, NODE, processes, Fraction(1, 4), _pod, bound, more, group)


def _beats(node: StandInNode) -> bool:
    """Returns True; writes the heartbeat of a kubelet.

    Volcano reads the devices of a node at its first update after the plugin was loaded.
    """
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
    path = f"/api/v1/nodes/{node.name}/status"
    node.kubelet.api.patch(path, {"status": {"conditions": [ready]}}, "application/strategic-merge-patch+json")
    return True


def _knows_devices(scheduler: Process) -> bool:
    return "Nvidia Device registered" in scheduler.log.read_text(errors="replace")


def _sharing_gpus(configuration: str) -> str:
    """Returns the installer's configuration with the plugin that shares GPUs in its last tier."""
    document = yaml.safe_load(configuration)
    arguments = {"deviceshare.VGPUEnable": True, "deviceshare.SchedulePolicy": "binpack"}
    document["tiers"][-1]["plugins"].append({"name": "deviceshare", "arguments": arguments})
    return yaml.safe_dump(document)


def _pod(name: str) -> Manifest:
    return _asking(name, QUARTER)


def _asking(name: str, limits: dict[str, str]) -> Manifest:
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": SCHEDULER, "containers": [container]},
    }
