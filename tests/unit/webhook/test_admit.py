"""`fairgpu admit` shows what would happen, and its exit status says it too."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fairgpu.commands import main

GOOD = """
apiVersion: v1
kind: Pod
metadata: {name: notebook}
spec:
  containers:
    - {name: main, image: example/notebook, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4096}}}
"""
BAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: main, image: example/web, resources: {limits: {fairgpu.io/gpu-core: 150}}}
"""
OTHERS = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
  - apiVersion: v1
    kind: Pod
    metadata: {generateName: cpu-}
    spec: {containers: [{name: main, image: example/cpu}]}
"""


def admit(tmp_path: Path, text: str, *arguments: str) -> int:
    file = tmp_path / "manifests.yaml"
    file.write_text(text)
    return main(["admit", "-f", str(file), "-n", "team-a", *arguments])


def test_an_admitted_pod_is_shown_as_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, GOOD) == 0
    shown = capsys.readouterr().out
    assert "# Pod team-a/notebook: admitted, and changed as follows" in shown
    assert " -        nvidia.com/gpumem: 4096" in shown
    assert " +        fairgpu.io/gpu-memory: '4096'" in shown


def test_a_refused_template_is_explained_and_the_status_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, f"{GOOD}---{BAD}") == 1
    shown = capsys.readouterr().out
    assert "# Deployment team-a/web, and the pods made from it: refused" in shown
    assert "!  spec.containers[0].resources.limits[fairgpu.io/gpu-core]" in shown


def test_what_has_no_gpu_is_said_to_stay_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, OTHERS) == 0
    shown = capsys.readouterr().out
    assert "# ConfigMap team-a/settings: no pods in it, nothing to admit" in shown
    assert "# Pod team-a/cpu-*: asks for no GPU, and stays as it is" in shown


def test_programs_get_json_with_the_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, f"{GOOD}---{BAD}", "-o", "json") == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["outcome"] == "changed"
    assert {"op": "add", "path": "/spec/schedulerName", "value": "fairgpu-scheduler"} in good["patch"]
    assert bad["outcome"] == "refused"


def test_a_state_and_permissions_can_be_supposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, GOOD, "--state", "over") == 0
    assert "+  priorityClassName: gpu-over-budget" in capsys.readouterr().out
    wishing = GOOD.replace("{name: notebook}", "{name: notebook, annotations: {fairgpu.io/core-policy: elastic}}")
    assert admit(tmp_path, wishing) == 1
    assert admit(tmp_path, wishing, "--allow", "elastic") == 0


def test_manifests_come_from_the_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(BAD))
    assert main(["admit", "-f", "-"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "a: b: c",
        "",
        "---",
        "a: .nan",
        f"a: {'9' * 400}",
        f"a: {'9' * 5000}",
        "a: 2026-13-45",
        "{[a]: b}",
        "kind: List\nitems: 3",
        "kind: List\nitems: [3]",
    ],
    ids=lambda text: text[:20],
)
def test_a_file_without_manifests_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, text) == 2
    assert "manifests.yaml" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admit", "-f", "/nowhere/pod.yaml"]) == 2
    assert capsys.readouterr().err == "fairgpu admit: /nowhere/pod.yaml: No such file or directory\n"


def test_an_amount_past_all_bounds_is_refused_as_it_would_be_on_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, BAD.replace("150", str(10**30))) == 1
    assert "it passes 9223372036854775807" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--state", "rich"), "--state: given rich; allowed: unlimited, open, grace, over, held"),
        (("--settings", "/nowhere/settings.yaml"), "/nowhere/settings.yaml"),
        (("--webhook", "http://localhost:1"), "--webhook: given http://localhost:1; allowed: an https:// address"),
        (("--webhook", "https://localhost:1", "--ca-file", "/nowhere/ca.crt"), "--ca-file: given /nowhere/ca.crt"),
        (("--webhook", "https://localhost:1", "--ca-file", __file__), "a file with the webhook's CA in PEM"),
    ],
)
def test_what_cannot_be_asked_is_never_taken_for_a_refusal(
    tmp_path: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, GOOD, *arguments) == 2
    assert said in capsys.readouterr().err


SHAPES = {
    "spec": ("{kind: Pod, metadata: {name: x}, spec: 7}", "spec: given 7; allowed: a map"),
    "metadata": ("{kind: Pod, metadata: 7, spec: {containers: [{name: a}]}}", "metadata: given 7; allowed: a map"),
    "no name": ("{kind: Pod, metadata: {}, spec: {containers: [{name: a}]}}", "metadata.name: given nothing;"),
    "name": ("{kind: Pod, metadata: {name: A_b}, spec: {containers: [{name: a}]}}", 'metadata.name: given "A_b";'),
    "prefix": (
        "{kind: Pod, metadata: {generateName: -a}, spec: {containers: [{name: a}]}}",
        'metadata.generateName: given "-a";',
    ),
    "namespace": (
        "{kind: Pod, metadata: {name: x, namespace: No_Such}, spec: {containers: [{name: a}]}}",
        'metadata.namespace: given "No_Such"; allowed: the name of a namespace',
    ),
    "no containers": ("{kind: Pod, metadata: {name: x}, spec: {}}", "spec.containers: given nothing; allowed: a list"),
    "containers": ("{kind: Pod, metadata: {name: x}, spec: {containers: {name: a}}}", "spec.containers: given {"),
    "container": ("{kind: Pod, metadata: {name: x}, spec: {containers: [7]}}", "spec.containers[0]: given 7; allowed"),
    "container name": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: 4}]}}",
        "spec.containers[0].name: given 4; allowed",
    ),
    "resources": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, resources: 7}]}}",
        "spec.containers[0].resources: given 7; allowed: a map with limits and requests",
    ),
    "limits": (
        "{kind: Pod, metadata: {name: x}, spec: {initContainers: [{name: a, resources: {limits: [1]}}]}}",
        "spec.initContainers[0].resources.limits: given [1]; allowed: a map from resources to amounts",
    ),
    "template": (
        "{kind: PodTemplate, metadata: {name: x}, template: []}",
        "template: given []; allowed: a map, down to template",
    ),
}
"""Manifests of v1 that are not shaped as the API server has them, and what is said of them."""


@pytest.mark.parametrize("what", SHAPES)
def test_what_no_api_server_takes_is_refused_with_the_field_and_not_called_fine(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = SHAPES[what]
    assert admit(tmp_path, text.replace("{kind", "{apiVersion: v1, kind", 1)) == 1
    assert said in capsys.readouterr().out


def test_a_workload_without_a_template_is_refused_with_the_first_part_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, "{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {jobTemplate: 7}}") == 1
    said = "spec.jobTemplate: given 7; allowed: a map, down to spec.jobTemplate.spec.template"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("namespace", ["Team A", "", "a" * 64, "a-", "team.a"])
def test_a_namespace_that_cannot_be_is_not_asked_about(
    tmp_path: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, GOOD, "-n", namespace) == 2
    assert f'--namespace: given "{namespace[:20]}' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{kind: Pod}", "apiVersion: given nothing; allowed: text, as in every object; write v1"),
        ("{apiVersion: v1}", "kind: given nothing; allowed: text, as in every object; write Pod"),
        ("{apiVersion: v1, kind: 7}", "kind: given 7; allowed: text"),
    ],
)
def test_an_object_without_a_kind_is_named(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, text) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("api_version", "kind"), [("batch.volcano.sh/v1alpha1", "Job"), ("kubeflow.org/v1", "PyTorchJob")]
)
def test_of_another_projects_workload_nothing_is_foretold(
    tmp_path: Path, api_version: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has pods in places of its own: to say that it asks for no GPU would be a guess."""
    assert (
        admit(tmp_path, f"{{apiVersion: {api_version}, kind: {kind}, metadata: {{name: x}}, spec: {{tasks: []}}}}") == 0
    )
    said = (
        f"# {kind} team-a/x: of a kind that is not Kubernetes' own; pods that it makes are judged as they are created"
    )
    assert said in capsys.readouterr().out
