"""The choices that a pod's author makes in annotations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu import names
from fairgpu.choices import contradictions, merge_choices, read_choices
from fairgpu.permissions import Permission
from fairgpu.request import CorePolicy, Placement, PodChoices
from tests.unit.fairgpu.json_values import ANNOTATION_KEYS, JSON

MODELS = st.lists(st.sampled_from(("A100", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB")), unique=True).map(tuple)
UUIDS = st.lists(st.sampled_from(("GPU-1", "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76")), unique=True).map(tuple)
CHOICES = st.builds(
    PodChoices,
    use_models=MODELS,
    use_uuids=UUIDS,
    placement=st.none() | st.sampled_from(Placement),
    core_policy=st.none() | st.sampled_from(CorePolicy),
    task_priority=st.sampled_from((None, 0, 1)),
)


@given(CHOICES)
def test_choices_that_are_written_as_annotations_are_read_back_as_themselves(choices: PodChoices) -> None:
    reading = read_choices(choices.annotations())
    assert (reading.choices, reading.faults, reading.warnings) == (choices, (), ())


@given(CHOICES, CHOICES)
def test_the_pods_own_choice_stands_before_the_dialects(own: PodChoices, others: PodChoices) -> None:
    merged = merge_choices(own, others)
    for field in (
        "use_models",
        "avoid_models",
        "use_uuids",
        "avoid_uuids",
        "placement",
        "core_policy",
        "task_priority",
    ):
        chosen = getattr(own, field)
        assert getattr(merged, field) == (getattr(others, field) if chosen in (None, ()) else chosen)


def test_spaces_empty_items_and_repetitions_in_a_list_are_dropped() -> None:
    reading = read_choices({names.USE_GPU_MODEL: " A100, ,H100,A100 "})
    assert reading.choices.use_models == ("A100", "H100")


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        (names.USE_GPU_MODEL, "", "A100,H100"),
        (names.USE_GPU_MODEL, " , ", "A100,H100"),
        (names.AVOID_GPU_MODEL, "A100;H100", "A100,H100"),
        (names.USE_GPU_UUID, "x" * 64, "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"),
        (names.AVOID_GPU_UUID, "GPU 1", "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"),
        (names.PLACEMENT, "binpack", "pack"),
        (names.CORE_POLICY, "soft", "hard"),
        (names.CORE_POLICY, None, "hard"),
        (names.TASK_PRIORITY, "2", '"1"'),
        (names.TASK_PRIORITY, 0, '"0", in quotes'),
        (names.TASK_PRIORITY, False, '"1"'),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_one_that_does(key: str, value: Any, instead: str) -> None:
    (fault,) = read_choices({key: value}).faults
    assert (fault.path, fault.instead) == (f"metadata.annotations[{key}]", instead)


def test_a_device_that_is_to_be_used_is_not_to_be_avoided_as_well() -> None:
    choices = PodChoices(use_models=("A100", "H100"), avoid_models=("T4", "H100"), use_uuids=("1",), avoid_uuids=("1",))
    assert [(fault.path, fault.given) for fault in contradictions(choices)] == [
        ("metadata.annotations", '"H100" both to be used and to be avoided'),
        ("metadata.annotations", '"1" both to be used and to be avoided'),
    ]
    assert contradictions(PodChoices(use_models=("H100",), avoid_models=("T4",))) == ()


def test_elastic_and_high_priority_are_wishes_and_their_opposites_are_not() -> None:
    asking = read_choices({names.CORE_POLICY: "elastic", names.TASK_PRIORITY: "0"})
    assert [(each.permission, each.foreign) for each in asking.permission_requests] == [
        (Permission.ELASTIC, False),
        (Permission.HIGH_PRIORITY, False),
    ]
    assert read_choices({names.CORE_POLICY: "hard", names.TASK_PRIORITY: "1"}).permission_requests == ()


def test_a_misspelt_annotation_is_ignored_with_a_warning_that_names_the_right_one() -> None:
    assert read_choices({"fairgpu.io/core-polcy": "elastic"}).warnings == (
        (
            "metadata.annotations[fairgpu.io/core-polcy]: FairGPU knows no such annotation and ignores it; "
            "did you mean fairgpu.io/core-policy?"
        ),
    )


def test_reserved_annotations_and_other_peoples_are_no_choices() -> None:
    reading = read_choices({names.ALLOCATION: "x", names.CREATED_BY: "y", "example.com/fairgpu.io": "z"})
    assert (reading.choices, reading.faults, reading.warnings) == (PodChoices(), (), ())


@given(st.dictionaries(ANNOTATION_KEYS | st.text(max_size=20), JSON, max_size=6))
def test_no_annotations_make_it_raise(annotations: dict[str, Any]) -> None:
    reading = read_choices(annotations)
    for fault in reading.faults:
        assert all((fault.path, fault.given, fault.allowed, fault.instead))
