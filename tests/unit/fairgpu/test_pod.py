"""Reading whole pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from fairgpu.demand import Demand
from fairgpu.dialects.reading import DialectSettings
from fairgpu.permissions import Permission
from fairgpu.pod import read_pod
from fairgpu.request import CorePolicy, GPURequest
from tests.unit.fairgpu.json_values import JSON

SETTINGS = DialectSettings()


def container(name: str = "main", **limits: Any) -> dict[str, Any]:
    amounts = {f"fairgpu.io/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {"name": name, "resources": {"limits": amounts}}


def pod(*containers: dict[str, Any], annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": list(containers), **spec}}


def test_a_pod_without_a_gpu_is_none_of_our_business() -> None:
    reading = read_pod(pod({"name": "main"}, annotations={"fairgpu.io/core-policy": "nonsense"}), SETTINGS)
    assert not reading.has_gpu_keys
    assert not reading.requests_gpu
    assert reading.faults == ()


def test_only_the_containers_that_ask_are_in_the_reading_each_with_its_path() -> None:
    reading = read_pod(pod({"name": "proxy"}, container(gpu="2", gpu_core="60", gpu_memory="4096")), SETTINGS)
    (asking,) = reading.containers
    assert (asking.path, asking.index, asking.name) == (("spec", "containers", 1), 1, "main")
    assert asking.request == GPURequest(2, 60, memory_mib=4096)
    assert reading.demand == Demand(2, 60, 4096, 0)


def test_init_containers_and_native_sidecars_are_distinguished() -> None:
    sidecar = {**container("proxy", gpu_core="10"), "restartPolicy": "Always"}
    reading = read_pod(
        pod(container(gpu_core="30"), initContainers=[sidecar, container("fetch", gpu_core="50")]), SETTINGS
    )
    assert [(c.name, c.native_sidecar) for c in reading.init] == [("proxy", True), ("fetch", False)]
    assert reading.demand.core_percent == 60


def test_a_zero_speaks_but_does_not_ask() -> None:
    reading = read_pod(pod(container(gpu="0")), SETTINGS)
    assert reading.has_gpu_keys
    assert not reading.requests_gpu
    assert reading.demand == Demand()
    assert reading.containers[0].reading.strip_resources == ("fairgpu.io/gpu",)


def test_an_ephemeral_container_is_given_no_gpu() -> None:
    reading = read_pod(pod({"name": "main"}, ephemeralContainers=[container("debug", gpu="1")]), SETTINGS)
    (fault,) = reading.faults
    assert fault.path == "spec.ephemeralContainers[0].resources"


def test_the_container_that_bears_our_reporters_name_is_given_no_gpu() -> None:
    reading = read_pod(pod({"name": "main"}, initContainers=[container("fairgpu-sidecar", gpu="1")]), SETTINGS)
    assert [fault.path for fault in reading.faults] == ["spec.initContainers[0].resources"]


def test_a_pod_that_wants_more_than_the_largest_node_has_is_refused_at_once() -> None:
    whole = [container(f"c{index}", gpu="8", gpu_core="800") for index in range(3)]
    faults = read_pod(pod(*whole), SETTINGS).faults
    assert [(fault.path, fault.given) for fault in faults] == [
        ("spec.containers", "2400 percent of GPU time in the containers together"),
        ("spec.containers", "2400 percent of GPU memory in the containers together"),
    ]


def test_three_hundred_containers_may_share_gpus() -> None:
    reading = read_pod(pod(*(container(f"c{n}", gpu_core="1", gpu_memory="100") for n in range(300))), SETTINGS)
    assert reading.faults == ()
    assert reading.demand == Demand(300, 300, 30_000, 0)


def test_a_pod_of_no_containers_asks_for_nothing() -> None:
    assert not read_pod(pod(), SETTINGS).has_gpu_keys


def test_an_annotation_that_calls_for_a_gpu_needs_a_container() -> None:
    (fault,) = read_pod(pod(annotations={"gpu-fraction": "0.5"}), SETTINGS).faults
    assert fault.path == "spec.containers"


def test_an_annotation_that_yaml_made_a_number_of_is_refused_with_the_quotes_to_write() -> None:
    (fault,) = read_pod(pod({"name": "main"}, annotations={"gpu-fraction": 0.5}), SETTINGS).faults
    assert (fault.path, fault.instead) == ("metadata.annotations.gpu-fraction", '"0.5", in quotes')


def test_the_pods_own_annotation_stands_before_the_dialects_and_leaves_no_wish_of_it() -> None:
    shares = {
        "name": "main",
        "resources": {"limits": {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "1"}},
    }
    elastic = {"tencent.com/vcuda-core-limit": "100"}
    reading = read_pod(pod(shares, annotations=elastic), SETTINGS)
    assert reading.choices.core_policy is CorePolicy.ELASTIC
    assert [(each.permission, each.foreign) for each in reading.permission_requests] == [(Permission.ELASTIC, True)]
    held = read_pod(pod(shares, annotations=elastic | {"fairgpu.io/core-policy": "hard"}), SETTINGS)
    assert (held.choices.core_policy, held.permission_requests) == (CorePolicy.HARD, ())
    own = read_pod(pod(shares, annotations=elastic | {"fairgpu.io/core-policy": "elastic"}), SETTINGS)
    assert [each.foreign for each in own.permission_requests] == [False]


def test_a_model_that_one_key_wants_and_another_avoids_is_refused_whoever_wrote_them() -> None:
    shares = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    annotations = {"nvidia.com/nouse-gputype": "A100", "fairgpu.io/use-gpu-model": "A100"}
    assert [fault.path for fault in read_pod(pod(shares, annotations=annotations), SETTINGS).faults] == [
        "metadata.annotations"
    ]


def test_a_templates_faults_are_named_by_their_path_in_the_workload() -> None:
    template = pod(container(gpu_core="150"), annotations={"fairgpu.io/core-policy": "soft"})
    paths = [fault.path for fault in read_pod(template, SETTINGS, root=("spec", "template")).faults]
    assert paths == [
        "spec.template.spec.containers[0].resources.limits[fairgpu.io/gpu-core]",
        "spec.template.metadata.annotations[fairgpu.io/core-policy]",
    ]


@pytest.mark.parametrize("field", ["metadata", "spec"])
def test_a_pod_without_metadata_or_spec_asks_for_nothing(field: str) -> None:
    whole = pod(container(gpu="1"))
    assert read_pod({field: whole[field]}, SETTINGS).has_gpu_keys == (field == "spec")


@given(JSON)
def test_no_json_object_makes_it_raise(value: Any) -> None:
    for shape in (
        {"spec": value, "metadata": value},
        {"spec": {"containers": value}},
        {"spec": {"containers": [value], "initContainers": value}},
        {"metadata": {"annotations": value, "labels": value}, "spec": {"containers": [{"resources": value}]}},
        {"spec": {"containers": [{"name": value, "resources": {"limits": value, "requests": value}}]}},
    ):
        read_pod(shape, SETTINGS)
