"""A pod from its manifest to its bill, with nothing played but the GPU: what the parts promise one another holds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import spent_in
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.node.journey.conftest import PRICE
from tests.node.journey.programs import (
    KERNELS,
    OUT_OF_MEMORY,
    WORK_NS,
    WORK_ON_A_WHOLE_GPU,
    end,
    ended,
    held_ns,
    printed,
    program,
    reported,
    status_of,
    under_the_shim,
)
from tests.node.machine import MEMORY_MIB, NAME, uuid
from tests.node.test_recovery import page
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import parse_instant

pytestmark = pytest.mark.usefixtures("services")

KEPT = "test.example/keep"
"""A finalizer of the test's own."""


@pytest.fixture
def budget(make_budget: Callable[..., str], namespace: str) -> str:
    """Ten GPU-hours for the test's namespace."""
    return make_budget(namespace, "10")


def test_a_pod_is_admitted_placed_held_to_its_share_and_billed_for_what_it_held(
    plane: ControlPlane, user: Identity, namespace: str, budget: str, books: TimekeeperClient
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = user.api.create(path, program("train", {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 16}))
    assert created["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "tencent"
    assert [each["name"] for each in created["spec"]["initContainers"]] == ["fairgpu-sidecar"]

    almost_all = WORK_NS * 9 // 10 // 1000
    session = wait_until(lambda: reported(books, namespace, almost_all), "the sidecar's reports are on the books")
    assert int(session["used"]["microGPUSeconds"]) <= WORK_NS * 1.1 / 1000
    end(created)
    done = wait_until(lambda: ended(user, f"{path}/train"), "the program has ended")

    allocation = json.loads(done["metadata"]["annotations"]["fairgpu.io/allocation"])
    [device] = allocation["containers"][0]["devices"]
    assert (done["spec"]["nodeName"], device["uuid"] in (uuid(0), uuid(1))) == (NAME, True)
    assert (device["core"], device["memoryMiB"], device["totalMiB"]) == (30, 4096, MEMORY_MIB)

    init, _, total, big, small, *launches, times = printed(done)
    assert (init.split()[0], int(total.split()[1]) >> 20) == ("0", 4096)
    assert (big.split()[0], small.split()[0]) == (OUT_OF_MEMORY, "0")
    assert [line.split()[0] for line in launches] == ["0"] * KERNELS
    began, finished = map(float, times.split())
    assert WORK_NS / (finished - began) / 1e9 < 0.33, "the program had more than its share"

    rate = PRICE * 1_000_000 * 30 // 100
    assert session["rate"]["microGPUSecondsPerSecond"] == str(rate)
    uid = done["metadata"]["uid"]
    bill = wait_until(lambda: closed(books, budget, uid), "the session is closed in the ledger")
    assert bill == rate * held_ns(done) // 10**9
    wait_until(lambda: spent_in(status_of(plane, budget)) == bill, "the budget's status says the same")


def test_the_agent_measures_a_whole_gpu_for_the_sidecar_to_report(
    user: Identity, namespace: str, budget: str, books: TimekeeperClient
) -> None:
    assert budget
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = user.api.create(path, program("whole", {"nvidia.com/gpu": 1}, WORK_ON_A_WHOLE_GPU))
    session = wait_until(lambda: reported(books, namespace, 100_000), "a tenth of a second's use is on the books")
    assert session["rate"]["microGPUSecondsPerSecond"] == str(PRICE * 1_000_000)
    age_ns = time.time_ns() - parse_instant(session["start"])
    assert int(session["used"]["microGPUSeconds"]) < age_ns / 1000 / 2, "it works for less than half of the time"
    assert under_the_shim(created) == {False}, "a launch costs nothing more: nothing of it is in the process"
    end(created)
    done = wait_until(lambda: ended(user, f"{path}/whole"), "the program has ended")
    total = printed(done)[2]
    assert int(total.split()[1]) >> 20 == MEMORY_MIB


def test_two_programs_on_one_gpu_each_have_their_share(
    user: Identity, namespace: str, budget: str, books: TimekeeperClient
) -> None:
    assert budget
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = {}
    for core in (20, 60):
        limits = {"fairgpu.io/gpu": 1, "fairgpu.io/gpu-core": core, "fairgpu.io/gpu-memory": 4096}
        manifest = program(f"core-{core}", limits)
        manifest["metadata"]["annotations"] = {"fairgpu.io/use-gpu-uuid": uuid(1)}
        made[core] = user.api.create(path, manifest)
    for core, created in made.items():
        lines = wait_until(lambda created=created: finished(created), "the program has done its work")
        began, over = map(float, lines[-1].split())
        assert WORK_NS / (over - began) / 1e9 < core / 100 + 0.03
    rates = {session["pod"]: session["rate"] for session in books.get("/v1/sessions", namespace=namespace)["sessions"]}
    # Of a GPU's 16 GiB, 4 are more than 20 percent of its time.
    expected = {f"core-{core}": PRICE * 10_000 * part for core, part in ((20, 25), (60, 60))}
    assert {pod: int(rate["microGPUSecondsPerSecond"]) for pod, rate in rates.items()} == expected
    for created in made.values():
        end(created)


def finished(pod: dict[str, Any]) -> list[str] | None:
    """Returns the output of the pod's program, once its work is done."""
    try:
        lines = printed(pod)
    except FileNotFoundError:
        return None
    return lines if len(lines) == KERNELS + 6 else None


def test_a_held_budget_keeps_the_pod_until_there_is_money(
    plane: ControlPlane, user: Identity, namespace: str, make_budget: Callable[..., str]
) -> None:
    name = make_budget(namespace, "0", state="held", onExhausted="hold")
    path = f"/api/v1/namespaces/{namespace}/pods"
    manifest = program("held", {"fairgpu.io/gpu-core": 50}, WORK_ON_A_WHOLE_GPU)
    gate = [{"name": "fairgpu.io/budget"}]
    held = created_where(plane, user, path, manifest, lambda spec: spec.get("schedulingGates") == gate)
    grant = {"budget": name, "gpuHours": "10", "reason": "a paper deadline"}
    document = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUGrant", "metadata": {"name": f"grant-{namespace}"}}
    plane.admin.api.create("/apis/fairgpu.io/v1alpha1/gpugrants", document | {"spec": grant})
    running = f"{path}/{held['metadata']['name']}"
    wait_until(lambda: user.api.get(running)["status"]["phase"] == "Running", "the pod runs once there is money")
    wait_until(lambda: under_the_shim(held) == {True}, "the program has the shim, since it has a part of a GPU")
    end(held)
    wait_until(lambda: ended(user, running), "the program has ended")


def test_the_whole_journey_of_a_pod_that_gives_way_to_a_pod_within_its_budget(
    plane: ControlPlane,
    user: Identity,
    namespace: str,
    budget: str,
    make_budget: Callable[..., str],
    books: TimekeeperClient,
) -> None:
    assert budget
    poor = plane.create_namespace()
    theirs, ours = f"/api/v1/namespaces/{poor}/pods", f"/api/v1/namespaces/{namespace}/pods"
    them = plane.namespace_admin(poor)
    spent = make_budget(poor, "0", state="over", onExhausted="deprioritize")
    manifest = program("poor", {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 4096})
    manifest["spec"]["terminationGracePeriodSeconds"] = 1
    over = "gpu-over-budget"
    admitted = created_where(plane, them, theirs, manifest, lambda spec: spec["priorityClassName"] == over)
    path = f"{theirs}/{admitted['metadata']['name']}"
    assert admitted["metadata"]["annotations"]["fairgpu.io/source-dialect"] == "hami"
    assert [each["name"] for each in admitted["spec"]["initContainers"]] == ["fairgpu-sidecar"]

    lines = wait_until(lambda: finished(admitted), "the program has done its work")
    placed = them.api.get(path)
    [container] = json.loads(placed["metadata"]["annotations"]["fairgpu.io/allocation"])["containers"]
    held = {device["uuid"]: (device["core"], device["memoryMiB"]) for device in container["devices"]}
    assert (placed["spec"]["nodeName"], held) == (NAME, {uuid(0): (30, 4096), uuid(1): (30, 4096)})

    _, _, total, big, small, *_, times = lines
    assert (int(total.split()[1]) >> 20, big.split()[0], small.split()[0]) == (4096, OUT_OF_MEMORY, "0")
    began, over = map(float, times.split())
    assert WORK_NS / (over - began) / 1e9 < 0.33, "the program had more than its share"

    almost_all = WORK_NS * 9 // 10 // 1000
    session = wait_until(lambda: reported(books, poor, almost_all), "the sidecar's reports are on the books")
    rate = PRICE * 1_000_000 * 2 * 30 // 100
    assert session["rate"]["microGPUSecondsPerSecond"] == str(rate)

    # It keeps the object, in which the test reads when the containers ended.
    them.api.patch(path, {"metadata": {"finalizers": [*placed["metadata"]["finalizers"], KEPT]}})
    created = user.api.create(ours, program("rich", {"fairgpu.io/gpu-core": 80}, WORK_ON_A_WHOLE_GPU))
    wait_until(lambda: notices(0) and notices(1), "the pages of its GPUs say that it will be evicted")
    assert them.api.get(path)["metadata"]["annotations"]["fairgpu.io/reclaim-at"]
    wait_until(lambda: user.api.get(f"{ours}/rich")["status"]["phase"] == "Running", "the other runs in its place")

    gone = wait_until(lambda: kept(them, path), "the meter's finalizer is gone from it")
    assert "deletionTimestamp" in gone["metadata"]
    assert closed(books, spent, admitted["metadata"]["uid"]) == rate * held_ns(gone) // 10**9
    them.api.patch(path, {"metadata": {"finalizers": None}})
    end(created)
    wait_until(lambda: ended(user, f"{ours}/rich"), "the program has ended")
    plane.remove_pods(poor)


def kept(who: Identity, path: str) -> dict[str, Any] | None:
    """Returns a pod once no finalizer but the test's keeps it."""
    pod: dict[str, Any] = who.api.get(path)
    return pod if pod["metadata"]["finalizers"] == [KEPT] else None


def closed(books: TimekeeperClient, budget: str, uid: str) -> int | None:
    """The microGPU-seconds of the entry that closes a pod's session; None while there is none."""
    entries = books.get("/v1/ledger", budget=budget)["entries"]
    amounts = [entry["amount"] for entry in entries if (entry["kind"], entry["session"]) == ("close", uid)]
    return int(amounts[0]["microGPUSeconds"]) if amounts else None


def created_where(
    plane: ControlPlane, who: Identity, path: str, manifest: dict[str, Any], holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Creates a pod of whose spec that holds: admission knows, whichever replica answers.

    The cluster's admin deletes those that come before, so that they keep no GPU from it. The API server takes the grace
    of a pod without a node for 0, also where the pod is bound meanwhile: its author's deletion is then refused.
    """
    numbers = iter(range(10_000))

    def made() -> dict[str, Any] | None:
        name = f"{manifest['metadata']['name']}-{next(numbers)}"
        pod = who.api.create(path, {**manifest, "metadata": {**manifest["metadata"], "name": name}})
        if holds(pod["spec"]):
            return pod
        plane.admin.api.delete(f"{path}/{name}", {"gracePeriodSeconds": 1})
        return None

    return wait_until(made, "admission knows the budget's state")


def notices(gpu: int) -> bool:
    """Whether a GPU's page says that a container on it will be evicted."""
    shown = page(gpu)
    return shown is not None and any(slot.notice_ns for slot in shown.slots)
