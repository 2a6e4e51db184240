"""Reading whole pods."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.dialects.reading import DialectSettings
from fairgpu.pod import read_pod
from fairgpu.request import GPURequest

SETTINGS = DialectSettings()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def container(name: str = "main", **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "resources": {"limits": {f"fairgpu.io/{key.replace('_', '-')}": v for key, v in limits.items()}},
    }


def pod(*containers: dict[str, Any], annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": list(containers), **spec}}


def test_a_pod_without_a_gpu_is_none_of_our_business() -> None:
    reading = read_pod(pod({"name": "main"}, annotations={"fairgpu.io/core-policy": "nonsense"}), SETTINGS)
    assert not reading.speaks
    assert reading.faults == ()


def test_only_the_containers_that_ask_are_in_the_reading_each_with_its_path() -> None:
    reading = read_pod(pod({"name": "proxy"}, container(gpu="2", gpu_core="60", gpu_memory="4096")), SETTINGS)
    (asking,) = reading.containers
    assert (asking.path, asking.index, asking.name) == (("spec", "containers", 1), 1, "main")
    assert asking.request == GPURequest(2, 60, memory_mib=4096)
    assert (reading.demand.gpus, reading.demand.core_percent, reading.demand.memory_mib) == (2, 60, 4096)


@given(JSON)
@settings(max_examples=200)
def test_no_json_object_makes_it_raise(value: Any) -> None:
    for shape in (
        {"spec": value, "metadata": value},
        {"spec": {"containers": value}},
        {"spec": {"containers": [value]}},
    ):
        read_pod(shape, SETTINGS)
