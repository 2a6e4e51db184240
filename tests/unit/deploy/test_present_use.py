"""The component for present use lets the timekeeper ask the namespaces that may scrape it, and opens nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"


def policies(path: Path) -> dict[str, Any]:
    return {item["metadata"]["name"]: item["spec"] for item in yaml.safe_load_all(path.read_text()) if item}


def test_it_opens_the_timekeepers_way_to_the_namespaces_that_scrape_it_and_to_no_others() -> None:
    base = policies(DEPLOY / "base" / "network-policies.yaml")
    (policy,) = policies(DEPLOY / "present-use" / "network-policy.yaml").values()

    assert policy["policyTypes"] == ["Egress"]
    assert policy["podSelector"] == base["fairgpu-timekeeper"]["podSelector"]
    ((rule,),) = (policy["egress"],)
    assert rule["to"] == base["metrics"]["ingress"][0]["from"]


def test_it_is_a_component_that_adds_the_policy_alone() -> None:
    component = yaml.safe_load((DEPLOY / "present-use" / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert component["resources"] == ["network-policy.yaml"]
    assert component.keys() == {"apiVersion", "kind", "resources"}
