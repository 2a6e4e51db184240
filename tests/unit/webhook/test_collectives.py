"""A fraction of a GPU in a job of several pods is let in with a warning that says what to ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.admission import container, gpu_container, mutate, pod, validate

THIRTY = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}
ADVICE = "ask for whole GPUs, fairgpu.io/gpu-core: 100, or keep the job in one pod"
RANK = {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rank']"}}}


def env(**variables: str) -> dict[str, Any]:
    return {"env": [{"name": "HOME", "value": "/work"}, *({"name": n, "value": v} for n, v in variables.items())]}


def command(*words: str, **rest: Any) -> dict[str, Any]:
    return {"command": list(words), **rest}


SPANNING: dict[str, tuple[dict[str, Any], str]] = {
    "WORLD_SIZE": (env(WORLD_SIZE="8"), 'spec.containers[0].env[1]: WORLD_SIZE="8" is of a job of several processes'),
    "WORLD_SIZE of a variable": (env(WORLD_SIZE="$(PODS)"), "spec.containers[0].env[1]: WORLD_SIZE="),
    "RANK": (env(RANK="3"), 'spec.containers[0].env[1]: RANK="3"'),
    "RANK by a label": ({"env": [RANK]}, "spec.containers[0].env[0]: RANK is of a job"),
    "MASTER_ADDR": (env(MASTER_ADDR="train-0.train"), "spec.containers[0].env[1]: MASTER_ADDR="),
    "NCCL": (env(NCCL_SOCKET_IFNAME="eth0"), "spec.containers[0].env[1]: NCCL_SOCKET_IFNAME="),
    "torchrun": (command("torchrun", "--nnodes=2", "train.py"), "spec.containers[0].command: torchrun starts a job on"),
    "torchrun, apart": (
        command("torchrun", args=["--nnodes", "4", "train.py"]),
        "spec.containers[0].command: torchrun",
    ),
    "torchrun, elastic": (command("torchrun", "--nnodes=1:4", "x.py"), "spec.containers[0].command: torchrun"),
    "torchrun, by a variable": (command("torchrun", "--nnodes=$NODES", "x.py"), "spec.containers[0].command: torchrun"),
    "in a shell": (
        command("sh", "-c", args=["cd /work && exec torchrun --nnodes 2 train.py"]),
        "spec.containers[0].args: torchrun starts a job on several nodes",
    ),
    "as a module": (
        command("/usr/bin/python3", "-m", "torch.distributed.run", "--nnodes=2", "x.py"),
        "spec.containers[0].command: torch.distributed.run starts",
    ),
    "mpirun by hosts": (
        command("/opt/bin/mpirun", "-np", "8", "-H", "a:4,b:4", "./train"),
        "spec.containers[0].command: mpirun starts a job on several nodes",
    ),
    "mpirun by a file": (command("mpirun", "--hostfile", "/etc/hosts", "./x"), "spec.containers[0].command: mpirun"),
}
ALONE: dict[str, dict[str, Any]] = {
    "no sign": env(MODEL="llama"),
    "one process": env(WORLD_SIZE="1", RANK="0", MASTER_ADDR="train-0", NCCL_DEBUG="INFO"),
    "all in this pod": env(WORLD_SIZE="4", MASTER_ADDR="localhost"),
    "all in this pod, by address": env(WORLD_SIZE="4", MASTER_ADDR="127.0.0.1"),
    "empty": env(WORLD_SIZE="", MASTER_ADDR=""),
    "another rank": env(RANK="bm25"),
    "names that are longer": env(MY_WORLD_SIZE="8", PAGERANK="1", MASTER_ADDRESS="x", XNCCL_X="1"),
    "a value that speaks of it": env(NOTE="WORLD_SIZE=8 and NCCL_DEBUG"),
    "torchrun on one node": command("torchrun", "--nproc-per-node=4", "train.py"),
    "torchrun on one node, said so": command("torchrun", "--nnodes=1", "train.py", **env(NCCL_DEBUG="INFO")),
    "torchrun alone": command("torchrun", "--standalone", "--nnodes=1", "train.py"),
    "torchrun of another's option": command("python", "x.py", "--nnodes=2"),
    "a file of that name": command("cat", "torchrun.py", "--nnodes=2"),
    "mpirun on one node": command("mpirun", "-np", "4", "./train"),
    "mpirun on one host": command("mpirun", "-H", "localhost:4", "./train"),
    "nothing sensible": {
        "env": [7, {"name": 7}, {"name": "WORLD_SIZE", "value": ""}],
        "command": "torchrun --nnodes=2",
    },
}


@pytest.mark.parametrize("what", SPANNING)
def test_a_fraction_in_a_job_of_several_pods_is_admitted_with_a_warning(what: str) -> None:
    fields, said = SPANNING[what]
    answer = mutate(pod(container(limits=THIRTY, **fields)))
    assert answer.allowed
    (warning,) = answer.warnings
    assert warning.startswith(said)
    assert 'and the container "main" asks for 30 percent of a GPU: ' in warning
    assert warning.endswith(ADVICE)


@pytest.mark.parametrize("what", ALONE)
def test_a_fraction_in_a_pod_that_works_alone_is_admitted_without_a_word(what: str) -> None:
    assert mutate(pod(container(limits=THIRTY, **ALONE[what]))).warnings == []


@pytest.mark.parametrize("what", SPANNING)
def test_whole_gpus_are_admitted_without_a_word(what: str) -> None:
    fields, _ = SPANNING[what]
    assert mutate(pod(container(limits={"nvidia.com/gpu": "2"}, **fields))).warnings == []


def test_a_sign_in_a_container_without_a_gpu_is_none() -> None:
    launcher = container("launcher", **SPANNING["mpirun by hosts"][0])
    assert mutate(pod(container(limits=THIRTY), launcher)).warnings == []


def test_two_gpus_are_shown_what_both_come_to() -> None:
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "40", "nvidia.com/gpumem": "4000"}
    (warning,) = mutate(pod(container(limits=limits, **env(WORLD_SIZE="4")))).warnings
    assert "asks for 40 percent of a GPU" in warning
    assert "fairgpu.io/gpu-core: 200" in warning


def test_a_pod_of_many_containers_gets_a_few_warnings() -> None:
    containers = [gpu_container(f"c{n}", core="1", **env(WORLD_SIZE="8")) for n in range(100)]
    assert 1 < len(mutate(pod(*containers)).warnings) <= 16


def template(limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [container(limits=THIRTY if limits is None else limits, **fields)]}}


def test_the_template_of_a_deployment_is_warned_of_with_its_own_paths() -> None:
    deployment = {"metadata": {"name": "x"}, "spec": {"replicas": 3, "template": template(**env(WORLD_SIZE="8"))}}
    (warning,) = validate(deployment, kind={"group": "apps", "version": "v1", "kind": "Deployment"}).warnings
    assert warning.startswith("spec.template.spec.containers[0].env[1]: WORLD_SIZE=")
    deployment["spec"]["template"] = template()
    assert validate(deployment, kind={"group": "apps", "version": "v1", "kind": "Deployment"}).warnings == []


def job_set(*jobs: tuple[int, int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "replicatedJobs": [
            {"name": f"j{at}", "replicas": replicas, "template": {"spec": {"parallelism": pods, "template": made}}}
            for at, (replicas, pods, made) in enumerate(jobs)
        ]
    }


def leader_worker_set(size: int | None, leader: dict[str, Any] | None = None) -> dict[str, Any]:
    group: dict[str, Any] = {"workerTemplate": template()}
    if size is not None:
        group["size"] = size
    if leader is not None:
        group["leaderTemplate"] = leader
    return {"replicas": 5, "leaderWorkerTemplate": group}


def kubeflow(field: str, **roles: tuple[int | None, dict[str, Any]]) -> dict[str, Any]:
    return {
        field: {
            role: {"template": made} | ({} if replicas is None else {"replicas": replicas})
            for role, (replicas, made) in roles.items()
        }
    }


CPU = template(limits={"cpu": "1"})
PYTORCH, MPI = "pytorchReplicaSpecs", "mpiReplicaSpecs"
TOGETHER: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "parallel pods": (
        "JobSet",
        job_set((1, 4, template())),
        ["spec.replicatedJobs[0].template.spec.template: the JobSet makes 4 pods with GPUs that work together"],
    ),
    "two jobs": (
        "JobSet",
        job_set((1, 1, template()), (1, 1, template())),
        [
            "spec.replicatedJobs[0].template.spec.template: the JobSet makes 2 pods",
            "spec.replicatedJobs[1].template.spec.template: the JobSet makes 2 pods",
        ],
    ),
    "groups": (
        "LeaderWorkerSet",
        leader_worker_set(4),
        ["spec.leaderWorkerTemplate.workerTemplate: the LeaderWorkerSet makes 4 pods"],
    ),
    "a leader and one worker": (
        "LeaderWorkerSet",
        leader_worker_set(2, template()),
        [
            "spec.leaderWorkerTemplate.leaderTemplate: the LeaderWorkerSet makes 2 pods",
            "spec.leaderWorkerTemplate.workerTemplate: the LeaderWorkerSet makes 2 pods",
        ],
    ),
    "a master and workers": (
        "PyTorchJob",
        kubeflow(PYTORCH, Master=(None, template()), Worker=(3, template(limits={"nvidia.com/gpu": "1"}))),
        ["spec.pytorchReplicaSpecs.Master.template: the PyTorchJob makes 4 pods"],
    ),
    "workers of a launcher": (
        "MPIJob",
        kubeflow(MPI, Launcher=(1, CPU), Worker=(2, template())),
        ["spec.mpiReplicaSpecs.Worker.template: the MPIJob makes 2 pods"],
    ),
}
APART: dict[str, tuple[str, dict[str, Any]]] = {
    "one pod beside another without a GPU": ("JobSet", job_set((1, 1, CPU), (1, 1, template()))),
    "no more than one": ("JobSet", job_set((1, 1, template()))),
    "none at present": ("JobSet", job_set((0, 4, template()), (1, 1, template()))),
    "groups of one": ("LeaderWorkerSet", leader_worker_set(None)),
    "a leader alone": ("LeaderWorkerSet", leader_worker_set(1, template())),
    "a worker behind a leader without a GPU": ("LeaderWorkerSet", leader_worker_set(2, CPU)),
    "a master alone": ("PyTorchJob", kubeflow(PYTORCH, Master=(1, template()))),
    "one worker": ("MPIJob", kubeflow(MPI, Launcher=(1, CPU), Worker=(None, template()))),
    "whole GPUs": ("MPIJob", kubeflow(MPI, Worker=(8, template(limits={"nvidia.com/gpu": "1"})))),
    "nothing sensible": ("JobSet", {"replicatedJobs": [7, {"replicas": "x", "template": []}]}),
    "nothing": ("PyTorchJob", {}),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_a_custom_resource_that_makes_several_pods_is_warned_of_template_by_template(what: str) -> None:
    kind, spec, said = TOGETHER[what]
    answer = validate({"metadata": {"name": "x"}, "spec": spec}, kind={"group": "g", "version": "v1", "kind": kind})
    assert answer.allowed
    assert len(answer.warnings) == len(said)
    for warning, beginning in zip(answer.warnings, said, strict=True):
        assert warning.startswith(beginning)
        assert warning.endswith(ADVICE)


@pytest.mark.parametrize("what", APART)
def test_one_that_makes_one_pod_with_a_fraction_is_not(what: str) -> None:
    kind, spec = APART[what]
    answer = validate({"metadata": {"name": "x"}, "spec": spec}, kind={"group": "g", "version": "v1", "kind": kind})
    assert (answer.allowed, answer.warnings) == (True, [])


def test_its_faulty_templates_are_named_as_those_of_a_job_are() -> None:
    spec = job_set((1, 1, template(limits={"tencent.com/vcuda-core": "30"})))
    kind = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}
    (warning,) = validate({"metadata": {"name": "x"}, "spec": spec}, kind=kind).warnings
    assert warning.startswith(
        "its pods will be refused: spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.limits"
    )
