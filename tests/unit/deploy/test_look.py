"""The rights and settings of the overlay for the mode look and of its component, by their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.settings import load_settings
from timekeeper.domain.budgets import parse_budget
from timekeeper.settings import Settings, TimekeeperSettings
from timekeeper.sources.looking import BUDGETS_MAP, STATUSES_MAP
from webhook.settings import read_settings

LOOK = Path(__file__).parents[3] / "deploy" / "overlays" / "look"


COMPONENT = LOOK.parents[1] / "look-gpubudgets" / "kustomization.yaml"


def patch_of(kind: str) -> list[dict[str, object]]:
    kustomization = yaml.safe_load((LOOK / "kustomization.yaml").read_text())
    (text,) = [one["patch"] for one in kustomization["patches"] if one.get("target", {}).get("kind") == kind]
    found: list[dict[str, object]] = yaml.safe_load(text)
    return found


def test_its_settings_are_those_of_a_cluster_that_is_only_looked_at() -> None:
    settings = yaml.safe_load((LOOK / "settings.yaml").read_text())["timekeeper"]

    assert TimekeeperSettings(**settings).mode == "look"


def test_its_example_is_a_budget() -> None:
    spec = yaml.safe_load((LOOK / "budgets" / "vision.yaml").read_text())

    assert parse_budget({"metadata": {"name": "vision"}, "spec": spec}).namespaces


READ = ("pods", "nodes", "namespaces", "resourceclaims", "resourceslices", "localqueues")


def test_outside_of_its_namespace_the_timekeeper_may_only_read_and_ask_who_calls() -> None:
    ((replacement),) = patch_of("ClusterRole")
    rules = replacement["value"]

    assert isinstance(rules, list)
    assert {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]} == {
        *((resource, verb) for resource in READ for verb in ("get", "list", "watch")),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
    }


def test_it_names_the_config_maps_that_the_timekeeper_reads_and_writes() -> None:
    rules = [one["value"] for one in patch_of("Role")]

    assert [rule["resourceNames"] for rule in rules if isinstance(rule, dict)] == [[BUDGETS_MAP], [STATUSES_MAP]]


def component_patches() -> tuple[Any, Any]:
    """The operations on the ClusterRole, and the patch of the Deployment."""
    role, deployment = (yaml.safe_load(one["patch"]) for one in yaml.safe_load(COMPONENT.read_text())["patches"])
    return role, deployment


def test_the_component_adds_reading_gpubudgets_and_writing_their_status_and_no_other_right() -> None:
    operations, _ = component_patches()
    rules = [one["value"] for one in operations]

    assert {(one["op"], one["path"]) for one in operations} == {("add", "/rules/-")}
    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules] == [
        (["fairgpu.io"], ["gpubudgets"], ["get", "list", "watch"]),
        (["fairgpu.io"], ["gpubudgets/status"], ["patch"]),
    ]


def test_the_component_has_both_processes_of_the_timekeeper_take_budgets_from_objects() -> None:
    _, deployment = component_patches()
    containers = deployment["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: {each["name"]: each["value"] for each in one["env"]} for one in containers}

    assert given.keys() == {"rest", "jobs"}
    assert {load_settings(Settings, env, None).timekeeper.budgets_from for env in given.values()} == {"objects"}


@pytest.mark.parametrize("mode", ["look", "account"])
def test_an_overlay_keeps_its_mode_where_settings_of_the_users_own_name_none(tmp_path: Path, mode: str) -> None:
    own = tmp_path / "settings.yaml"
    own.write_text("timekeeper: {metering: {bill: max}}")
    kustomization = yaml.safe_load((LOOK.parent / mode / "kustomization.yaml").read_text())
    patches = [
        yaml.safe_load(one["patch"]) for one in kustomization["patches"] if "patch" in one and "target" not in one
    ]
    given = {
        (patch["metadata"]["name"], container["name"]): {one["name"]: one["value"] for one in container["env"]}
        for patch in patches
        for container in patch["spec"]["template"]["spec"]["containers"]
    }
    webhook = given.pop(("fairgpu-webhook", "webhook"), None)

    assert given.keys() == {("fairgpu-timekeeper", "rest"), ("fairgpu-timekeeper", "jobs")}
    assert {load_settings(Settings, env, own).timekeeper.mode for env in given.values()} == {mode}
    assert (webhook is None) is (mode == "look")
    assert webhook is None or read_settings(webhook, own).mode == mode
