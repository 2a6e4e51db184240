"""A setting that would spoil each pod stops the start instead, with its key, what was given and what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.commands import CommandError
from webhook.settings import Webhook, read_settings


def read(tmp_path: Path, settings: dict[str, Any], section: str = "webhook") -> Webhook:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({section: settings}))
    return read_settings({}, file)


@pytest.mark.parametrize(
    ("group", "setting", "said"),
    [
        (
            "sidecar",
            {"cpu": "ten"},
            "webhook.sidecar.cpu (FAIRGPU_WEBHOOK_SIDECAR_CPU): given 'ten'; it is no quantity",
        ),
        ("sidecar", {"memory": "40"}, "given '40'; less than the sidecar needs: write '32Mi' or more"),
        ("sidecar", {"memory": 40}, "given 40; allowed: text; write a number in quotes"),
        ("sidecar", {"image": ""}, "webhook.sidecar.image"),
        ("sidecar", {"token_seconds": 60}, "given 60; allowed: a whole number from 600 to 4294967296"),
        ("sidecar", {"timekeeper_url": "fairgpu-timekeeper"}, "write an address such as https://fairgpu-timekeeper."),
        ("states", {"url": "http://timekeeper"}, "given 'http://timekeeper'; tokens are sent there"),
        ("states", {"url": "https://user:word@timekeeper"}, "tokens are sent there"),
        ("states", {"when_unknown": "maybe"}, "allowed: in-budget, over-budget, refuse"),
        ("priorities", {"keep": "urgent"}, "given 'urgent'; allowed: a list, such as [a, b]"),
        ("priorities", {"over_budget_class": "gpu-in-budget"}, "a spent budget would change nothing"),
        ("priorities", {"over_budget_value": 2000}, "pods over budget would go first"),
        ("priorities", {"in_budget_value": 2_000_000_000}, "allowed: a whole number from -2147483648 to 1000000000"),
        ("priorities", {"in_budget_class": "In Budget"}, "webhook.priorities.in_budget_class"),
        ("certificates", {"leaf_seconds": 10**9}, "a certificate does not outlive who signed it"),
        ("certificates", {"names": []}, "allowed: a list of at least one item"),
        ("certificates", {"names": ["webhök.svc"]}, "given 'webhök.svc'; allowed: a DNS name or an address alone"),
        ("certificates", {"authority_seconds": 10**12}, "allowed: a whole number from 10 to 3153600000"),
        ("certificates", {"spread_seconds": 1e30}, "allowed: a number from 0 to 3153600000"),
        ("certificates", {"check_seconds": 1e30}, "allowed: a number above 0 to 86400"),
        ("certificates", {"secret": "../secrets"}, "given '../secrets'; allowed: text that matches"),
        ("serving", {"prot": 1}, "webhook.serving.prot: there is no such setting; write webhook.serving.port"),
    ],
)
def test_it_is_refused_by_its_key(tmp_path: Path, group: str, setting: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        read(tmp_path, {group: setting})
    assert said in str(caught.value)


def test_a_misspelt_section_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="webhooks: there is no such section; write webhook"):
        read(tmp_path, {"templates": "refuse"}, section="webhooks")


def test_the_section_of_another_service_is_left_alone(tmp_path: Path) -> None:
    assert read(tmp_path, {"anything": 1}, section="timekeeper") == Webhook()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"nowhere\.yaml: No such file or directory"):
        read_settings({}, tmp_path / "nowhere.yaml")
