"""Kueue's queues as plain custom resources, as an admin writes them; no controller of Kueue's runs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.installation import Manifest, apply, served
from tests.support.waiting import wait_until

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta1"


def define_queues(plane: ControlPlane) -> None:
    """Defines ClusterQueues and LocalQueues, and returns once both are served."""
    apply(plane, [_definition("ClusterQueue", "Cluster"), _definition("LocalQueue", "Namespaced")])
    group = f"/apis/{GROUP}"
    # The API server lists a kind a moment before, or after, it names the kind's group.
    for path in (group, f"{group}/{VERSION}/clusterqueues", f"{group}/{VERSION}/localqueues"):
        wait_until(lambda path=path: served(plane, path), f"{path} are served")


def create_cluster_queue(plane: ControlPlane, name: str, covered: Sequence[str]) -> None:
    """Creates a ClusterQueue that covers these resources."""
    spec = {"resourceGroups": [{"coveredResources": list(covered)}]}
    queue = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
    plane.admin.api.create(f"/apis/{GROUP}/{VERSION}/clusterqueues", queue)


def create_local_queue(plane: ControlPlane, namespace: str, name: str, cluster_queue: str) -> None:
    """Creates a LocalQueue of a ClusterQueue."""
    spec = {"clusterQueue": cluster_queue}
    queue = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "LocalQueue", "metadata": {"name": name}, "spec": spec}
    plane.admin.api.create(local_queues(namespace), queue)


def local_queues(namespace: str) -> str:
    """The path of a namespace's LocalQueues."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/localqueues"


def _definition(kind: str, scope: str) -> Manifest:
    """A definition of one of Kueue's kinds of queues that takes any fields."""
    singular = kind.lower()
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    # The API server asks for this of who defines a kind of a group of Kubernetes' own.
    approved = {"api-approved.kubernetes.io": "unapproved, a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{GROUP}", "annotations": approved},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"kind": kind, "plural": f"{singular}s", "singular": singular},
            "versions": [version],
        },
    }
