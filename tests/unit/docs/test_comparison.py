"""The page that compares FairGPU with others names the manifests' own requests, and each of its sources is one."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import yaml
from kubernetes.utils.quantity import parse_quantity

from tests.unit.docs.pages import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
TEXT, SOURCES = PAGE.split("## Sources")
GIB = 2**30


def requested(resource: str) -> Decimal:
    """Returns the sum of the requests of all replicas of the manifests."""
    files: list[Path] = sorted((ROOT / "deploy" / "base").rglob("*.yaml"))
    found = [item for file in files for item in yaml.safe_load_all(file.read_text()) if item]
    workloads = [item["spec"] for item in found if item.get("kind") in {"Deployment", "StatefulSet"}]
    return sum(
        (
            spec["replicas"] * parse_quantity(container["resources"]["requests"][resource])
            for spec in workloads
            for container in spec["template"]["spec"]["containers"]
        ),
        Decimal(0),
    )


def test_it_requests_the_resources_of_the_manifests() -> None:
    taken = f"{requested('cpu'):.1f} cores and {requested('memory') / GIB:.1f} GiB in all"
    assert taken in TEXT
    assert taken in (ROOT / "README.md").read_text()


def test_every_source_is_referred_to_and_every_reference_has_its_source() -> None:
    listed = re.findall(r"^(\d+)\. \[[^]]+\]\(https://", SOURCES, re.MULTILINE)
    assert listed == [str(number) for number in range(1, len(listed) + 1)]
    assert set(re.findall(r"\[(\d+)\](?!\()", TEXT)) == set(listed)
