"""Pods as large as an API server takes them (3 MiB), made to keep the webhook busy: it says what is too much.

A request of them is read and judged in the worker that everybody's GPU pods wait for.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.choices import MAX_LISTED
from fairgpu.container_parser import MAX_CONTAINERS
from fairgpu.faults import MAX_EXPLAINED
from fairgpu.pod_faults import (
    MAX_ANNOTATIONS,
    MAX_FINALIZERS,
    MAX_LABELS,
    MAX_POD_BYTES,
    oversized_pod,
    status_bytes,
)
from tests.support.admission import (
    KNOWLEDGE,
    SETTINGS,
    Pod,
    admitted,
    ask,
    container,
    gpu_container,
    gpu_pod,
    mutate,
    pod,
    review,
    validate,
)
from webhook.admission.checks import MAX_COPIES, MAX_GATES, MAX_VOLUMES
from webhook.admission.review import answer

LARGEST_ANSWER = 64 * 1024
MANY = 20_000


def listed(prefix: str, count: int) -> str:
    return ",".join(f"{prefix}{number}" for number in range(count))


def asking(count: int, **limits: str) -> list[Pod]:
    return [container(f"c{number}", limits) for number in range(count)]


HAMI = {"nvidia.com/gpu": "1"}
USED = "fairgpu.io/use-gpu-uuid"
AVOIDED = "fairgpu.io/avoid-gpu-uuid"

TOO_MUCH: dict[str, tuple[Pod, str]] = {
    "annotations that no API server stores": (
        pod(gpu_container(), annotations={f"fairgpu.io/use-gpu-{n}": "" for n in range(MANY)}),
        "metadata.annotations: given 468890 characters in 20000 annotations; allowed: at most 262144 bytes",
    ),
    "devices to be used, each compared with all that are to be avoided": (
        pod(gpu_container(), annotations={USED: listed("a", MANY), AVOIDED: listed("b", MANY)}),
        f"metadata.annotations[{USED}]",
    ),
    "one device too many": (
        pod(gpu_container(), annotations={USED: listed("a", MAX_LISTED + 1)}),
        f"allowed: at most {MAX_LISTED} names",
    ),
    "devices of another dialect, read for each container": (
        pod(*asking(500, **HAMI), annotations={"nvidia.com/use-gpuuuid": listed("", 30_000)}),
        "metadata.annotations[nvidia.com/use-gpuuuid]",
    ),
    "annotations that no policy can look through": (
        pod(gpu_container(), annotations={f"a{number}": "" for number in range(MAX_ANNOTATIONS + 1)}),
        f"metadata.annotations: given {MAX_ANNOTATIONS + 1} annotations; allowed: at most {MAX_ANNOTATIONS}",
    ),
    "annotations of FairGPU's own prefix": (
        pod(gpu_container(), annotations={f"fairgpu.io/a{number}": "" for number in range(MAX_ANNOTATIONS + 1)}),
        f"metadata.annotations: given {MAX_ANNOTATIONS + 1} annotations; allowed: at most {MAX_ANNOTATIONS}",
    ),
    "annotations that are long together": (
        pod(gpu_container(), annotations={"note": "é" * 32 * 1024}),
        "metadata.annotations: given 65540 bytes in 1 annotations; allowed: at most 65536 bytes together",
    ),
    "labels": (
        pod(gpu_container(), metadata={"labels": {f"l{number}": "" for number in range(MAX_LABELS + 1)}}),
        f"metadata.labels: given {MAX_LABELS + 1} labels; allowed: at most {MAX_LABELS}",
    ),
    "finalizers": (
        pod(gpu_container(), metadata={"finalizers": [f"example.org/f{n}" for n in range(MAX_FINALIZERS + 1)]}),
        f"metadata.finalizers: given {MAX_FINALIZERS + 1} finalizers; allowed: at most {MAX_FINALIZERS}",
    ),
    "containers that ask": (
        pod(*asking(MANY, **HAMI)),
        f"spec.containers: given {MANY} containers; allowed: at most {MAX_CONTAINERS}",
    ),
    "containers that do not ask": (
        pod(gpu_container(), *(container(f"c{number}") for number in range(MANY))),
        f"spec.containers: given {MANY + 1} containers",
    ),
    "init containers that ask": (
        pod(gpu_container(), initContainers=asking(MANY, **HAMI)),
        f"spec.initContainers: given {MANY} containers",
    ),
    "faulty containers": (pod(*asking(MANY, **{"nvidia.com/gpu": "x"})), "spec.containers[0].resources"),
    "resources that there are not": (
        pod(container("main", {f"fairgpu.io/x{number}": "1" for number in range(MANY)})),
        "spec.containers[0].resources.limits[fairgpu.io/x0]",
    ),
    "a resource of a name without end": (
        pod(container("main", {"fairgpu.io/gpu" + "u" * 10_000: "1"})),
        "write fairgpu.io/gpu",
    ),
    "mounts where ours is": (
        pod(gpu_container(volumeMounts=[{"name": "x", "mountPath": "/run/fairgpu/"}] * MANY)),
        "spec.containers[0].volumeMounts[0].mountPath",
    ),
    "volumes of our names": (gpu_pod(volumes=[{"name": "fairgpu-usage"}] * MANY), f"spec.volumes: given {MANY} named"),
    "gates of our name": (
        gpu_pod(schedulingGates=[{"name": "fairgpu.io/budget"}] * MANY),
        f"spec.schedulingGates: given {MANY} named fairgpu.io/budget",
    ),
    "volumes": (
        gpu_pod(volumes=[{"name": f"v{n}"} for n in range(255)]),
        "spec.volumes: given 255 volumes; allowed: at most",
    ),
    "gates": (
        gpu_pod(schedulingGates=[{"name": f"example.org/{n}"} for n in range(64)]),
        "spec.schedulingGates: given 64 schedulingGates; allowed: at most 63",
    ),
    "sidecars of our name": (
        gpu_pod(initContainers=[{"name": "fairgpu-sidecar"}] * MANY),
        f"spec.initContainers: given {MANY} named fairgpu-sidecar",
    ),
    "mounts of our volumes in a container that asks for nothing": (
        pod(gpu_container(), container("b", volumeMounts=[{"name": "fairgpu-token", "mountPath": "/x"}] * MANY)),
        f"spec.containers[1].volumeMounts: given {MANY} named",
    ),
}


@pytest.mark.parametrize("route", ["mutate", "validate"])
@pytest.mark.parametrize("what", TOO_MUCH)
def test_it_is_refused_in_a_few_words(what: str, route: str) -> None:
    item, said = TOO_MUCH[what]
    body = answer(route, review(item), KNOWLEDGE, SETTINGS, 0.0).body
    assert len(body) < LARGEST_ANSWER
    found = {"mutate": mutate, "validate": validate}[route](item)
    assert not found.allowed
    assert said in found.message
    assert len(found.message.splitlines()) <= MAX_EXPLAINED + 1


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(pod(gpu_container(), annotations={USED: listed("a", MAX_LISTED)}), id="devices"),
        pytest.param(
            pod(*(container(f"c{n}", {"fairgpu.io/gpu-core": "1"}) for n in range(MAX_CONTAINERS))), id="asking"
        ),
        pytest.param(gpu_pod(initContainers=[container(f"c{n}") for n in range(MAX_CONTAINERS)]), id="beside ours"),
        pytest.param(gpu_pod(volumes=[{"name": f"v{n}"} for n in range(MAX_VOLUMES)]), id="volumes"),
        pytest.param(gpu_pod(schedulingGates=[{"name": f"x/{n}"} for n in range(MAX_GATES)]), id="gates"),
        pytest.param(gpu_pod(volumes=[{"name": "fairgpu-usage"}] * MAX_COPIES), id="volumes of our names"),
        pytest.param(pod(gpu_container(), annotations={f"a{n}": "" for n in range(MAX_ANNOTATIONS)}), id="crowded"),
        pytest.param(pod(gpu_container(), annotations={"note": "x" * (64 * 1024 - 4)}), id="annotations"),
        pytest.param(
            pod(gpu_container(), metadata={"labels": {f"l{n}": "" for n in range(MAX_LABELS - 1)}}), id="labels"
        ),
        pytest.param(
            pod(gpu_container(), metadata={"finalizers": [f"example.org/f{n}" for n in range(MAX_FINALIZERS)]}),
            id="finalizers",
        ),
        pytest.param(gpu_pod(hostname="x" * 1_000_000), id="bytes"),
    ],
)
def test_a_pod_just_within_the_bounds_comes_in(item: Any) -> None:
    assert validate(admitted(item)).allowed


def test_a_pod_that_leaves_no_room_for_notices_is_refused() -> None:
    refused = mutate(gpu_pod(hostname="x" * MAX_POD_BYTES))
    assert "spec: given a pod of 10" in refused.message
    assert f"allowed: at most {MAX_POD_BYTES} together on a pod that asks for a GPU" in refused.message


TEXTS = st.text("aé😀/<", max_size=40)


@given(
    parts=st.lists(st.tuples(TEXTS, TEXTS, st.lists(TEXTS, max_size=5)), min_size=1, max_size=20),
    gates=st.lists(TEXTS, max_size=20),
    filled=st.integers(-3_000, 3_000),
)
def test_a_pod_is_refused_once_it_and_what_its_status_repeats_pass_the_bound(
    parts: list[tuple[str, str, list[str]]], gates: list[str], filled: int
) -> None:
    """However the check spares itself a closer look."""
    spec = {
        "containers": [
            {"name": name, "image": image, "volumeMounts": [{"name": name, "mountPath": path} for path in paths]}
            for name, image, paths in parts
        ],
        "readinessGates": [{"conditionType": gate} for gate in gates],
    }
    spec["containers"][0]["image"] += "x" * ((MAX_POD_BYTES + filled - status_bytes(spec)) // 5)
    size = len(orjson.dumps(spec))
    assert bool(oversized_pod(size, spec)) is (size + status_bytes(spec) > MAX_POD_BYTES)
    small = {**spec, "containers": spec["containers"][1:]}
    size = len(orjson.dumps(small))
    assert size + status_bytes(small) <= MAX_POD_BYTES
    assert status_bytes(small) <= 4 * size + status_bytes({**small, "containers": [{}] * len(small["containers"])})
    assert not oversized_pod(size, small)


REPEATED: dict[str, Pod] = {
    "mounts": pod(gpu_container(volumeMounts=[{"name": "data", "mountPath": f"/{n:0600}"} for n in range(900)])),
    "names of images that are none": pod(gpu_container(), container("other", image="x" * 220_000)),
    "resources": pod(gpu_container(), container("other", {f"example.org/{n:060}": "1" for n in range(4_500)})),
    "groups, in the status of each container": gpu_pod(
        containers=[gpu_container(), *(container(f"c{number}") for number in range(100))],
        securityContext={"supplementalGroups": [10_000 + number for number in range(2_000)]},
    ),
    "claims that are made of templates": gpu_pod(
        resourceClaims=[{"name": f"c{n}", "resourceClaimTemplateName": "none"} for n in range(3_000)]
    ),
    "readiness gates, in the reason why the pod is not ready": gpu_pod(
        readinessGates=[{"conditionType": f"example.org/{n}"} for n in range(8_000)]
    ),
    "containers": gpu_pod(
        containers=[gpu_container(), *(container(f"c{number}") for number in range(511))],
        initContainers=[container(f"i{number}") for number in range(512)],
        hostname="x" * 300_000,
    ),
}


@pytest.mark.parametrize("what", REPEATED)
def test_a_pod_counts_with_what_its_kubelet_will_repeat_in_its_status(what: str) -> None:
    """With its status it could reach etcd's limit: then no notice fits on it, and it cannot be evicted or deleted."""
    item = REPEATED[what]
    assert len(review(item)) < MAX_POD_BYTES
    refused = mutate(item)
    assert "spec: given a pod of" in refused.message
    assert f"allowed: at most {MAX_POD_BYTES} together on a pod that asks for a GPU" in refused.message


