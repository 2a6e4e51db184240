"""Two processes of the timekeeper's jobs on the real API server: one is paused past its Lease, or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process
from tests.cluster.control_plane.stand_ins import StandInNode, bind, create_node, place
from tests.cluster.pods import canonical_pod
from tests.cluster.services.replicas import environment, timekeeper_jobs
from tests.support.ledger.periods import month_midway
from tests.support.ledger.stored_accounts import open_sessions, spent
from tests.support.ports import free_port
from tests.support.processes import FAIRGPU
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant, parse_instant
from timekeeper.ledger.keys import AccountKeys

pytestmark = pytest.mark.usefixtures("installation")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
RATE = 300_000
LEASE_SECONDS = 5
AWAY_SECONDS = 60 if os.environ.get("CI") == "true" else 2 * LEASE_SECONDS
"""Seconds for which the API server is away: longer than the Lease lasts."""


class Jobs:
    """Two processes by their metrics ports, and what each says of itself."""

    def __init__(self, start: Callable[[int], AbstractContextManager[Process]]) -> None:
        """Names what starts one."""
        self.processes: dict[int, Process] = {}
        self._start = start
        self._ends = ExitStack()

    def leader(self) -> int | None:
        """The one that says that it leads, of those that answer."""
        return next((port for port in self.processes if self.leads(port)), None)

    def leads(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return b"fairgpu_timekeeper_leading 1.0" in answer.read()
        except OSError:
            return False

    def send(self, port: int, number: signal.Signals) -> None:
        self.processes[port].popen.send_signal(number)

    def complete(self) -> None:
        """Lets those go on that were stopped, and puts others in the place of those that were killed."""
        for port in self.processes:
            self.send(port, signal.SIGCONT)
        running = {port: process for port, process in self.processes.items() if process.popen.poll() is None}
        for port in [free_port() for _ in range(2 - len(running))]:
            running[port] = self._ends.enter_context(self._start(port))
        self.processes = running

    def end(self) -> None:
        for port in self.processes:
            self.send(port, signal.SIGCONT)
        self._ends.close()


@dataclass
class Team:
    """A namespace with a budget, and what really happened to its pods."""

    plane: ControlPlane
    namespace: str
    node: StandInNode
    reserved: dict[str, list[int]] = field(default_factory=dict)

    def run_pod(self, name: str) -> None:
        """A pod that is bound with an allocation and runs."""
        created = self.plane.admin.api.create(f"/api/v1/namespaces/{self.namespace}/pods", canonical_pod(name))
        scheduler = self.plane.service_account("fairgpu-system", "fairgpu-scheduler")
        place(scheduler, created, self.node.name)
        pod = self.node.set_pod_phase(self.namespace, name, "Running")
        (stamp,) = [c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        self.reserved[name] = [parse_instant(stamp)]

    def finish_pod(self, name: str, finished: int | None = None) -> None:
        """The kubelet says that its containers ended, now or then."""
        at = format_instant(time.time_ns() if finished is None else finished)
        self.node.set_pod_phase(self.namespace, name, "Succeeded", at)
        self.reserved[name].append(max(parse_instant(at), self.reserved[name][0]))

    def expected(self) -> int:
        """Returns the budget's spending once all its pods have ended, from the API server's timestamps alone."""
        return sum(RATE * (end - start) // SECOND for start, end in self.reserved.values())


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def two_processes(control_plane: ControlPlane, redis_server: RedisServer) -> Iterator[Jobs]:
    jobs = Jobs(lambda port: timekeeper_jobs(control_plane, f"jobs-{port}", port, redis_server.url, LEASE_SECONDS))
    try:
        yield jobs
    finally:
        jobs.end()


@pytest.fixture
def jobs(two_processes: Jobs) -> Jobs:
    """Both run, and one leads."""
    two_processes.complete()
    wait_until(two_processes.leader, "one of them leads")
    return two_processes


@pytest.fixture
def team(control_plane: ControlPlane, namespace: str, jobs: Jobs) -> Team:
    """A team whose budget the processes have heard of."""
    assert jobs
    item: dict[str, Any] = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": namespace},
        "spec": {"namespaces": [namespace], "allowance": {"gpuHours": 10}, "period": month_midway()},
    }
    api = control_plane.admin.api
    api.create(BUDGETS, item)
    wait_until(lambda: "state" in api.get(f"{BUDGETS}/{namespace}").get("status", {}), "the budget is on the books")
    return Team(control_plane, namespace, create_node(control_plane, f"node-{namespace}"))


def test_a_leader_that_was_stopped_past_its_lease_spoils_nothing_when_it_goes_on(
    jobs: Jobs, team: Team, redis_server: RedisServer
) -> None:
    team.run_pod("before")
    team.run_pod("across")
    wait_until(lambda: spent(redis_server, team.namespace) > 0, "something is spent")
    stopped = wait_until(jobs.leader, "one of them leads")
    jobs.send(stopped, signal.SIGSTOP)
    team.finish_pod("before")
    team.run_pod("meanwhile")
    wait_until(lambda: any(jobs.leads(port) for port in jobs.processes if port != stopped), "the other leads")
    team.finish_pod("meanwhile")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "one pod is left on the meter")
    jobs.send(stopped, signal.SIGCONT)
    wait_until(lambda: not jobs.leads(stopped), "the one that was stopped has heard of it")
    team.finish_pod("across")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "no pod is left on the meter")
    assert spent(redis_server, team.namespace) == team.expected()


def test_a_leader_that_is_killed_is_followed_by_one_that_comes_to_the_same_spend(
    jobs: Jobs, team: Team, redis_server: RedisServer
) -> None:
    team.run_pod("runs-on")
    team.run_pod("ends")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 2, "both are on the meter")
    killed = wait_until(jobs.leader, "one of them leads")
    jobs.send(killed, signal.SIGKILL)
    team.finish_pod("ends")
    wait_until(lambda: any(jobs.leads(port) for port in jobs.processes if port != killed), "the other leads")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "one pod is left on the meter")
    team.finish_pod("runs-on")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "no pod is left on the meter")
    assert spent(redis_server, team.namespace) == team.expected()


def test_while_the_api_server_is_away_pods_run_on_and_are_charged_to_their_true_ends(
    jobs: Jobs, team: Team, redis_server: RedisServer
) -> None:
    team.run_pod("ends-meanwhile")
    team.run_pod("runs-on")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 2, "both are on the meter")
    wait_until(jobs.leader, "one of them leads")
    with team.plane.api_server_away():
        left = time.time_ns()
        wait_until(
            lambda: time.time_ns() - left > AWAY_SECONDS * SECOND, "it was away long enough", 2 * AWAY_SECONDS + LIMIT_S
        )
        ended = left + 2 * SECOND
    team.finish_pod("ends-meanwhile", ended)
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "one pod is left on the meter")
    team.finish_pod("runs-on")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "no pod is left on the meter")
    assert spent(redis_server, team.namespace) == team.expected()


def test_the_books_of_a_real_cluster_pass_an_audit_and_what_is_corrupted_is_named(
    jobs: Jobs, team: Team, redis_server: RedisServer
) -> None:
    team.run_pod("ends")
    team.run_pod("runs-on")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 2, "both are on the meter")
    team.finish_pod("ends")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "one pod is left on the meter")
    passed = audited(team, redis_server)
    assert (passed["sawPods"], passed["accounts"], passed["sessions"]) == (True, 1, 2)
    assert passed["differences"] == []
    wait_until(jobs.leader, "one of them leads")
    with redis_server.client() as client:
        start = client.hget(AccountKeys(team.namespace).head, "period")
        assert isinstance(start, bytes)
        client.hset(AccountKeys(team.namespace).grants, "gift", f"{start.decode()} 5")
    (difference,) = audited(team, redis_server)["differences"]
    assert (difference["figure"], difference["subject"], difference["stored"]) == ("granted", "grant gift", "5")


def test_a_pod_that_is_bound_without_an_allocation_costs_nothing_before_a_container_on_a_gpu_starts(
    jobs: Jobs, team: Team, redis_server: RedisServer
) -> None:
    """Somebody who may bind in the whole cluster binds what an admin of the namespace made; a node need not exist."""
    assert jobs
    author = team.plane.namespace_admin(team.namespace)
    stranger = team.plane.user("system:kube-scheduler")
    for name, node in (("nowhere", f"no-{team.node.name}"), ("here", team.node.name)):
        created = author.api.create(f"/api/v1/namespaces/{team.namespace}/pods", canonical_pod(name))
        bind(stranger, created, node, None)
    team.node.set_pod_phase(team.namespace, "here", "Pending")
    team.run_pod("beside")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "only the one with an allocation is metered")
    team.finish_pod("beside")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "no pod is on the meter")
    assert spent(redis_server, team.namespace) == team.expected()
    team.node.set_pod_phase(team.namespace, "here", "Running")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "the one that started is metered")
    team.node.set_pod_phase(team.namespace, "here", "Succeeded")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "no pod is left on the meter")


def audited(team: Team, server: RedisServer) -> dict[str, Any]:
    """Returns the answer of `fairgpu audit` under the timekeeper's own account."""
    settings = {"FAIRGPU_TIMEKEEPER_REDIS_URL": server.url}
    command = [*FAIRGPU, "audit", "--budget", team.namespace, "-o", "json"]
    around = {**environment(team.plane, "fairgpu-timekeeper"), **settings}
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False, timeout=3 * LIMIT_S)
    assert done.returncode in {0, 1}, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["differences"] else 0)
    return found


