"""A manifest that is applied again changes nothing; one that asks for something else is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.admission import Pod, admitted, apply, container, gpu_pod, mutate, pod, validate

HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
SELECTOR = {"nvidia.com/use-gputype": "A100"}


def original() -> Pod:
    return pod(container(limits=dict(HAMI)), annotations=dict(SELECTOR), schedulerName="hami-scheduler")


def applied_again(stored: Pod, manifest: Pod) -> Pod:
    """Returns the result of a three-way merge with the stored pod: the manifest's fields are back, all others stay."""
    merged = copy.deepcopy(stored)
    merged["metadata"]["annotations"].update(manifest["metadata"].get("annotations", {}))
    for into, given in zip(merged["spec"]["containers"], manifest["spec"]["containers"], strict=True):
        into["resources"]["limits"].update(given["resources"]["limits"])
    for key in ("schedulerName", "priorityClassName"):
        if key in manifest["spec"]:
            merged["spec"][key] = manifest["spec"][key]
    return merged


def update(new: Any, old: Any, **fields: Any) -> Any:
    return mutate(new, operation="UPDATE", oldObject=old, **fields)


def test_the_same_manifest_applied_again_leaves_the_pod_as_it_is_stored() -> None:
    stored = admitted(original())
    again = applied_again(stored, original())
    answered = update(again, stored)
    assert answered.allowed
    assert apply(again, answered.patch) == stored


def test_an_update_of_something_else_is_left_alone() -> None:
    stored = admitted(original())
    labelled = copy.deepcopy(stored)
    labelled["metadata"]["labels"] = {"a": "b"}
    assert update(labelled, stored).patch == []


def test_a_manifest_that_asks_for_more_is_refused_with_what_the_pod_was_made_with() -> None:
    stored = admitted(original())
    changed = original()
    changed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8192"
    refused = update(applied_again(stored, changed), stored)
    assert not refused.allowed
    assert "spec.containers[0].resources: given fairgpu.io/gpu=1" in refused.message
    assert "8192" in refused.message
    assert "4096" in refused.message


def test_a_manifest_that_chooses_another_model_is_shown_that_the_pod_keeps_its_own() -> None:
    stored = admitted(original())
    changed = original()
    changed["metadata"]["annotations"]["nvidia.com/use-gputype"] = "H100"
    again = applied_again(stored, changed)
    answered = update(again, stored)
    assert apply(again, answered.patch) == stored
    [warning] = answered.warnings
    assert 'metadata.annotations[fairgpu.io/use-gpu-model]: stays "A100"' in warning


def test_a_manifest_that_says_the_same_choice_in_two_ways_can_be_applied_again() -> None:
    manifest = original()
    manifest["metadata"]["annotations"]["fairgpu.io/use-gpu-model"] = "H100"
    stored = admitted(manifest)
    again = applied_again(stored, manifest)
    assert apply(again, update(again, stored).patch) == stored


def test_a_request_by_annotation_that_comes_back_is_taken_off_again() -> None:
    manifest = pod(container(), annotations={"gpu-fraction": "0.5"})
    stored = admitted(manifest)
    again = copy.deepcopy(stored)
    again["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    assert apply(again, update(again, stored).patch) == stored


def test_a_faulty_key_that_comes_back_is_refused() -> None:
    stored = admitted(original())
    again = applied_again(stored, original())
    again["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "-1"
    assert not update(again, stored).allowed


@pytest.mark.parametrize(
    "old",
    [
        pod(container(limits=dict(HAMI))),
        gpu_pod(),
        pod(container()),
        {},
    ],
)
def test_a_pod_that_fairgpu_did_not_admit_stays_updatable(old: Any) -> None:
    new = copy.deepcopy(old)
    new.setdefault("metadata", {})["finalizers"] = []
    answered = update(new, old)
    assert answered.allowed
    assert answered.patch == []
    assert validate(new, operation="UPDATE", oldObject=old).allowed


def test_validation_refuses_a_changed_request() -> None:
    stored = admitted(original())
    changed = copy.deepcopy(stored)
    changed["spec"]["containers"][0]["resources"]["limits"]["fairgpu.io/gpu-core"] = "60"
    changed["spec"]["containers"][0]["resources"]["requests"]["fairgpu.io/gpu-core"] = "60"
    assert validate(stored, operation="UPDATE", oldObject=stored).allowed
    for sub_resource in ("", "resize"):
        refused = validate(changed, operation="UPDATE", oldObject=stored, subResource=sub_resource)
        assert not refused.allowed
        assert "delete the pod and create it anew" in refused.message


def test_a_pod_admitted_under_looser_settings_stays_updatable() -> None:
    from webhook.settings import Dialects, Webhook  # noqa: PLC0415

    stored = admitted(pod(container(limits={"fairgpu.io/gpu": "8"})))
    stricter = Webhook(dialects=Dialects(max_gpus_per_node=4))
    assert validate(stored, settings=stricter, operation="UPDATE", oldObject=stored).allowed
    assert mutate(stored, settings=stricter, operation="UPDATE", oldObject=stored).allowed


def test_subresources_and_other_operations_are_not_mutated() -> None:
    item = gpu_pod()
    assert mutate(item, subResource="status", operation="UPDATE").patch == []
    assert mutate(item, operation="DELETE").patch == []
    assert mutate(item, operation="CONNECT").patch == []
    assert mutate(item, kind={"group": "", "version": "v1", "kind": "Service"}).patch == []
