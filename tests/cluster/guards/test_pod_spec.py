"""The policy fairgpu-spec: what may be created as a GPU pod, by any author or controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.container_parser import MAX_CONTAINERS
from fairgpu.dialects.registry import FOREIGN
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.support.waiting import wait_until
from webhook.admission.checks import MAX_GATES, MAX_VOLUMES

DRY_RUN = {"dryRun": "All"}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture(scope="module")
def namespace(common_namespace: str) -> str:
    return common_namespace


@pytest.fixture(scope="module")
def editor(control_plane: ControlPlane, namespace: str) -> Identity:
    return control_plane.namespace_admin(namespace)


def refused(who: Identity, pods: str, pod: Pod) -> str:
    with pytest.raises(ApiError) as refusal:
        who.api.create(pods, pod, DRY_RUN)
    assert refusal.value.status == 403
    assert "fairgpu-spec" in refusal.value.message
    return refusal.value.message


def test_a_pod_in_canonical_form_is_created(editor: Identity, pods: str) -> None:
    editor.api.create(pods, canonical_pod(), DRY_RUN)
    editor.api.create(pods, canonical_pod(priority_class="gpu-over-budget"), DRY_RUN)
    editor.api.create(pods, canonical_pod(gated=True), DRY_RUN)


@pytest.mark.parametrize("resource", sorted(FOREIGN.resources))
@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_a_request_in_another_dialect_that_nobody_read_is_refused(
    editor: Identity, pods: str, resource: str, place: str
) -> None:
    for pod in (plain_pod(), canonical_pod()):
        extra = {"name": "extra", "image": "example.org/app:1", "resources": {"limits": {resource: "1"}}}
        pod["spec"].setdefault(place, []).append(extra)
        message = refused(editor, pods, pod)
        assert "has not read (containers extra)" in message


@pytest.mark.parametrize("annotation", sorted(FOREIGN.requesting_annotations))
def test_an_annotation_that_asks_for_a_gpu_and_that_nobody_read_is_refused(
    editor: Identity, pods: str, annotation: str
) -> None:
    pod = plain_pod()
    pod["metadata"]["annotations"] = {annotation: "1"}
    assert f"has not read (annotations {annotation})" in refused(editor, pods, pod)


@pytest.mark.parametrize("end", ["request", "limit"])
def test_so_is_one_that_has_the_name_of_its_container(editor: Identity, pods: str, end: str) -> None:
    pod = plain_pod()
    name = pod["spec"]["containers"][0]["name"]
    pod["metadata"]["annotations"] = {f"nvidia.com/container.{name}.gpu-memory.{end}": "4Gi"}
    assert f"has not read (containers {name})" in refused(editor, pods, pod)
    pod["metadata"]["annotations"] = {f"nvidia.com/container.other.gpu-memory.{end}": "4Gi"}
    editor.api.create(pods, pod, DRY_RUN)


def _drop(spec: dict[str, Any], field: str) -> None:
    del spec[field]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: _drop(spec, "initContainers"), "spec.initContainers: no native sidecar fairgpu-sidecar"),
        (lambda spec: spec["initContainers"][0].update(name="other"), "spec.initContainers: no native sidecar"),
        (lambda spec: _drop(spec["initContainers"][0], "restartPolicy"), "spec.initContainers: no native sidecar"),
        (lambda spec: spec["initContainers"][0].update(image="example.org/sidecar:1"), "an image of localhost/fairgpu"),
        (lambda spec: spec["initContainers"][0].update(image="localhost/fairgpu/sidecar-x:1"), "spec.initContainers"),
        (lambda spec: spec["initContainers"][0].update(image="localhost/fairgpu/sidecar/x:1"), "spec.initContainers"),
        (lambda spec: spec["volumes"].pop(), "spec.volumes: no emptyDir fairgpu-usage beside a projected"),
        (lambda spec: spec["volumes"][1].update(projected={"sources": []}), "spec.volumes"),
        (lambda spec: spec["volumes"].__setitem__(0, {"name": "fairgpu-usage", "hostPath": {"path": "/"}}), "volumes"),
        (lambda spec: spec.update(schedulerName="default-scheduler"), "spec.schedulerName: not fairgpu-scheduler"),
        (lambda spec: _drop(spec, "schedulerName"), "spec.schedulerName: not fairgpu-scheduler"),
        (lambda spec: _drop(spec, "priorityClassName"), "spec.priorityClassName: none of gpu-in-budget, gpu-over"),
        (lambda spec: spec.update(priorityClassName="system-node-critical"), "spec.priorityClassName: none of"),
        (lambda spec: spec.update(nodeName="n1"), "spec.nodeName: given"),
    ],
)
def test_a_gpu_pod_that_lacks_what_the_webhook_adds_is_refused(
    editor: Identity, pods: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    pod = canonical_pod()
    change(pod["spec"])
    if "containers" in message or "volumes" in message:
        pod["spec"]["containers"][0].pop("volumeMounts")
    assert message in refused(editor, pods, pod)


def test_all_faults_of_a_gpu_pod_are_named_at_once(editor: Identity, pods: str) -> None:
    pod = plain_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"fairgpu.io/gpu": "1"}}
    message = refused(editor, pods, pod)
    for field in ("spec.initContainers", "spec.volumes", "spec.schedulerName", "spec.priorityClassName"):
        assert field in message


def test_a_pod_of_300_gpu_containers_stays_within_what_policies_may_cost(editor: Identity, pods: str) -> None:
    pod = canonical_pod("large")
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**main, "name": f"c{index}"} for index in range(300)]
    pod["metadata"]["annotations"] |= {f"example.org/note-{index}": "x" * 100 for index in range(300)}
    editor.api.create(pods, pod)
    editor.api.patch(f"{pods}/large", {"metadata": {"labels": {"run": "7"}, "annotations": {"example.org/more": "1"}}})


@pytest.mark.parametrize("version", [":0.1.1", "@sha256:" + "0" * 64])
def test_any_version_of_the_sidecar_will_do_so_that_an_upgrade_has_no_gap(
    editor: Identity, pods: str, version: str
) -> None:
    pod = canonical_pod()
    pod["spec"]["initContainers"][0]["image"] = f"localhost/fairgpu/sidecar{version}"
    editor.api.create(pods, pod, DRY_RUN)


@pytest.mark.parametrize("pod", [plain_pod(), canonical_pod()], ids=["plain", "gpu"])
def test_no_pod_brings_an_allocation_along(editor: Identity, pods: str, pod: Pod) -> None:
    pod["metadata"].setdefault("annotations", {})["fairgpu.io/allocation"] = "{}"
    assert "metadata.annotations[fairgpu.io/allocation]: FairGPU's scheduler writes it" in refused(editor, pods, pod)


def test_the_budgets_gate_holds_no_pod_without_a_gpu(editor: Identity, pods: str) -> None:
    pod = plain_pod()
    pod["spec"]["schedulingGates"] = [{"name": "fairgpu.io/budget"}]
    assert "this pod asks for no GPU: remove the gate" in refused(editor, pods, pod)
    pod["spec"]["schedulingGates"] = [{"name": "example.org/own"}]
    editor.api.create(pods, pod, DRY_RUN)


def test_the_meters_finalizer_keeps_no_pod_without_a_gpu(editor: Identity, pods: str) -> None:
    pod = plain_pod("kept")
    pod["metadata"]["finalizers"] = ["fairgpu.io/meter"]
    assert "this pod asks for no GPU: remove the finalizer" in refused(editor, pods, pod)


@pytest.mark.parametrize("value", ["gpu", "cpu"])
def test_the_label_of_gpu_pods_is_on_these_and_on_no_others(editor: Identity, pods: str, value: str) -> None:
    pod = plain_pod()
    pod["metadata"]["labels"] = {"fairgpu.io/pod": value}
    assert "this pod asks for no GPU: remove the label" in refused(editor, pods, pod)
    pod = canonical_pod()
    pod["metadata"]["labels"] = {"fairgpu.io/pod": "cpu"}
    assert 'metadata.labels[fairgpu.io/pod]: not "gpu"' in refused(editor, pods, pod)
    del pod["metadata"]["labels"]
    assert 'metadata.labels[fairgpu.io/pod]: not "gpu"' in refused(editor, pods, pod)


@pytest.mark.parametrize("field", ["containers", "initContainers", "schedulingGates"])
def test_a_list_that_nothing_can_look_through_in_time_is_refused(editor: Identity, pods: str, field: str) -> None:
    pod = plain_pod()
    item = {"image": "example.org/app:1"} if field != "schedulingGates" else {}
    pod["spec"][field] = [{"name": f"example-{number}", **item} for number in range(3000)]
    assert f"spec.{field}: given 3000; allowed: at most" in refused(editor, pods, pod)


def test_a_gpu_pod_may_have_as_much_of_each_list_as_the_webhook_lets_in(editor: Identity, pods: str) -> None:
    pod, app = canonical_pod(gated=True), {"image": "example.org/app:1"}
    spec = pod["spec"]
    for field, most in (("containers", MAX_CONTAINERS), ("initContainers", MAX_CONTAINERS + 1)):
        spec[field] += [{"name": f"c{len(field)}-{number}", **app} for number in range(most - len(spec[field]))]
    # The API server adds the token of the pod's account, before it calls the webhook.
    spec["volumes"] += [{"name": f"v{number}", "emptyDir": {}} for number in range(MAX_VOLUMES - 1)]
    spec["schedulingGates"] += [{"name": f"example.org/{number}"} for number in range(MAX_GATES - 1)]
    editor.api.create(pods, pod, DRY_RUN)
    spec["volumes"].append({"name": "one-more", "emptyDir": {}})
    assert "among at most 256" in refused(editor, pods, pod)


def test_a_job_gets_no_gpu_past_the_guard_either(
    editor: Identity, namespace: str, create_workload: Callable[[Identity, str, Pod], None]
) -> None:
    template = plain_pod()
    del template["apiVersion"], template["kind"], template["metadata"]["name"]
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template}}
    create_workload(editor, f"/apis/batch/v1/namespaces/{namespace}/jobs", job)

    def refusal() -> str | None:
        events = editor.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return next((event["message"] for event in events if event["reason"] == "FailedCreate"), None)

    assert "has not read (containers main)" in wait_until(refusal, "the job controller says why it has no pod")
    pods = editor.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert not any(pod["metadata"].get("ownerReferences") for pod in pods)


def test_a_namespace_cannot_pass_for_one_that_is_not_guarded(
    editor: Identity, control_plane: ControlPlane, namespace: str, pods: str
) -> None:
    disguise = {"metadata": {"labels": {"kubernetes.io/metadata.name": "kube-system"}}}
    relabelled = editor.api.patch(f"/api/v1/namespaces/{namespace}", disguise)
    assert relabelled["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace
    pod = plain_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    refused(editor, pods, pod)
    control_plane.admin.api.create("/api/v1/namespaces/kube-system/pods", pod, DRY_RUN)
