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
