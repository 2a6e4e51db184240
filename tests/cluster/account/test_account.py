"""The mode account on a control plane with the stock kube-scheduler: held, granted, evicted, and taken away again.

The node has `nvidia.com/gpu` as NVIDIA's device plugin advertises it. Nothing of FairGPU places a pod here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from fairgpu.cluster.api import ApiError
from fairgpu.names import POLICIES
from tests.cluster.account.installed import API, ONE, grant, installed_account, pod, settings_of
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.processes import Process
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.installation import Manifest
from tests.cluster.services.replicas import Ports, webhook_replica
from tests.support.ledger.periods import month_midway
from tests.support.ports import free_ports
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until

GATE = [{"name": "fairgpu.io/budget"}]
CLAIMS = "/apis/resource.k8s.io/v1"
KIND = {"apiVersion": "resource.k8s.io/v1"}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8"}
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


@dataclass(frozen=True)
class Account:
    """The installation: its manifests as an admin applies them, the node of the other stack, and its services.

    `serve` starts timekeeper and webhook with a setting of `end_proof`, in place of those that run. `webhook` returns
    the process of the webhook that runs now.
    """

    plane: ControlPlane
    manifests: list[Manifest]
    node: StandInNode
    serve: Callable[[str], None]
    webhook: Callable[[], Process]


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """One of its own: nothing else here would be as the other tests made it."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


@pytest.fixture(scope="module")
def account(control_plane: ControlPlane) -> Iterator[Account]:
    plane = control_plane
    node = _create_node(plane, "shared-by-another")
    with installed_account(plane) as installed:
        yield Account(plane, installed.manifests, node, installed.serve, installed.webhook)


@pytest.fixture
def user(account: Account, namespace: str) -> Identity:
    return account.plane.namespace_admin(namespace)


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def budget(account: Account, namespace: str) -> Callable[..., str]:
    """Creates the namespace's budget, and returns once the webhook holds pods by it, where it is to do so."""

    def create(**spec: Any) -> str:
        name = f"budget-{namespace}"
        item = {
            "apiVersion": "fairgpu.io/v1alpha1",
            "kind": "GPUBudget",
            "metadata": {"name": name},
            "spec": {"namespaces": [namespace], "period": month_midway(), "onExhausted": "hold", **spec},
        }
        account.plane.admin.api.create(f"{API}/gpubudgets", item)
        return name

    return create


