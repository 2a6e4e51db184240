"""The scheduler goes on where a replica, or its extender alone, is killed or stands still; no device is given twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import create_node
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.late_bindings import late_bindings
from tests.cluster.services.replicas import environment
from tests.cluster.services.scheduler import (
    LEASE,
    Scheduler,
    extender,
    running_scheduler,
    scheduler_pods,
    scheduler_replica,
)
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def pair(control_plane: ControlPlane, services: Services) -> Iterator[tuple[Scheduler, Scheduler]]:
    """The replica that leads, and the other."""
    first, second = scheduler_pods(control_plane)
    with (
        scheduler_replica(control_plane, first, services.timekeeper) as one,
        scheduler_replica(control_plane, second, services.timekeeper) as two,
    ):
        both = (one, two)
        leader = wait_until(lambda: next((each for each in both if each.leads(control_plane)), None), "one leads")
        yield leader, two if leader is one else one


def test_a_killed_replica_is_replaced_and_no_device_is_given_twice(
    control_plane: ControlPlane, user: Identity, namespace: str, pair: tuple[Scheduler, Scheduler]
) -> None:
    leader, other = pair
    node = create_node(control_plane, f"eight-{namespace}")
    create(user, namespace, node.name, range(12))
    wait_until(lambda: bound(user, namespace), "the first pods are bound")
    leader.signal(signal.SIGKILL)
    before = len(bound(user, namespace))
    create(user, namespace, node.name, range(12, 16))

    wait_until(lambda: other.leads(control_plane), "the other replica leads")
    wait_until(lambda: len(bound(user, namespace)) > before, "the other replica binds a pod")
    wait_until(lambda: len(bound(user, namespace)) == 16, "all pods are bound")

    assert set(held(user, namespace).values()) == {100}


def test_a_replica_that_stood_still_answers_nothing_when_it_goes_on(
    control_plane: ControlPlane, user: Identity, namespace: str, pair: tuple[Scheduler, Scheduler]
) -> None:
    leader, other = pair
    node = create_node(control_plane, f"eight-{namespace}")
    create(user, namespace, node.name, range(1))
    wait_until(lambda: len(bound(user, namespace)) == 1, "the leader binds")
    leader.signal(signal.SIGSTOP)
    with closing(HTTPConnection("127.0.0.1", leader.port, timeout=LIMIT_S)) as connection:
        try:
            connection.request("POST", "/filter", json.dumps({"Pod": {}, "NodeNames": [node.name]}))
            wait_until(lambda: other.leads(control_plane), "the other replica leads")
            create(user, namespace, node.name, range(1, 16))
            wait_until(lambda: len(bound(user, namespace)) == 16, "the other replica binds all others")
        finally:
            leader.signal(signal.SIGCONT)
        assert connection.getresponse().status == 503
    wait_until(lambda: leader.kube_scheduler.popen.poll() is not None, "its kube-scheduler ends, without the Lease")
    assert set(held(user, namespace).values()) == {100}


def test_an_extender_that_is_killed_alone_is_replaced_and_waits_until_its_lease_would_have_run_out(
    control_plane: ControlPlane, services: Services, user: Identity, namespace: str
) -> None:
    """The API server may carry out a Binding of the killed extender until then, unseen by the extender in its place."""
    node = create_node(control_plane, f"eight-{namespace}")
    with running_scheduler(control_plane, services.timekeeper) as replica:
        create(user, namespace, node.name, range(12))
        wait_until(lambda: bound(user, namespace), "the first pods are bound")
        os.killpg(replica.extender.popen.pid, signal.SIGKILL)
        replica.extender.popen.wait(LIMIT_S)
        create(user, namespace, node.name, range(12, 18))
        with extender(control_plane, replica.pod, replica.environment):
            waited = seconds_until_it_acts(replica.port)
            wait_until(lambda: len(bound(user, namespace)) == 16, "all pods for which there is a GPU are bound")
            assert replica.leads(control_plane)
            replica.kube_scheduler.check_alive()
    # No machine is too slow for this: a slower one only waits longer.
    assert waited >= control_plane.admin.api.get(LEASE)["spec"]["leaseDurationSeconds"]
    assert set(held(user, namespace).values()) == {100}


def test_a_gpu_is_not_given_again_while_a_killed_extenders_binding_is_under_way(
    control_plane: ControlPlane, services: Services, user: Identity, namespace: str, tmp_path: Path
) -> None:
    name = f"one-{namespace}"
    create_node(control_plane, name, gpus=1)

    def label(pods: str) -> None:
        control_plane.admin.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {name: pods}}})

    own = Path(environment(control_plane, "fairgpu-scheduler")["KUBECONFIG"])
    with (
        late_bindings(control_plane, tmp_path / "proxy", own) as (proxy, kubeconfig),
        running_scheduler(control_plane, services.timekeeper, {"KUBECONFIG": str(kubeconfig)}) as replica,
    ):
        label("first")
        proxy.keeps = True
        create_pod(user, namespace, "first", 100, {name: "first"})
        wait_until(lambda: proxy.kept, "the Binding is under way")
        os.killpg(replica.extender.popen.pid, signal.SIGKILL)
        replica.extender.popen.wait(LIMIT_S)
        proxy.keeps = False
        # From now on kube-scheduler asks about the other pod alone.
        label("other")
        proxy.looked = None
        with extender(control_plane, replica.pod, replica.environment):
            wait_until(lambda: proxy.looked, "the next extender reads the Lease")
            create_pod(user, namespace, "other", 100, {name: "other"})
            wait_until(lambda: proxy.is_late() or bound(user, namespace), "the Binding is late, or the GPU given again")
            proxy.carry_out()
            assert set(held(user, namespace).values()) == {100}
            wait_until(lambda: is_unschedulable(user, namespace, "other"), "there is no GPU for the other pod")
            wait_until(lambda: acts(replica.port), "the extender acts")
            assert [item["metadata"]["name"] for item in bound(user, namespace)] == ["first"]
    assert set(held(user, namespace).values()) == {100}


def seconds_until_it_acts(port: int) -> float:
    """Waits until an extender that starts answers kube-scheduler; the seconds since nothing listened at its port.

    It listens before it first looks at the Lease. To be called as soon as it is started, before that look.
    """
    began = time.monotonic()

    def acts_now() -> bool:
        nonlocal began
        asked = time.monotonic()
        try:
            return acts(port)
        except ConnectionRefusedError:
            began = asked
            return False
        except OSError:
            return False

    wait_until(acts_now, "the extender acts")
    return time.monotonic() - began


def acts(port: int) -> bool:
    """Whether the extender at a port answers kube-scheduler; one that does not lead says so.

    Raises:
        OSError: nothing listens there, or the connection broke.
    """
    with closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request("POST", "/filter", json.dumps({"Pod": {}, "NodeNames": []}))
        return connection.getresponse().status != 503


def create(user: Identity, namespace: str, node: str, numbers: range) -> None:
    """Creates pods with half a GPU each, for one node."""
    for number in numbers:
        create_pod(user, namespace, f"p{number}", 50, {"kubernetes.io/hostname": node})


def create_pod(user: Identity, namespace: str, name: str, core: int, selector: dict[str, str]) -> None:
    """Creates a pod with a percent of a GPU's time, for nodes with these labels."""
    manifest = pod(name, {"fairgpu.io/gpu-core": core})
    manifest["spec"]["nodeSelector"] = selector
    user.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)


def is_unschedulable(user: Identity, namespace: str, name: str) -> bool:
    """Whether kube-scheduler has found no node for a pod."""
    status = user.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return any(one.get("reason") == "Unschedulable" for one in status.get("conditions", ()))


def bound(user: Identity, namespace: str) -> list[dict[str, Any]]:
    items = user.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [item for item in items if item["spec"].get("nodeName")]


def held(user: Identity, namespace: str) -> Counter[str]:
    """The percent of GPU time that pods hold of each device."""
    found: Counter[str] = Counter()
    for item in bound(user, namespace):
        allocation = json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])
        for container in allocation["containers"]:
            for device in container["devices"]:
                found[device["uuid"]] += device["core"]
    return found
