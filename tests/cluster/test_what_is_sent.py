"""Tests which requests reach the webhook by its configurations: all that ask for a GPU, and no others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairgpu import existing
from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError, KubernetesAPI
from fairgpu.dialects.registry import DIALECTS
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, apply, render
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.cluster.reviewer import Reviewer, running_reviewer
from tests.support.waiting import wait_until

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = tuple(f"{ADMISSION}/{kind}webhookconfigurations/zz-fairgpu" for kind in ("mutating", "validating"))
DRY_RUN = {"dryRun": "All"}
DEBUGGER = {"spec": {"ephemeralContainers": [{"name": "debugger", "image": "example.org/tools:1"}]}}
HOST = "fairgpu-webhook.fairgpu-system.svc"

pytestmark = pytest.mark.usefixtures("installation")


def _remove(control_plane: ControlPlane) -> None:
    for path in CONFIGURATIONS:
        control_plane.admin.api.delete(path)
    pods = "/api/v1/namespaces/default/pods"

    def forgotten() -> bool:
        try:
            control_plane.admin.api.create(pods, canonical_pod("forgotten"), DRY_RUN)
        except ApiError as error:
            if "failed calling webhook" in error.message:
                return False
            raise
        return True

    wait_until(forgotten, "the API server forgets the webhook")


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewer]:
    """A webhook at FairGPU's Service that allows everything; the shipped configurations lead there."""
    with running_reviewer(tmp_path_factory.mktemp("pki") / "reviewer", [HOST]) as reviewer:
        manifests = render(control_plane, webhook_port=reviewer.port)
        configurations = [manifest for manifest in manifests if manifest["kind"] in WEBHOOK_CONFIGURATIONS]
        for configuration in configurations:
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"]["caBundle"] = reviewer.ca_bundle
        apply(control_plane, configurations)
        api = control_plane.admin.api

        def in_force() -> bool:
            _try(api, "/api/v1/namespaces/default/pods", canonical_pod("in-force"))
            return {request["path"] for request in reviewer.requests} == {"/mutate", "/validate"}

        wait_until(in_force, "both configurations are in force")
        yield reviewer
        _remove(control_plane)


@pytest.fixture(scope="module")
def namespace(common_namespace: str) -> str:
    return common_namespace


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _try(api: KubernetesAPI, path: str, document: dict[str, Any]) -> None:
    """A dry run; what is not in canonical form is refused in the end, after the webhook has seen it."""
    try:
        api.create(path, document, DRY_RUN)
    except ApiError as error:
        if error.status not in (403, 422):
            raise


def sent(control_plane: ControlPlane, webhook: Reviewer, path: str, document: dict[str, Any]) -> list[str]:
    """The paths at which the webhook sees a document that is created."""
    webhook.requests.clear()
    _try(control_plane.admin.api, path, document)
    return [request["path"] for request in webhook.requests]


def asking(place: str, amounts: str, resource: str) -> Pod:
    pod = plain_pod()
    container = {"name": "extra", "image": "example.org/app:1", "resources": {amounts: {resource: "1"}}}
    pod["spec"].setdefault(place, []).append(container)
    return pod


@pytest.mark.parametrize("resource", sorted(DIALECTS.resources))
def test_a_pod_that_asks_by_a_resource_of_any_dialect_is_mutated(
    control_plane: ControlPlane, webhook: Reviewer, pods: str, resource: str
) -> None:
    for place in ("containers", "initContainers"):
        for amounts in ("limits", "requests"):
            seen = sent(control_plane, webhook, pods, asking(place, amounts, resource))
            assert seen[:1] == ["/mutate"], (place, amounts)


OF_A_CONTAINER = "nvidia.com/container.main.gpu-memory.request"


@pytest.mark.parametrize("annotation", [*sorted(DIALECTS.requesting_annotations), OF_A_CONTAINER])
def test_a_pod_that_asks_by_an_annotation_is_mutated(
    control_plane: ControlPlane, webhook: Reviewer, pods: str, annotation: str
) -> None:
    pod = plain_pod()
    pod["metadata"]["annotations"] = {annotation: "1"}
    assert sent(control_plane, webhook, pods, pod)[:1] == ["/mutate"]