@pytest.fixture(scope="module")
def devices(account: Account) -> None:
    """Some GPUs as NVIDIA's driver publishes them, and their DeviceClass."""
    plane = account.plane
    selectors = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    device_class = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": selectors}}
    plane.admin.api.create(f"{CLAIMS}/deviceclasses", {**KIND, **device_class})
    parts = {
        "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": account.node.name,
        "pool": {"name": account.node.name, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", **parts} for number in range(2)],
    }
    item = {**KIND, "kind": "ResourceSlice", "metadata": {"name": "gpus"}, "spec": spec}
    plane.admin.api.create(f"{CLAIMS}/resourceslices", item)


def asking(device_class: str) -> Manifest:
    """The spec of a claim for one device of a class."""
    return {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": device_class}}]}}


def held(user: Identity, pods: str, name: str = "held") -> Manifest:
    """A pod that admission held: tried until the webhook has the state of the budget."""

    def created() -> Manifest | None:
        item = user.api.create(pods, pod(name, ONE), {"dryRun": "All"})
        return item if item["spec"].get("schedulingGates") == GATE else None

    wait_until(created, "the webhook knows that the budget is spent")
    return user.api.create(pods, pod(name, ONE))


def test_a_pod_keeps_its_request_and_the_stock_scheduler_binds_it(account: Account, user: Identity, pods: str) -> None:
    stored = user.api.create(pods, pod("train", ONE))
    bound = wait_until(lambda: _bound(user, f"{pods}/train"), "the stock scheduler binds the pod")

    assert bound["spec"]["nodeName"] == account.node.name
    assert stored["spec"]["containers"][0]["resources"] == {"limits": ONE, "requests": ONE}
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert stored["metadata"]["labels"] == {"fairgpu.io/pod": "gpu"}
    assert stored["metadata"]["annotations"]["fairgpu.io/created-by"] == user.name
    assert not {"initContainers", "priorityClassName"} & stored["spec"].keys()
    assert not [volume for volume in stored["spec"]["volumes"] if volume["name"].startswith("fairgpu-")]


def test_a_held_budget_gates_the_pod_and_a_grant_releases_it_to_the_stock_scheduler(
    account: Account, user: Identity, pods: str, budget: Callable[..., str]
) -> None:
    name = budget(allowance={"gpuHours": 0})
    held(user, pods)
    assert "nodeName" not in user.api.get(f"{pods}/held")["spec"]

    grant(account.plane, name, 5)
    bound = wait_until(lambda: _bound(user, f"{pods}/held"), "the grant pays for the pod, and it is bound")
    assert bound["spec"]["nodeName"] == account.node.name
    assert "schedulingGates" not in bound["spec"]
    spent = wait_until(lambda: _spent(account.plane, name), "the pod is charged")
    assert spent > 0


def test_a_pod_with_a_node_is_refused_while_its_budget_is_held(
    account: Account, user: Identity, pods: str, budget: Callable[..., str]
) -> None:
    budget(allowance={"gpuHours": 0})
    held(user, pods)
    with pytest.raises(ApiError, match=r"spec\.nodeName") as refusal:
        user.api.create(pods, pod("placed", ONE, nodeName=account.node.name))
    assert "allowed: no node while the GPU budget is spent" in refusal.value.message


def test_a_running_pod_of_a_spent_budget_is_evicted_where_the_budget_says_so(
    account: Account, user: Identity, namespace: str, pods: str, budget: Callable[..., str]
) -> None:
    user.api.create(pods, pod("train", ONE))
    wait_until(lambda: _bound(user, f"{pods}/train"), "the pod is bound")
    account.node.set_pod_phase(namespace, "train", "Running")
    budget(allowance={"gpuHours": 0}, enforcement="evict", evictionNotice="1s")

    wait_until(lambda: "deletionTimestamp" in user.api.get(f"{pods}/train")["metadata"], "the pod is evicted")


def test_a_budget_that_only_deprioritizes_says_that_nothing_yields(
    account: Account, budget: Callable[..., str]
) -> None:
    name = budget(allowance={"gpuHours": 1}, onExhausted="deprioritize")

    def condition() -> Any:
        status = account.plane.admin.api.get(f"{API}/gpubudgets/{name}").get("status", {})
        return next((one for one in status.get("conditions", []) if one["type"] == "NothingYields"), None)

    found = wait_until(condition, "the condition")
    assert found["status"] == "True"
    assert "onExhausted: hold" in found["message"]


def test_a_budget_names_its_namespaces_whose_quota_counts_nothing(
    account: Account, user: Identity, namespace: str, pods: str, budget: Callable[..., str]
) -> None:
    name = budget(allowance={"gpuHours": 1})
    metadata = {"name": "gpus", "namespace": namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    hard = {"requests.fairgpu.io/gpu-core": "100"}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    account.plane.admin.api.create(path, {**quota, "spec": {"hard": hard}})
    user.api.create(pods, pod("train", ONE))

    def condition() -> Any:
        status = account.plane.admin.api.get(f"{API}/gpubudgets/{name}").get("status", {})
        return next((one for one in status.get("conditions", []) if one["type"] == "QuotaCountsNothing"), None)

    assert namespace in wait_until(condition, "the condition")["message"]
    account.plane.admin.api.delete(f"{path}/gpus")
    wait_until(lambda: condition() is None, "it is taken back")


def test_the_pods_of_a_job_wait_together(
    account: Account,
    user: Identity,
    namespace: str,
    pods: str,
    budget: Callable[..., str],
    create_workload: Callable[[Identity, str, Manifest], None],
) -> None:
    name = budget(allowance={"gpuHours": 0}, minRuntime="1h")
    held(user, pods, "first")
    account.plane.admin.api.delete(f"{pods}/first", {"gracePeriodSeconds": 0})
    template = {"spec": {**pod("x", ONE)["spec"], "restartPolicy": "Never"}}
    spec = {"completions": 2, "parallelism": 2, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
    create_workload(user, f"/apis/batch/v1/namespaces/{namespace}/jobs", job)

    def of_the_job() -> list[Manifest]:
        found: list[Manifest] = user.api.get(pods)["items"]
        return found if len(found) == 2 else []

    waiting = wait_until(of_the_job, "the Job's pods")
    assert [one["spec"].get("schedulingGates") for one in waiting] == [GATE, GATE]
    grant(account.plane, name, 2)
    wait_until(lambda: all(one["spec"].get("nodeName") for one in of_the_job() or [{"spec": {}}]), "both are bound")


def test_a_claim_for_a_nic_comes_back_unchanged_and_one_for_a_gpu_is_marked(
    account: Account, user: Identity, namespace: str, pods: str
) -> None:
    assert account
    templates = f"{CLAIMS}/namespaces/{namespace}/resourceclaimtemplates"
    for name, device_class in (("nic", "nic.example.com"), ("gpu", "gpu.nvidia.com")):
        item = {**KIND, "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
        user.api.create(templates, {**item, "spec": {"spec": asking(device_class)}})

    def labels(name: str) -> Any:
        claims = [{"name": "one", "resourceClaimTemplateName": name}]
        item = pod(f"claims-{name}", {"cpu": "1"}, resourceClaims=claims)
        return user.api.create(pods, item, {"dryRun": "All"})["metadata"].get("labels", {})

    wait_until(lambda: labels("nic") == {}, "the webhook has seen what the claim is for")
    assert labels("gpu") == {"fairgpu.io/pod": "gpu"}


@pytest.mark.usefixtures("devices")
def test_a_claim_for_a_gpu_is_held_released_allocated_by_the_stock_scheduler_and_charged(
    account: Account, user: Identity, namespace: str, pods: str, budget: Callable[..., str]
) -> None:
    """Kube-scheduler and controllers make and allocate the claim."""
    plane = account.plane
    template = {"metadata": {"name": "gpu"}, "spec": {"spec": asking("gpu.nvidia.com")}}
    user.api.create(
        f"{CLAIMS}/namespaces/{namespace}/resourceclaimtemplates", {**KIND, "kind": "ResourceClaimTemplate", **template}
    )
    name = budget(allowance={"gpuHours": 0})
    held(user, pods, "first")
    claims = [{"name": "one", "resourceClaimTemplateName": "gpu"}]
    stored = user.api.create(pods, pod("claims", {"cpu": "1"}, resourceClaims=claims))
    assert stored["spec"]["schedulingGates"] == GATE

    grant(plane, name, 5)
    bound = wait_until(lambda: _bound(user, f"{pods}/claims"), "the claim is allocated and the pod is bound")
    assert bound["spec"]["nodeName"] == account.node.name
    rate = wait_until(lambda: _rate(plane, name, 2.0), "the pod's device and the other pod's GPU are charged")
    assert rate == 2.0


@pytest.mark.usefixtures("devices")
def test_a_pod_whose_claim_becomes_a_gpus_while_it_waits_is_labelled_guarded_and_evicted(
    account: Account, user: Identity, namespace: str, pods: str, budget: Callable[..., str]
) -> None:
    """The pod is admitted with a claim for another device, which is made again under its name, for a GPU."""
    claims = f"{CLAIMS}/namespaces/{namespace}/resourceclaims"
    budget(allowance={"gpuHours": 0}, enforcement="evict", evictionNotice="1s")

    def claim(device_class: str) -> None:
        item = {**KIND, "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": asking(device_class)}
        user.api.create(claims, item)

    own = [{"name": "example.org/own"}]
    named = [{"name": "one", "resourceClaimName": "mine"}]
    waiting = pod("waits", {"cpu": "1"}, resourceClaims=named, schedulingGates=own)
    held(user, pods)
    claim("nic.example.com")
    unlabelled = lambda: "labels" not in user.api.create(pods, waiting, {"dryRun": "All"})["metadata"]  # noqa: E731
    wait_until(unlabelled, "the webhook has seen what the claim is for")
    stored = user.api.create(pods, waiting)
    assert (stored["metadata"].get("labels"), stored["spec"]["schedulingGates"]) == (None, own)

    user.api.delete(f"{claims}/mine")
    claim("gpu.nvidia.com")
    user.api.patch(f"{pods}/waits", {"spec": {"schedulingGates": None}})
    wait_until(lambda: _bound(user, f"{pods}/waits"), "the claim is allocated and the pod is bound")
    account.node.set_pod_phase(namespace, "waits", "Running")
    labels = wait_until(lambda: user.api.get(f"{pods}/waits")["metadata"].get("labels"), "the pod gets the label")
    assert labels == {"fairgpu.io/pod": "gpu"}
    with pytest.raises(ApiError, match="fairgpu-deletion"):
        user.api.delete(f"{pods}/waits", {"gracePeriodSeconds": 0})
    wait_until(lambda: "deletionTimestamp" in user.api.get(f"{pods}/waits")["metadata"], "the pod is evicted")


def test_a_team_moves_to_share_and_back_by_the_label_of_its_namespace(
    account: Account, make_namespace: Callable[..., str]
) -> None:
    name = make_namespace("share-", labels={"fairgpu.io/mode": "share"})
    admin = account.plane.namespace_admin(name)
    path = f"/api/v1/namespaces/{name}/pods"

    def rewritten() -> Manifest | None:
        try:
            stored = admin.api.create(path, pod("shared", ONE), {"dryRun": "All"})
        except ApiError as error:
            if error.status == 403:
                return None
            raise
        return stored if "fairgpu.io/gpu" in stored["spec"]["containers"][0]["resources"]["limits"] else None

    stored = wait_until(rewritten, "the API server has read the namespace's label")
    assert stored["spec"]["schedulerName"] == "fairgpu-scheduler"
    with pytest.raises(ApiError, match="fairgpu-namespace"):
        admin.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"fairgpu.io/mode": "account"}}})

    def left_alone() -> Manifest | None:
        try:
            stored = admin.api.create(path, pod("back", ONE), {"dryRun": "All"})
        except ApiError as error:
            if error.status == 403:  # webhook and policies read the label at different times
                return None
            raise
        return stored if stored["spec"].get("schedulerName") == "default-scheduler" else None

    account.plane.admin.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"fairgpu.io/mode": None}}})
    stored = wait_until(left_alone, "its new pods stay with the stack again")
    assert stored["spec"]["containers"][0]["resources"]["limits"] == ONE


