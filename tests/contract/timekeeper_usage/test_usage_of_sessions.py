from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.keeper_stage import NOON, Stage, report
from tests.mirrored_world import MirroredWorld
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.jobs.round.keeper import Keeper
from timekeeper.rest.usage.finding import find
from timekeeper.rest.usage.query import Query
from timekeeper.rules.money import GPU_HOUR, GPU_SECOND
from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.store import book
from timekeeper.store.account_loading import load_accounts
from timekeeper.store.ledger import Opening, open_periods, take_epoch
from timekeeper.usage.rows import Figures
from timekeeper.usage.windows import Window

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

TODAY = Window(NOON - 12 * HOUR, NOON + 12 * HOUR)


def used(
    stage: Stage, *aggregate: str, window: Window = TODAY, step: str | None = None, idle: bool = False
) -> dict[tuple[int, *tuple[str, ...]], Figures]:
    """What each key came to, by the hour in which its step starts, counted from noon."""
    found = find(stage.client, Query(window, step, aggregate or ("namespace",), 1000, idle=idle), stage.now)
    return {((item.step.start - NOON) // HOUR, *item.key): item.figures for item in found.items}


def test_a_running_pod_is_told_to_the_last_settlement(stage: Stage) -> None:
    stage.pod("p1", "team-a", core=50)
    stage.round(0)
    stage.round(600)
    assert used(stage) == {(-12, "team-a"): Figures(300 * GPU_SECOND, 300 * GPU_SECOND, 7200)}


def test_each_hour_gets_what_was_held_in_it_however_late_it_is_posted(stage: Stage) -> None:
    stage.pass_time(30 * 60)
    pod = stage.pod("p1", "team-a")
    stage.round(0)
    stage.round(2 * 3600)
    stage.round(1800)
    stage.finish(pod, seconds_ago=600)
    stage.round(0)
    billed = {key[0]: figures.billed for key, figures in used(stage, step="1h").items()}
    assert billed == {0: GPU_HOUR // 2, 1: GPU_HOUR, 2: GPU_HOUR * 50 // 60}
    assert sum(billed.values()) == stage.spent("namespace:team-a")


def test_use_is_told_by_whatever_it_is_put_down_to(stage: Stage) -> None:
    stage.lead(KeeperRules(labels=("team",)))
    stage.budget("research", ["team-a", "team-b"])
    item = stage.pod("p1", "team-a")
    item["metadata"] |= {
        "labels": {"team": "vision", "pod-template-hash": "5d4", "other": "x"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-5d4", "controller": True}],
    }
    item["metadata"]["annotations"]["fairgpu.io/created-by"] = "Deployment/serve"
    stage.write_pod(item)
    stage.pod("p2", "team-b")
    stage.round(0)
    stage.round(60)
    names = ("namespace", "budget", "model", "node", "owner", "user", "label:team")
    assert set(used(stage, *names)) == {
        (-12, "team-a", "research", "A100", "n1", "Deployment/serve", "Deployment/serve", "vision"),
        (-12, "team-b", "research", "A100", "n1", "Pod/p2", "__unallocated__", "__unallocated__"),
    }
    assert used(stage, "budget")[-12, "research"].billed == stage.spent("research")


def test_days_are_cut_at_midnight_in_utc(stage: Stage) -> None:
    stage.pod("p1", "team-a")
    stage.round(0)
    for _ in range(30):
        stage.round(3600)
    window = Window(TODAY.start, TODAY.end + DAY)
    billed = {key[0]: figures.billed for key, figures in used(stage, window=window, step="1d").items()}
    assert billed == {-12: 12 * GPU_HOUR, 12: 18 * GPU_HOUR}


def test_what_nobody_held_is_idle_so_that_the_sum_is_the_capacity(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        stage, now = Stage(tmp_path, client), [NOON]
        world = MirroredWorld(lambda: now[0])
        keeper = Keeper(client, world, KeeperRules(), take_epoch(client, 0))
        world.replace("nodes", [node("n1", 200), node("n2", 100)])
        world.replace("pods", [stage.pod("p1", "team-a", core=50)])
        keeper.round(now[0])
        now[0] += HOUR
        world.replace("nodes", [node("n1", 200)])
        keeper.round(now[0])
        now[0] += HOUR // 2
        keeper.round(now[0])
        stage.now = now[0]
        found = used(stage, "namespace", "model", step="1h", idle=True)
        assert [found[hour, "__idle__", "__idle__"].core for hour in (0, 1)] == [2.5 * GPU_HOUR, 0.75 * GPU_HOUR]
        for hour, whole in ((0, 3 * GPU_HOUR), (1, GPU_HOUR)):
            assert sum(figures.core for key, figures in found.items() if key[0] == hour) == whole
            assert sum(figures.memory for key, figures in found.items() if key[0] == hour) == whole
            assert found[hour, "__idle__", "__idle__"].billed == 0


def node(name: str, percent: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name}, "status": {"capacity": {"fairgpu.io/gpu-core": str(percent)}}}


def test_what_was_used_stands_beside_what_was_held_and_nothing_where_nothing_was_reported(stage: Stage) -> None:
    stage.budget("hourly", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.pod("p2", "team-b")
    stage.round(0)
    for hour, busy in enumerate((600, 900, 2700)):
        stage.pass_time(3599)
        report(stage, "p1", hour, busy)
        if hour == 1:
            stage.lead()  # whoever leads next knows from the store what was told before
        stage.round(1)
        stage.round(0)
    found = used(stage, step="1h")
    assert [found[hour, "team-a"].used for hour in range(3)] == [600 * GPU_SECOND, 300 * GPU_SECOND, 1800 * GPU_SECOND]
    assert found[0, "team-b"].used is None


def test_what_a_lost_store_had_spent_is_told_as_nobodys(stage: Stage) -> None:
    stage.budget("research", ["team-a"])
    keeper = stage.lead()
    stage.round(0)
    period = load_accounts(stage.client, ["research"])[0].periods[-1]
    stage.client.flushall()
    opening = Opening("research", period.start, period.end, checkpoint=7 * GPU_HOUR)
    open_periods(stage.client, keeper.epoch, stage.now, [opening])
    book.write_assignments(stage.client, {"team-a": ((0, "research"),)})
    assert used(stage, "namespace", "budget")[-12, "__unallocated__", "research"].billed == 7 * GPU_HOUR