def test_a_canonical_pod_is_mutated_and_validated(control_plane: ControlPlane, webhook: Reviewer, pods: str) -> None:
    assert sent(control_plane, webhook, pods, canonical_pod()) == ["/mutate", "/validate"]


def _pod_with(resource: str) -> Pod:
    return asking("containers", "limits", resource)


def _annotated(key: str) -> Pod:
    pod = plain_pod()
    pod["metadata"]["annotations"] = {key: "1"}
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        plain_pod(),
        _pod_with("cpu"),
        _pod_with("nvidia.com/mig-1g.5gb"),
        _pod_with("amd.com/gpu"),
        _annotated("gpu-fraction-container-name"),
        _annotated("nvidia-gpu-scheduler/gpu.model"),
        _annotated("fairgpu.io/placement"),
        _annotated("nvidia.com/container.other.gpu-memory.request"),
    ],
    ids=["plain", "cpu", "another device", "another vendor", "container name", "model", "choice", "no such container"],
)
def test_a_pod_that_asks_for_no_gpu_is_not_sent(
    control_plane: ControlPlane, webhook: Reviewer, pods: str, pod: Pod
) -> None:
    assert sent(control_plane, webhook, pods, pod) == []


def _with_claim() -> Pod:
    pod = plain_pod()
    pod["spec"]["resourceClaims"] = [{"name": "one", "resourceClaimTemplateName": "one"}]
    return pod


@pytest.fixture(scope="module")
def accounted(control_plane: ControlPlane, webhook: Reviewer) -> Iterator[str]:
    """The pods of a namespace whose mode is account, once the API server has read its label."""
    name = control_plane.create_namespace("account-", labels={"fairgpu.io/mode": "account"})
    path = f"/api/v1/namespaces/{name}/pods"
    gpu = _pod_with("nvidia.com/gpu")
    wait_until(lambda: sent(control_plane, webhook, path, gpu) == ["/account"], "the webhook's rules know the mode")
    yield path
    control_plane.remove_pods(name)


OF_DEVICE_CLASS = tuple(f"{existing.OF_DEVICE_CLASS}{name}" for name in existing.DEVICE_CLASSES)


@pytest.mark.parametrize("resource", [*existing.RESOURCES, "nvidia.com/mig-1g.5gb.me", *OF_DEVICE_CLASS])
def test_where_the_mode_is_account_a_pod_that_asks_by_a_stacks_resource_is_sent_once(
    control_plane: ControlPlane, webhook: Reviewer, accounted: str, resource: str
) -> None:
    for place in ("containers", "initContainers"):
        assert sent(control_plane, webhook, accounted, asking(place, "limits", resource)) == ["/account"], place


@pytest.mark.parametrize(
    "pod",
    [_with_claim(), *(_annotated(key) for key in (*existing.Existing().annotations, OF_A_CONTAINER))],
    ids=["claim", *existing.Existing().annotations, OF_A_CONTAINER],
)
def test_so_is_one_that_asks_by_an_annotation_or_has_a_claim(
    control_plane: ControlPlane, webhook: Reviewer, accounted: str, pod: Pod
) -> None:
    assert sent(control_plane, webhook, accounted, pod) == ["/account"]


@pytest.mark.parametrize(
    "pod",
    [
        plain_pod(),
        _pod_with("cpu"),
        _pod_with("rdma/hca_shared_devices"),
        _pod_with("gpu.intel.com/i915_monitoring"),
        _pod_with("deviceclass.resource.kubernetes.io/nic.example.com"),
        _annotated("gpu-fraction-container-name"),
        _annotated("example.org/note"),
    ],
    ids=["plain", "cpu", "a NIC", "monitoring", "a NIC's class", "container name", "note"],
)
def test_one_that_names_none_of_these_is_not(
    control_plane: ControlPlane, webhook: Reviewer, accounted: str, pod: Pod
) -> None:
    assert sent(control_plane, webhook, accounted, pod) == []


