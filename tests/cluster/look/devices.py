"""Nodes, ResourceSlices and claims as plugins and drivers write them, for the stock scheduler to allocate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import now
from tests.cluster.installation import Manifest
from tests.support.other_stacks import Asking, Stack

DYNAMIC = "resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
MODEL = "NVIDIA A100-SXM4-80GB"
CLASS = "gpu.example.org"
CLAIM = "gpu"
"""The name by which a pod of these tests refers to its claim."""


def create_node(
    plane: ControlPlane,
    name: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> None:
    """Creates a ready node that offers a capacity."""
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}, "annotations": annotations}
    plane.admin.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    offered = {"cpu": "64", "memory": "512Gi", "pods": "110", **capacity}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}]
    status = {"capacity": offered, "allocatable": offered, "conditions": ready}
    plane.admin.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


def asking_pod(name: str, stack: Stack, asking: Asking) -> Manifest:
    """A pod of a stack, with what its scheduler writes on it, for the stack's node."""
    containers = [
        {"name": f"c{at}", "image": "example.org/train:1", "resources": {"limits": limits}}
        for at, limits in enumerate(asking.limits)
    ]
    spec: dict[str, Any] = {"containers": containers, "nodeSelector": {"kubernetes.io/hostname": stack.name}}
    if asking.scheduler:
        spec["schedulerName"] = asking.scheduler
    metadata = {"name": name, "annotations": asking.annotations, "labels": asking.labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def devices(node: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Whole GPUs, as NVIDIA's driver publishes them."""
    attributes = {"productName": {"string": MODEL}, "type": {"string": "gpu"}}
    capacity = {"memory": {"value": "80Gi"}}
    return [{"name": f"{node}-{at}", "attributes": attributes, "capacity": capacity, **more} for at in range(count)]


def publish(
    plane: ControlPlane,
    node: str,
    found: Sequence[Mapping[str, Any]],
    kind: str = CLASS,
    driver: str = DRIVER,
    **spec: Any,
) -> None:
    """Publishes a node's devices, all of one kind; `create_class` makes a class of them."""
    of_kind = [{**one, "attributes": {**one.get("attributes", {}), "kind": {"string": kind}}} for one in found]
    body = {
        "apiVersion": DYNAMIC,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-slice"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": of_kind,
            **spec,
        },
    }
    plane.admin.api.create(f"/apis/{DYNAMIC}/resourceslices", body)


def create_class(plane: ControlPlane, kind: str = CLASS, driver: str = DRIVER, **spec: Any) -> None:
    """Creates a class of all devices of a kind, under its name."""
    expression = f"device.driver == '{driver}' && device.attributes['{driver}'].kind == '{kind}'"
    selectors = [{"cel": {"expression": expression}}]
    spec = {"selectors": selectors, **spec}
    body = {"apiVersion": DYNAMIC, "kind": "DeviceClass", "metadata": {"name": kind}, "spec": spec}
    plane.admin.api.create(f"/apis/{DYNAMIC}/deviceclasses", body)


def asking(count: int, device_class: str = CLASS, **more: Any) -> dict[str, Any]:
    """The spec of a claim for some devices."""
    exactly = {"deviceClassName": device_class, "count": count, **more}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def create_claim(plane: ControlPlane, namespace: str, name: str, count: int, **more: Any) -> Manifest:
    """Creates a claim that pods may share."""
    body = {"apiVersion": DYNAMIC, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": asking(count, **more)}
    return plane.admin.api.create(f"/apis/{DYNAMIC}/namespaces/{namespace}/resourceclaims", body)


def create_template(plane: ControlPlane, namespace: str, name: str, count: int, **more: Any) -> None:
    """Creates a template, from which each pod that names it gets a claim of its own."""
    spec = {"spec": asking(count, **more)}
    body = {"apiVersion": DYNAMIC, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}
    plane.admin.api.create(f"/apis/{DYNAMIC}/namespaces/{namespace}/resourceclaimtemplates", body)


def claiming(name: str, **reference: str) -> Manifest:
    """A pod with a claim, by its name or by that of a template."""
    claims = [{"name": CLAIM, **reference}]
    resources = {"claims": [{"name": CLAIM}]}
    container = {"name": "main", "image": "example.org/train:1", "resources": resources}
    spec = {"containers": [container], "resourceClaims": claims}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
