"""The odd pods of docs/bad-input.md, by the words that the document has for them, and what the webhook says to each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.admission import Answer, admitted, container, gpu_container, gpu_pod, knowing, mutate, pod, validate
from webhook.settings import Dialects, Webhook

SHARE = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"}
WHOLE = {"fairgpu.io/gpu": "8", "fairgpu.io/gpu-core": "800"}
SMALL = {"fairgpu.io/gpu-core": "1", "fairgpu.io/gpu-memory": "100"}


def updated(stored: Any, item: Any, **fields: Any) -> Answer:
    return mutate(item, operation="UPDATE", oldObject=stored, **fields)


def applied_again() -> Answer:
    """Returns the pod of a second `kubectl apply`: the stored pod with the manifest's keys back in it."""
    stored = admitted(pod(container(limits=SHARE)))
    item = admitted(pod(container(limits=SHARE)))
    item["spec"]["containers"][0]["resources"]["limits"] |= SHARE
    return updated(stored, item)


def applied_with_more() -> Answer:
    stored = admitted(pod(container(limits=SHARE)))
    item = admitted(pod(container(limits=SHARE)))
    item["spec"]["containers"][0]["resources"]["limits"] |= SHARE | {"tencent.com/vcuda-core": "60"}
    return updated(stored, item)


def with_a_debugger(debugger: Any) -> Answer:
    stored = admitted(gpu_pod())
    item = admitted(gpu_pod())
    item["spec"]["ephemeralContainers"] = [debugger]
    return validate(item, operation="UPDATE", subResource="ephemeralcontainers", oldObject=stored)