@pytest.mark.parametrize("asks", [False, True], ids=["none asks", "the last asks"])
def test_a_pod_of_more_containers_than_expressions_look_through_is_sent(
    control_plane: ControlPlane, webhook: Reviewer, pods: str, *, asks: bool
) -> None:
    pod = plain_pod()
    amounts = {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}
    pod["spec"]["containers"] = [
        {"name": f"c{index}", "image": "example.org/app:1", "resources": copy.deepcopy(amounts)} for index in range(300)
    ]
    if asks:
        pod["spec"]["containers"][-1]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    assert sent(control_plane, webhook, pods, pod)[:1] == ["/mutate"]
    del pod["spec"]["containers"][:236]
    assert sent(control_plane, webhook, pods, pod)[:1] == (["/mutate"] if asks else [])


def test_a_pod_without_a_gpu_is_not_sent_however_much_is_written_on_it(
    control_plane: ControlPlane, webhook: Reviewer, pods: str
) -> None:
    """The largest that the API server takes of annotations, by who may do everything in the namespace."""
    editor = control_plane.namespace_admin(pods.split("/")[4])
    pod = plain_pod("huge")
    pod["metadata"]["annotations"] = {f"a{number}": "" for number in range(40_000)}
    webhook.requests.clear()
    editor.api.create(pods, pod)
    editor.api.patch(f"{pods}/huge", {"metadata": {"labels": {"run": "7"}}})
    editor.api.patch(f"{pods}/huge/status", {"status": {"message": "waiting"}})
    editor.api.delete(f"{pods}/huge", {"gracePeriodSeconds": 0})
    assert webhook.requests == []


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "fairgpu-system"])
def test_a_pod_of_a_system_namespace_is_not_sent(
    control_plane: ControlPlane, webhook: Reviewer, namespace: str
) -> None:
    assert sent(control_plane, webhook, f"/api/v1/namespaces/{namespace}/pods", _pod_with("nvidia.com/gpu")) == []


AGAIN: dict[str, tuple[Any, list[str]]] = {
    "with a request of another dialect": (
        {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}},
        ["/mutate"],
    ),
    "with an annotation that asks": ({"metadata": {"annotations": {"gpu-fraction": "0.3"}}}, ["/mutate"]),
    "with one that has the container's name": ({"metadata": {"annotations": {OF_A_CONTAINER: "4Gi"}}}, ["/mutate"]),
    "with another scheduler": ({"spec": {"schedulerName": "default-scheduler"}}, ["/mutate"]),
    "with a class": ({"spec": {"priorityClassName": "system-node-critical"}}, ["/mutate"]),
}


@pytest.mark.parametrize("way", AGAIN)
def test_a_manifest_that_brings_back_what_was_rewritten_is_sent(
    control_plane: ControlPlane, webhook: Reviewer, pods: str, way: str
) -> None:
    """The API server itself refuses a change of an immutable field, after the mutating webhook."""
    patch, seen = AGAIN[way]
    api = control_plane.admin.api
    api.create(pods, canonical_pod())
    webhook.requests.clear()
    with suppress(ApiError):
        api.patch(f"{pods}/gpu", patch, STRATEGIC_MERGE_PATCH)
    api.delete(f"{pods}/gpu", {"gracePeriodSeconds": 0})
    # The API server asks again where the object in its cache turned out not to be the newest.
    assert list(dict.fromkeys(request["path"] for request in webhook.requests)) == seen


def test_debugging_containers_of_gpu_pods_are_sent(control_plane: ControlPlane, webhook: Reviewer, pods: str) -> None:
    api = control_plane.admin.api
    api.create(pods, canonical_pod())
    webhook.requests.clear()
    api.patch(f"{pods}/gpu/ephemeralcontainers", DEBUGGER, STRATEGIC_MERGE_PATCH)
    api.delete(f"{pods}/gpu", {"gracePeriodSeconds": 0})
    assert {(request.get("subResource", ""), request["path"]) for request in webhook.requests} == {
        ("ephemeralcontainers", "/validate")
    }


