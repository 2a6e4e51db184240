"""The mode `look` on a control plane whose GPUs are shared by others: first bills, and not one write outside."""

from __future__ import annotations

import json
import math
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from urllib.error import HTTPError

import pytest
import redis

from fairgpu.cluster.connect import connect
from tests.cluster.control_plane.control_plane import AUDIT_LOG, ControlPlane
from tests.cluster.control_plane.stand_ins import bind
from tests.cluster.installation import Manifest
from tests.cluster.look.devices import (
    asking_pod,
    claiming,
    create_claim,
    create_class,
    create_node,
    create_template,
    devices,
    publish,
)
from tests.cluster.look.installed import LOOK, SETTINGS, installed
from tests.cluster.look.queues import create_cluster_queue, create_local_queue, define_queues
from tests.cluster.services.replicas import environment
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.support.field_tables import undescribed
from tests.support.other_stacks import OWN_LINE, STACKS
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import parse_instant
from timekeeper.ledger import reading
from timekeeper.settings import read_settings
from timekeeper.sources.choosing import cluster_source
from timekeeper.sources.kubernetes import CONFIG_MAPS
from timekeeper.sources.looking import BUDGETS_MAP, STATUSES

ACCOUNT = "system:serviceaccount:fairgpu-system:fairgpu-timekeeper"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
CLAIMS = "/api/v1/namespaces/fairgpu-system/persistentvolumeclaims"
QUESTIONS = {"tokenreviews", "subjectaccessreviews"}
"""The resources that the API server answers and does not store."""

ASKING = {name: (stack, asking) for stack in STACKS for name, asking in stack.pods.items()}
CLAIMED = {"trainer": 2, "common": 1}
"""The GPUs of each claim: one is generated for a pod, and one is shared by two pods."""
FOUND = {
    "nvidia": 7,
    "nvidia with MIG": 4,
    "nvidia with shared GPUs": 3,
    "hami": 2,
    "volcano": 2,
    "aliyun": 1,
    "gpu-manager": 1,
    "amd": 2,
    "intel": 2,
    "gaudi": 1,
    "ascend": 3,
    "tpu": 1,
    "neuron": 1,
    "example.com/npu": 1,
    "claims of gpu.nvidia.com": 1,
}


def rate_of(gpus: Fraction) -> int:
    """The rate at price 1, in microGPU-seconds a second."""
    return math.ceil(gpus * GPU_SECOND)


EXPECTED = {name: rate_of(asking.gpus) for name, (_, asking) in ASKING.items()}
"""The rate of each pod that asks by a resource or an annotation."""
WHOLE_RATE = sum(EXPECTED.values()) + rate_of(Fraction(sum(CLAIMED.values())))


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> str:
    """A namespace whose pods the stock scheduler has bound, before anything of FairGPU is there."""
    for stack in STACKS:
        create_node(plane, stack.name, stack.capacity, stack.labels, stack.annotations)
    create_node(plane, "dra", {}, {}, {})
    publish(plane, "dra", devices("dra", 3))
    create_class(plane)
    namespace = plane.create_namespace("vision-")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name, (stack, asking) in ASKING.items():
        created = plane.admin.api.create(pods, asking_pod(name, stack, asking))
        if asking.scheduler:
            bind(plane.admin, created, stack.name, None)
    create_claim(plane, namespace, "common", 1)
    create_template(plane, namespace, "pair", 2)
    plane.admin.api.create(pods, claiming("trainer", resourceClaimTemplateName="pair"))
    for name in ("reader", "writer"):
        plane.admin.api.create(pods, claiming(name, resourceClaimName="common"))
    wait_until(lambda: all(pod["spec"].get("nodeName") for pod in _pods(plane, namespace)), "all pods are bound")
    return namespace


