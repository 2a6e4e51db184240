"""Pods by which somebody who may do everything in one namespace would get a GPU past FairGPU."""

from __future__ import annotations

from typing import Any

from tests.cluster.journey.manifests import Manifest, pod

GPU = {"nvidia.com/gpu": "1"}
PLAIN = {"name": "plain", "image": "example.org/app:1"}
ABSENT_NODE: Manifest = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "0", "controller": True}


def asking(name: str = "main", **fields: Any) -> Manifest:
    """A container with a GPU."""
    return {"name": name, "image": "example.org/train:1", "resources": {"limits": GPU}, **fields}


def with_containers(*containers: Manifest, **spec: Any) -> Manifest:
    return {**pod("evading", {}), "spec": {"containers": list(containers), **spec}}


def with_metadata(**metadata: Any) -> Manifest:
    item = pod("evading", GPU)
    item["metadata"] |= metadata
    return item


def with_resources(**resources: Any) -> Manifest:
    return with_containers({**PLAIN, "resources": resources})


MANY_NAMES = {f"example.org/r{number}": "1" for number in range(3000)}
MANY_ANNOTATIONS = {f"a{number}": "" for number in range(1000)}

METERED: dict[str, Manifest] = {
    "in an init container": with_containers(PLAIN, initContainers=[asking("init")]),
    "in a native sidecar": with_containers(PLAIN, initContainers=[asking("own", restartPolicy="Always")]),
    "in the last of many containers": with_containers(*({**PLAIN, "name": f"c{n}"} for n in range(200)), asking()),
    "by an annotation for an init container": {
        **with_containers(PLAIN, initContainers=[{**PLAIN, "name": "init"}]),
        "metadata": {
            "name": "evading",
            "annotations": {"gpu-fraction": "0.5", "gpu-fraction-container-name": "init"},
        },
    },
    "beside null maps": with_resources(limits=GPU, requests=None),
    "among 3,000 other resources": with_resources(limits={**MANY_NAMES, **GPU}),
    "among 1,000 annotations": with_metadata(annotations=MANY_ANNOTATIONS),
    "with a generated name": with_metadata(name=None, generateName="evading-"),
    "with another scheduler": pod("evading", GPU, schedulerName="default-scheduler"),
    "with FairGPU's class for the rich": pod("evading", GPU, priorityClassName="gpu-in-budget"),
    "with a policy of preemption": pod("evading", GPU, preemptionPolicy="PreemptLowerPriority"),
    "with tolerations of everything": pod("evading", GPU, tolerations=[{"operator": "Exists"}]),
    "with an allocation": with_metadata(annotations={"fairgpu.io/allocation": "{}"}),
    "created by somebody else": with_metadata(annotations={"fairgpu.io/created-by": "alice"}),
    "owned by somebody else": with_metadata(ownerReferences=[ABSENT_NODE]),
    "with a finalizer": with_metadata(finalizers=["example.org/never"]),
    "with a status that has ended": {
        **pod("evading", GPU),
        "status": {
            "phase": "Succeeded",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
        },
    },
    "with a reporter of one's own": with_containers(
        asking(), initContainers=[{**PLAIN, "name": "fairgpu-sidecar", "restartPolicy": "Always"}]
    ),
    "with the reporter's volumes on the host": pod(
        "evading",
        GPU,
        volumes=[
            {"name": "fairgpu-usage", "hostPath": {"path": "/"}},
            {"name": "fairgpu-token", "secret": {"secretName": "x"}},
        ],
    ),
    "with control characters for a scheduler": pod("evading", GPU, schedulerName="\x1b[2J\u202e\n"),
}
"""Pods that are admitted, and metered like any other."""

REFUSED: dict[str, tuple[Manifest, str]] = {
    "as the mirror of a static pod": (with_metadata(annotations={"kubernetes.io/config.mirror": "0"}), "a mirror pod"),
    "by a request without a limit": (with_resources(requests=GPU), "without a limit"),
    "by a request beside a null map": (with_resources(requests=GPU, limits=None), "without a limit"),
    "in FairGPU's own reporter": (
        with_containers(PLAIN, initContainers=[asking("fairgpu-sidecar", restartPolicy="Always")]),
        "allowed: no GPU there",
    ),
    "in a main container named like the reporter": (
        with_containers(asking("fairgpu-sidecar")),
        "allowed: no GPU there",
    ),
    "for the pod as a whole": (with_containers(PLAIN, resources={"limits": GPU}), "spec.resources"),
    "on a node of one's choice": (pod("evading", GPU, nodeName="n1"), "spec.nodeName"),
    "with the highest class": (pod("evading", GPU, priorityClassName="system-node-critical"), "spec.priorityClassName"),
    "with a priority of one's own": (pod("evading", GPU, priority=999_999), "priority"),
    "in two dialects": (with_resources(limits={**GPU, "fairgpu.io/gpu-core": "1"}), "native and hami"),
    "in less than one percent": (with_resources(limits={"fairgpu.io/gpu-core": "500m"}), "fairgpu.io/gpu-core"),
    "of a negative size": (with_resources(limits={"fairgpu.io/gpu-core": "-30"}), "fairgpu.io/gpu-core"),
    "of best effort without memory": (with_resources(limits={"fairgpu.io/gpu-core": "0"}), "fairgpu.io/gpu-memory"),
    "of more than there can be": (
        with_resources(limits={"fairgpu.io/gpu": "9223372036854775807"}),
        "fairgpu.io/gpu",
    ),
    "under a name that only looks like it": (with_resources(limits={"fairgpu.io/gpu\u200b": "1"}), "fairgpu.io"),
    "under a name in capitals": (with_resources(limits={"NVIDIA.com/gpu": "1"}), "NVIDIA.com/gpu"),
    "in an ephemeral container": (with_containers(PLAIN, ephemeralContainers=[asking("debug")]), "ephemeral"),
    "by an annotation for no container": (
        pod("evading", {}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "nobody"}),
        "gpu-fraction-container-name",
    ),
    "behind more annotations than policies look through": (
        with_metadata(annotations={f"a{number}": "" for number in range(10_000)}),
        "metadata.annotations: given 10000 annotations",
    ),
    "behind more annotations than are stored": (
        pod(
            "evading",
            GPU,
            {f"fairgpu.io/{use}-gpu-uuid": ",".join(map(str, range(40_000))) for use in ("use", "avoid")},
        ),
        "allowed: at most 262144 bytes",
    ),
    "behind annotations of FairGPU's own that count for nothing": (
        with_metadata(annotations={f"fairgpu.io/a{number}": "" for number in range(5_000)}),
        "metadata.annotations",
    ),
    "behind more finalizers than can be looked through": (
        with_metadata(finalizers=[f"example.org/{number}" for number in range(65)]),
        "metadata.finalizers: given 65 finalizers",
    ),
    "behind more labels than leave room for a notice": (
        with_metadata(labels={f"a{number}": "" for number in range(257)}),
        "metadata.labels: given 25",
    ),
    "in a pod beside which no notice fits": (
        with_containers(
            asking("gpu"),
            {**PLAIN, "env": [{"name": f"E{number}", "value": "x" * 1000} for number in range(1_100)]},
        ),
        "allowed: at most 1048576",
    ),
    "lent beyond the share": (pod("evading", GPU, {"fairgpu.io/core-policy": "elastic"}), "fairgpu.io/allow"),
    "before all others": (pod("evading", GPU, {"fairgpu.io/task-priority": "0"}), "fairgpu.io/allow"),
}
"""Pods that are refused, with a part of the message."""