def others_write(api: KubernetesAPI, namespace: str, gpu: str) -> None:
    """Writes to a running GPU pod as controllers, CNIs, schedulers, nodes and people do."""
    # An owner that were not there would have the pod collected.
    owner = {"metadata": {"generateName": "owner-"}}
    made = api.create(f"/api/v1/namespaces/{namespace}/configmaps", owner)["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": made["name"], "uid": made["uid"]}
    for patch in (
        {"metadata": {"labels": {"run": "7"}}},
        {"metadata": {"annotations": {"k8s.ovn.org/pod-networks": "{}"}}},
        {"metadata": {"ownerReferences": [reference]}},
        {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}},
        {"metadata": {"finalizers": None}},
        {"spec": {"schedulingGates": [{"name": "fairgpu.io/budget"}], "nodeSelector": {"pool": "gpu"}}},
    ):
        api.patch(gpu, patch)
    api.patch(gpu, {"spec": {"containers": [{"name": "main", "image": "example.org/train:2"}]}}, STRATEGIC_MERGE_PATCH)
    bigger = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]}}
    api.patch(f"{gpu}/resize", bigger, STRATEGIC_MERGE_PATCH)
    api.patch(f"{gpu}/status", {"status": {"message": "waiting"}})
    api.delete(gpu, {"gracePeriodSeconds": 0})


def test_a_write_of_others_at_a_gpu_pod_waits_for_no_webhook(
    control_plane: ControlPlane, webhook: Reviewer, namespace: str, pods: str
) -> None:
    control_plane.admin.api.create(pods, canonical_pod(gated=True))
    webhook.requests.clear()
    others_write(control_plane.admin.api, namespace, f"{pods}/gpu")
    assert webhook.requests == []


def workload(kind: str, pod: Pod) -> tuple[str, dict[str, Any]]:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    spec: dict[str, Any] = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    group = "apps"
    if kind in ("Job", "CronJob"):
        group = "batch"
        template["spec"]["restartPolicy"] = "Never"
        spec = {"template": template}
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    document = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    return f"/apis/{group}/v1/namespaces/{{}}/{kind.lower()}s", document


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"])
def test_a_template_is_validated_if_its_pods_would_be(
    control_plane: ControlPlane, webhook: Reviewer, namespace: str, kind: str
) -> None:
    path, document = workload(kind, _pod_with("tencent.com/vcuda-core"))
    assert sent(control_plane, webhook, path.format(namespace), document) == ["/validate"]
    path, document = workload(kind, plain_pod())
    assert sent(control_plane, webhook, path.format(namespace), document) == []
    path, document = workload(kind, plain_pod())
    template = document["spec"].get("jobTemplate", document)["spec"]["template"]
    template["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    assert sent(control_plane, webhook, path.format(namespace), document) == ["/validate"]


def test_with_the_webhook_down_plain_pods_are_created_and_gpu_pods_are_not(
    control_plane: ControlPlane, webhook: Reviewer, namespace: str, pods: str
) -> None:
    api = control_plane.admin.api
    api.create(pods, canonical_pod("gpu", gated=True))
    for path, count in zip(CONFIGURATIONS, (3, 4), strict=True):
        api.patch(
            path,
            [{"op": "replace", "path": f"/webhooks/{n}/clientConfig/service/port", "value": 1} for n in range(count)],
            "application/json-patch+json",
        )

    def down() -> bool:
        webhook.requests.clear()
        _try_anything(api, pods)
        return not webhook.requests

    wait_until(down, "no request reaches the webhook")
    with pytest.raises(ApiError, match="failed calling webhook"):
        api.create(pods, canonical_pod(), DRY_RUN)
    api.create(pods, plain_pod(), DRY_RUN)
    path, document = workload("Deployment", _pod_with("nvidia.com/gpu"))
    api.create(path.format(namespace), document, DRY_RUN)
    others_write(api, namespace, f"{pods}/gpu")


def _try_anything(api: KubernetesAPI, pods: str) -> None:
    try:
        api.create(pods, canonical_pod(), DRY_RUN)
    except ApiError as error:
        if error.status != 500:
            raise