def test_the_doctor_says_beforehand_what_each_team_would_pay(plane: ControlPlane, team: str) -> None:
    settings = plane.folder / "doctor.yaml"
    settings.write_text(json.dumps({"timekeeper": {"other_stacks": {"resources": {"example.com/npu": OWN_LINE}}}}))
    command = [*FAIRGPU, "doctor", "--kubeconfig", str(plane.admin.kubeconfig), "--settings", str(settings)]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    printed = subprocess.run([*command, "-o", "json"], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(printed.stdout)
    text = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    assert found["stacks"] == FOUND
    rates = {pod["name"]: int(pod["rateMicroGPUSecondsPerSecond"]) for pod in found["pods"] if pod["namespace"] == team}
    assert _named(rates) == EXPECTED | {name: rate_of(Fraction(gpus)) for name, gpus in CLAIMED.items()}
    assert "AMD_Instinct_MI300X_OAM" in text
    pools = {pool["models"][0]: pool for pool in found["pools"] if pool["stacks"] == ["claims of gpu.nvidia.com"]}
    assert pools["NVIDIA A100-SXM4-80GB"]["pods"] == {team: 3}
    assert "To share, a team moves with its nodes" in text


def test_the_doctor_finds_the_queues_by_which_kueue_gives_gpus(plane: ControlPlane, team: str) -> None:
    """Queues as an admin of Kueue writes them; no controller of Kueue's runs."""
    define_queues(plane)
    create_cluster_queue(plane, "gpus", ["cpu", "nvidia.com/gpu"])
    create_local_queue(plane, team, "gpu", "gpus")
    command = [*FAIRGPU, "doctor", "--kubeconfig", str(plane.admin.kubeconfig), "-o", "json"]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    doctor = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    found = json.loads(doctor.stdout)
    assert undescribed("fairgpu doctor", found) == []
    assert found["modes"]["clusterQueues"] == [
        {"name": "gpus", "resources": ["nvidia.com/gpu"], "namespaces": [team], "coversShare": False}
    ]


@dataclass(frozen=True)
class Look:
    """The installed manifests, a client of them, and the state of the pods before."""

    client: TimekeeperClient
    manifests: list[Manifest]
    pods_before: list[Any]
    redis_url: str


@pytest.fixture(scope="module")
def look(plane: ControlPlane, team: str) -> Iterator[Look]:
    spec = f"namespaces: [{team}]\nallowance: {{gpuHours: 1}}\nperiod: {{every: month}}\n"
    pods_before = _pods(plane, team)
    with installed(plane, {"vision": spec, "broken": "namespaces: team"}) as found:
        yield Look(found.client, found.manifests, pods_before, found.redis_url)


def test_it_brings_nothing_that_acts_on_pods(look: Look) -> None:
    kinds = {item["kind"] for item in look.manifests}
    roles = [item for item in look.manifests if item["kind"] == "ClusterRole"]
    (role,) = [item for item in roles if item["metadata"]["name"] == "fairgpu-timekeeper"]
    changing = [rule for rule in role["rules"] if not set(rule["resources"]) <= QUESTIONS]

    assert not {kind for kind in kinds if "Webhook" in kind or "Policy" in kind} - {"NetworkPolicy"}
    assert not kinds & {"CustomResourceDefinition", "PriorityClass", "DaemonSet"}
    assert {verb for rule in changing for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_each_pod_and_claim_has_the_rate_of_what_it_holds_by_its_own_stack(look: Look, team: str) -> None:
    def rates() -> dict[str, int] | None:
        found = look.client.get("/v1/sessions", namespace=team)["sessions"]
        return _rates(found) if len(found) == len(EXPECTED) + len(CLAIMED) else None

    claimed = {name: rate_of(Fraction(gpus)) for name, gpus in CLAIMED.items()}
    assert _named(wait_until(rates, "a session of each pod and claim")) == EXPECTED | claimed


def test_a_team_sees_its_first_bill_from_a_config_map(look: Look) -> None:
    budget = wait_until(lambda: _spent(look, "vision"), "the first bill")

    assert budget["state"] == "open"
    assert int(budget["rate"]["microGPUSecondsPerSecond"]) == WHOLE_RATE


def test_metering_began_with_the_installation_and_not_with_the_pods(look: Look, team: str) -> None:
    began = wait_until(lambda: _stored_since(look), "the stored beginning")
    sessions = wait_until(lambda: look.client.get("/v1/sessions", namespace=team)["sessions"], "sessions")

    assert {parse_instant(one["start"]) // SECOND for one in sessions} == {began // SECOND}


def test_a_changed_line_of_the_config_map_is_in_force_without_a_restart(plane: ControlPlane, look: Look) -> None:
    line = "namespaces: [elsewhere]\nallowance: {gpuHours: 7}\nperiod: {every: day}\n"
    plane.admin.api.patch(f"{CONFIG_MAPS}/{BUDGETS_MAP}", {"data": {"other": line}})

    def figures() -> Any:
        return next((one for one in look.client.get("/v1/budgets")["budgets"] if one["name"] == "other"), None)

    assert wait_until(figures, "the new budget")["available"]["gpuHours"] == 7


def test_a_process_that_does_not_lead_learns_each_status_that_the_leader_writes(
    plane: ControlPlane, look: Look
) -> None:
    """Such a process restores an emptied store from these statuses once it leads."""
    assert look
    ending = threading.Event()
    account = environment(plane, "fairgpu-timekeeper")
    source = cluster_source(read_settings(account | SETTINGS, None), connect(account), None)
    source.start(ending.wait)
    try:
        wait_until(source.mirrors.budgets.items, "the budgets")
        line = "namespaces: [late]\nallowance: {gpuHours: 7}\nperiod: {every: day}\n"
        plane.admin.api.patch(f"{CONFIG_MAPS}/{BUDGETS_MAP}", {"data": {"late": line}})

        def period() -> Any:
            found = next((one for one in source.mirrors.budgets.items() if one["metadata"]["name"] == "late"), {})
            return found.get("status", {}).get("period")

        assert wait_until(period, "the status of a budget that is new").keys() == {"start", "end"}
    finally:
        ending.set()


def test_a_line_that_is_no_budget_is_named_in_its_status(plane: ControlPlane, look: Look) -> None:
    assert look

    def condition() -> Any:
        text = plane.admin.api.get(STATUSES).get("data", {}).get("broken") if plane.exists(STATUSES) else None
        ready = [one for one in json.loads(text)["conditions"] if one["type"] == "Ready"] if text else []
        return ready[0] if ready else None

    found = wait_until(condition, "the status of the broken line")
    assert (found["status"], "namespaces" in found["message"]) == ("False", True)


def test_a_grant_is_refused_with_what_to_do_instead(look: Look) -> None:
    with pytest.raises(HTTPError) as refused:
        look.client.post("/v1/grants", {"name": "more", "budget": "vision", "gpuHours": 1, "reason": "deadline"})

    assert refused.value.code == 409
    assert "fairgpu-budgets" in json.load(refused.value)["detail"]


def test_the_audit_of_the_books_finds_no_difference(plane: ControlPlane, look: Look) -> None:
    wait_until(lambda: _spent(look, "vision"), "the first bill")
    settings = environment(plane, "fairgpu-timekeeper") | {
        **SETTINGS,
        "FAIRGPU_TIMEKEEPER_REDIS_URL": look.redis_url,
    }
    done = subprocess.run([*FAIRGPU, "audit", "-o", "json"], env=settings, capture_output=True, text=True, check=False)

    assert (done.returncode, json.loads(done.stdout)["differences"]) == (0, []), done.stdout + done.stderr


def test_every_write_of_its_account_is_inside_its_namespace(plane: ControlPlane, look: Look, team: str) -> None:
    wait_until(lambda: plane.exists(STATUSES), "statuses were written")
    *lines, _ = (plane.folder / AUDIT_LOG).read_text().split("\n")  # the last may be half written
    writes = [
        (event["verb"], event["objectRef"].get("namespace"), event["objectRef"]["resource"])
        for event in map(json.loads, lines)
        if event["user"]["username"] == ACCOUNT
        and event["verb"] in WRITES
        and event.get("objectRef", {}).get("resource") not in QUESTIONS
    ]

    assert {resource for *_, resource in writes} == {"leases", "secrets", "configmaps"}
    assert {namespace for _, namespace, _ in writes} == {"fairgpu-system"}
    assert _pods(plane, team) == look.pods_before


def test_taking_it_away_leaves_nothing_of_it_and_every_pod_as_it_was(
    plane: ControlPlane, look: Look, team: str
) -> None:
    plane.admin.kubectl("delete", "-k", str(LOOK), "--wait=false")

    def ended() -> bool:
        if not plane.exists("/api/v1/namespaces/fairgpu-system"):
            return True
        # No kubelet confirms that pods have ended, and the controller that frees claims of volumes does not run here.
        plane.remove_pods("fairgpu-system")
        for claim in plane.admin.api.get(CLAIMS)["items"]:
            plane.remove_finalizers(f"{CLAIMS}/{claim['metadata']['name']}")
        return False

    wait_until(ended, "the namespace is gone")
    kinds = "crds,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies"
    left = plane.admin.kubectl("get", kinds, "-o", "name").stdout.splitlines()
    assert [name for name in left if "/fairgpu" in name or "fairgpu.io" in name] == []
    assert _pods(plane, team) == look.pods_before


def _rates(sessions: Any) -> dict[str, int]:
    return {one["pod"]: int(one["rate"]["microGPUSecondsPerSecond"]) for one in sessions}


def _named(rates: Mapping[str, int]) -> dict[str, int]:
    """Rates by a claim's own name, or by that of the pod that it was generated for."""
    return {name.removeprefix("resourceclaim/").partition("-gpu-")[0]: rate for name, rate in rates.items()}


def _pods(plane: ControlPlane, namespace: str) -> list[Any]:
    found: list[Any] = plane.admin.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def _spent(look: Look, name: str) -> Any:
    """The figures of a budget once it has spent anything and all pods are metered."""
    found = next((one for one in look.client.get("/v1/budgets")["budgets"] if one["name"] == name), None)
    whole = found and int(found["rate"]["microGPUSecondsPerSecond"]) >= WHOLE_RATE
    there = whole and float(found["spent"]["microGPUSeconds"]) > 0
    return found if there else None


def _stored_since(look: Look) -> int | None:
    with redis.Redis.from_url(look.redis_url) as client:
        return reading.since(client)
