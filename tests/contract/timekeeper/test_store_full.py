"""What pods cause stops before Redis is full; what closes and settles goes on, though it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import redis_binaries
from tests.keeper_stage import Stage, told
from tests.redis_server import RedisServer
from timekeeper.rules.money import GPU_SECOND
from timekeeper.store import keys
from timekeeper.store.memory import MemoryWatch, is_full_for_pods
from timekeeper.store.report_intake import Outcome, ReportIntake, Submission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

HOUR = 3600


@pytest.fixture(params=["Redis 6.2", "Redis 7"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    if request.param == "Redis 7":
        monkeypatch.setenv("FAIRGPU_REDIS_SERVER", redis_binaries.redis_7())
    for name in ("redis", "stage"):
        (tmp_path / name).mkdir()
    with RedisServer(tmp_path / "redis", "--maxmemory-policy", "noeviction") as server, server.client() as client:
        yield Stage(tmp_path / "stage", client)


def fill(client: redis.Redis) -> None:
    """Leaves no memory at all."""
    client.config_set("maxmemory", 1)


def make_room(client: redis.Redis) -> None:
    client.config_set("maxmemory", 0)


@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
def test_a_full_store_still_takes_closes_and_settlements_and_opens_the_rest_once_there_is_room(
    stage: Stage, leader: str
) -> None:
    stage.budget("a", ["team-a"], gpu_hours=1)
    stage.budget("b", ["team-b"], gpu_hours=1)
    for uid, namespace in (("old", "team-a"), ("ends", "team-a"), ("gone", "team-a"), ("other", "team-b")):
        stage.pod(uid, namespace)
    stage.round()
    fill(stage.client)
    if leader == "another leader follows":
        stage.lead()
    stage.pod("new", "team-b")
    stage.finish(stage.source_pod("ends"))
    stage.remove("gone")
    for _ in range(3):
        stage.round(HOUR)
    assert stage.keeper is not None
    assert stage.keeper.held_back == 1
    assert stage.keeper.books.not_settled == {}
    assert set(stage.client.hkeys(keys.AccountKeys("a").sessions)) == {b"old"}
    assert stage.spent("a") == 3 * HOUR * GPU_SECOND + HOUR * GPU_SECOND
    assert stage.spent("b") == 3 * HOUR * GPU_SECOND
    assert (told(stage, "team-a")["state"], told(stage, "team-b")["state"]) == ("over", "over")
    make_room(stage.client)
    stage.round(HOUR)
    assert stage.keeper.held_back == 0
    assert stage.spent("b") == (4 + 4) * HOUR * GPU_SECOND


def test_a_session_that_began_and_ended_while_the_store_was_full_is_closed_in_it(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.round()
    fill(stage.client)
    pod = stage.pod("short", "team-a")
    stage.round(10)
    stage.finish(pod)
    stage.round(10)
    assert stage.spent("a") == 10 * GPU_SECOND
    assert stage.keeper is not None
    assert stage.keeper.held_back == 0


def test_reports_are_not_taken_from_four_fifths_of_the_memory_on_and_again_once_there_is_room(stage: Stage) -> None:
    stage.pod("p1", "team-a")
    stage.round()
    clock = [0.0]
    intake = ReportIntake(stage.client, 0, MemoryWatch(stage.client, lambda: clock[0]).is_full)

    def take(number: int) -> Outcome | Exception:
        clock[0] += 2
        return intake.take([Submission("p1", "b", number, stage.now + number)])[0]

    used = int(stage.client.info("memory")["used_memory"])
    stage.client.config_set("maxmemory", 4 * used)
    assert take(1) is Outcome.TAKEN
    stage.client.config_set("maxmemory", used * 11 // 10)
    before = stage.client.dump(keys.report("p1"))
    assert take(2) is Outcome.FULL
    assert stage.client.dump(keys.report("p1")) == before
    make_room(stage.client)
    assert take(3) is Outcome.TAKEN


def test_a_store_without_a_bound_is_never_full(stage: Stage) -> None:
    assert is_full_for_pods(stage.client) is False


def test_the_store_is_asked_for_its_memory_once_a_second(stage: Stage) -> None:
    clock = [0.0]
    watch = MemoryWatch(stage.client, lambda: clock[0])
    assert watch.is_full() is False
    fill(stage.client)
    assert watch.is_full() is False
    clock[0] = 1.0
    assert watch.is_full() is True