def test_a_namespace_of_an_operator_is_left_alone(account: Account) -> None:
    plane = account.plane
    plane.admin.api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}}
    )
    stored = wait_until(lambda: _created(plane, "/api/v1/namespaces/gpu-operator/pods"), "its account is made")
    assert "labels" not in stored["metadata"]


def test_the_policies_say_what_is_not_as_the_settings_make_it_and_the_doctor_repeats_it(account: Account) -> None:
    plane = account.plane
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def said(name: str) -> tuple[str, str]:
        conditions = plane.admin.api.get(f"{policies}/{name}").get("status", {}).get("conditions", [])
        (found,) = [one for one in conditions if one["type"] == "RenderedFromSettings"] or [{}]
        return found.get("status", ""), found.get("message", "")

    names = POLICIES
    wait_until(lambda: {said(name)[0] for name in names} == {"True"}, "the webhook has compared the overlay")
    assert _doctor(plane)["policies"] == {}

    https, metrics, timekeeper = free_ports(3)
    settings = {**settings_of("WEBHOOK"), "FAIRGPU_WEBHOOK_MODE": "share"}
    with standing_still(account.webhook()):  # it compares at an interval, and would say again that all is well
        with webhook_replica(plane, "of-other-settings", Ports(https, metrics), timekeeper, **settings):
            wait_until(lambda: {said(name)[0] for name in names} == {"False"}, "one of other settings has compared")
        described = plane.admin.kubectl("describe", "validatingadmissionpolicy", "fairgpu-spec").stdout
        assert "mutatingwebhookconfigurations/zz-fairgpu" in described
        assert "`fairgpu render`" in described
        assert _doctor(plane)["policies"] == {name: said(name)[1] for name in names}

    bindings = [
        f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/fairgpu-{name}"
        for name in ("metadata", "claims")
    ]
    writers = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/fairgpu-pod-status-writers"
    subjects = plane.admin.api.get(writers)["subjects"]
    mallory = {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}
    for binding in bindings:
        plane.admin.api.patch(binding, {"spec": {"validationActions": ["Audit"]}})
    plane.admin.api.patch(writers, {"subjects": [*subjects, mallory]})
    try:
        (https, metrics) = free_ports(2)
        with webhook_replica(plane, "sees-bindings", Ports(https, metrics), timekeeper, **settings_of("WEBHOOK")):
            named = lambda name: said(name)[1].partition(":")[0].split(", ")  # noqa: E731 - read here alone
            differing = [path.split("/v1/")[1] for path in (*bindings, writers)]
            wait_until(lambda: all(named(name) == differing for name in names), "it says what does not hold")
    finally:
        for binding in bindings:
            plane.admin.api.patch(binding, {"spec": {"validationActions": ["Deny"]}})
        plane.admin.api.patch(writers, {"subjects": subjects})


