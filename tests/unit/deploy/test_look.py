"""The rights and settings of the overlay for the mode look, by its files."""

from __future__ import annotations

from pathlib import Path

import yaml

from timekeeper.domain.budgets import parse_budget
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.looking import BUDGETS_MAP, STATUSES_MAP

LOOK = Path(__file__).parents[3] / "deploy" / "overlays" / "look"


def patch_of(kind: str) -> list[dict[str, object]]:
    kustomization = yaml.safe_load((LOOK / "kustomization.yaml").read_text())
    (text,) = [one["patch"] for one in kustomization["patches"] if one["target"].get("kind") == kind]
    found: list[dict[str, object]] = yaml.safe_load(text)
    return found


def test_its_settings_are_those_of_a_cluster_that_is_only_looked_at() -> None:
    settings = yaml.safe_load((LOOK / "settings.yaml").read_text())["timekeeper"]

    assert TimekeeperSettings(**settings).mode == "look"


def test_its_example_is_a_budget() -> None:
    spec = yaml.safe_load((LOOK / "budgets" / "vision.yaml").read_text())

    assert parse_budget({"metadata": {"name": "vision"}, "spec": spec}).namespaces


READ = ("pods", "nodes", "namespaces", "resourceclaims", "resourceslices")


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
