"""Safe admission, from the pods that are there to what admission is told, and to who is let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.states import SafeAdmission
from tests.keeper_stage import Stage
from timekeeper.jobs.pods.releasing import Releaser
from timekeeper.rules.money import GPU_HOUR, GPU_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.redis_server import RedisServer

HOUR = 3600.0


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    with redis_server.client() as client:
        yield Stage(tmp_path, client)


def safe_budget(stage: Stage, gpu_hours: Any, **spec: Any) -> None:
    stage.budget("a", ["team-a"], gpu_hours, **{"admission": "safe", "onExhausted": "hold", **spec})


def run(stage: Stage, uid: str, hours: float | None) -> None:
    item = stage.pod(uid, "team-a")
    if hours is not None:
        item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    stage.write_pod(item)


def wait(stage: Stage, uid: str, hours: float, *, gated: bool = False, state: str = "open") -> None:
    stage.gated(uid, "team-a")
    item = stage.source_pod(uid)
    item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    item["metadata"]["annotations"]["fairgpu.io/budget-state"] = state
    if not gated:
        del item["spec"]["schedulingGates"]
    stage.write_pod(item)


def told(stage: Stage) -> SafeAdmission:
    assert stage.keeper is not None
    found = stage.keeper.books.told["team-a"].safe
    assert found is not None
    return found


def test_running_pods_are_committed_to_what_is_left_of_their_deadline_or_to_the_default(stage: Stage) -> None:
    safe_budget(stage, 100, defaultCommit="2h")
    run(stage, "limited", 8)
    run(stage, "endless", None)
    stage.round()
    assert told(stage) == SafeAdmission(10 * GPU_HOUR, 7200, hold=True)
    stage.round(3 * HOUR)
    assert told(stage).committed == 7 * GPU_HOUR
    stage.round(6 * HOUR)
    assert told(stage).committed == 2 * GPU_HOUR


def test_what_waits_at_the_gate_comes_before_any_newcomer(stage: Stage) -> None:
    safe_budget(stage, 10)
    stage.lead()
    wait(stage, "first", 6, gated=True, state="held")
    wait(stage, "never", 11, gated=True, state="held")
    stage.round()
    assert told(stage).committed == 6 * GPU_HOUR
    assert stage.keeper is not None
    assert stage.keeper.books.figures["a"].committed == 0


def test_pods_that_were_let_in_and_wait_are_committed_too_and_no_others(stage: Stage) -> None:
    safe_budget(stage, 100)
    stage.lead()
    wait(stage, "promised", 5)
    wait(stage, "over", 9, state="over")
    stage.round()
    assert told(stage).committed == 5 * GPU_HOUR
    stage.remove("promised")
    stage.round(1, full=False)
    assert told(stage).committed == 0


def test_a_pod_that_comes_is_told_at_once_and_passing_time_is_not(stage: Stage) -> None:
    safe_budget(stage, 1000)
    run(stage, "limited", 8)
    stage.round()
    before = stage.keeper.books.told["team-a"] if stage.keeper else None
    stage.round(600)
    assert stage.keeper is not None
    assert stage.keeper.books.told["team-a"] is before
    wait(stage, "next", 5)
    stage.round(1, full=False)
    assert told(stage).committed == 13 * GPU_HOUR - 601 * GPU_SECOND


def test_a_held_pod_is_let_go_once_its_whole_run_is_paid_for_first_come_first_served(stage: Stage) -> None:
    safe_budget(stage, 10)
    run(stage, "limited", 8)
    stage.lead()
    wait(stage, "long", 4, gated=True, state="held")
    stage.now += 1
    wait(stage, "short", 1, gated=True, state="held")
    stage.round()
    assert stage.keeper is not None
    releaser = Releaser(stage.source, stage.keeper.books)
    assert releaser.release(stage.now) == 0
    stage.finish(stage.source_pod("limited"))
    stage.round(HOUR)
    assert releaser.release(stage.now) == 2
    assert releaser.release(stage.now) == 0
    stage.round(1, full=False)
    assert told(stage).committed == 5 * GPU_HOUR


def test_a_budget_that_is_only_observed_keeps_nobody_out(stage: Stage) -> None:
    safe_budget(stage, 10, enforcement="observe")
    run(stage, "limited", 80)
    stage.round()
    assert stage.keeper is not None
    known = stage.keeper.books.told["team-a"]
    assert (known.safe, known.enforced) == (None, False)
    assert stage.keeper.books.figures["a"].committed == 80 * GPU_HOUR
