"""A GPU pod that is created is rewritten; any other is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.admission import (
    KNOWLEDGE,
    NAMESPACE,
    SETTINGS,
    admitted,
    container,
    gpu_container,
    gpu_pod,
    knowing,
    mutate,
    pod,
)
from webhook.admission.sidecar import shared_volumes, sidecar_container

CANONICAL = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory-percentage": "30"}
SIDECAR = sidecar_container(SETTINGS.sidecar, KNOWLEDGE.timekeeper_ca)
USAGE_MOUNT = {"name": "fairgpu-usage", "mountPath": "/run/fairgpu", "subPath": "main"}


@pytest.mark.parametrize(
    "item",
    [
        pod(container(limits={"cpu": "1"})),
        pod(container()),
        pod(),
        pod(container(resources=None)),
        pod(container(limits={"example.com/gpu": "1"}), annotations={"fairgpu.io/core-policy": "elastic"}),
        pod(container(volumeMounts=[USAGE_MOUNT]), volumes=[{"name": "fairgpu-usage", "emptyDir": {}}]),
        {},
        {"spec": None},
        {"metadata": None, "spec": {"containers": None}},
    ],
)
def test_a_pod_without_a_gpu_is_never_touched(item: Any) -> None:
    answered = mutate(item)
    assert answered.allowed
    assert answered.patch == []
    assert answered.warnings == []


def test_a_gpu_request_becomes_canonical_with_memory_always_explicit() -> None:
    stored = admitted(gpu_pod())
    assert stored["spec"]["containers"][0]["resources"] == {"limits": CANONICAL, "requests": CANONICAL}


def test_a_foreign_request_is_replaced_and_other_resources_stay() -> None:
    limits = {"cpu": "2", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    resources = {"limits": limits, "requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "claims": []}
    stored = admitted(pod(container(resources=resources)))
    canonical = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}
    assert stored["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", **canonical},
        "requests": {"cpu": "1", **canonical},
        "claims": [],
    }
    assert stored["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "hami"


def test_a_request_by_annotation_alone_becomes_canonical() -> None:
    stored = admitted(pod(container(), annotations={"gpu-fraction": "0.5", "mine": "stays"}))
    limits = stored["spec"]["containers"][0]["resources"]["limits"]
    assert limits["fairgpu.io/gpu-core"] == "50"
    assert stored["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "kai"
    assert stored["metadata"]["annotations"]["mine"] == "stays"
    assert "gpu-fraction" not in stored["metadata"]["annotations"]


def test_keys_that_amount_to_no_gpu_are_taken_out_and_nothing_else_is_done() -> None:
    item = pod(container(limits={"cpu": "1", "nvidia.com/gpu": "0"}))
    assert admitted(item) == pod(container(limits={"cpu": "1"}))


def test_a_bare_pod_without_a_gpu_is_warned_that_its_manifest_cannot_be_applied_again() -> None:
    """The webhook is not asked about changes of pods without a GPU, and the API server refuses new resources."""
    zero = {"cpu": "1", "nvidia.com/gpu": "0"}
    item = pod(container(limits=zero, requests=zero), container("second", limits={"fairgpu.io/gpu": "0"}))
    first, second = mutate(item).warnings
    assert first == (
        "spec.containers[0].resources: asks for no GPU, so nvidia.com/gpu is removed from the pod; remove it from the "
        "manifest, too, or the API server refuses to apply the manifest a second time"
    )
    assert second.startswith("spec.containers[1].resources: asks for no GPU, so fairgpu.io/gpu is removed")
    item["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "u"}]
    assert not mutate(item).warnings
    item["metadata"] = {"generateName": "a-"}
    assert not mutate(item).warnings


def test_the_sidecar_is_the_first_init_container() -> None:
    stored = admitted(gpu_pod(initContainers=[container("prepare")]))
    assert stored["spec"]["initContainers"] == [SIDECAR, container("prepare")]


@pytest.mark.parametrize(
    ("stated", "left"),
    [
        ({"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}}, {}),
        ({"requests": {"cpu": "4"}}, {"memory": "40Mi"}),
        ({"limits": {"memory": "8Gi"}}, {"cpu": "50m"}),
        ({"limits": {"hugepages-2Mi": "2Mi"}}, {"cpu": "50m", "memory": "40Mi"}),
        ({}, {"cpu": "50m", "memory": "40Mi"}),
        ("none", {"cpu": "50m", "memory": "40Mi"}),
    ],
)
def test_the_sidecar_has_no_amount_of_what_the_pod_states_for_all_its_containers(
    stated: object, left: dict[str, str]
) -> None:
    stored = admitted(gpu_pod(resources=stated))
    assert stored["spec"]["initContainers"][0]["resources"] == {"limits": left, "requests": left}
    assert stored["spec"]["resources"] == stated
    assert mutate(stored).patch == []


def test_each_gpu_container_sees_a_folder_of_its_own_in_the_usage_volume() -> None:
    item = pod(gpu_container("a"), container("b"), gpu_container("c"), initContainers=[gpu_container("d")])
    spec = admitted(item)["spec"]
    mounts = [given.get("volumeMounts") for given in [*spec["containers"], *spec["initContainers"][1:]]]
    assert mounts == [
        [{**USAGE_MOUNT, "subPath": "a"}],
        None,
        [{**USAGE_MOUNT, "subPath": "c"}],
        [{**USAGE_MOUNT, "subPath": "d"}],
    ]
    assert spec["volumes"] == shared_volumes(SETTINGS.sidecar)


def test_volumes_and_mounts_of_the_author_stay_in_their_order() -> None:
    data, mount = {"name": "data", "emptyDir": {}}, {"name": "data", "mountPath": "/data"}
    spec = admitted(pod(gpu_container(volumeMounts=[mount]), volumes=[data]))["spec"]
    assert spec["volumes"] == [data, *shared_volumes(SETTINGS.sidecar)]
    assert spec["containers"][0]["volumeMounts"] == [mount, USAGE_MOUNT]


def test_a_native_sidecar_with_a_gpu_is_rewritten_too() -> None:
    spec = admitted(pod(container(), initContainers=[gpu_container("serve", restartPolicy="Always")]))["spec"]
    assert spec["initContainers"][1]["resources"]["limits"] == CANONICAL
    assert spec["initContainers"][1]["volumeMounts"] == [{**USAGE_MOUNT, "subPath": "serve"}]


def test_a_pod_of_300_containers_is_admitted_whole() -> None:
    spec = admitted(pod(*(gpu_container(f"c{index}", core="1") for index in range(300))))["spec"]
    assert len(spec["containers"]) == 300
    assert all(given["resources"]["limits"]["fairgpu.io/gpu-core"] == "1" for given in spec["containers"])


def test_the_scheduler_is_ours_and_another_is_named_in_a_warning() -> None:
    answered = mutate(gpu_pod(schedulerName="volcano"))
    assert {"op": "add", "path": "/spec/schedulerName", "value": "fairgpu-scheduler"} in answered.patch
    assert any("spec.schedulerName" in warning and "volcano" in warning for warning in answered.warnings)
    assert mutate(gpu_pod(schedulerName="default-scheduler")).warnings == []


@pytest.mark.parametrize(
    "key", ["fairgpu.io/allocation", "fairgpu.io/eviction-at", "fairgpu.io/reclaim-at", "fairgpu.io/earmark"]
)
def test_a_field_that_only_fairgpu_writes_is_dropped_from_a_pod_that_exists(key: str) -> None:
    stored = admitted(pod(gpu_container(), annotations={key: "{}"}))
    assert key not in stored["metadata"]["annotations"]


@pytest.mark.parametrize("key", ["fairgpu.io/budget-state", "fairgpu.io/created-by"])
def test_a_reserved_annotation_that_is_given_is_overwritten(key: str) -> None:
    stored = admitted(pod(gpu_container(), annotations={key: "forged"}))
    assert stored["metadata"]["annotations"][key] != "forged"


def test_a_forged_source_dialect_is_overwritten() -> None:
    stored = admitted(pod(gpu_container(), annotations={"fairgpu.io/source-dialect": "forged"}))
    assert stored["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "native"


def test_fields_that_an_earlier_pass_added_are_replaced_and_not_doubled() -> None:
    copied = admitted(gpu_pod())
    copied["spec"]["initContainers"][0]["image"] = "elsewhere/sidecar:0"
    copied["spec"]["initContainers"].append({"name": "fairgpu-sidecar", "image": "again"})
    copied["spec"]["volumes"].insert(0, {"name": "fairgpu-token", "projected": {"sources": []}})
    copied["spec"]["containers"][0]["volumeMounts"].append({"name": "fairgpu-token", "mountPath": "/stolen"})
    copied["metadata"]["annotations"]["fairgpu.io/allocation"] = "{}"
    spec = admitted(copied)["spec"]
    assert spec["initContainers"] == [SIDECAR]
    assert sorted(volume["name"] for volume in spec["volumes"]) == ["fairgpu-token", "fairgpu-usage"]
    assert spec["containers"][0]["volumeMounts"] == [USAGE_MOUNT]


def test_a_pod_of_another_webhooks_sidecar_keeps_it() -> None:
    mesh = container("istio-proxy", restartPolicy="Always")
    assert admitted(gpu_pod(initContainers=[mesh]))["spec"]["initContainers"] == [SIDECAR, mesh]


def test_a_volume_that_only_shares_our_name_is_replaced_with_a_warning() -> None:
    answered = mutate(gpu_pod(volumes=[{"name": "fairgpu-usage", "persistentVolumeClaim": {"claimName": "x"}}]))
    assert answered.allowed
    assert any("spec.volumes[0]" in warning for warning in answered.warnings)


def test_a_pod_without_name_or_namespace_is_one_of_the_requests_namespace() -> None:
    item = gpu_pod()
    item["metadata"] = {"generateName": "train-"}
    assert admitted(item)["metadata"]["annotations"]["fairgpu.io/created-by"] == "ann@example.com"


def test_metadata_that_is_missing_is_made() -> None:
    item = {"spec": {"containers": [gpu_container()]}}
    assert admitted(item)["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "native"


def test_a_dry_run_gets_the_same_answer() -> None:
    assert mutate(gpu_pod(), dryRun=True) == mutate(gpu_pod())


@pytest.mark.parametrize(
    ("user", "metadata", "expected"),
    [
        ("ann", {}, "ann"),
        ("ann", {"ownerReferences": [{"kind": "Job", "name": "of-others", "controller": True}]}, "ann"),
        (
            "system:serviceaccount:kube-system:job-controller",
            {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]},
            "Job/train",
        ),
        (
            "system:serviceaccount:kube-system:replicaset-controller",
            {
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d", "controller": True}],
                "labels": {"pod-template-hash": "5d"},
            },
            "Deployment/web",
        ),
        (
            "system:serviceaccount:kube-system:replicaset-controller",
            {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}]},
            "ReplicaSet/web",
        ),
        (
            "system:serviceaccount:kubeflow:training-operator",
            {"ownerReferences": [{"kind": "PyTorchJob", "name": "train", "controller": True}]},
            "PyTorchJob/train",
        ),
        (
            "system:serviceaccount:team-a:robot",
            {"ownerReferences": [{"kind": "Deployment", "name": "of-others", "controller": True}]},
            "system:serviceaccount:team-a:robot",
        ),
        ("system:serviceaccount:team-a:robot", {}, "system:serviceaccount:team-a:robot"),
        ("system:serviceaccount:team-a:robot", {"ownerReferences": "none"}, "system:serviceaccount:team-a:robot"),
    ],
)
def test_created_by_is_the_person_or_the_controller(user: str, metadata: Any, expected: str) -> None:
    stored = admitted(pod(gpu_container(), metadata=metadata), userInfo={"username": user})
    assert stored["metadata"]["annotations"]["fairgpu.io/created-by"] == expected


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ('=HYPERLINK("https://elsewhere.example")', "train"),
        ("Job", "=1+1"),
        ("Job", "train\x1b[2J"),
        ("Job", "train\nJob/other"),
        ("Job", "tr\u202eain"),
        ("Job", "x" * 300),
    ],
)
def test_an_owner_whose_name_no_object_can_have_is_not_written_down(kind: str, name: str) -> None:
    owner = {"kind": kind, "name": name, "controller": True}
    robot = "system:serviceaccount:operators:robot"
    stored = admitted(pod(gpu_container(), metadata={"ownerReferences": [owner]}), userInfo={"username": robot})
    assert stored["metadata"]["annotations"]["fairgpu.io/created-by"] == robot


def test_a_foreign_choice_becomes_our_annotation() -> None:
    item = pod(container(limits={"nvidia.com/gpu": "1"}), annotations={"nvidia.com/use-gputype": "A100"})
    annotations = admitted(item)["metadata"]["annotations"]
    assert annotations["fairgpu.io/use-gpu-model"] == "A100"
    assert "nvidia.com/use-gputype" not in annotations


def test_our_own_annotations_stay_as_they_were_written() -> None:
    item = pod(gpu_container(), annotations={"fairgpu.io/use-gpu-model": "A100, H100"})
    assert admitted(item)["metadata"]["annotations"]["fairgpu.io/use-gpu-model"] == "A100, H100"


@pytest.mark.parametrize("choice", [{"fairgpu.io/core-policy": "elastic"}, {"fairgpu.io/task-priority": "0"}])
def test_a_choice_beyond_the_default_needs_the_namespaces_permission(choice: dict[str, str]) -> None:
    from fairgpu.permissions import parse_permissions  # noqa: PLC0415

    item = pod(gpu_container(), annotations=choice)
    refused = mutate(item)
    assert not refused.allowed
    assert "fairgpu.io/allow" in refused.message
    allowed = knowing(permissions={NAMESPACE: parse_permissions("elastic, high-priority")})
    assert mutate(item, allowed).allowed


def test_a_foreign_wish_without_permission_falls_back_with_a_warning() -> None:
    limits = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}
    answered = mutate(pod(container(limits=limits), annotations={"tencent.com/vcuda-core-limit": "60"}))
    assert answered.allowed
    assert any("elastic" in warning for warning in answered.warnings)


HOLDING = SETTINGS.model_copy(update={"end_proof": "finalizer"})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (None, ["fairgpu.io/meter"]),
        ([], ["fairgpu.io/meter"]),
        (["example.org/own"], ["example.org/own", "fairgpu.io/meter"]),
        (["fairgpu.io/meter", "example.org/own"], ["fairgpu.io/meter", "example.org/own"]),
    ],
)
def test_where_ends_are_proved_by_a_finalizer_a_gpu_pod_gets_it_once(given: Any, stored: list[str]) -> None:
    item = gpu_pod()
    if given is not None:
        item["metadata"] = {**item.get("metadata", {}), "finalizers": given}
    once = admitted(item, settings=HOLDING)
    assert once["metadata"]["finalizers"] == stored
    assert admitted(once, settings=HOLDING) == once


def test_no_other_pod_gets_the_meters_finalizer() -> None:
    assert mutate(pod(container(limits={"cpu": "1"})), settings=HOLDING).patch == []
    assert "finalizers" not in admitted(gpu_pod())["metadata"]
