"""The writes to the API server: only changes are written, others can wait, and none waits behind one that fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.fake_cluster import KeptWorld, budget_object
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


class World(KeptWorld):
    """A cluster that counts what is written to it, takes its time for it, and refuses some."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.monotonic = 0.0
        self.refused: set[str] = set()
        self.away = False
        self.asked: list[str] = []
        super().__init__(client, folder)
        self.writer = StatusWriter(self, self.keeper.books, lambda: self.monotonic)
        self.jobs = PodJobs(self, self.keeper.books, lambda: self.now / SECOND + self.monotonic)

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
def world(redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    with redis_server.client() as client:
        yield World(client, tmp_path)


def budgets(count: int) -> list[dict[str, Any]]:
    return [budget_object(f"b{number}", [f"team-{number}"]) for number in range(count)]


def test_a_budget_of_which_nothing_is_new_is_not_written_every_minute(world: World) -> None:
    world.replace("budgets", budgets(2))
    world.replace("pods", [world.harness.pod("p1", "team-1")])
    world.round()
    assert world.writer.write(world.now) == 2
    world.round(61)
    assert world.writer.write(world.now) == 1
    assert sorted(world.asked) == ["b0", "b1", "b1"]


def test_writing_stops_for_the_other_jobs_and_goes_on_where_it_stopped(world: World) -> None:
    world.replace("budgets", budgets(200))
    world.round()
    written = [world.writer.write(world.now)]
    while world.writer.waiting:
        written.append(world.writer.write(world.now))
    assert len(written) > 1
    assert sum(written) == 200
    assert sorted(world.asked) == sorted(f"b{number}" for number in range(200))


def test_a_writer_whose_term_is_over_sends_nothing_more(world: World) -> None:
    world.replace("budgets", budgets(3))
    world.round()
    world.writer.leading = lambda: False
    assert world.writer.write(world.now) == 0
    assert world.budget_statuses == {}


def test_an_api_server_that_does_not_answer_is_said_and_all_is_written_once_it_does(world: World) -> None:
    world.replace("budgets", budgets(3))
    world.round()
    world.away = True
    with pytest.raises(SourceError):
        world.writer.write(world.now)
    world.away = False

    def goes_on() -> bool:
        with suppress(SourceError):  # of those that were under way when it came back
            world.writer.write(world.now)
        return len(world.budget_statuses) == 3

    wait_until(goes_on, "all are written")
    assert sorted(world.budget_statuses) == ["b0", "b1", "b2"]


def test_a_status_that_is_refused_holds_up_no_other_and_is_not_sent_again_at_once(world: World) -> None:
    world.replace("budgets", budgets(3))
    world.refused = {"b0", "b1"}
    world.round()
    world.writer.write(world.now)
    assert "b2" in world.budget_statuses
    world.round(10)
    world.writer.write(world.now)
    assert len(world.asked) == 3


def held(world: World, uid: str, namespace: str) -> dict[str, Any]:
    pod = world.harness.pod(uid, namespace)
    pod["spec"] = {"containers": pod["spec"]["containers"], "schedulingGates": [{"name": "fairgpu.io/budget"}]}
    pod["status"] = {"phase": "Pending"}
    return pod


def test_releasing_thousands_of_one_team_keeps_no_other_team_waiting(world: World) -> None:
    many = [held(world, f"p{number:02}", "team-0") for number in range(40)]
    world.replace("budgets", [budget_object(f"b{team}", [f"team-{team}"], onExhausted="hold") for team in (0, 1)])
    world.replace("pods", [*many, held(world, "other", "team-1")])
    world.round()
    assert world.jobs.release(world.now) == 41
    assert world.asked[:3] == ["p00", "other", "p01"]
    assert sorted(world.asked) == sorted(["other", *(f"p{number:02}" for number in range(40))])


def test_a_held_pod_whose_release_is_refused_holds_up_no_other_and_is_not_tried_again_at_once(world: World) -> None:
    world.replace("budgets", [budget_object("b0", ["team-0"], onExhausted="hold")])
    world.replace("pods", [held(world, uid, "team-0") for uid in ("p1", "p2")])
    world.refused = {"p1"}
    world.round()
    assert world.jobs.release(world.now) == 1
    world.round(1)
    assert world.jobs.release(world.now) == 0
    assert world.asked == ["p1", "p2"]
    world.refused = set()
    world.round(60)
    assert world.jobs.release(world.now) == 1


def test_who_left_is_not_remembered_for_ever_where_no_checkpoint_can_be_written(world: World) -> None:
    world.replace("budgets", budgets(1))
    world.replace("pods", [world.harness.pod("p1", "team-0")])
    world.refused = {"b0"}
    world.round()
    world.replace("pods", [])
    for seconds in (10, 3600):
        world.round(seconds)
        world.writer.write(world.now)
        assert len(world.keeper.books.finalized) == 1
    world.round(86400)
    world.writer.write(world.now)
    assert world.keeper.books.finalized == []