def test_a_change_of_state_is_an_event_at_the_budget_and_is_written_once(jobs: Jobs, team: Team) -> None:
    budget = f"{BUDGETS}/{team.namespace}"
    spec = {"spec": {"allowance": {"gpuHours": 0}, "onExhausted": "hold", "enforcement": "evict"}}
    api = team.plane.admin.api
    uid = api.patch(budget, spec)["metadata"]["uid"]

    def hold_events() -> list[dict[str, Any]]:
        items = api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [item for item in items if item["regarding"].get("uid") == uid]

    (event,) = wait_until(hold_events, "an event says that the budget is held")
    assert (event["reason"], event["type"], event["regarding"]["kind"]) == ("BudgetHeld", "Warning", "GPUBudget")
    wait_until(lambda: api.get(budget).get("status", {}).get("state") == "held", "the status says so")
    killed = wait_until(jobs.leader, "one of them leads")
    jobs.send(killed, signal.SIGKILL)
    wait_until(lambda: any(jobs.leads(port) for port in jobs.processes if port != killed), "the other leads")
    api.patch(budget, {"spec": {"allowance": {"gpuHours": 10}}})
    events = wait_until(lambda: hold_events()[1:] and hold_events(), "an event says that the budget is open again")
    assert sorted(item["reason"] for item in events) == ["BudgetHeld", "BudgetReopened"]
