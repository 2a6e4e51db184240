"""A GPU pod that reaches devices past its share is let in with a warning that names the field."""

from __future__ import annotations

import pytest

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
    "shared memory": pod(gpu_container(), volumes=[{"name": "shm", "hostPath": {"path": "/dev/shm"}}]),  # noqa: S108
    "a network card": pod(container(limits={"nvidia.com/gpu": "1", "rdma/hca": "1"})),
    "not privileged": pod(gpu_container(securityContext={"privileged": False, "runAsUser": 1})),
}


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