@contextmanager
def standing_still(server: Process) -> Iterator[None]:
    """All processes of a server stand still for the length of a block."""
    os.killpg(server.popen.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(server.popen.pid, signal.SIGCONT)


def test_the_doctor_says_in_which_state_the_installation_is(account: Account) -> None:
    """No kubelet runs the parts here: the services run beside them, so that somebody leads and CAs are published."""
    found = _doctor(account.plane)
    parts = {part["name"]: part for part in found["installation"]["parts"]}
    matters = found["installation"]["matters"]

    assert found["missing"] == {"rightsForLook": [], "rightsForAccount": [], "features": []}
    assert parts["fairgpu-timekeeper"]["versions"] == ["0.1.0"]
    assert {"fairgpu-webhook", "fairgpu-certificates", "fairgpu-redis"} <= parts.keys()
    assert [one for one in matters if one.startswith("fairgpu-redis: 0 of 1 pods are ready")]
    assert not [one for one in matters if "leads" in one or "CA" in one or "version" in one]
    assert found["installation"]["notRead"] == []


def test_the_doctor_names_a_scheduler_until_it_has_the_right_that_it_needs(
    account: Account, user: Identity, pods: str
) -> None:
    plane = account.plane
    user.api.create(pods, pod("volcanic", ONE, schedulerName="volcano"))
    accounts = ["volcano-system:volcano-scheduler", "kube-system:volcano-device-plugin"]
    assert _doctor(plane)["modes"]["writers"]["volcano"] == accounts

    role = "--clusterrole=fairgpu-pod-status-writer"
    given = [f"--serviceaccount={account}" for account in accounts]
    plane.admin.kubectl("create", "clusterrolebinding", "volcano-writes-gpu-pods", role, *given)
    wait_until(lambda: "volcano" not in _doctor(plane)["modes"]["writers"], "the right is in force")


def test_going_back_leaves_no_pod_stuck_and_no_gate_finalizer_or_class(
    account: Account, user: Identity, namespace: str, pods: str, budget: Callable[..., str]
) -> None:
    """The last: it takes an installation with `end_proof: finalizer` away, by the commands of docs/adopting.md."""
    plane = account.plane
    account.serve("finalizer")
    user.api.create(pods, pod("train", ONE))
    wait_until(lambda: _bound(user, f"{pods}/train"), "the pod is bound")
    account.node.set_pod_phase(namespace, "train", "Running")
    budget(allowance={"gpuHours": 0})
    held(user, pods)
    assert {"train", "held"} <= set(_marked(plane, finalized=True))

    plane.admin.kubectl("delete", "gpubudgets", "--all")
    account.serve("observe")
    wait_until(lambda: _bound(user, f"{pods}/held"), "the gate is lifted and the pod is bound")
    wait_until(lambda: not _marked(plane), "no pod waits, and none has a finalizer")
    train = user.api.get(f"{pods}/train")
    assert (train["status"]["phase"], "deletionTimestamp" in train["metadata"]) == ("Running", False)
    before = _alive(plane)
    text = yaml.safe_dump_all([one for one in account.manifests if one["kind"] != "Namespace"])
    plane.admin.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text)

    def forgotten() -> bool:
        try:
            tried = user.api.create(pods, pod("afterwards", ONE), {"dryRun": "All"})
        except ApiError as error:
            if "fairgpu" in error.message:
                return False
            raise
        return "labels" not in tried["metadata"]

    wait_until(forgotten, "the API server has forgotten webhook and policies")
    assert "labels" not in user.api.create(pods, pod("afterwards", ONE))["metadata"]
    assert before <= _alive(plane)
    assert _marked(plane) == []
    classes = plane.admin.api.get("/apis/scheduling.k8s.io/v1/priorityclasses")["items"]
    assert not [one for one in classes if one["metadata"]["name"].startswith("gpu-")]
    user.api.delete(f"{pods}/train")
    account.node.remove_pod(namespace, "train")
    assert not plane.exists(f"{pods}/train"), "a pod of before does not end"


