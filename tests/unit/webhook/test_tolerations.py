"""GPU pods tolerate the taints of GPU nodes, and others do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.commands import CommandError
from tests.support.admission import admitted, apply, container, gpu_pod, mutate, pod
from webhook.admission.creation import tolerate
from webhook.admission.updating import restore_tolerations
from webhook.settings import Toleration, read_settings

ANY_GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}
SPOT = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
POOL = {"key": "pool", "operator": "Exists"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}


def test_a_gpu_pod_tolerates_the_taint_of_gpu_nodes_beside_what_its_author_wrote() -> None:
    assert admitted(gpu_pod())["spec"]["tolerations"] == [ANY_GPU]
    assert admitted(gpu_pod(tolerations=[SPOT]))["spec"]["tolerations"] == [SPOT, ANY_GPU]


def test_a_toleration_that_the_pod_has_is_not_added_again() -> None:
    assert admitted(gpu_pod(tolerations=[ANY_GPU, SPOT]))["spec"]["tolerations"] == [ANY_GPU, SPOT]


def test_a_pod_without_a_gpu_keeps_to_its_own_nodes() -> None:
    assert mutate(pod(container())).patch == []


def test_a_manifest_with_tolerations_that_is_applied_again_loses_none_that_were_added() -> None:
    stored = admitted(gpu_pod(tolerations=[SPOT]))
    stored["spec"]["tolerations"].append(NOT_READY)
    again = {**stored, "spec": {**stored["spec"], "tolerations": [SPOT, NOT_READY]}}
    answered = mutate(again, operation="UPDATE", oldObject=stored)
    assert apply(again, answered.patch) == stored


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ([SPOT, ANY_GPU, POOL, NOT_READY], [SPOT, NOT_READY], [SPOT, ANY_GPU, POOL, NOT_READY]),
        ([ANY_GPU, SPOT], [], [ANY_GPU]),
        ([ANY_GPU, POOL], None, [ANY_GPU, POOL]),
        ([SPOT, NOT_READY, ANY_GPU], [SPOT], [SPOT, ANY_GPU]),
        ([SPOT, ANY_GPU], [NOT_READY, ANY_GPU, SPOT], [NOT_READY, ANY_GPU, SPOT]),
        ([SPOT], [NOT_READY], [NOT_READY]),
        (None, [SPOT], [SPOT]),
    ],
)
def test_the_tolerations_that_admission_added_come_back_at_their_place_and_no_others(
    before: Any, given: Any, after: Any
) -> None:
    spec = {} if given is None else {"tolerations": given}
    operations = restore_tolerations(spec, {"tolerations": before}, [ANY_GPU, POOL, ANY_GPU])
    assert apply({"spec": spec}, operations)["spec"]["tolerations"] == after


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
