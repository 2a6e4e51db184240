"""`fairgpu admit` judges the templates of pods in custom resources, each with its field path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.commands import main

GPU = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 150}}
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "resources": GPU}]}}
CPU = {"spec": {"containers": [{"name": "main"}]}}
CORES = "resources.limits[nvidia.com/gpucores]"

CUSTOM: dict[str, tuple[str, str, dict[str, Any], list[tuple[str, str]]]] = {
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {"template": TEMPLATE}}}]},
        [("spec.replicatedJobs[0].template.spec.template", "spec.containers[0]")],
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"leaderTemplate": CPU, "workerTemplate": TEMPLATE, "size": 2}},
        [("spec.leaderWorkerTemplate.workerTemplate", "spec.containers[0]")],
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Master": {"template": TEMPLATE}, "Worker": {"replicas": 3, "template": TEMPLATE}}},
        [
            ("spec.pytorchReplicaSpecs.Master.template", "spec.containers[0]"),
            ("spec.pytorchReplicaSpecs.Worker.template", "spec.containers[0]"),
        ],
    ),
    "ClusterTrainingRuntime": (
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
        {"template": {"spec": {"replicatedJobs": [{"name": "n", "template": {"spec": {"template": TEMPLATE}}}]}}},
        [("spec.template.spec.replicatedJobs[0].template.spec.template", "spec.containers[0]")],
    ),
    "RayCluster": (
        "ray.io/v1",
        "RayCluster",
        {"headGroupSpec": {"template": CPU}, "workerGroupSpecs": [{"groupName": "g", "template": TEMPLATE}]},
        [("spec.workerGroupSpecs[0].template", "spec.containers[0]")],
    ),
    "Volcano's Job": (
        "batch.volcano.sh/v1alpha1",
        "Job",
        {"tasks": [{"replicas": 1, "name": "t", "template": TEMPLATE}]},
        [("spec.tasks[0].template", "spec.containers[0]")],
    ),
    "a bare pod spec": (
        "grove.io/v1alpha1",
        "PodClique",
        {"podSpec": TEMPLATE["spec"]},
        [("spec.podSpec", "containers[0]")],
    ),
    "InferenceService with containers": (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"containers": [{"name": "kserve-container", "resources": GPU}]}},
        [("spec.predictor", "containers[0]")],
    ),
    "InferenceService with a model": (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": {"modelFormat": {"name": "huggingface"}, "resources": GPU}}},
        [("spec.predictor", "model")],
    ),
    "InferenceService over several nodes": (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": {"resources": {}}, "workerSpec": {"containers": [{"name": "w", "resources": GPU}]}}},
        [("spec.predictor.workerSpec", "containers[0]")],
    ),
    "Workflow with a container": (
        "argoproj.io/v1alpha1",
        "Workflow",
        {"templates": [{"name": "dag", "dag": {"tasks": []}}, {"name": "train", "container": {"resources": GPU}}]},
        [("spec.templates[1]", "container")],
    ),
    "Workflow with a script and a sidecar": (
        "argoproj.io/v1alpha1",
        "Workflow",
        {"templates": [{"script": {"source": "x"}, "sidecars": [{"name": "s", "resources": GPU}]}]},
        [("spec.templates[0]", "sidecars[0]")],
    ),
    "Workflow with a container set": (
        "argoproj.io/v1alpha1",
        "Workflow",
        {"templates": [{"containerSet": {"containers": [{"name": "main", "resources": GPU}]}}]},
        [("spec.templates[0].containerSet", "containers[0]")],
    ),
}


def admit(tmp_path: Path, item: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    file = tmp_path / "custom.yaml"
    file.write_text(yaml.safe_dump(item))
    status = main(["admit", "-f", str(file), "-n", "team-a", "-o", "json"])
    return status, json.loads(capsys.readouterr().out)


def custom(api_version: str, kind: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}


@pytest.mark.parametrize("what", CUSTOM)
def test_each_template_is_judged_and_its_faults_stand_at_their_place_in_the_object(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api_version, kind, spec, faulty = CUSTOM[what]
    status, found = admit(tmp_path, custom(api_version, kind, spec), capsys)
    assert status == 1
    refused = [
        (entry["template"], entry["message"].split(": given")[0]) for entry in found if entry["message"].count("given")
    ]
    assert refused == [(place, f"{place}.{container}.{CORES}") for place, container in faulty]
    assert {entry["outcome"] for entry in found} <= {"refused", "untouched"}


@pytest.mark.parametrize("what", CUSTOM)
def test_a_template_that_is_sound_is_changed(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    api_version, kind, spec, faulty = CUSTOM[what]
    sound = json.loads(json.dumps(spec).replace("150", "30"))
    status, found = admit(tmp_path, custom(api_version, kind, sound), capsys)
    assert status == 0
    changed = [entry["template"] for entry in found if entry["outcome"] == "changed"]
    assert changed == [place for place, _ in faulty]


def test_the_headline_names_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api_version, kind, spec, _ = CUSTOM["RayCluster"]
    file = tmp_path / "ray.yaml"
    file.write_text(yaml.safe_dump(custom(api_version, kind, spec)))
    assert main(["admit", "-f", str(file), "-n", "team-a"]) == 1
    shown = capsys.readouterr().out
    head = (
        "# RayCluster team-a/x, and the pods made from spec.headGroupSpec.template: asks for no GPU, and stays as it is"
    )
    assert head in shown
    assert "# RayCluster team-a/x: admitted; the pods made from spec.workerGroupSpecs[0].template: refused" in shown


def test_annotations_of_an_inference_service_are_those_of_its_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"predictor": {"model": {"resources": {"limits": {"cpu": 1}}}}}
    item = custom("serving.kserve.io/v1beta1", "InferenceService", spec, annotations={"gpu-fraction": "0.5"})
    status, (found,) = admit(tmp_path, item, capsys)
    assert (status, found["outcome"]) == (0, "changed")


def test_a_gpu_outside_all_templates_is_named_and_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}}
    status, (found,) = admit(tmp_path, custom("trainer.kubeflow.org/v1alpha1", "TrainJob", spec), capsys)
    assert (status, found["outcome"]) == (2, "undecided")
    assert found["message"] == (
        "asks for nvidia.com/gpu at spec.trainer.resourcesPerNode.limits, in no template of pods; "
        "its pods are judged as they are created"
    )


def test_a_custom_resource_without_a_template_gets_no_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, (found,) = admit(tmp_path, custom("example.org/v1", "Thing", {"size": 3}), capsys)
    assert (status, found["outcome"]) == (0, "unconcerned")
    assert found["message"] == (
        "no template of pods in it; pods that it makes in another way are judged as they are created"
    )


def test_an_object_that_is_no_workload_has_no_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, (found,) = admit(tmp_path, custom("networking.k8s.io/v1", "Ingress", {"rules": []}), capsys)
    assert (status, found["outcome"]) == (0, "unconcerned")
    assert found["message"] == "no pods in it, nothing to admit"


def test_a_quota_of_gpus_is_no_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"capability": {"nvidia.com/gpu": 8}}
    status, (found,) = admit(tmp_path, custom("scheduling.volcano.sh/v1beta1", "Queue", spec), capsys)
    assert (status, found["outcome"]) == (0, "unconcerned")


def test_a_pattern_of_pods_in_a_policy_is_no_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    container = {"name": "{{ element.name }}", "resources": {"limits": {"nvidia.com/gpu": "{{ amount }}"}}}
    spec = {"rules": [{"mutate": {"patchStrategicMerge": {"spec": {"containers": [container]}}}}]}
    status, (found,) = admit(tmp_path, custom("kyverno.io/v1", "ClusterPolicy", spec), capsys)
    assert (status, found["outcome"]) == (0, "unconcerned")


def test_a_fraction_in_a_resource_that_makes_several_pods_is_admitted_with_the_warning_of_the_api_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"fairgpu.io/gpu-core": 30}}}]}}
    spec = {"leaderWorkerTemplate": {"leaderTemplate": CPU, "workerTemplate": share, "size": 5}}
    status, (leader, worker) = admit(tmp_path, custom("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec), capsys)
    assert (status, leader["warnings"]) == (0, [])
    (warning,) = worker["warnings"]
    assert warning.startswith("spec.leaderWorkerTemplate.workerTemplate: the LeaderWorkerSet makes 4 pods with GPUs")


def test_where_templates_are_refused_such_a_resource_is_refused_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api_version, kind, spec, _ = CUSTOM["PyTorchJob"]
    settings, file = tmp_path / "settings.yaml", tmp_path / "custom.yaml"
    settings.write_text("webhook: {templates: refuse}")
    file.write_text(yaml.safe_dump(custom(api_version, kind, spec)))
    assert main(["admit", "-f", str(file), "--settings", str(settings), "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["template"]) == ("refused", "")
    for role in ("Master", "Worker"):
        assert f"spec.pytorchReplicaSpecs.{role}.template.spec.containers[0].{CORES}" in found["message"]