def _doctor(plane: ControlPlane) -> Any:
    """Returns the answer of `fairgpu doctor`."""
    command = [*FAIRGPU, "doctor", "--kubeconfig", str(plane.admin.kubeconfig), "-o", "json"]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    doctor = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return json.loads(doctor.stdout)


def _alive(plane: ControlPlane) -> set[tuple[str, str]]:
    """The namespace and name of each pod of others that is not deleted."""
    pods = plane.admin.api.get("/api/v1/pods")["items"]
    return {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in pods
        if "deletionTimestamp" not in one["metadata"] and one["metadata"]["namespace"] != "fairgpu-system"
    }


def _marked(plane: ControlPlane, *, finalized: bool = False) -> list[str]:
    """The pods that bear a gate, a finalizer or a class of FairGPU's; those with a finalizer alone on demand."""
    return [
        one["metadata"]["name"]
        for one in plane.admin.api.get("/api/v1/pods")["items"]
        if "fairgpu.io/meter" in one["metadata"].get("finalizers", [])
        or (
            not finalized
            and (
                one["spec"].get("schedulingGates") == GATE
                or str(one["spec"].get("priorityClassName", "")).startswith("gpu-")
            )
        )
    ]


def _create_node(plane: ControlPlane, name: str) -> StandInNode:
    kubelet = plane.node(name)
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **LABELS}}
    kubelet.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    ready = [{"type": "Ready", "status": "True", "reason": "Test", "message": "a test"}]
    status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": ready}
    kubelet.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    return StandInNode(name, kubelet)


def _bound(user: Identity, path: str) -> Manifest | None:
    found = user.api.get(path)
    return found if found["spec"].get("nodeName") else None


def _spent(plane: ControlPlane, budget: str) -> int:
    status = plane.admin.api.get(f"{API}/gpubudgets/{budget}").get("status", {})
    return int(status.get("spent", {}).get("microGPUSeconds", 0))


def _rate(plane: ControlPlane, budget: str, wanted: float) -> float | None:
    """The budget's rate in GPUs, once it is the wanted one."""
    status = plane.admin.api.get(f"{API}/gpubudgets/{budget}").get("status", {})
    found = float(status.get("burnRate", 0))
    return found if found == wanted else None


def _created(plane: ControlPlane, path: str) -> Manifest | None:
    try:
        return plane.admin.api.create(path, pod("validator", ONE))
    except ApiError as error:
        if "serviceaccount" in error.message:
            return None
        raise
