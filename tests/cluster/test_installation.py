from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairgpu.cluster.api import ApiError
from fairgpu.names import POLICIES
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, Manifest, apply, named, render, render_overlay
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until

INSTRUCTIONS = Path(__file__).parents[2] / "docs" / "install.md"
REDIS = INSTRUCTIONS.with_name("redis.md")
GUARDS = INSTRUCTIONS.with_name("guards.md")
PATH_OF_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def test_the_webhook_configurations_pass_the_servers_own_validation(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    assert installation
    wanted = [m for m in render(control_plane, webhook_port=18443) if m["kind"] in WEBHOOK_CONFIGURATIONS]
    printed = apply(control_plane, wanted, "--dry-run=server")
    assert printed.count("serverside-applied (server dry run)") == 2
    for configuration in wanted:
        assert {w["clientConfig"]["service"]["port"] for w in configuration["webhooks"]} == {18443}


def test_applying_the_manifests_again_changes_nothing(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    def versions() -> list[str]:
        listed = control_plane.admin.kubectl(
            "get",
            "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,priorityclass",
            "--output=jsonpath={range .items[*]}{.metadata.name}={.metadata.generation}/{.metadata.uid}{'\\n'}{end}",
        )
        return [line for line in listed.stdout.splitlines() if "fairgpu" in line or "gpu-" in line]

    before = versions()
    assert len(before) >= 10
    apply(control_plane, installation)
    assert versions() == before


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_type_checks_without_a_warning(
    control_plane: ControlPlane, installation: list[Manifest], policy: str
) -> None:
    assert named(installation, "ValidatingAdmissionPolicy", policy)
    status = control_plane.admin.api.get(f"{PATH_OF_POLICIES}/{policy}")["status"]
    assert status["typeChecking"].get("expressionWarnings", []) == []


def test_the_patches_in_the_instructions_fit_the_manifests(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    patches = [*_patches(INSTRUCTIONS), *_patches(REDIS)]
    assert len(patches) >= 7
    patched = render(control_plane, extra={"patches": patches}, with_nodes=True)
    kinds = [manifest["kind"] for manifest in installation if manifest["metadata"]["name"] == "fairgpu-redis"]
    left = [manifest["kind"] for manifest in patched if manifest["metadata"]["name"] == "fairgpu-redis"]
    assert set(kinds) - set(left) == {"StatefulSet", "Service"}
    policies = [manifest for manifest in patched if manifest["kind"] == "NetworkPolicy"]
    assert apply(control_plane, policies, "--dry-run=server").count("serverside-applied") == len(policies)


def test_the_instructions_count_the_objects_of_look_and_account_and_those_that_account_adds(
    control_plane: ControlPlane,
) -> None:
    overlays = INSTRUCTIONS.parents[1] / "deploy" / "overlays"
    look, account = (
        {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in found}
        for found in (render_overlay(control_plane, overlays / mode) for mode in ("look", "account"))
    )
    printed = re.findall(r"… (\d+) objects, (\d+) of them new", INSTRUCTIONS.with_name("adopting.md").read_text())
    added = account - look - {("CustomResourceDefinition", None, "gpubudgets.fairgpu.io")}  # applied before
    assert printed == [(f"{len(look)}", f"{len(look)}"), (f"{len(account)}", f"{len(added)}")]


def test_redis_is_given_more_memory_as_the_instructions_say(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    (lines,) = [found for found in _examples(REDIS) if found.startswith("configMapGenerator:")]
    configuration = (INSTRUCTIONS.parents[1] / "deploy" / "base" / "redis" / "redis.conf").read_text()
    larger = {"redis.conf": configuration.replace("maxmemory 768mb", "maxmemory 2gb")}
    patched = render(control_plane, extra=yaml.safe_load(lines), files=larger)

    workload = named(patched, "StatefulSet", "fairgpu-redis")
    assert installation
    assert apply(control_plane, [workload], "--dry-run=server").count("serverside-applied") == 1
    containers = workload["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["resources"]["limits"]["memory"] for each in containers}["redis"] == "3Gi"
    (mounted,) = [each for each in patched if each["metadata"]["name"].startswith("fairgpu-redis-")]
    assert "maxmemory 2gb" in mounted["data"]["redis.conf"]
    assert mounted["data"]["timekeeper.acl"]


def test_the_pod_that_repairs_redis_is_permitted_in_its_namespace(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    assert installation
    (pod,) = re.findall(r"<<'END'\n(.*?)END\n", REDIS.read_text(), re.DOTALL)
    printed = apply(control_plane, [yaml.safe_load(pod)], "--dry-run=server")
    assert "pod/redis-repair serverside-applied (server dry run)" in printed


def test_a_namespace_is_left_out_everywhere_as_the_instructions_say(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    patched = render(control_plane, extra={"patches": _patches(INSTRUCTIONS)}, with_nodes=True)
    assert len(installation) > 0
    for manifest in patched:
        excluded = [set(values) for values in _excluded(manifest)]
        assert all("lab" in values for values in excluded if "kube-system" in values), manifest["metadata"]
    assert sum(len(list(_excluded(manifest))) for manifest in patched) == 15


def test_settings_that_policies_cannot_read_are_rendered_into_them_as_documented(
    control_plane: ControlPlane, installation: list[Manifest], tmp_path: Path
) -> None:
    settings = {"priorities": {"keep": ["research-urgent"]}, "dialects": {"hami_plain_gpu": "leave"}}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump({"webhook": settings}))
    command = [*FAIRGPU, "render", "--settings", str(tmp_path / "settings.yaml")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (lines,) = [
        found for found in re.findall("```yaml\n(.*?)```", GUARDS.read_text(), re.DOTALL) if "rendered" in found
    ]
    patched = render(control_plane, extra=yaml.safe_load(lines), files={"rendered.yaml": rendered})

    after = _expressions(named(patched, "ValidatingAdmissionPolicy", "fairgpu-spec"))
    before = _expressions(named(installation, "ValidatingAdmissionPolicy", "fairgpu-spec"))
    assert _texts(after["priorityClasses"]) - _texts(before["priorityClasses"]) == {"research-urgent"}
    assert _texts(before["dialectResources"]) - _texts(after["dialectResources"]) == {"nvidia.com/gpu"}
    assert after["sidecarRepository"] == before["sidecarRepository"]
    policies = [manifest for manifest in patched if manifest["kind"].startswith("ValidatingAdmissionPolicy")]
    assert apply(control_plane, policies, "--dry-run=server").count("serverside-applied") == len(policies)


def _expressions(policy: Manifest) -> dict[str, str]:
    return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}


def _texts(expression: str) -> set[str]:
    return set(re.findall("'([^']+)'", expression))


def _examples(page: Path) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)


def _patches(page: Path) -> list[Manifest]:
    return [
        patch for text in _examples(page) if text.startswith("patches:") for patch in yaml.safe_load(text)["patches"]
    ]


def _excluded(item: object) -> Iterator[list[str]]:
    """The namespaces that each selector in a manifest leaves out."""
    if isinstance(item, dict):
        if item.get("operator") == "NotIn" and item.get("key") == "kubernetes.io/metadata.name":
            yield item["values"]
        for value in item.values():
            yield from _excluded(value)
    elif isinstance(item, list):
        for value in item:
            yield from _excluded(value)


def test_a_wrong_budget_is_refused_in_the_words_of_the_instructions(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    assert installation
    (shown,) = re.findall(
        r'^(The GPUBudget "team-b" is invalid:.*?)\n```', INSTRUCTIONS.read_text(), re.DOTALL | re.MULTILINE
    )
    period = {"every": "day", "start": {"weekday": "Monday"}}
    wrong = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": "team-b"},
        "spec": {"namespaces": ["Team_B"], "allowance": {"gpuHours": "5e2"}, "period": period},
    }
    refused = control_plane.admin.kubectl("create", "-f", "-", stdin=wrong, check=False)
    assert sorted(line.strip() for line in refused.stderr.splitlines()) == sorted(shown.splitlines())


@pytest.mark.parametrize(
    "part", ["fairgpu-certificates", "fairgpu-webhook", "fairgpu-timekeeper", "fairgpu-scheduler", "fairgpu-redis"]
)
def test_the_pods_of_each_part_pass_the_restricted_pod_security_standard(
    control_plane: ControlPlane, installation: list[Manifest], part: str
) -> None:
    assert installation
    api = control_plane.admin.api
    query = {"labelSelector": f"app.kubernetes.io/name={part}"}
    pods = wait_until(
        lambda: api.get("/api/v1/namespaces/fairgpu-system/pods", query)["items"], f"the controllers create {part}"
    )
    for pod in pods:
        containers = pod["spec"]["containers"]
        assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in containers)
        assert all("memory" in c["resources"]["limits"] for c in containers)
        assert all(c["livenessProbe"] and c["startupProbe"] for c in containers)


def test_a_privileged_pod_is_refused_in_the_system_namespace(
    control_plane: ControlPlane, installation: list[Manifest]
) -> None:
    assert installation
    container = {"name": "main", "image": "example.org/app:1", "securityContext": {"privileged": True}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {"containers": [container]}}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        control_plane.admin.api.create("/api/v1/namespaces/fairgpu-system/pods", pod)


@pytest.mark.parametrize(("name", "value"), [("gpu-in-budget", 1000), ("gpu-over-budget", 0)])
def test_the_priority_classes_never_preempt(
    control_plane: ControlPlane, installation: list[Manifest], name: str, value: int
) -> None:
    assert named(installation, "PriorityClass", name)
    stored = control_plane.admin.api.get(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
    assert (stored["value"], stored["preemptionPolicy"]) == (value, "Never")
    assert "globalDefault" not in stored
