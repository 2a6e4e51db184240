"""The component that lets kube-scheduler preempt adds what preemption needs, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairgpu.settings import environment_name, fields, load_settings
from scheduler.settings import Settings as SchedulerSettings
from webhook.settings import Settings as WebhookSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPONENT = DEPLOY / "preemption"


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def environment() -> dict[str, str]:
    """The variables that the component sets in any container."""
    patches = [yaml.safe_load(each["patch"]) for each in documents(COMPONENT / "kustomization.yaml")[0]["patches"]]
    specs = [patch["spec"]["template"]["spec"] for patch in patches if isinstance(patch, dict)]
    return {one["name"]: one["value"] for spec in specs for each in spec["containers"] for one in each["env"]}


def test_its_configuration_of_kube_scheduler_is_that_of_the_base_with_the_verb() -> None:
    (base,) = documents(DEPLOY / "base" / "scheduler" / "configuration.yaml")
    base["extenders"][0]["preemptVerb"] = "preempt"
    assert documents(COMPONENT / "configuration.yaml") == [base]


def test_the_webhook_and_the_extender_know_of_it_and_one_alone_evicts() -> None:
    given = environment()
    known = {environment_name(path) for model in (SchedulerSettings, WebhookSettings) for path in fields(model)}
    assert set(given) <= known
    scheduler = load_settings(SchedulerSettings, given, None).scheduler
    assert scheduler.extender.preempt
    assert not scheduler.reclaim.enabled
    assert load_settings(WebhookSettings, given, None).webhook.priorities.preemption == "scheduler"


def test_its_right_is_to_delete_pods_and_its_policy_holds_it_to_gpu_pods() -> None:
    (role,) = [item for item in documents(COMPONENT / "access.yaml") if item["kind"] == "ClusterRole"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    policy, binding = documents(COMPONENT / "policy.yaml")
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
