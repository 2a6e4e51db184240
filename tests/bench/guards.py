"""The cost of FairGPU's policies and webhook configurations to kube-apiserver where users make pods large.

Two control planes stand side by side, one with the installation and one without, and are written to in turns: in a
namespace of the mode share, then in one of the mode account. What is compared is the processor time of kube-apiserver
alone, from /proc. Nothing that is measured reaches a webhook: pods without a GPU are not sent there, and neither is
what the timekeeper writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairgpu.cluster.api import ApiError
from fairgpu.names import NAMESPACE_MODE
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import bind, create_node, place
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, apply, install, render
from tests.cluster.pods import Pod, canonical_pod, plain_pod, stack_pod
from tests.cluster.reviewer import running_reviewer
from tests.support.waiting import wait_until

SYSTEM = "fairgpu-system"
ANNOTATIONS = 40_000
ROUNDS = 5
MODES = ("share", "account")
TICKS = os.sysconf("SC_CLK_TCK")
JSON = dict[str, Any]


class Site:
    """A control plane with a namespace of a mode, a node and pods in it.

    Attributes:
        plane: the control plane.
        user: somebody who may do everything in the namespace.
        timekeeper: the account of that name; without FairGPU one that may do everything.
        node: the kubelet to which the pod without a GPU is bound.
        pods: the path of the namespace's pods.
    """

    def __init__(self, plane: ControlPlane, mode: str) -> None:
        self.plane = plane
        namespace = plane.create_namespace("bench-", labels={NAMESPACE_MODE: mode})
        self.user = plane.namespace_admin(namespace)
        self.timekeeper = plane.service_account(SYSTEM, "fairgpu-timekeeper")
        self.node = create_node(plane, f"bench-{mode}")
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        scheduler = plane.service_account(SYSTEM, "fairgpu-scheduler")
        bind(scheduler, self.user.api.create(self.pods, large_pod("large")), self.node.name, None)
        if mode == "share":
            place(scheduler, self._created(bounded(canonical_pod())), self.node.name)
        else:
            bind(plane.admin, self._created(bounded(stack_pod())), self.node.name, None)
        self.node.set_pod_phase(namespace, "large", "Running")
        self._written = 0

    def _created(self, pod: Pod) -> Pod:
        """Creates a pod, once the policies and webhooks have read the namespace's mode."""
        return wait_until(lambda: self._admitted(pod), "the pod is admitted")

    def _admitted(self, pod: Pod) -> Pod | None:
        try:
            return self.user.api.create(self.pods, pod)
        except ApiError as error:
            if error.status == 403:
                return None
            raise

    def number(self) -> str:
        """Another text each time, so that each write changes something."""
        self._written += 1
        return str(self._written)

    def seconds(self) -> float:
        """Processor time that kube-apiserver has taken so far."""
        process = self.plane.servers["kube-apiserver"].process.popen.pid
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def rows() -> Iterator[JSON]:
    """The ratio of each write, with FairGPU against without."""
    with ExitStack() as stack:
        binaries = control_plane_binaries(os.environ)
        guarded, bare = (stack.enter_context(running_control_plane(binaries)) for _ in range(2))
        host = "fairgpu-webhook.fairgpu-system.svc"
        reviewer = stack.enter_context(running_reviewer(guarded.folder / "reviewer", [host]))
        install(guarded)
        configurations = [m for m in render(guarded, webhook_port=reviewer.port) if m["kind"] in WEBHOOK_CONFIGURATIONS]
        for configuration in configurations:
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"]["caBundle"] = reviewer.ca_bundle
        apply(guarded, configurations)
        give_accounts(bare)
        for mode in MODES:
            sites = Site(guarded, mode), Site(bare, mode)
            for name, goal, times, write in WRITES:
                yield compared(f"mode {mode}: {name}", goal, times, write, sites)


def compared(name: str, goal: float, times: int, write: Callable[[Site], object], sites: tuple[Site, Site]) -> JSON:
    """One figure: a write, `times` in a row at each site in turns."""
    spent = [0.0, 0.0]
    for site in sites:
        write(site)
    for _ in range(ROUNDS):
        for index, site in enumerate(sites):
            before = site.seconds()
            for _ in range(times):
                write(site)
            spent[index] += site.seconds() - before
    ratio = spent[0] / spent[1]
    each = [1000 * seconds / ROUNDS / times for seconds in spent]
    return {
        "name": f"guards: {name}, kube-apiserver's processor time",
        "value": ratio,
        "unit": "times",
        "goal": f"<= {goal}",
        "met": ratio <= goal,
        "context": f"{each[0]:.1f} ms with FairGPU against {each[1]:.1f} ms; {ROUNDS} x {times} writes in turns",
    }


def patch_large(site: Site) -> None:
    """A label, on a pod without a GPU that has all the annotations that the API server takes."""
    site.user.api.patch(f"{site.pods}/large", {"metadata": {"labels": {"run": site.number()}}})


def write_status(site: Site) -> None:
    """Writes the status of the large pod, as the kubelet does."""
    site.node.kubelet.api.patch(f"{site.pods}/large/status", {"status": {"message": site.number()}})


def create_large(site: Site) -> None:
    """Another of its kind; nothing of it stays."""
    site.user.api.create(site.pods, large_pod("another"), {"dryRun": "All"})


def give_notice(site: Site) -> None:
    """Writes on a GPU pod the notice that the timekeeper writes before it evicts the pod."""
    at = {"fairgpu.io/eviction-at": site.number()}
    site.timekeeper.api.patch(f"{site.pods}/gpu", {"metadata": {"annotations": at}})


WRITES: tuple[tuple[str, float, int, Callable[[Site], object]], ...] = (
    (f"a PATCH of a pod without a GPU with {ANNOTATIONS:,} annotations", 1.3, 4, patch_large),
    ("a kubelet's write of its status", 1.3, 4, write_status),
    ("its creation", 1.6, 4, create_large),
    ("the timekeeper's notice on a GPU pod at all bounds", 1.5, 40, give_notice),
)


def large_pod(name: str) -> Pod:
    """A pod without a GPU."""
    pod = plain_pod(name)
    pod["metadata"]["annotations"] = {f"a{number}": "" for number in range(ANNOTATIONS)}
    return pod


def bounded(pod: Pod) -> Pod:
    """Returns a GPU pod with as many finalizers, labels and annotations as it may have, and else some 20 kB."""
    metadata = pod["metadata"]
    metadata["finalizers"] = [f"example.org/f{number}" for number in range(64)]
    metadata["labels"] |= {f"example.org/l{number}": "v" for number in range(255)}
    metadata["annotations"] |= {f"example.org/a{number:03}": "x" * 47 for number in range(999)}
    main = pod["spec"]["containers"][0]
    main["env"] = [{"name": f"SETTING_{number}", "value": "x" * 100} for number in range(150)]
    return pod


def give_accounts(plane: ControlPlane) -> None:
    """The accounts and classes that the writes need, where FairGPU is not installed."""
    api = plane.admin.api
    api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    rbac = "rbac.authorization.k8s.io"
    for name in ("fairgpu-timekeeper", "fairgpu-scheduler"):
        api.create(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": name}})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}],
        }
        api.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "gpu-in-budget"}, "value": 1000})
