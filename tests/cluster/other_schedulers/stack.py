"""Another stack whose own scheduler runs, and what the stacks' programs have in common."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.installation import Manifest
from tests.cluster.services.replicas import is_listening

Group = Callable[[str, str, int], Callable[[Manifest], Manifest]]
"""Creates a group of a namespace, a name and so many members; returns what makes a pod one of them."""


@dataclass(frozen=True)
class Stack:
    """A stack whose own scheduler runs.

    Attributes:
        name: its name in FairGPU.
        version: the version that was built.
        scheduler: the name of its scheduler in pods.
        node: the node with its devices.
        processes: its processes.
        gpus: what `pod` is charged as, in GPUs at price 1.
        pod: makes a pod that asks for a part of a GPU, as a user of the stack writes it.
        more: pods that ask in other ways, each with what it is charged as.
        bound: does what the stack's plugin and the kubelet do once a pod is bound.
        group: creates a group of pods that start together, and returns how a pod becomes one of them; None where the
            stack has no groups.
    """

    name: str
    version: str
    scheduler: str
    node: str
    processes: tuple[Process, ...]
    gpus: Fraction
    pod: Callable[[str], Manifest]
    bound: Callable[[Manifest], None]
    more: tuple[tuple[Manifest, Fraction], ...] = ()
    group: Group | None = None


def create_account(plane: ControlPlane, namespace: str, name: str) -> Path:
    """Creates a service account, and returns a kubeconfig of it; the namespace is created where it is missing."""
    if not plane.exists(f"/api/v1/namespaces/{namespace}"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        plane.admin.api.create("/api/v1/namespaces", body)
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    try:
        plane.admin.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
    except ApiError as error:
        if error.status != 409:  # a controller makes the account "default" of each namespace, at any time
            raise
    return plane.service_account(namespace, name).kubeconfig


def listens(process: Process, port: int) -> bool:
    """Returns whether a process takes connections at a port of 127.0.0.1.

    Raises:
        RuntimeError: it ended by itself.
    """
    process.check_alive()
    return is_listening(port)


def run_pod(kubelet: StandInNode, pod: Manifest) -> None:
    """Does what a kubelet does with a pod that is bound to its node."""
    kubelet.set_pod_phase(pod["metadata"]["namespace"], pod["metadata"]["name"], "Running")


def pod_groups(plane: ControlPlane, api_version: str, queue: str, annotation: str) -> Group:
    """Returns what makes the stack's PodGroups; a pod names its group by the annotation."""

    def group(namespace: str, name: str, members: int) -> Callable[[Manifest], Manifest]:
        item = {
            "apiVersion": api_version,
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": members, "queue": queue},
        }
        plane.admin.api.create(f"/apis/{api_version}/namespaces/{namespace}/podgroups", item)

        def join(pod: Manifest) -> Manifest:
            pod["metadata"].setdefault("annotations", {})[annotation] = name
            return pod

        return join

    return group


def create_webhook(plane: ControlPlane, name: str, url: str, scope: str, own: Manifest) -> None:
    """Has the API server ask a stack's mutating webhook about new pods; `own` has the fields that the stack chooses."""
    bundle = base64.b64encode(plane.certificate_authority.read_bytes()).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": scope}
    webhook = {"clientConfig": {"url": url, "caBundle": bundle}, "rules": [rule], "sideEffects": "None", **own}
    kind = "MutatingWebhookConfiguration"
    document = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    plane.admin.api.create(path, {**document, "webhooks": [webhook]})