def test_so_does_a_pod_to_which_another_stack_gives_its_gpu() -> None:
    mounts = [{"name": "data", "mountPath": f"/{number:0600}"} for number in range(900)]
    assert "spec: given a pod of" in ask("account", pod(container("main", HAMI, volumeMounts=mounts))).message


def test_debugging_containers_leave_the_room_that_a_pod_was_admitted_with() -> None:
    debugger = {"name": "debugger", "image": "example.org/tools:1"}
    small = {**gpu_pod(), "spec": {**gpu_pod()["spec"], "ephemeralContainers": [debugger]}}
    large = {**small, "spec": {**small["spec"], "ephemeralContainers": [{**debugger, "args": ["x" * 128 * 1024]}]}}
    named = {**small, "spec": {**small["spec"], "ephemeralContainers": [{**debugger, "image": "x" * 32 * 1024}]}}
    asked = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    assert validate(small, **asked).allowed
    refused = validate(large, **asked)
    assert "spec.ephemeralContainers: given 131" in refused.message
    assert "with some 131" in validate(named, **asked).message
    groups = {"supplementalGroups": [10_000 + number for number in range(2_000)]}
    many = [{**debugger, "name": f"d{number}"} for number in range(20)]
    grouped = {**small, "spec": {**small["spec"], "ephemeralContainers": many, "securityContext": groups}}
    assert "spec.ephemeralContainers: given" in validate(grouped, **asked).message
    assert "allowed: at most 131072 together on a pod that asks for a GPU" in refused.message


def test_some_of_many_annotations_that_are_missing_are_named_and_the_rest_counted() -> None:
    found = mutate(pod(gpu_container(), annotations={f"fairgpu.io/use-gpu-{n}": "" for n in range(500)}))
    assert found.allowed
    assert len(found.warnings) == 17
    assert found.warnings[-1] == "metadata.annotations: 484 more that are not known"
