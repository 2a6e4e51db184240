"""`fairgpu admit` shows what would happen, and its exit status says it too."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml

from fairgpu import names
from fairgpu.commands import main
from fairgpu.existing import Existing
from tests.support.field_tables import differences
from webhook.admission.templates import JOBS
from webhook.dryrun.dry_run import REVIEWED_JOBS, REVIEWED_TEMPLATES
from webhook.dryrun.schema import LONGEST
from webhook.rendering import render
from webhook.settings import Webhook

DEPLOY = Path(__file__).parents[3] / "deploy" / "base"

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


def test_where_the_mode_is_account_a_pod_keeps_its_request_and_no_template_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, GOOD, "--mode", "account", "--state", "held") == 0
    shown = capsys.readouterr().out
    assert " +  - name: fairgpu.io/budget" in shown
    assert " +    fairgpu.io/pod: gpu" in shown
    assert "nvidia.com/gpumem" not in shown.replace(" nvidia.com/gpumem: 4096", "")
    assert admit(tmp_path, BAD, "--mode", "account") == 1
    shown = capsys.readouterr().out
    assert "admitted; the pods made from spec.template: refused" in shown
    assert "spec.template.spec.containers[0].resources.limits[fairgpu.io/gpu-core]" in shown


def test_the_mode_of_the_settings_counts_where_none_is_supposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text("webhook: {mode: account}")
    assert admit(tmp_path, GOOD, "--settings", str(tmp_path / "settings.yaml")) == 0
    assert "fairgpu-sidecar" not in capsys.readouterr().out


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
    assert "# Deployment team-a/web: admitted with a warning; the pods made from spec.template: refused" in shown
    assert "!  spec.template.spec.containers[0].resources.limits[fairgpu.io/gpu-core]" in shown


def test_a_template_that_the_cluster_refuses_is_not_admitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings"
    settings.write_text("webhook: {templates: refuse}")
    assert admit(tmp_path, BAD, "--settings", str(settings)) == 1
    assert "# Deployment team-a/web: refused" in capsys.readouterr().out


def test_a_document_without_a_gpu_is_said_to_stay_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, OTHERS) == 0
    shown = capsys.readouterr().out
    assert "# ConfigMap team-a/settings: no pods in it, nothing to admit" in shown
    assert "# Pod team-a/cpu-*: asks for no GPU, and stays as it is" in shown


def test_programs_get_json_with_the_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, f"{GOOD}---{BAD}", "-o", "json") == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["outcome"] == "changed"
    assert {"op": "add", "path": "/spec/schedulerName", "value": "fairgpu-scheduler"} in good["patch"]
    assert (bad["outcome"], bad["template"], good["template"]) == ("refused", "spec.template", "")


def test_a_state_and_permissions_can_be_supposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, GOOD, "--state", "over") == 0
    shown = capsys.readouterr().out
    assert "+  priorityClassName: gpu-over-budget" in shown
    assert "warning: The namespace's GPU budget: spent; the pod gets the class gpu-over-budget" in shown
    assert "GPU-hours are left" not in shown
    wishing = GOOD.replace("{name: notebook}", "{name: notebook, annotations: {fairgpu.io/core-policy: elastic}}")
    assert admit(tmp_path, wishing) == 1
    assert admit(tmp_path, wishing, "--allow", "elastic") == 0


def test_a_user_without_a_name_as_in_the_images_is_one_that_creates_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2_000_000_011)
    assert admit(tmp_path, GOOD) == 0
    assert "fairgpu.io/created-by: '2000000011'" in capsys.readouterr().out


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
        (("--allow", "elastik"), "--allow: given elastik; allowed: elastic, high-priority"),
        (
            ("--webhook", "https://localhost:1"),
            "https://localhost:1 does not answer: Failed to establish a new connection",
        ),
        (("--settings", "/nowhere/settings.yaml"), "/nowhere/settings.yaml"),
        (("--webhook", "http://localhost:1"), "--webhook: given http://localhost:1; allowed: an https:// address"),
        (("--webhook", "https://localhost:1", "--ca-file", "/nowhere/ca.crt"), "--ca-file: given /nowhere/ca.crt"),
        (("--webhook", "https://localhost:1", "--ca-file", __file__), "a file with the webhook's CA in PEM"),
    ],
)
def test_a_question_that_cannot_be_asked_is_never_taken_for_a_refusal(
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
    "a number for a name": (
        "{kind: Pod, metadata: {name: 123}, spec: {containers: [{name: a}]}}",
        'the first and last a letter or a digit; write "123", in quotes',
    ),
    "a number for a namespace": (
        "{kind: Pod, metadata: {name: x, namespace: 2024}, spec: {containers: [{name: a}]}}",
        'the first and last no "-"; write "2024", in quotes',
    ),
    "a number for a container": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: 1}]}}",
        'the first and last no "-"; write "1", in quotes',
    ),
    "a name of 254": (
        "{kind: Pod, metadata: {name: " + "a" * 254 + "}, spec: {containers: [{name: a}]}}",
        "... (254 characters); allowed: at most 253 lower-case letters",
    ),
    "a name in another alphabet": (
        "{kind: Pod, metadata: {name: обучение}, spec: {containers: [{name: a}]}}",
        'metadata.name: given "обучение"; allowed',
    ),
    "an empty name alone": (
        '{kind: Pod, metadata: {name: ""}, spec: {containers: [{name: a}]}}',
        "metadata.name: given nothing; allowed: a name",
    ),
    "command": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, command: [sleep, 10]}]}}",
        'spec.containers[0].command[1]: given 10; allowed: text; write "10", in quotes',
    ),
    "args": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, args: sleep}]}}",
        'spec.containers[0].args: given "sleep"; allowed: a list of texts; write ["sleep"]',
    ),
    "annotations": (
        "{kind: Pod, metadata: {name: x, annotations: [a]}, spec: {containers: [{name: a}]}}",
        'metadata.annotations: given ["a"]; allowed: a map from names to texts',
    ),
    "an annotation": (
        "{kind: Pod, metadata: {name: x, annotations: {a: 1.1}}, spec: {containers: [{name: a}]}}",
        'metadata.annotations.a: given 1.1; allowed: text; write "1.1", in quotes',
    ),
    "a label": (
        "{kind: Pod, metadata: {name: x, labels: {a: yes}}, spec: {containers: [{name: a}]}}",
        'metadata.labels.a: given true; allowed: text; write "true", in quotes',
    ),
    "volumes": (
        "{kind: Pod, metadata: {name: x}, spec: {volumes: {}, containers: [{name: a}]}}",
        "spec.volumes: given {}; allowed: a list of volumes",
    ),
    "env": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, env: {A: b}}]}}",
        'spec.containers[0].env: given {"A": "b"}; allowed: a list of variables',
    ),
    "a variable": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, env: [{name: A, value: 1}]}]}}",
        'spec.containers[0].env[0].value: given 1; allowed: text; write "1", in quotes',
    ),
    "volume mounts": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, volumeMounts: 7}]}}",
        "spec.containers[0].volumeMounts: given 7; allowed: a list of mounts",
    ),
    "two of one name": (
        "{kind: Pod, metadata: {name: x}, spec: {initContainers: [{name: a}], containers: [{name: a}]}}",
        'spec.initContainers[0].name: given "a"; allowed: a name that no other container of the pod has',
    ),
    "a GPU of the pod as a whole": (
        "{kind: Pod, metadata: {name: x}, spec: {resources: {limits: {fairgpu.io/gpu: 1}}, containers: [{name: a}]}}",
        "spec.resources.limits[fairgpu.io/gpu]: given 1; allowed: cpu, memory and hugepages-* alone",
    ),
    "base 60": (
        "{kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, resources: {limits: {fairgpu.io/gpu: 1:3}}}]}}",
        'spec.containers[0].resources.limits[fairgpu.io/gpu]: given "1:3" (it is no quantity)',
    ),
    "template": (
        "{kind: PodTemplate, metadata: {name: x}, template: []}",
        "template: given []; allowed: a map, down to template",
    ),
}
"""Manifests of v1 that are not shaped as the API server has them, and what is said of them."""


@pytest.mark.parametrize("what", SHAPES)
def test_a_manifest_that_no_api_server_takes_is_refused_with_the_field_and_not_called_fine(
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


LONG_NAMES = {"batch/v1 Job": 64, "batch/v1 CronJob": 53}


@pytest.mark.parametrize("kind", LONG_NAMES)
def test_a_job_whose_name_fits_into_no_label_is_refused(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api_version, name = kind.split()
    template = "{template: {spec: {containers: [{name: a}]}}}"
    spec = template if name == "Job" else f"{{jobTemplate: {{spec: {template}}}}}"
    text = "{apiVersion: %s, kind: %s, metadata: {name: %s}, spec: %s}"
    assert admit(tmp_path, text % (api_version, name, "a" * LONG_NAMES[kind], spec)) == 1
    assert f"allowed: at most {LONG_NAMES[kind] - 1} lower-case letters" in capsys.readouterr().out
    assert admit(tmp_path, text % (api_version, name, "a" * (LONG_NAMES[kind] - 1), spec)) == 0


@pytest.mark.parametrize(
    ("api_version", "kind", "said"),
    [
        (
            "v1",
            "Deployment",
            'apiVersion: given "v1"; allowed: apps/v1, the only one that API servers have of Deployment',
        ),
        ("apps/v1", "Job", 'apiVersion: given "apps/v1"; allowed: batch/v1'),
        ("v1", "pod", 'kind: given "pod"; allowed: Pod'),
        ("V1", "Pod", 'apiVersion: given "V1"; allowed: v1'),
        ("V1", "pod", 'apiVersion: given "V1"; allowed: v1'),
        ("extensions/v1beta1", "Deployment", 'apiVersion: given "extensions/v1beta1"; allowed: apps/v1'),
        ("apps/v1beta2", "StatefulSet", "write apps/v1"),
        ("batch/v1beta1", "CronJob", "write batch/v1"),
    ],
)
def test_a_kind_that_no_api_server_has_is_refused_with_the_one_that_it_has(
    tmp_path: Path, api_version: str, kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "{apiVersion: %s, kind: %s, metadata: {name: x}, spec: {containers: [{name: a}]}}"
    assert admit(tmp_path, text % (api_version, kind)) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("metadata", ['{name: x, namespace: ""}', '{name: "", generateName: x-}'])
def test_an_empty_name_counts_as_not_given(tmp_path: Path, metadata: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, GOOD.replace("{name: notebook}", metadata)) == 0
    assert "# Pod team-a/x" in capsys.readouterr().out


@pytest.mark.parametrize(
    "namespace", ["kube-system", "kube-public", "kube-node-lease", "fairgpu-system", "gpu-operator"]
)
def test_namespaces_that_the_webhook_is_not_asked_about_are_left_alone(
    tmp_path: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, f"{GOOD}---{BAD}", "-n", namespace) == 0
    shown = capsys.readouterr().out
    assert f"# Pod {namespace}/notebook: in the namespace {namespace}, which FairGPU leaves alone" in shown


def test_the_namespaces_left_alone_are_those_of_the_manifests() -> None:
    webhooks = yaml.safe_load((DEPLOY / "webhook" / "mutating.yaml").read_text())["webhooks"]
    (webhook,) = [webhook for webhook in webhooks if webhook["name"] == "mutate.fairgpu.io"]
    selector = next(each for each in webhook["namespaceSelector"]["matchExpressions"] if "name" in each["key"])
    assert (selector["operator"], tuple(selector["values"])) == ("NotIn", Existing().unseen_namespaces)


def test_the_templates_that_are_reviewed_are_those_of_the_manifests() -> None:
    webhooks = yaml.safe_load((DEPLOY / "webhook" / "validating.yaml").read_text())["webhooks"]
    (templates,) = [webhook for webhook in webhooks if webhook["name"] == "templates.fairgpu.io"]
    resources = [resource for rule in templates["rules"] for resource in rule["resources"]]
    assert resources == [f"{kind.lower()}s" for kind in REVIEWED_TEMPLATES]


def test_the_custom_resources_that_are_reviewed_are_those_of_the_manifests() -> None:
    webhooks = yaml.safe_load((DEPLOY / "webhook" / "validating.yaml").read_text())["webhooks"]
    (jobs,) = [webhook for webhook in webhooks if webhook["name"] == "jobs.fairgpu.io"]
    sent = {(group, name) for rule in jobs["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    assert sent == {(group, f"{kind.lower()}s") for group, kind in REVIEWED_JOBS}
    assert {kind for _, kind in REVIEWED_JOBS} == set(JOBS)


OTHERS_GPUS = {
    "MIG": ("resources: {limits: {nvidia.com/mig-1g.5gb: 1}}", "", "nvidia.com/mig-1g.5gb"),
    "time-slicing": ("resources: {limits: {nvidia.com/gpu.shared: 1}}", "", "nvidia.com/gpu.shared"),
    "AMD": ("resources: {limits: {amd.com/gpu: 1, cpu: 1}}", "", "amd.com/gpu"),
    "a DeviceClass": (
        "resources: {requests: {deviceclass.resource.kubernetes.io/gpu: 1}}",
        "",
        "deviceclass.resource.kubernetes.io/gpu",
    ),
    "DRA": ("resources: {claims: [{name: g}]}", ", resourceClaims: [{name: g}]", "spec.resourceClaims"),
}


def plain(metadata: str = "", spec: str = "", containers: int = 1) -> str:
    listed = ", ".join(f"{{name: c{number}, image: a}}" for number in range(containers))
    return f"{{apiVersion: v1, kind: Pod, metadata: {{name: a, {metadata}}}, spec: {{{spec}containers: [{listed}]}}}}"


GATES = ", ".join(f"{{name: example.com/{number}}}" for number in range(65))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            plain("labels: {fairgpu.io/pod: gpu}"),
            'metadata.labels[fairgpu.io/pod]: given "gpu"; allowed: no such',
        ),
        (plain("finalizers: [fairgpu.io/meter]"), 'metadata.finalizers: given "fairgpu.io/meter"; allowed: no such'),
        (
            plain(spec="schedulingGates: [{name: fairgpu.io/budget}], "),
            'spec.schedulingGates: given "fairgpu.io/budget',
        ),
        (plain("annotations: {fairgpu.io/allocation: x}"), 'metadata.annotations[fairgpu.io/allocation]: given "x"'),
        (plain(containers=513), "spec.containers: given 513 items; allowed: at most 512 in any pod"),
        (plain(spec=f"schedulingGates: [{GATES}], "), "spec.schedulingGates: given 65 items; allowed: at most 64"),
    ],
    ids=["label", "finalizer", "gate", "allocation", "containers", "gates"],
)
def test_a_pod_without_a_gpu_that_the_policy_refuses_is_refused(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, text) == 1
    assert said in capsys.readouterr().out


def test_a_gpu_pod_copied_from_a_running_one_is_admitted(tmp_path: Path) -> None:
    copied = "labels: {fairgpu.io/pod: gpu}, finalizers: [fairgpu.io/meter], annotations: {fairgpu.io/allocation: x}"
    gates = "schedulingGates: [{name: fairgpu.io/budget}], "
    text = plain(copied, gates).replace("image: a", "image: a, resources: {limits: {nvidia.com/gpu: 1}}")
    assert admit(tmp_path, text) == 0


def test_a_dry_run_refuses_what_the_policy_refuses_of_a_manifest() -> None:
    """The policy writes its own lists and limits."""
    ((policy, _binding),) = [tuple(yaml.safe_load_all(render(Webhook())["spec"]))]
    text = yaml.safe_dump(policy, width=10_000)
    limits = dict(LONGEST)
    for field in ("containers", "initContainers", "schedulingGates"):
        assert re.search(rf"size\(object\.spec\.\??{field}(\.orValue\(\[\]\))?\) > {limits[field]}\b", text)
    for name in (names.ALLOCATION, names.POD_LABEL, names.METER_FINALIZER, names.BUDGET_GATE):
        assert f"'{name}'" in text.replace("''", "'")


@pytest.mark.parametrize("what", OTHERS_GPUS)
def test_a_pod_with_gpus_of_others_is_not_said_to_have_none(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    container, spec, key = OTHERS_GPUS[what]
    text = "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, %s}]%s}}"
    assert admit(tmp_path, text % (container, spec)) == 0
    said = f"asks for no GPU that FairGPU shares, and stays as it is; left to others: {key}"
    assert said in capsys.readouterr().out
    assert admit(tmp_path, text % (container, spec), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["message"] == said


def test_whole_gpus_that_are_left_to_another_plugin_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings"
    settings.write_text("webhook: {dialects: {hami_plain_gpu: leave}}")
    assert admit(tmp_path, GOOD.replace(", nvidia.com/gpumem: 4096", ""), "--settings", str(settings)) == 0
    assert "left to others: nvidia.com/gpu" in capsys.readouterr().out


def test_the_reference_describes_each_field_of_the_json_and_none_that_is_never_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, f"{GOOD}---{BAD}---{OTHERS}", "-o", "json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert {result["outcome"] for result in printed} == {"changed", "refused", "unconcerned", "untouched"}
    assert differences("fairgpu admit", printed) == []
