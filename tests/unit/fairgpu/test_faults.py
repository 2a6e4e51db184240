"""The text of a fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from fairgpu.faults import MAX_SHOWN_LENGTH, Fault, explain, field_path, show
from tests.unit.fairgpu.json_values import JSON


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("spec", "containers", 0, "name"), "spec.containers[0].name"),
        (
            ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"),
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        (("metadata", "annotations", "gpu-fraction"), "metadata.annotations.gpu-fraction"),
        (("metadata", "annotations", "gpu-memory.limit"), "metadata.annotations[gpu-memory.limit]"),
    ],
)
def test_a_path_is_written_as_kubectl_writes_it(parts: tuple[str | int, ...], path: str) -> None:
    assert field_path(*parts) == path


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("30", '"30"'),
        (30, "30"),
        (None, "null"),
        (True, "true"),
        ("\ud800\n", '"\\ud800\\n"'),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        ([1, {"a": 2}], '[1, {"a": 2}]'),
        ("обучение", '"обучение"'),
        ("訓練-7", '"訓練-7"'),
        ("\x1b[31m\x7f\x9b\u202e\u00a0", '"\\u001b[31m\\u007f\\u009b\\u202e\\u00a0"'),
        ("x" * 200, '"' + "x" * 76 + "... (200 characters)"),
        (["x" * 200], '["' + "x" * 75 + "..."),
    ],
)
def test_a_value_is_shown_as_the_json_that_was_given(value: Any, shown: str) -> None:
    assert show(value) == shown


def test_a_number_too_large_for_json_is_shown_without_harm() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert show(deep) == show(10**5000) == "a value too large to show"


@given(JSON)
def test_every_shown_text_is_short_and_plain(value: Any) -> None:
    shown = show(value)
    assert len(shown.partition("... (")[0]) <= MAX_SHOWN_LENGTH
    assert shown.isprintable()


def test_one_fault_is_one_sentence_and_several_are_numbered() -> None:
    first = Fault("spec.a", "1", "2", "3")
    second = Fault("spec.b", "4", "5", "6")
    assert explain([first]) == "spec.a: given 1; allowed: 2; write 3"
    assert (
        explain([first, second]) == "1. spec.a: given 1; allowed: 2; write 3\n2. spec.b: given 4; allowed: 5; write 6"
    )
