"""Pods that users create, through the API server alone."""

from __future__ import annotations

import json
from subprocess import CompletedProcess

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import create_node, place
from tests.cluster.journey.manifests import EACH_DIALECT, Manifest, limits_of, pod
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")

THIRTY_PERCENT = {"fairgpu.io/gpu-core": 30}


@pytest.mark.parametrize("dialect", EACH_DIALECT)
def test_a_pod_in_each_dialect_comes_in_with_canonical_resources_class_and_sidecar(
    user: Identity, namespace: str, dialect: str
) -> None:
    manifest, expected = EACH_DIALECT[dialect]
    created = user.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)
    spec, annotations = created["spec"], created["metadata"]["annotations"]
    assert limits_of(created) == expected
    assert spec["containers"][0]["resources"]["requests"] == spec["containers"][0]["resources"]["limits"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("gpu-in-budget", 1000, "Never")
    assert spec["schedulerName"] == "fairgpu-scheduler"
    assert [container["name"] for container in spec["initContainers"]] == ["fairgpu-sidecar"]
    assert annotations["fairgpu.io/created-by"] == user.name
    assert annotations["fairgpu.io/source-dialect"] == dialect


def test_a_pod_that_states_the_sum_of_its_containers_as_its_own_resources_comes_in(
    user: Identity, namespace: str
) -> None:
    """Since Kubernetes 1.34 a pod may state resources itself: its containers must not request more together."""
    limits = {**THIRTY_PERCENT, "cpu": "2", "memory": "1Gi"}
    path = f"/api/v1/namespaces/{namespace}/pods"
    equal = {"cpu": "2", "memory": "1Gi"}
    created = user.api.create(path, pod("equal", limits, resources={"requests": equal, "limits": equal}))
    assert (created["spec"]["resources"]["requests"], created["status"]["qosClass"]) == (equal, "Guaranteed")
    # The API server makes the pod's request of what the containers request.
    user.api.create(path, pod("limited", limits, resources={"limits": {"cpu": "4", "memory": "2Gi"}}))


def test_a_pod_without_a_gpu_is_not_touched(user: Identity, namespace: str) -> None:
    manifest = pod("plain", {"cpu": "100m"})
    created = user.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)
    assert "initContainers" not in created["spec"]
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert not any(key.startswith("fairgpu.io/") for key in created["metadata"].get("annotations", {}))


def test_a_refusal_names_every_field_what_was_given_and_what_to_write(user: Identity, namespace: str) -> None:
    manifest = pod("wrong", {"fairgpu.io/gpu-core": 150, "fairgpu.io/gpu-memory": "2Gi"})
    refused = user.kubectl("create", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert refused.returncode == 1
    assert "spec.containers[0].resources.limits[fairgpu.io/gpu-memory]" in refused.stderr
    assert "2048" in refused.stderr


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client-side", "server-side"])
@pytest.mark.parametrize("dialect", ["hami", "native"])
@pytest.mark.parametrize("tolerations", [[], [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]])
def test_applying_the_same_manifest_twice_changes_nothing(
    user: Identity, namespace: str, flags: tuple[str, ...], dialect: str, tolerations: list[Manifest]
) -> None:
    manifest, expected = EACH_DIALECT[dialect]
    spec = manifest["spec"] | ({"tolerations": tolerations} if tolerations else {})
    text = json.dumps(manifest | {"spec": spec})
    user.kubectl("apply", "-n", namespace, "-f", "-", *flags, stdin=text)
    before = user.api.get(f"/api/v1/namespaces/{namespace}/pods/{dialect}")
    again = user.kubectl("apply", "-n", namespace, "-f", "-", *flags, stdin=text)
    after = user.api.get(f"/api/v1/namespaces/{namespace}/pods/{dialect}")
    assert again.returncode == 0
    assert after["spec"] == before["spec"]
    assert limits_of(after) == expected


def test_a_deployment_whose_template_is_wrong_is_made_with_a_warning_that_says_what_to_write(
    user: Identity, namespace: str
) -> None:
    template = pod("unused", {"tencent.com/vcuda-core": 30})
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "wrong"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "wrong"}},
            "template": {"metadata": {"labels": {"app": "wrong"}}, "spec": template["spec"]},
        },
    }
    made = user.kubectl("apply", "-n", namespace, "-f", "-", stdin=deployment)
    assert "Warning:" in made.stderr
    assert "tencent.com/vcuda-memory" in made.stderr
    assert "spec.template.spec.containers[0]" in made.stderr


def created(who: Identity, namespace: str, item: Manifest) -> CompletedProcess[str] | None:
    """Returns kubectl's answer about an object that it creates; None as long as the object's kind is not served."""
    flags = ("--validate=false", "-f", "-")
    tried = who.kubectl("create", "-n", namespace, *flags, stdin=item, check=False)
    return tried if tried.returncode == 0 else None


