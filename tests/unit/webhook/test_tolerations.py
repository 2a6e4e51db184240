"""GPU pods tolerate the taints of GPU nodes, and others do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.commands import CommandError
from tests.support.admission import admitted, container, gpu_pod, mutate, pod
from webhook.admission.creation import tolerate
from webhook.settings import Toleration, read_settings

ANY_GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}
SPOT = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def test_a_gpu_pod_tolerates_the_taint_of_gpu_nodes_beside_what_its_author_wrote() -> None:
    assert admitted(gpu_pod())["spec"]["tolerations"] == [ANY_GPU]
    assert admitted(gpu_pod(tolerations=[SPOT]))["spec"]["tolerations"] == [SPOT, ANY_GPU]


def test_a_toleration_that_the_pod_has_is_not_added_again() -> None:
    assert admitted(gpu_pod(tolerations=[ANY_GPU, SPOT]))["spec"]["tolerations"] == [ANY_GPU, SPOT]


def test_a_pod_without_a_gpu_keeps_to_its_own_nodes() -> None:
    assert mutate(pod(container())).patch == []


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ([{"key": "pool", "value": "gpu"}], [{"key": "pool", "operator": "Equal", "value": "gpu"}]),
        ([{"operator": "Exists", "effect": "NoSchedule"}], [{"operator": "Exists", "effect": "NoSchedule"}]),
        ([], []),
    ],
)
def test_the_admin_says_which(tmp_path: Path, settings: list[dict[str, str]], written: list[dict[str, str]]) -> None:
    assert [each.written for each in read(tmp_path, settings)] == written
    operations = tolerate({}, read(tmp_path, settings))
    assert [each["value"] for each in operations] == ([written] if written else [])


@pytest.mark.parametrize(
    ("toleration", "said"),
    [
        ({"key": "a", "operator": "Exists", "value": "b"}, 'leave the value out, or write "Equal"'),
        ({"value": "b"}, 'write a key, or "Exists"'),
        ({"key": "a", "operator": "In"}, "allowed: Exists, Equal"),
        ({"key": "a", "effect": "Never"}, "webhook.tolerations"),
    ],
)
def test_a_toleration_that_the_api_server_would_refuse_stops_the_start(
    tmp_path: Path, toleration: dict[str, Any], said: str
) -> None:
    with pytest.raises(CommandError) as caught:
        read(tmp_path, [toleration])
    assert said in str(caught.value)


def read(tmp_path: Path, tolerations: list[dict[str, Any]]) -> tuple[Toleration, ...]:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"webhook": {"tolerations": tolerations}}))
    return read_settings({}, file).tolerations
