"""HAMi: its extender and its admission webhook beside a kube-scheduler of the name that its chart gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import OF_OTHERS_S, running
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.installation import Manifest, apply
from tests.cluster.look.devices import create_node
from tests.cluster.other_schedulers.sources import manifests, program, version
from tests.cluster.other_schedulers.stack import Stack, create_account, create_webhook, listens, run_pod
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCHEDULER = "hami-scheduler"
PROGRAMS = ("hami-scheduler",)
NAMESPACE = "kube-system"
NODE = "hami-node"
PLUGIN = "hami-device-plugin"
RESOURCES = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
}
CONFIGURATION = {"nvidia": {**RESOURCES, "defaultMemory": 0, "defaultCores": 0, "defaultGPUNum": 1, "memoryFactor": 1}}
WEBHOOK = {
    "name": "vgpu.hami.io",
    "admissionReviewVersions": ["v1beta1", "v1"],
    "failurePolicy": "Ignore",
    "timeoutSeconds": 10,
}
LOCK = "hami.io/mutex.lock"
CHART = "charts/hami/templates"
VALUES = {
    'include "hami-vgpu.scheduler" .': SCHEDULER,
    'include "hami-vgpu.device-plugin" .': PLUGIN,
    'include "hami-vgpu.mock-device-plugin" .': f"{PLUGIN}-mock",
    'include "hami-vgpu.namespace" .': NAMESPACE,
}
MEMORY_MIB = 24576
GPUS = 8
QUARTER = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(MEMORY_MIB // 4), "nvidia.com/gpucores": "25"}
WHOLE = {"nvidia.com/gpu": "1"}
HALVES = {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}


@contextmanager
def running_hami(plane: ControlPlane, checkout: Path, programs: Path) -> Iterator[Stack]:
    """Runs HAMi's scheduler, with a node whose plugin and kubelet this program plays."""
    extender_program = program(programs, *PROGRAMS)
    files = ("scheduler/clusterrole*.yaml", "scheduler/role*.yaml", "device-plugin/monitorrole*.yaml")
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rights = manifests(checkout, [f"{CHART}/{file}" for file in files], kinds, VALUES)
    kubeconfig = create_account(plane, NAMESPACE, SCHEDULER)
    create_account(plane, NAMESPACE, PLUGIN)
    apply(plane, rights)
    create_node(
        plane, NODE, {"nvidia.com/gpu": str(10 * GPUS)}, {"gpu": "on"}, {"hami.io/node-nvidia-register": _register()}
    )
    plugin, kubelet = plane.service_account(NAMESPACE, PLUGIN), StandInNode(NODE, plane.node(NODE))
    port, metrics, secure = free_ports(3)
    serving = plane.authority.server("hami", ["127.0.0.1", "localhost"])
    (plane.folder / "hami-devices.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    (plane.folder / "hami-scheduler.yaml").write_text(yaml.safe_dump(_scheduler(str(kubeconfig), port)))
    environment = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE, "POD_NAME": "hami-scheduler-0"}
    extender = [
        extender_program,
        f"--http_bind=127.0.0.1:{port}",
        f"--cert_file={serving.certificate}",
        f"--key_file={serving.key}",
        f"--scheduler-name={SCHEDULER}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--device-config-file={plane.folder / 'hami-devices.yaml'}",
        "--logtostderr=true",
        "-v=4",
    ]
    scheduler = [
        plane.binaries / "kube-scheduler",
        f"--config={plane.folder / 'hami-scheduler.yaml'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={secure}",
    ]

    def bound(pod: Manifest) -> None:
        """The plugin says that it gave the pod its devices, and frees the node for the next pod."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        done = {"hami.io/bind-phase": "success", "hami.io/vgpu-devices-to-allocate": ";"}
        plugin.api.patch(path, {"metadata": {"annotations": done}})
        plugin.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {LOCK: None}}})
        run_pod(kubelet, pod)

    with ExitStack() as stack:
        asked = stack.enter_context(running("hami", extender, plane.folder / "hami.log", environment, OF_OTHERS_S))
        wait_until(lambda: listens(asked, port), "HAMi's extender answers")
        asks = stack.enter_context(
            running("hami-kube", scheduler, plane.folder / "hami-kube.log", environment, OF_OTHERS_S)
        )
        create_webhook(plane, "hami-webhook", f"https://127.0.0.1:{port}/webhook", "*", WEBHOOK)
        wait_until(lambda: _rewrites(plane), "HAMi's webhook names its scheduler")
        more = (
            (_asking("whole", WHOLE), Fraction(1)),
            (_asking("halves", HALVES), Fraction(1)),
            (_asking("two", QUARTER, {"cpu": "1"}, QUARTER), Fraction(1, 2)),
            (_asking("steps", QUARTER, init=QUARTER), Fraction(1, 4)),
        )
        yield Stack("hami", version(checkout), SCHEDULER, NODE, (asked, asks), Fraction(1, 4), _pod, bound, more)


def _register() -> str:
    devices = [
        {
            "id": f"GPU-{at}",
            "count": 10,
            "devmem": MEMORY_MIB,
            "devcore": 100,
            "type": "NVIDIA A10",
            "mode": "hami-core",
            "health": True,
            "index": at,
        }
        for at in range(GPUS)
    ]
    return json.dumps(devices)


def _scheduler(kubeconfig: str, port: int) -> Manifest:
    managed = [{"name": name, "ignoredByScheduler": True} for name in RESOURCES.values()]
    extender = {
        "urlPrefix": f"https://127.0.0.1:{port}",
        "enableHTTPS": True,
        "tlsConfig": {"insecure": True},
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "weight": 1,
        "httpTimeout": "30s",
        "managedResources": managed,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig},
        "profiles": [{"schedulerName": SCHEDULER}],
        "extenders": [extender],
    }


def _rewrites(plane: ControlPlane) -> bool:
    stored = plane.admin.api.create("/api/v1/namespaces/default/pods", _pod("probe"), {"dryRun": "All"})
    return bool(stored["spec"]["schedulerName"] == SCHEDULER)


def _pod(name: str) -> Manifest:
    return _asking(name, QUARTER)


def _asking(name: str, *limits: dict[str, str], init: dict[str, str] | None = None) -> Manifest:
    containers = [
        {"name": f"main-{at}", "image": "example.org/train:1", "resources": {"limits": dict(one)}}
        for at, one in enumerate(limits)
    ]
    before = [{"name": "before", "image": "example.org/fetch:1", "resources": {"limits": init}}] if init else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, "initContainers": before},
    }
