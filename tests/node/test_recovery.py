"""Parts of the node that end and come back: running containers go on, and new ones start."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairgpu import names
from nodeagent import schedule_page
from nodeagent.kubelet.pod_resources import KubeletError, PodResources
from tests.node.machine import Machine, uuid
from tests.node.pods import LOOK, Placed, container, place
from tests.support.schedule_page import unpack
from tests.support.waiting import wait_until

BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")


def page(number: int) -> schedule_page.Page | None:
    """A GPU's page; None before it is there, and while it is being written."""
    try:
        return unpack(Path("/run/fairgpu-nodeagent/gpus", uuid(number), "schedule").read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def fresh(number: int) -> bool:
    now = page(number)
    return now is not None and time.monotonic_ns() - now.heartbeat_ns < schedule_page.STALE_AFTER_NS


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.cgroups)])
@pytest.mark.parametrize("part", ["agent", "kubelet", "containerd"])
def test_a_part_that_restarts_ends_no_container_and_starts_the_next(
    machine: Machine, namespace: str, part: str, end: signal.Signals
) -> None:
    running = place(machine, namespace, [container("main", 30, 4096)], name="running")
    running.found("main")
    running.wait_until("Running")
    machine.servers[part].process.popen.send_signal(end)
    with machine.servers[part].away():
        if part == "agent":
            wait_until(lambda: machine.allocatable("gpu") == "0", "the node takes no GPU pods without its agent")
        restarted = time.time()
    if part != "containerd":
        wait_until(lambda: machine.registered_since(restarted), "the kubelet knows the device plugin again")
    wait_until(machine.is_ready, "the node is ready again")
    following = place(machine, namespace, [container("main", 30, 4096)], name="following")
    assert following.found("main").share == ("main", uuid(0), 30, 4096)
    status = running.read()["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    wait_until(lambda: fresh(0), "the page is written")
    shown = wait_until(lambda: page(0), "the page can be read")
    assert sorted(slot.core_percent for slot in shown.slots) == [30, 30]


ENDS_ONCE = LOOK + "echo run >> /out/runs; until [ -e /out/end ]; do sleep 0.1; done; mv /out/end /out/ended; exit 1"
"""Goes on until it is asked to end by a file, at each of its starts."""


def test_a_kubelet_that_does_not_ask_before_a_start_waits_for_the_agent(machine: Machine, namespace: str) -> None:
    """A kubelet that was restarted asks no plugin that has not registered with it again, and starts what it knows."""
    pod = place(machine, namespace, [container("main", 30, 4096, ENDS_ONCE)], restart="Always")
    pod.found("main")
    wait_until(lambda: not any(Path("/var/run/cdi").glob("*.json")), "no CDI spec is left of a container that is made")
    with machine.servers["agent"].away():
        with machine.servers["kubelet"].away():
            pass
        wait_until(lambda: is_known_to_the_kubelet(pod), "the kubelet has taken up the pod that runs")
        pod.file("end").touch()
        wait_until(lambda: "unresolvable CDI devices" in pod.described(), "the container does not start")
        assert pod.file("runs").read_text().count("run") == 1
    wait_until(lambda: pod.file("runs").read_text().count("run") == 2, "the container runs again")
    folder = Path("/run/fairgpu-nodeagent/containers", pod.uid, "main")
    assert "1" not in [path.name for path in folder.iterdir()], "it has a ledger of its own"


def is_known_to_the_kubelet(pod: Placed) -> bool:
    resources = PodResources()
    try:
        return any((each.namespace, each.pod) == (pod.namespace, pod.name) for each in resources.listing(names.GPU))
    except KubeletError:
        return False
    finally:
        resources.close()


STUBBORN = LOOK + "trap '' TERM; until [ -e /out/end ]; do sleep 0.1; done"
"""Goes on until it is asked to end by a file, whatever the kubelet asks."""


def test_a_container_that_outlives_its_pod_keeps_its_piece_until_it_ends(machine: Machine, namespace: str) -> None:
    """A deletion by force takes the pod from the API server at once, and leaves its containers their grace period."""
    stubborn = place(machine, namespace, [container("main", 60, 4096, STUBBORN)], name="stubborn", grace_seconds=3600)
    stubborn.found("main")
    machine.plane.admin.api.delete(stubborn.path, {"gracePeriodSeconds": 0})
    wait_until(lambda: not machine.plane.exists(stubborn.path), "the API server has the pod no more")
    following = place(machine, namespace, [container("main", 60, 4096)], name="following")
    assert "40 percent of its time left, not 60" in following.refusal()
    shown = wait_until(lambda: page(0), "the page can be read")
    assert [slot.core_percent for slot in shown.slots] == [60]
    stubborn.file("end").touch()
    assert following.found("main").share == ("main", uuid(0), 60, 4096)
    wait_until(lambda: not has_record(stubborn), "nothing is left of the pod")


def has_record(pod: Placed) -> bool:
    """Whether the agent has prepared the pod's container."""
    return Path("/run/fairgpu-nodeagent/containers", pod.uid, "main", "record.json").exists()


def has_sandbox(pod: Placed) -> bool:
    """Whether the kubelet works on the pod, for which its GPUs have been allocated before."""
    return Path("/var/lib/kubelet/pods", pod.uid).exists()


def has_spec(pod: Placed) -> bool:
    """Whether the runtime can resolve the container's CDI device, or has made the container by it."""
    return has_record(pod) and (any(Path("/var/run/cdi").glob("*.json")) or is_made(pod))


def is_made(pod: Placed) -> bool:
    """Whether the runtime has made the container of its CDI device."""
    mounted = f"containers/{pod.uid}/main/1/config"
    return any(mounted in content_of(path) for path in BUNDLES.glob("*/config.json"))


def has_run(pod: Placed) -> bool:
    """Whether the container's program has begun; its status may be nowhere yet."""
    return pod.file("main.info").exists()


def content_of(path: Path) -> str:
    """The text of a container's configuration; empty once the container has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("moment", [has_sandbox, has_record, has_spec, is_made, has_run])
@pytest.mark.parametrize("part", ["agent", "kubelet", "containerd"])
def test_a_part_that_is_killed_while_a_pod_starts_leaves_the_share_to_that_pod_or_the_next(
    machine: Machine, namespace: str, part: str, moment: Callable[[Placed], bool]
) -> None:
    """A kubelet that starts refuses pods with devices that do not run yet; their controllers make others."""
    pod = place(machine, namespace, [container("main", 60, 4096)], restart="Always")
    wait_until(lambda: moment(pod), "the pod is starting")
    machine.servers[part].process.popen.send_signal(signal.SIGKILL)
    with machine.servers[part].away():
        restarted = time.time()
    if part != "containerd":
        wait_until(lambda: machine.registered_since(restarted), "the kubelet knows the device plugin again")
    wait_until(machine.is_ready, "the node is ready again")
    wait_until(lambda: pod.phase() in ("Running", "Failed"), "the pod runs, or is refused")
    if pod.phase() == "Failed":
        assert (part, pod.read()["status"]["reason"]) == ("kubelet", "UnexpectedAdmissionError")
        pod.delete()
        pod = place(machine, namespace, [container("main", 60, 4096)], name="following")
    assert pod.found("main").share == ("main", uuid(0), 60, 4096)
    wait_until(lambda: not any(Path("/var/run/cdi").glob("*.json")), "no CDI spec is left of a container that is made")


def test_a_pod_that_is_deleted_between_its_allocation_and_its_start_leaves_nothing(
    machine: Machine, namespace: str
) -> None:
    agent = machine.servers["agent"].process.popen
    pod = place(machine, namespace, [container("main", 60, 4096)])
    wait_until(lambda: has_sandbox(pod), "its GPU is allocated")
    agent.send_signal(signal.SIGSTOP)
    try:
        machine.plane.admin.api.delete(pod.path, {"gracePeriodSeconds": 0})
        wait_until(lambda: not machine.plane.exists(pod.path), "the pod is gone")
    finally:
        agent.send_signal(signal.SIGCONT)
    following = place(machine, namespace, [container("main", 60, 4096)], name="following", restart="Always")
    assert following.found("main").share == ("main", uuid(0), 60, 4096)
    folders = Path("/run/fairgpu-nodeagent/containers")
    wait_until(lambda: [path.name for path in folders.iterdir()] == [following.uid], "nothing is left of it")
    wait_until(lambda: not any(Path("/var/run/cdi").glob("*.json")), "no CDI spec is left of a container that is made")
