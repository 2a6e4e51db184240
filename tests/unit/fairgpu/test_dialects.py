"""Every dialect keeps these rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.dialects import registry
from fairgpu.dialects.reading import Container, DialectSettings
from fairgpu.dialects.registry import DIALECTS, FOREIGN, NATIVE
from fairgpu.permissions import Permission, grant
from fairgpu.pod import PodReading, read_pod
from fairgpu.request import GPURequest, PodChoices
from tests.unit.fairgpu.json_values import AMOUNTS, ANNOTATION_TEXTS, JSON, pods
from tests.unit.fairgpu.sound_pods import PERMISSIONS, SOUND_PODS

SETTINGS = DialectSettings()
REQUESTS = st.builds(
    lambda gpus, core, memory: GPURequest(
        gpus,
        core * gpus,
        memory_mib=memory * gpus if memory > 100 else None,
        memory_percentage=None if memory > 100 else memory * gpus,
    ),
    st.integers(1, 16),
    st.integers(0, 100),
    st.integers(1, 200_000),
)
GOOD = {
    "native": ({"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}, {}),
    "tencent": ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"}, {}),
    "hami": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}, {}),
    "aliyun": ({"aliyun.com/gpu-mem": "4"}, {}),
    "kai": ({}, {"gpu-fraction": "0.3"}),
    "volcano": ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4096"}, {}),
    "model": ({"nvidia.com/gpu": "1"}, {"nvidia-gpu-scheduler/gpu.model": "A100"}),
}


def pod_of(limits: dict[str, Any], annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [main], **spec}}


def rewritten(pod: dict[str, Any], reading: PodReading, choices: PodChoices) -> dict[str, Any]:
    """The pod as admission would leave it: foreign keys out, canonical ones in."""
    annotations = {
        key: value for key, value in pod["metadata"]["annotations"].items() if key not in reading.strip_annotations
    }
    spec: dict[str, Any] = {field: [dict(item) for item in items] for field, items in pod["spec"].items()}
    for container in reading.all_containers:
        item = spec[str(container.path[1])][container.index]
        given_resources = item.get("resources", {})
        kept = {
            place: {key: value for key, value in amounts.items() if key not in container.reading.strip_resources}
            for place, amounts in given_resources.items()
        }
        canonical = container.request.resources() if container.request else {}
        item["resources"] = {
            "limits": kept.get("limits", {}) | canonical,
            "requests": kept.get("requests", {}) | canonical,
        }
    return {"metadata": {"annotations": annotations | choices.annotations()}, "spec": spec}


@given(REQUESTS)
def test_a_canonical_request_is_read_back_as_itself(request: GPURequest) -> None:
    (container,) = read_pod(pod_of(request.resources()), SETTINGS).containers
    assert container.request == request
    assert container.reading.faults == ()


@given(SOUND_PODS | pods(AMOUNTS, ANNOTATION_TEXTS))
def test_a_pod_without_faults_reads_the_same_once_it_is_rewritten(pod: dict[str, Any]) -> None:
    first = read_pod(pod, SETTINGS)
    if first.faults:
        return
    second = read_pod(rewritten(pod, first, first.choices), SETTINGS)
    assert second.faults == ()
    assert second.demand == first.demand
    assert second.choices == first.choices
    assert {each.permission for each in second.permission_requests} == {
        each.permission for each in first.permission_requests
    }
    assert set(second.dialects) <= {"native"}
    assert second.strip_annotations == ()


@given(SOUND_PODS, PERMISSIONS)
def test_choices_that_are_granted_are_granted_again_once_the_pod_is_rewritten(
    pod: dict[str, Any], permissions: frozenset[Permission]
) -> None:
    first = read_pod(pod, SETTINGS)
    granted = grant(first.choices, first.permission_requests, permissions)
    if first.faults or granted.faults:
        return
    second = read_pod(rewritten(pod, first, granted.choices), SETTINGS)
    again = grant(second.choices, second.permission_requests, permissions)
    assert (again.choices, again.faults, again.warnings) == (granted.choices, (), ())


@given(SOUND_PODS | pods(AMOUNTS, ANNOTATION_TEXTS))
def test_every_request_is_one_that_a_node_can_give(pod: dict[str, Any]) -> None:
    for container in read_pod(pod, SETTINGS).all_containers:
        request = container.request
        if request is None:
            continue
        assert 1 <= request.gpus <= SETTINGS.max_gpus_per_node
        assert (request.memory_mib is None) != (request.memory_percentage is None)
        assert 0 <= request.core_percent <= 100 * request.gpus
        assert (request.memory_mib or request.memory_percentage or 0) > 0
        assert (request.memory_percentage or 0) <= 100 * request.gpus
        for amount in (request.core_percent, request.memory_mib or 0, request.memory_percentage or 0):
            assert amount % request.gpus == 0


@given(pods(JSON | AMOUNTS, JSON | ANNOTATION_TEXTS))
def test_the_keys_are_read_or_refused_in_full_sentences_whatever_they_hold(pod: dict[str, Any]) -> None:
    reading = read_pod(pod, SETTINGS)
    for fault in reading.faults:
        assert all((fault.path, fault.given, fault.allowed, fault.instead))
        assert fault.path.startswith(("spec.", "metadata."))
    for container in reading.all_containers:
        assert not (container.reading.faults and container.request)


@given(SOUND_PODS | pods(AMOUNTS, ANNOTATION_TEXTS))
def test_a_stripped_key_was_there_and_no_other_of_the_dialect_stays(pod: dict[str, Any]) -> None:
    for container in read_pod(pod, SETTINGS).all_containers:
        item = pod["spec"][container.path[1]][container.index]
        named = {key for amounts in item["resources"].values() for key in amounts if key in DIALECTS.resources}
        assert set(container.reading.strip_resources) <= named
        if container.request is not None and container.dialect != "native":
            assert named <= set(container.reading.strip_resources)


@pytest.mark.parametrize("name", GOOD)
def test_each_dialect_is_read_alone_and_by_its_name(name: str) -> None:
    limits, annotations = GOOD[name]
    assert read_pod(pod_of(limits, annotations), SETTINGS).dialects == (name,)
    listened, deaf = (NATIVE, FOREIGN) if name == "native" else (FOREIGN, NATIVE)
    assert read_pod(pod_of(limits, annotations), SETTINGS, dialects=listened).dialects == (name,)
    assert not read_pod(pod_of(limits, annotations), SETTINGS, dialects=deaf).has_gpu_keys


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a in GOOD for b in GOOD if a < b and {a, b} != {"hami", "model"}],
)
def test_two_dialects_in_one_container_are_refused_by_name(first: str, second: str) -> None:
    reading = read_pod(pod_of(GOOD[first][0] | GOOD[second][0], GOOD[first][1] | GOOD[second][1]), SETTINGS)
    (fault,) = reading.faults
    assert fault.path == "spec.containers[0].resources"
    assert first in fault.given
    assert second in fault.given
    assert reading.containers[0].request is None


def test_a_gpu_that_is_left_to_another_device_plugin_stands_in_no_container_of_ours() -> None:
    leaving = DialectSettings(hami_plain_gpu="leave")
    plain = {"nvidia.com/gpu": "1"}
    assert not read_pod(pod_of(plain), leaving).has_gpu_keys
    (fault,) = read_pod(pod_of(plain | GOOD["native"][0]), leaving).faults
    assert fault.given == "the dialects native and hami in one container"
    assert read_pod(pod_of(plain | GOOD["native"][0]), leaving, dialects=NATIVE).faults == ()


def test_different_containers_may_speak_different_dialects() -> None:
    pod = pod_of(GOOD["hami"][0])
    pod["spec"]["containers"].append({"name": "second", "resources": {"limits": GOOD["tencent"][0]}})
    reading = read_pod(pod, SETTINGS)
    assert reading.dialects == ("hami", "tencent")
    assert reading.faults == ()
    assert reading.demand.core_percent == 60


@pytest.mark.parametrize(
    ("limits", "annotations", "blamed"),
    [
        (
            {"fairgpu.io/gpu": "17", "fairgpu.io/gpu-core": "x", "fairgpu.io/gpu-memory": "-1", "fairgpu.io/gpus": "1"},
            {"fairgpu.io/placement": "x"},
            {"gpu-core", "gpu-memory", "gpus", "gpu", "placement"},
        ),
        (
            {"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "1"},
            {"tencent.com/vcuda-core-limit": "x"},
            {"vcuda-core", "vcuda-core-limit"},
        ),
        (
            {"tencent.com/vcuda-core": "x", "tencent.com/vcuda-memory": "x"},
            {"tencent.com/vcuda-core-limit": "x"},
            {"vcuda-core", "vcuda-memory", "vcuda-core-limit"},
        ),
        (
            {
                "nvidia.com/gpu": "17",
                "nvidia.com/gpucores": "150",
                "nvidia.com/gpumem": "x",
                "nvidia.com/priority": "9",
            },
            {"nvidia.com/use-gputype": ";", "nvidia.com/nouse-gpuuuid": "a b"},
            {"gpu", "gpucores", "gpumem", "priority", "use-gputype", "nouse-gpuuuid"},
        ),
        (
            {"aliyun.com/gpu-mem": "9", "aliyun.com/gpu-count": "2", "aliyun.com/gpu-core.percentage": "30"},
            {},
            {"gpu-mem", "gpu-core.percentage"},
        ),
        (
            {"volcano.sh/vgpu-number": "x", "volcano.sh/vgpu-cores": "150"},
            {"nvidia.com/use-gputype": ";"},
            {"vgpu-number", "vgpu-cores", "use-gputype"},
        ),
        ({}, {"gpu-fraction": "2", "gpu-fraction-num-devices": "x"}, {"gpu-fraction", "gpu-fraction-num-devices"}),
    ],
    ids=["native", "tencent", "tencent amounts", "hami", "aliyun", "volcano", "kai"],
)
def test_all_faults_of_a_pod_come_at_once(
    limits: dict[str, Any], annotations: dict[str, Any], blamed: set[str]
) -> None:
    faults = read_pod(pod_of(limits, annotations), SETTINGS).faults
    keys = [re.split(r"annotations\.|/", fault.path.rstrip("]"))[-1] for fault in faults]
    assert sorted(keys) == sorted(blamed)


def test_the_keys_of_all_dialects_are_listed_for_who_must_know_them() -> None:
    assert {"fairgpu.io/gpu", "nvidia.com/gpu", "tencent.com/vcuda-core"} <= DIALECTS.resources
    assert DIALECTS.requesting_annotations == {"gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"}
    assert DIALECTS.requesting_annotations <= DIALECTS.annotations


def test_a_container_knows_the_paths_in_a_template_too() -> None:
    container = Container(("spec", "template", "spec", "containers", 1), "main", {}, {})
    assert container.limit_path("a/b") == "spec.template.spec.containers[1].resources.limits[a/b]"
    assert container.annotation_path("a/b") == "spec.template.metadata.annotations[a/b]"


def test_kai_gives_the_share_to_the_container_that_it_names() -> None:
    pod = pod_of({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "warm-up"})
    pod["spec"]["initContainers"] = [{"name": "fetch"}, {"name": "warm-up"}]
    reading = read_pod(pod, SETTINGS)
    assert [container.path for container in reading.all_containers] == [("spec", "initContainers", 1)]
    assert reading.strip_annotations == ("gpu-fraction", "gpu-fraction-container-name")


def test_kai_without_a_name_gives_it_to_the_first_container_alone() -> None:
    pod = pod_of({}, {"gpu-fraction": "0.5"}, initContainers=[{"name": "fetch"}])
    pod["spec"]["containers"].append({"name": "second"})
    assert [container.path for container in read_pod(pod, SETTINGS).all_containers] == [("spec", "containers", 0)]


def test_kai_that_names_no_container_of_the_pod_is_refused() -> None:
    pod = pod_of({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "typo"})
    (fault,) = read_pod(pod, SETTINGS).faults
    assert fault.path == "metadata.annotations.gpu-fraction-container-name"


def test_the_first_of_several_containers_decides_a_choice_of_the_pod() -> None:
    pod = pod_of({"nvidia.com/gpumem": "1024", "nvidia.com/priority": "1"})
    limits = {"nvidia.com/gpumem": "1024", "nvidia.com/priority": "0"}
    pod["spec"]["containers"].append({"name": "second", "resources": {"limits": limits}})
    reading = read_pod(pod, SETTINGS)
    assert (reading.choices.task_priority, reading.permission_requests) == (1, ())


def test_reading_one_container_says_who_spoke() -> None:
    container = Container(("spec", "containers", 0), "main", {}, {"nvidia.com/gpu": "1"}, first=True)
    spoken = registry.read_container(container, SETTINGS)
    assert spoken is not None
    assert spoken[0] == "hami"
    assert registry.read_container(Container(("spec", "containers", 0), "main", {}, {"cpu": "1"}), SETTINGS) is None