ODD_PODS: dict[str, Callable[[], Answer]] = {
    "no containers": lambda: mutate(pod()),
    "no GPU, and annotations that only GPU pods have": lambda: mutate(
        pod(container(), annotations={"fairgpu.io/core-policy": "soft"})
    ),
    "300 containers of 1 percent and 100 MiB": lambda: mutate(
        pod(*(container(f"c{number}", SMALL) for number in range(300)))
    ),
    "three containers of 8 whole GPUs each": lambda: mutate(pod(*(container(f"c{n}", WHOLE) for n in range(3)))),
    "an init container with more than the main one": lambda: mutate(
        pod(gpu_container(), initContainers=[gpu_container("fetch", core="80")])
    ),
    "a native sidecar with a GPU": lambda: mutate(
        pod(gpu_container(), initContainers=[gpu_container("proxy", restartPolicy="Always")])
    ),
    "another webhook's sidecar before ours": lambda: mutate(
        pod(gpu_container(), initContainers=[container("mesh-proxy", restartPolicy="Always")])
    ),
    "an ephemeral container with a GPU": lambda: with_a_debugger(gpu_container("debug")),
    "an ephemeral container without one": lambda: with_a_debugger(container("debug")),
    "a container named `fairgpu-sidecar`": lambda: mutate(pod(gpu_container(), container("fairgpu-sidecar"))),
    "an init container named `fairgpu-sidecar`": lambda: mutate(
        pod(gpu_container(), initContainers=[container("fairgpu-sidecar")])
    ),
    "an init container named `fairgpu-sidecar` that asks for a GPU": lambda: mutate(
        pod(gpu_container(), initContainers=[gpu_container("fairgpu-sidecar")])
    ),
    "a volume named `fairgpu-usage`": lambda: mutate(
        gpu_pod(volumes=[{"name": "fairgpu-usage", "hostPath": {"path": "/"}}])
    ),
    "a volume of its own mounted at `/run/fairgpu`": lambda: mutate(
        pod(gpu_container(volumeMounts=[{"name": "mine", "mountPath": "/run/fairgpu"}]))
    ),
    "an allocation that its author wrote": lambda: mutate(
        pod(gpu_container(), annotations={"fairgpu.io/allocation": '{"v":1}'})
    ),
    "another's name in `fairgpu.io/created-by`": lambda: mutate(
        pod(gpu_container(), annotations={"fairgpu.io/created-by": "bob"})
    ),
    "`os: windows`": lambda: mutate(gpu_pod(os={"name": "windows"})),
    "a `nodeName`": lambda: mutate(gpu_pod(nodeName="n1")),
    "`runtimeClassName: kata`, and a piece of a GPU": lambda: mutate(gpu_pod(runtimeClassName="kata")),
    "`runtimeClassName: kata`, and a whole GPU": lambda: mutate(
        pod(container(limits={"nvidia.com/gpu": "1"}), runtimeClassName="kata")
    ),
    "`runtimeClassName: nvidia`": lambda: mutate(gpu_pod(runtimeClassName="nvidia")),
    "another scheduler": lambda: mutate(gpu_pod(schedulerName="volcano")),
    "the cluster's default priority class": lambda: mutate(
        gpu_pod(priorityClassName="everyday", priority=10), knowing(default_class="everyday")
    ),
    "a priority class of its author's": lambda: mutate(gpu_pod(priorityClassName="urgent"), knowing()),
    "elastic, in a namespace that is not allowed it": lambda: mutate(
        pod(gpu_container(), annotations={"fairgpu.io/core-policy": "elastic"})
    ),
    "elastic by tencent's annotation, in such a namespace": lambda: mutate(
        pod(container(limits=SHARE), annotations={"tencent.com/vcuda-core-limit": "100"})
    ),
    "best effort, where the admin forbids it": lambda: mutate(
        pod(container(limits={"nvidia.com/gpumem": "4096"})), settings=Webhook(dialects=Dialects(best_effort="refuse"))
    ),
    "`hostPID: true`": lambda: mutate(gpu_pod(hostPID=True)),
    "a volume of the node's `/dev`": lambda: mutate(
        gpu_pod(volumes=[{"name": "devices", "hostPath": {"path": "/dev"}}])
    ),
    "a volume of the node agent's folder": lambda: mutate(
        gpu_pod(volumes=[{"name": "run", "hostPath": {"path": "/run/fairgpu-nodeagent"}}])
    ),
    "a volume of the node's CDI specs": lambda: mutate(
        gpu_pod(volumes=[{"name": "cdi", "hostPath": {"path": "/var/run/cdi"}}])
    ),
    "a volume of the kubelet's device plugins": lambda: mutate(
        gpu_pod(volumes=[{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}])
    ),
    "a volume of the container runtime's socket": lambda: mutate(
        gpu_pod(volumes=[{"name": "runtime", "hostPath": {"path": "/run/containerd/containerd.sock"}}])
    ),
    "the capability `SYS_ADMIN`": lambda: mutate(
        pod(gpu_container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}))
    ),
    "a privileged container": lambda: mutate(pod(gpu_container(securityContext={"privileged": True}))),
    "`NVIDIA_VISIBLE_DEVICES: all` in its environment": lambda: mutate(
        pod(gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    ),
    "`NVIDIA_VISIBLE_DEVICES` from a ConfigMap": lambda: mutate(
        pod(gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {}}}]))
    ),
    "`WORLD_SIZE: 8` in its environment": lambda: mutate(
        pod(gpu_container(env=[{"name": "WORLD_SIZE", "value": "8"}]))
    ),
    "a MIG device beside its share": lambda: mutate(pod(container(limits=SHARE | {"nvidia.com/mig-1g.5gb": "1"}))),
    "a resource claim beside its share": lambda: mutate(
        pod(container(resources={"limits": SHARE, "claims": [{"name": "gpu"}]}))
    ),
    "the same manifest applied again": applied_again,
    "the manifest applied with another amount": applied_with_more,
}


def outcome(answer: Answer) -> str:
    """Returns the outcome of a pod, in the words of the document."""
    if not answer.allowed:
        return "refused"
    outcome = "admitted" if answer.patch else "left as it is"
    return outcome + (", with a warning" if answer.warnings else "")


def said(answer: Answer) -> str:
    """Returns the text that the pod's author reads, on one line."""
    return " ".join((answer.message if not answer.allowed else " ".join(answer.warnings)).split())