def test_the_author_of_a_job_set_of_several_pods_with_fractions_is_asked_to_ask_for_whole_gpus(
    control_plane: ControlPlane, namespace: str
) -> None:
    group, api = "jobset.x-k8s.io", control_plane.admin.api
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": schema}
    names = {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"jobsets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(definitions, definition)
    template = {"spec": pod("", THIRTY_PERCENT)["spec"]}
    job = {"name": "workers", "replicas": 4, "template": {"spec": {"template": template}}}
    job_set = {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [job]},
    }
    try:
        made = wait_until(lambda: created(control_plane.admin, namespace, job_set), "JobSets are served")
        assert (
            "Warning: spec.replicatedJobs[0].template.spec.template: the JobSet makes 4 pods with GPUs" in made.stderr
        )
        assert "ask for whole GPUs" in made.stderr
    finally:
        api.delete(f"{definitions}/jobsets.{group}")


def test_a_job_of_a_foreign_dialect_runs_and_completes(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"node-{namespace}")
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    template = EACH_DIALECT["volcano"][0]["spec"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", **template}}},
    }
    user.kubectl("create", "-n", namespace, "-f", "-", stdin=job)
    path = f"/api/v1/namespaces/{namespace}/pods"
    pods = wait_until(lambda: user.api.get(path)["items"], "the job's pod")
    assert pods[0]["metadata"]["annotations"]["fairgpu.io/created-by"] == "Job/job"
    place(scheduler, pods[0], node.name)
    node.set_pod_phase(namespace, pods[0]["metadata"]["name"], "Running")
    node.set_pod_phase(namespace, pods[0]["metadata"]["name"], "Succeeded")
    done = f"/apis/batch/v1/namespaces/{namespace}/jobs/job"
    wait_until(lambda: user.api.get(done)["status"].get("succeeded") == 1, "the job completes")
    control_plane.admin.api.delete(f"/api/v1/nodes/{node.name}")


def quota(name: str, core: str, priority_class: str) -> Manifest:
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [priority_class]}]}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": {"requests.fairgpu.io/gpu-core": core}, "scopeSelector": selector},
    }


def test_the_class_by_which_kueue_ranks_is_in_a_pod_and_not_in_a_job_unless_both_name_a_class_of_kueues(
    user: Identity, namespace: str
) -> None:
    """Kueue takes its own label first, then spec.priority of a pod and spec.priorityClassName of a template."""
    label = {"kueue.x-k8s.io/priority-class": "high"}
    alone = pod("alone", THIRTY_PERCENT)
    alone["metadata"]["labels"] = label
    template = {"metadata": {"labels": label}, "spec": {**pod("", THIRTY_PERCENT)["spec"], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "labels": label},
        "spec": {"suspend": True, "template": template},
    }
    made = user.api.create(f"/api/v1/namespaces/{namespace}/pods", alone)
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("gpu-in-budget", 1000)
    assert made["metadata"]["labels"] == {**label, "fairgpu.io/pod": "gpu"}
    stored = user.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
    assert "priorityClassName" not in stored["spec"]["template"]["spec"]
    assert stored["metadata"]["labels"] == label


def test_a_quota_on_core_counts_by_the_class_that_the_budget_earned(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    control_plane.admin.api.create(quotas, quota("in-budget", "50", "gpu-in-budget"))
    control_plane.admin.api.create(quotas, quota("over-budget", "1000", "gpu-over-budget"))
    path = f"/api/v1/namespaces/{namespace}/pods"

    def tried() -> str:
        """Why a pod of more than the quota does not come in: admission reads quotas in the background."""
        try:
            user.api.create(path, pod("large", {"fairgpu.io/gpu-core": 60}), {"dryRun": "All"})
        except ApiError as error:
            return error.message
        return ""

    wait_until(lambda: "exceeded quota: in-budget" in tried(), "the quota counts")
    user.api.create(path, pod("first", THIRTY_PERCENT))
    with pytest.raises(ApiError, match="exceeded quota: in-budget") as refusal:
        user.api.create(path, pod("second", {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8}))
    assert refusal.value.status == 403
    used = control_plane.admin.api.get(f"{quotas}/in-budget")["status"]["used"]
    assert used == {"requests.fairgpu.io/gpu-core": "30"}


def test_a_dry_run_takes_the_same_way_and_leaves_nothing(user: Identity, namespace: str) -> None:
    manifest, expected = EACH_DIALECT["kai"]
    shown = user.kubectl(
        "create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(manifest)
    )
    assert limits_of(json.loads(shown.stdout)) == expected
    assert user.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"] == []


def test_debugging_a_gpu_pod_adds_an_ephemeral_container_without_a_gpu(user: Identity, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(path, pod("debugged", THIRTY_PERCENT))
    container = {"name": "debugger", "image": "example.org/shell:1"}
    patch = {"spec": {"ephemeralContainers": [container]}}
    patched = user.api.patch(f"{path}/debugged/ephemeralcontainers", patch, "application/strategic-merge-patch+json")
    assert patched["spec"]["ephemeralContainers"][0]["name"] == "debugger"
