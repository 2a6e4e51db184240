"""A pod from its manifest to its bill, with nothing played but the GPU: what the parts promise one another holds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import spent_in
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.node.journey.conftest import PRICE
from tests.node.machine import MEMORY_MIB, NAME, PROGRAMS, uuid
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import parse_instant

pytestmark = pytest.mark.usefixtures("services")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
KERNEL_MS, KERNELS = 20, 60
WORK_NS = KERNELS * KERNEL_MS * 1_000_000
OUT_OF_MEMORY = "2"

WORK = f"""
read began rest < /proc/uptime
{{
  echo init; echo ctx; echo total; echo alloc big 5000000000; echo alloc small 1000000000
  i=0; while [ $i -lt {KERNELS} ]; do echo launch spin_ms_{KERNEL_MS}; i=$((i + 1)); done
}} | actor
read ended rest < /proc/uptime
echo $began $ended
until [ -e /out/end ]; do sleep 0.2; done
"""
"""Asks for more memory than the pod has, works for WORK_NS of GPU time, and ends when it is told to."""


WORK_ON_A_WHOLE_GPU = f"""
{{
  echo init; echo ctx; echo total
  until [ -e /out/end ]; do echo launch spin_ms_{KERNEL_MS}; sleep 0.1; done
}} | actor
"""
"""Works for a fifth of the time or less, until it is told to end."""


def program(name: str, limits: Mapping[str, Any], script: str = WORK) -> dict[str, Any]:
    """A pod as a user writes it."""
    container = {
        "name": "main",
        "image": PROGRAMS,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
    }
    spec = {"containers": [container], "restartPolicy": "Never", "volumes": [{"name": "out", "emptyDir": {}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def end(pod: Mapping[str, Any]) -> None:
    """Lets the pod's program end."""
    Path("/var/lib/kubelet/pods", pod["metadata"]["uid"], "volumes/kubernetes.io~empty-dir/out/end").touch()


def printed(pod: Mapping[str, Any]) -> list[str]:
    """The lines that the pod's program printed, out of the runtime's log."""
    metadata = pod["metadata"]
    folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
    lines = Path("/var/log/pods", folder, "main", "0.log").read_text().splitlines()
    return [line.split(" ", 3)[3] for line in lines]


@pytest.fixture
def budget(plane: ControlPlane, namespace: str) -> str:
    """Ten GPU-hours for the test's namespace."""
    name = f"budget-{namespace}"
    spec = {"namespaces": [namespace], "allowance": {"gpuHours": "10"}, "period": month_midway()}
    document = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
    plane.admin.api.create(BUDGETS, document)
    wait_until(lambda: status_of(plane, name).get("state") == "open", "the budget is open")
    return name


def status_of(plane: ControlPlane, budget: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.admin.api.get(f"{BUDGETS}/{budget}").get("status", {})
    return found


def ended(user: Identity, path: str) -> dict[str, Any] | None:
    pod = user.api.get(path)
    assert pod["status"]["phase"] != "Failed", pod["status"]
    return pod if pod["status"]["phase"] == "Succeeded" else None


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


def held_ns(pod: Mapping[str, Any]) -> int:
    """The time from the pod's binding to the end of its last container, as the API server has it."""
    [bound] = [each["lastTransitionTime"] for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
    statuses = [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]
    last = max(parse_instant(each["state"]["terminated"]["finishedAt"]) for each in statuses)
    return last - parse_instant(bound)


def reported(books: TimekeeperClient, namespace: str, least: int) -> dict[str, Any] | None:
    """The namespace's session once its sidecar has reported so many microGPU-seconds."""
    for session in books.get("/v1/sessions", namespace=namespace)["sessions"]:
        if session["used"] is not None and int(session["used"]["microGPUSeconds"]) >= least:
            found: dict[str, Any] = session
            return found
    return None


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
