"""A GPU pod that reaches devices past its share is let in with a warning that names the field."""

from __future__ import annotations

import pytest

from nodeagent.settings import Nodeagent
from tests.support.admission import Pod, container, gpu_container, mutate, pod, validate

EXPOSED: dict[str, tuple[Pod, str]] = {
    "privileged": (
        pod(gpu_container(securityContext={"privileged": True})),
        "spec.containers[0].securityContext.privileged: a privileged container reaches all GPUs of its node",
    ),
    "a privileged container beside": (
        pod(gpu_container(), container("helper", securityContext={"privileged": True})),
        "spec.containers[1].securityContext.privileged: ",
    ),
    "the node's processes": (
        pod(gpu_container(), hostPID=True),
        "spec.hostPID: the pod sees all processes of its node",
    ),
    "/dev": (
        pod(gpu_container(), volumes=[{"name": "x"}, {"name": "dev", "hostPath": {"path": "/dev"}}]),
        'spec.volumes[1].hostPath.path: "/dev" shows the devices of the node',
    ),
    "a power over mounts": (
        pod(gpu_container(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}})),
        "spec.containers[0].securityContext.capabilities.add: with SYS_ADMIN a container can hide",
    ),
    "a power over mounts in small letters": (
        pod(gpu_container(securityContext={"capabilities": {"add": ["sys_admin"]}})),
        "spec.containers[0].securityContext.capabilities.add: with sys_admin a container can hide",
    ),
    "visible devices of a ConfigMap": (
        pod(gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {}}}])),
        "spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES from another object may give the container GPUs",
    ),
    "visible devices": (
        pod(gpu_container(env=[{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        'spec.containers[0].env[1]: NVIDIA_VISIBLE_DEVICES="all" may give the container GPUs past its share',
    ),
    "a slice of a GPU": (
        pod(container(limits={"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "1"})),
        "spec.containers[0].resources: nvidia.com/mig-1g.5gb beside a GPU of FairGPU's is neither shared nor metered",
    ),
    "a shared GPU of others": (
        pod(container(limits={"fairgpu.io/gpu": "1", "nvidia.com/gpu.shared": "1"})),
        "spec.containers[0].resources: nvidia.com/gpu.shared beside a GPU of FairGPU's",
    ),
    "a claim": (
        pod(container(resources={"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "g"}]})),
        "spec.containers[0].resources: claims beside a GPU of FairGPU's",
    ),
}
PLAIN = {
    "no devices": pod(gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])),
    "few capabilities": pod(gpu_container(securityContext={"capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]}})),
    "null instead of capabilities": pod(gpu_container(securityContext={"capabilities": {"add": None}})),
    "a network card": pod(container(limits={"nvidia.com/gpu": "1", "rdma/hca": "1"})),
    "not privileged": pod(gpu_container(securityContext={"privileged": False, "runAsUser": 1})),
}

PAST_THE_SHARE = {
    "/dev": "shows the devices of the node",
    "//dev/": "shows the devices of the node",
    "/": "shows the devices of the node",
    "/dev/nvidia0": "shows the devices of the node",
    "/dev/null": "is the volume by which NVIDIA's runtime may be asked for GPUs",
    "/proc/1/root": "shows the processes of the node",
    "/run": "holds the files by which the node agent limits containers",
    "/run/fairgpu-nodeagent": "holds the files by which the node agent limits containers",
    "/var/run/fairgpu-nodeagent/containers": "holds the files by which the node agent limits containers",
    "/var/lib/fairgpu-nodeagent/shim": "holds the files by which the node agent limits containers",
    "/var/run/cdi": "holds the CDI specs",
    "/run/./cdi/x.json": "holds the CDI specs",
    "/etc": "holds the CDI specs",
    "/etc/cdi": "holds the CDI specs",
    "/var/lib/kubelet": "holds the sockets by which the kubelet gives GPUs to containers",
    "/var/lib/kubelet/device-plugins/kubelet.sock": "holds the sockets by which the kubelet gives GPUs to containers",
    "/var/lib/kubelet/pod-resources/kubelet.sock": "holds the socket that says which pods hold which GPUs",
    "/var/lib/kubelet/pods": "holds the volumes of the node's pods",
    "/run/containerd/containerd.sock": "holds the socket of the container runtime",
    "/var/run/docker.sock": "holds the socket of the container runtime",
    "/run/crio": "holds the socket of the container runtime",
}
HARMLESS = ("/dev/shm", "/dev/infiniband", "/data", "/etc/localtime", "/run/user", "/var/lib/kubelet-data", "/process")  # noqa: S108


def mounting(path: str) -> Pod:
    return pod(gpu_container(), volumes=[{"name": "host", "hostPath": {"path": path}}])


@pytest.mark.parametrize("path", PAST_THE_SHARE)
def test_a_folder_of_the_node_by_which_a_pod_reaches_past_its_share_is_named(path: str) -> None:
    (warning,) = mutate(mounting(path)).warnings
    assert warning.startswith(f'spec.volumes[0].hostPath.path: "{path}" {PAST_THE_SHARE[path]}')


@pytest.mark.parametrize("path", HARMLESS)
def test_other_folders_of_the_node_need_no_word(path: str) -> None:
    assert mutate(mounting(path)).warnings == []


def test_every_folder_of_the_node_agent_is_known() -> None:
    settings = Nodeagent()
    kubelet = settings.kubelet
    folders = [settings.run_folder, settings.shim_folder, settings.cdi_folder, *settings.vendor_cdi_folders]
    sockets = [settings.bundles, settings.runtime_socket, kubelet.device_plugins, kubelet.pods, kubelet.pod_resources]
    unknown = [str(path) for path in (*folders, *sockets) if not mutate(mounting(str(path))).warnings]
    assert unknown == []


@pytest.mark.parametrize("what", EXPOSED)
def test_a_pod_that_reaches_past_its_share_is_admitted_with_a_warning(what: str) -> None:
    item, said = EXPOSED[what]
    answer = mutate(item)
    assert answer.allowed
    (warning,) = answer.warnings
    assert warning.startswith(said)


@pytest.mark.parametrize("what", PLAIN)
def test_a_pod_that_does_not_is_admitted_without_a_word(what: str) -> None:
    assert mutate(PLAIN[what]).warnings == []


def test_a_pod_without_a_gpu_is_none_of_our_business() -> None:
    assert mutate(pod(container(securityContext={"privileged": True}))).warnings == []


def test_a_template_is_warned_of_with_its_own_paths() -> None:
    item, _ = EXPOSED["privileged"]
    deployment = {"metadata": {"name": "x"}, "spec": {"template": item}}
    answer = validate(deployment, kind={"group": "apps", "version": "v1", "kind": "Deployment"})
    assert [warning.partition(":")[0] for warning in answer.warnings] == [
        "spec.template.spec.containers[0].securityContext.privileged"
    ]


def test_a_pod_of_a_thousand_containers_gets_a_few_warnings() -> None:
    containers = [gpu_container(f"c{n}", core="1", securityContext={"privileged": True}) for n in range(1000)]
    assert len(mutate(pod(*containers)).warnings) <= 16
