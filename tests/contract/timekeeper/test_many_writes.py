"""The writes to the API server: only changes are written, others can wait, and none waits behind one that fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.fake_cluster import LedCluster, budget_object
from tests.support.ledger.pod_jobs import PodJobs
from tests.support.waiting import wait_until
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import SECOND
from timekeeper.sources.base import RefusedError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer


class Cluster(LedCluster):
    """A cluster that counts what is written to it, takes its time for it, and refuses some."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.monotonic = 0.0
        self.refused: set[str] = set()
        self.away = False
        self.asked: list[str] = []
        super().__init__(client, folder)
        self.writer = StatusWriter(self, self.reconciler.books, lambda: self.monotonic)
        self.jobs = PodJobs(self, self.reconciler.books, lambda: self.now / SECOND + self.monotonic)

    def write_budget_status(self, name: str, status: dict[str, Any], version: str = "") -> None:
        self._ask(name)
        super().write_budget_status(name, status, version)
        item = next(item for item in self.mirrors.budgets.items() if item["metadata"]["name"] == name)
        self.mirrors.budgets.changed("MODIFIED", {**item, "status": status})

    def lift_gate(self, pod: dict[str, Any]) -> None:
        self._ask(pod["metadata"]["uid"])
        super().lift_gate(pod)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        self.monotonic += 0.1
        if name in self.refused:
            raise RefusedError("no")
        if self.away:
            raise SourceError("no answer")


@pytest.fixture
def cluster(redis_server: RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    with redis_server.client() as client:
        yield Cluster(client, tmp_path)


def budgets(count: int) -> list[dict[str, Any]]:
    return [budget_object(f"b{number}", [f"team-{number}"]) for number in range(count)]


def test_a_budget_of_which_nothing_is_new_is_not_written_every_minute(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(2))
    cluster.replace("pods", [cluster.harness.pod("p1", "team-1")])
    cluster.reconcile()
    assert cluster.writer.write(cluster.now) == 2
    cluster.reconcile(61)
    assert cluster.writer.write(cluster.now) == 1
    assert sorted(cluster.asked) == ["b0", "b1", "b1"]


def test_writing_stops_for_the_other_jobs_and_goes_on_where_it_stopped(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(200))
    cluster.reconcile()
    written = [cluster.writer.write(cluster.now)]
    while cluster.writer.waiting:
        written.append(cluster.writer.write(cluster.now))
    assert len(written) > 1
    assert sum(written) == 200
    assert sorted(cluster.asked) == sorted(f"b{number}" for number in range(200))


def test_a_writer_whose_term_is_over_sends_nothing_more(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(3))
    cluster.reconcile()
    cluster.writer.leading = lambda: False
    assert cluster.writer.write(cluster.now) == 0
    assert cluster.budget_statuses == {}


def test_an_api_server_that_does_not_answer_is_said_and_all_is_written_once_it_does(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(3))
    cluster.reconcile()
    cluster.away = True
    with pytest.raises(SourceError):
        cluster.writer.write(cluster.now)
    cluster.away = False

    def goes_on() -> bool:
        with suppress(SourceError):  # of those that were under way when it came back
            cluster.writer.write(cluster.now)
        return len(cluster.budget_statuses) == 3

    wait_until(goes_on, "all are written")
    assert sorted(cluster.budget_statuses) == ["b0", "b1", "b2"]


def test_a_status_that_is_refused_holds_up_no_other_and_is_not_sent_again_at_once(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(3))
    cluster.refused = {"b0", "b1"}
    cluster.reconcile()
    cluster.writer.write(cluster.now)
    assert "b2" in cluster.budget_statuses
    cluster.reconcile(10)
    cluster.writer.write(cluster.now)
    assert len(cluster.asked) == 3


def held(cluster: Cluster, uid: str, namespace: str) -> dict[str, Any]:
    pod = cluster.harness.pod(uid, namespace)
    pod["spec"] = {"containers": pod["spec"]["containers"], "schedulingGates": [{"name": "fairgpu.io/budget"}]}
    pod["status"] = {"phase": "Pending"}
    return pod


def test_releasing_thousands_of_one_team_keeps_no_other_team_waiting(cluster: Cluster) -> None:
    many = [held(cluster, f"p{number:02}", "team-0") for number in range(40)]
    cluster.replace("budgets", [budget_object(f"b{team}", [f"team-{team}"], onExhausted="hold") for team in (0, 1)])
    cluster.replace("pods", [*many, held(cluster, "other", "team-1")])
    cluster.reconcile()
    assert cluster.jobs.release(cluster.now) == 41
    assert cluster.asked[:3] == ["p00", "other", "p01"]
    assert sorted(cluster.asked) == sorted(["other", *(f"p{number:02}" for number in range(40))])


def test_a_held_pod_whose_release_is_refused_holds_up_no_other_and_is_not_tried_again_at_once(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("b0", ["team-0"], onExhausted="hold")])
    cluster.replace("pods", [held(cluster, uid, "team-0") for uid in ("p1", "p2")])
    cluster.refused = {"p1"}
    cluster.reconcile()
    assert cluster.jobs.release(cluster.now) == 1
    cluster.reconcile(1)
    assert cluster.jobs.release(cluster.now) == 0
    assert cluster.asked == ["p1", "p2"]
    cluster.refused = set()
    cluster.reconcile(60)
    assert cluster.jobs.release(cluster.now) == 1


def test_a_deleted_pod_is_not_remembered_for_ever_where_no_checkpoint_can_be_written(cluster: Cluster) -> None:
    cluster.replace("budgets", budgets(1))
    cluster.replace("pods", [cluster.harness.pod("p1", "team-0")])
    cluster.refused = {"b0"}
    cluster.reconcile()
    cluster.replace("pods", [])
    for seconds in (10, 3600):
        cluster.reconcile(seconds)
        cluster.writer.write(cluster.now)
        assert len(cluster.reconciler.books.finalized) == 1
    cluster.reconcile(86400)
    cluster.writer.write(cluster.now)
    assert cluster.reconciler.books.finalized == []
