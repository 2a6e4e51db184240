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
)
from tests.node.machine import MEMORY_MIB, NAME, uuid
from tests.node.test_recovery import page
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import parse_instant

pytestmark = pytest.mark.usefixtures("services")


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

    def bill() -> int | None:
        entries = books.get("/v1/ledger", budget=budget)["entries"]
        return next((int(entry["amount"]["microGPUSeconds"]) for entry in entries if entry["kind"] == "close"), None)

    assert wait_until(bill, "the session is closed in the ledger") == rate * held_ns(done) // 10**9
    wait_until(lambda: spent_in(status_of(plane, budget)) == bill(), "the budget's status says the same")


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
    held = admitted(user, path, manifest, lambda spec: spec.get("schedulingGates") == gate)
    grant = {"budget": name, "gpuHours": "10", "reason": "a paper deadline"}
    document = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUGrant", "metadata": {"name": f"grant-{namespace}"}}
    plane.admin.api.create("/apis/fairgpu.io/v1alpha1/gpugrants", document | {"spec": grant})
    running = f"{path}/{held['metadata']['name']}"
    wait_until(lambda: user.api.get(running)["status"]["phase"] == "Running", "the pod runs once there is money")
    end(held)
    wait_until(lambda: ended(user, running), "the program has ended")


def test_a_pod_of_a_spent_budget_gives_way_with_notice_on_its_page(
    plane: ControlPlane, user: Identity, namespace: str, budget: str, make_budget: Callable[..., str]
) -> None:
    assert budget
    poor = plane.create_namespace()
    make_budget(poor, "0", state="over", onExhausted="deprioritize")
    them = plane.namespace_admin(poor)
    theirs, ours = f"/api/v1/namespaces/{poor}/pods", f"/api/v1/namespaces/{namespace}/pods"
    both = {"fairgpu.io/gpu": 2, "fairgpu.io/gpu-core": 180, "fairgpu.io/gpu-memory": 20_000}
    manifest = program("poor", both, WORK_ON_A_WHOLE_GPU)
    manifest["spec"]["terminationGracePeriodSeconds"] = 1
    over = admitted(them, theirs, manifest, lambda spec: spec["priorityClassName"] == "gpu-over-budget")
    path = f"{theirs}/{over['metadata']['name']}"
    wait_until(lambda: them.api.get(path)["status"]["phase"] == "Running", "it runs while nobody waits")

    rich = program("rich", {"fairgpu.io/gpu-core": 50}, WORK_ON_A_WHOLE_GPU)
    created = user.api.create(ours, rich)
    wait_until(lambda: notices(0) and notices(1), "the pages of its GPUs tell of its end")
    assert them.api.get(path)["metadata"]["annotations"]["fairgpu.io/reclaim-at"]
    wait_until(lambda: user.api.get(f"{ours}/rich")["status"]["phase"] == "Running", "the other runs in its place")
    left = [pod["metadata"] for pod in them.api.get(theirs)["items"]]
    assert [each["name"] for each in left if "deletionTimestamp" not in each] == []
    end(created)
    wait_until(lambda: ended(user, f"{ours}/rich"), "the program has ended")
    plane.remove_pods(poor)


def admitted(
    who: Identity, path: str, manifest: dict[str, Any], holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Creates a pod of whose spec that holds: admission knows, whichever replica answers.

    Those that come before take no GPU from it: they are deleted at once.
    """
    numbers = iter(range(10_000))

    def made() -> dict[str, Any] | None:
        name = f"{manifest['metadata']['name']}-{next(numbers)}"
        pod = who.api.create(path, {**manifest, "metadata": {**manifest["metadata"], "name": name}})
        if holds(pod["spec"]):
            return pod
        who.api.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
        return None

    return wait_until(made, "admission knows the budget's state")


def notices(gpu: int) -> bool:
    """Whether a GPU's page says that a container on it will be evicted."""
    shown = page(gpu)
    return shown is not None and any(slot.notice_ns for slot in shown.slots)
