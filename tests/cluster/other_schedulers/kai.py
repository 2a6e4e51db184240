"""KAI: its scheduler, binder, pod grouper and admission webhook; fractions of GPUs behind reservation pods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from shutil import copyfile

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import OF_OTHERS_S, Process, running
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.installation import Manifest, apply, served
from tests.cluster.look.devices import create_node
from tests.cluster.other_schedulers.sources import manifests, program, version
from tests.cluster.other_schedulers.stack import Stack, create_account, create_webhook, listens, pod_groups, run_pod
from tests.support.background import in_background
from tests.support.other_stacks import A100
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SCHEDULER = "kai-scheduler"
NAMESPACE = "kai-scheduler"
RESERVATIONS = "kai-resource-reservation"
NODE = "kai-node"
QUEUE = "default-queue"
GPUS = 8
PROGRAMS = {
    "kai-scheduler": "scheduler",
    "kai-binder": "binder",
    "kai-podgrouper": "pod-grouper",
    "kai-admission": "admission",
}
"""The program of each service account."""
CHART = "deployments/kai-scheduler"
FILES = (
    f"{CHART}/crds/*.yaml",
    f"{CHART}/templates/rbac/scheduler*.yaml",
    f"{CHART}/templates/rbac/binder*.yaml",
    f"{CHART}/templates/rbac/podgrouper*.yaml",
    f"{CHART}/templates/rbac/admission*.yaml",
    f"{CHART}/templates/priorityclasses/*.yaml",
)
KINDS = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "PriorityClass")
INDEX = "run.ai/reserve_for_gpu_index"
WEBHOOK = {
    "name": "admission.kai-scheduler.svc",
    "admissionReviewVersions": ["v1"],
    "failurePolicy": "Fail",
    "matchConditions": [{"name": "scheduler", "expression": f"object.spec.schedulerName == '{SCHEDULER}'"}],
    "reinvocationPolicy": "IfNeeded",
}
LABELS = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.count": str(GPUS)}


@contextmanager
def running_kai(plane: ControlPlane, checkout: Path, programs: Path) -> Iterator[Stack]:
    """Runs KAI, with a node of eight GPUs whose plugin and kubelet this program plays."""
    found = {name: program(programs, name) for name in PROGRAMS}
    for namespace, name in ((RESERVATIONS, RESERVATIONS), ("kai-scale-adjust", "default")):
        create_account(plane, namespace, name)
    kubeconfigs = {name: create_account(plane, NAMESPACE, account) for name, account in PROGRAMS.items()}
    apply(plane, manifests(checkout, FILES, KINDS, {".Release.Namespace": NAMESPACE}))
    for path in ("v2/queues", "v2alpha2/podgroups", "v1alpha2/bindrequests"):
        wait_until(lambda path=path: served(plane, f"/apis/scheduling.run.ai/{path}"), f"{path} are served")
    wait_until(lambda: served(plane, "/apis/kai.scheduler/v1alpha1/topologies"), "topologies are served")
    apply(plane, manifests(checkout, ["docs/quickstart/default-queues.yaml"], ["Queue"]))
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    plane.admin.api.create("/apis/node.k8s.io/v1/runtimeclasses", {**runtime, "handler": "nvidia"})
    create_node(plane, NODE, {"nvidia.com/gpu": str(GPUS)}, LABELS, {})
    kubelet = StandInNode(NODE, plane.node(NODE))
    with ExitStack() as stack:
        processes, webhook = _run(plane, stack, found, kubeconfigs)
        create_webhook(plane, "kai-admission", f"https://127.0.0.1:{webhook}/mutate--v1-pod", "Namespaced", WEBHOOK)
        wait_until(lambda: _rewrites(plane), "KAI's webhook is asked")
        stack.enter_context(_reservations_kept(plane))
        stack.enter_context(_deleted_pods_ended(plane, kubelet))

        whole = _pod("whole")
        del whole["metadata"]["annotations"]
        whole["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        more = ((whole, Fraction(1)),)
        bound = partial(run_pod, kubelet)
        group = pod_groups(plane, "scheduling.run.ai/v2alpha2", QUEUE, "pod-group-name")
        yield Stack("kai", version(checkout), SCHEDULER, NODE, processes, Fraction(1, 2), _pod, bound, more, group)


def _run(
    plane: ControlPlane, stack: ExitStack, found: dict[str, Path], kubeconfigs: dict[str, Path]
) -> tuple[tuple[Process, ...], int]:
    """Runs KAI's programs until the stack is closed; returns them, and the webhook's port."""
    metrics, server, webhook, *probes = free_ports(6)
    arguments: dict[str, list[str]] = {
        "kai-scheduler": [f"--listen-address=127.0.0.1:{metrics}", f"--plugin-server-port={server}", "--v=3"],
        "kai-binder": ["--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{probes[0]}"],
        "kai-podgrouper": ["--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{probes[1]}"],
        "kai-admission": [
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{probes[2]}",
            f"--webhook-addr={webhook}",
            "--gpu-sharing-enabled=true",
        ],
    }
    serving = plane.authority.server("kai-admission", ["127.0.0.1", "localhost"])
    folder = plane.folder / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True)
    copyfile(serving.certificate, folder / "tls.crt")
    copyfile(serving.key, folder / "tls.key")
    processes = []
    for name, path in found.items():
        environment = {"KUBECONFIG": str(kubeconfigs[name]), "HOME": str(plane.folder), "TMPDIR": str(plane.folder)}
        log = plane.folder / f"{name}.log"
        processes.append(stack.enter_context(running(name, [path, *arguments[name]], log, environment, OF_OTHERS_S)))
    admission = processes[-1]
    wait_until(lambda: listens(admission, webhook), "KAI's webhook answers")
    return tuple(processes), webhook


@contextmanager
def _reservations_kept(plane: ControlPlane) -> Iterator[None]:
    """Writes on each reservation pod which GPU it has, as the program in it does on a node with GPUs."""
    program_in_it = plane.admin
    path = f"/api/v1/namespaces/{RESERVATIONS}/pods"
    ending = threading.Event()

    def keep() -> None:
        while not ending.wait(0.2):
            try:
                found = [pod["metadata"] for pod in program_in_it.api.get(path)["items"]]
                taken = {metadata.get("annotations", {}).get(INDEX) for metadata in found}
                free = (gpu for gpu in (f"GPU-{number}" for number in range(GPUS)) if gpu not in taken)
                for metadata in found:
                    if INDEX not in metadata.get("annotations", {}):
                        body = {"metadata": {"annotations": {INDEX: next(free)}}}
                        program_in_it.api.patch(f"{path}/{metadata['name']}", body)
            except ApiError:
                continue  # it is deleted meanwhile

    with in_background(keep, ending.set):
        yield


@contextmanager
def _deleted_pods_ended(plane: ControlPlane, kubelet: StandInNode) -> Iterator[None]:
    """Ends the node's pods that somebody has deleted, as its kubelet does; KAI waits for the GPUs of those that remain.

    After binds that were refused, KAI's binder may delete the first pod that it binds: it misses its reservation.
    """
    ending = threading.Event()

    def end() -> None:
        while not ending.wait(0.2):
            for pod in plane.admin.api.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={kubelet.name}"})["items"]:
                if "deletionTimestamp" in pod["metadata"]:
                    with suppress(ApiError):  # it has left meanwhile
                        kubelet.remove_pod(pod["metadata"]["namespace"], pod["metadata"]["name"])

    with in_background(end, ending.set):
        yield


def _rewrites(plane: ControlPlane) -> bool:
    stored = plane.admin.api.create("/api/v1/namespaces/default/pods", _pod("probe"), {"dryRun": "All"})
    return bool(stored["spec"].get("runtimeClassName") or len(stored["spec"].get("volumes", [])) > 1)


def _pod(name: str) -> Manifest:
    metadata = {"name": name, "labels": {"kai.scheduler/queue": QUEUE}, "annotations": {"gpu-fraction": "0.5"}}
    container = {"name": "main", "image": "example.org/train:1"}
    spec = {"schedulerName": SCHEDULER, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
