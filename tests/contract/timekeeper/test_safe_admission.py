"""Safe admission, from the pods that are there to what admission is told, and to who is let go."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import SafeAdmission
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from tests.support.servers.redis_server import RedisServer
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def safe_budget(stage: LedgerHarness, gpu_hours: Any, **spec: Any) -> None:
    stage.budget("a", ["team-a"], gpu_hours, **{"admission": "safe", "onExhausted": "hold", **spec})


def run(stage: LedgerHarness, uid: str, hours: float | None) -> None:
    item = stage.pod(uid, "team-a")
    if hours is not None:
        item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    stage.write_pod(item)


OURS, KUEUES = "fairgpu.io/budget", "kueue.x-k8s.io/admission"


def wait(stage: LedgerHarness, uid: str, hours: float, *, gates: tuple[str, ...] = (), state: str = "open") -> None:
    stage.gated(uid, "team-a")
    item = stage.source_pod(uid)
    item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    item["metadata"]["annotations"]["fairgpu.io/budget-state"] = state
    item["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    stage.write_pod(item)


def lift(stage: LedgerHarness, uid: str, gate: str) -> None:
    item = stage.source_pod(uid)
    item["spec"]["schedulingGates"].remove({"name": gate})
    stage.write_pod(item)


def safe_admission(stage: LedgerHarness) -> SafeAdmission:
    assert stage.keeper is not None
    found = stage.keeper.books.published["team-a"].safe
    assert found is not None
    return found


def test_running_pods_are_committed_to_what_is_left_of_their_deadline_or_to_the_default(stage: LedgerHarness) -> None:
    safe_budget(stage, 100, defaultCommit="2h")
    run(stage, "limited", 8)
    run(stage, "endless", None)
    stage.round()
    assert safe_admission(stage) == SafeAdmission(10 * GPU_HOUR, 7200, hold=True)
    stage.round(3 * HOUR)
    assert safe_admission(stage).committed == 7 * GPU_HOUR
    stage.round(6 * HOUR)
    assert safe_admission(stage).committed == 2 * GPU_HOUR


def test_what_waits_at_the_gate_comes_before_any_newcomer(stage: LedgerHarness) -> None:
    safe_budget(stage, 10)
    stage.lead()
    wait(stage, "first", 6, gates=(OURS,), state="held")
    wait(stage, "never", 11, gates=(OURS,), state="held")
    stage.round()
    assert safe_admission(stage).committed == 6 * GPU_HOUR
    assert stage.keeper is not None
    assert stage.keeper.books.figures["a"].committed == 0


def test_pods_that_were_admitted_and_wait_are_committed_too_and_no_others(stage: LedgerHarness) -> None:
    safe_budget(stage, 100)
    stage.lead()
    wait(stage, "promised", 5)
    wait(stage, "over", 9, state="over")
    stage.round()
    assert safe_admission(stage).committed == 5 * GPU_HOUR
    stage.remove("promised")
    stage.round(1, full=False)
    assert safe_admission(stage).committed == 0


def test_what_never_gets_a_node_keeps_money_for_as_long_as_the_budget_says_and_counts_again_once_it_runs(
    stage: LedgerHarness,
) -> None:
    safe_budget(stage, 100, pendingCommit="2h")
    stage.lead()
    wait(stage, "stuck", 5)
    stage.round(2 * HOUR - 1)
    assert safe_admission(stage).committed == 5 * GPU_HOUR
    stage.round(1)
    assert safe_admission(stage).committed == 0
    assert stage.keeper is not None
    assert stage.keeper.books.figures["a"].lapsed == 1
    stage.lead()
    stage.round(1)
    assert safe_admission(stage).committed == 0
    run(stage, "stuck", 5)
    stage.round(1)
    assert safe_admission(stage).committed == 5 * GPU_HOUR - GPU_SECOND
    assert stage.keeper.books.figures["a"].lapsed == 0


def test_what_was_held_keeps_money_from_when_it_was_released(stage: LedgerHarness) -> None:
    safe_budget(stage, 10, pendingCommit="2h")
    stage.lead()
    wait(stage, "held", 5, gates=(OURS,), state="held")
    stage.round(5 * HOUR)
    lift(stage, "held", OURS)
    stage.round(1)
    stage.round(2 * HOUR - 1)
    assert safe_admission(stage).committed == 5 * GPU_HOUR
    stage.round(1)
    assert safe_admission(stage).committed == 0


def test_a_pod_behind_somebody_elses_gate_is_promised_nothing_before_that_gate_is_gone(stage: LedgerHarness) -> None:
    safe_budget(stage, 10, pendingCommit="2h")
    stage.lead()
    wait(stage, "queued", 8, gates=(KUEUES,))
    wait(stage, "behind-both", 4, gates=(KUEUES, OURS), state="held")
    stage.round(5 * HOUR)
    assert safe_admission(stage).committed == 0
    lift(stage, "queued", KUEUES)
    stage.round(1)
    stage.round(2 * HOUR - 1)
    assert safe_admission(stage).committed == 8 * GPU_HOUR
    stage.round(1)
    assert safe_admission(stage).committed == 0


def test_a_pod_behind_two_gates_keeps_money_from_when_the_last_of_them_is_gone(stage: LedgerHarness) -> None:
    safe_budget(stage, 10, pendingCommit="2h")
    stage.lead()
    wait(stage, "queued", 8, gates=(KUEUES, OURS), state="held")
    stage.round(1)
    lift(stage, "queued", OURS)
    stage.round(5 * HOUR)
    lift(stage, "queued", KUEUES)
    stage.round(1)
    stage.round(HOUR)
    assert safe_admission(stage).committed == 8 * GPU_HOUR


@pytest.mark.parametrize("admission", ["safe", "simple"])
def test_a_pod_behind_somebody_elses_gate_is_not_released_and_holds_back_nobody(
    stage: LedgerHarness, admission: str
) -> None:
    safe_budget(stage, 10, admission=admission, minRuntime="8h")
    stage.lead()
    wait(stage, "queued", 8, gates=(KUEUES, OURS), state="held")
    wait(stage, "let-in", 8, gates=(KUEUES,))
    stage.now += 1
    wait(stage, "next", 8, gates=(OURS,), state="held")
    stage.round()
    assert stage.keeper is not None
    assert PodJobs(stage.source, stage.keeper.books).release(stage.now) == 1
    assert stage.source_pod("next")["spec"]["schedulingGates"] == []
    assert stage.source_pod("queued")["spec"]["schedulingGates"] == [{"name": KUEUES}, {"name": OURS}]


@given(
    pods=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.5, 3, 8]), st.booleans()), max_size=12),
    kept=st.sampled_from(["1m", "10m", "1h"]),
)
def test_what_is_kept_for_pods_that_do_not_run_is_bounded_and_that_of_those_that_run_is_exact(
    server: RedisServer, pods: list[tuple[int, float, bool]], kept: str
) -> None:
    with server.client() as client, tempfile.TemporaryDirectory() as folder:
        client.flushall()
        stage = LedgerHarness(Path(folder), client)
        safe_budget(stage, 1000, pendingCommit=kept)
        stage.lead()
        begun = []
        for index, (minutes, hours, runs) in enumerate(pods):
            stage.round(minutes * 60)
            run(stage, f"p{index}", hours) if runs else wait(stage, f"p{index}", hours)
            begun.append(stage.now)
        stage.round(0)
        longest = parse_duration(kept)
        expected = 0
        for (_, hours, runs), since in zip(pods, begun, strict=True):
            ran = stage.now - since
            if runs:
                expected += max(int(hours * GPU_HOUR) - ran // 1000, 0)
            elif ran < longest:
                expected += int(hours * GPU_HOUR)
        assert stage.keeper is not None
        assert stage.keeper.books.figures["a"].committed == expected


def test_a_pod_that_comes_is_shown_at_once_and_passing_time_is_not(stage: LedgerHarness) -> None:
    safe_budget(stage, 1000)
    run(stage, "limited", 8)
    stage.round()
    before = stage.keeper.books.published["team-a"] if stage.keeper else None
    stage.round(600)
    assert stage.keeper is not None
    assert stage.keeper.books.published["team-a"] is before
    wait(stage, "next", 5)
    stage.round(1, full=False)
    assert safe_admission(stage).committed == 13 * GPU_HOUR - 601 * GPU_SECOND


def test_a_held_pod_is_released_once_its_whole_run_is_paid_for_first_come_first_served(stage: LedgerHarness) -> None:
    safe_budget(stage, 10)
    run(stage, "limited", 8)
    stage.lead()
    wait(stage, "long", 4, gates=(OURS,), state="held")
    stage.now += 1
    wait(stage, "short", 1, gates=(OURS,), state="held")
    stage.round()
    assert stage.keeper is not None
    jobs = PodJobs(stage.source, stage.keeper.books)
    assert jobs.release(stage.now) == 0
    stage.finish(stage.source_pod("limited"))
    stage.round(HOUR)
    assert jobs.release(stage.now) == 2
    assert jobs.release(stage.now) == 0
    stage.round(1, full=False)
    assert safe_admission(stage).committed == 5 * GPU_HOUR


def test_a_budget_that_is_only_observed_keeps_nobody_out(stage: LedgerHarness) -> None:
    safe_budget(stage, 10, enforcement="observe")
    run(stage, "limited", 80)
    stage.round()
    assert stage.keeper is not None
    known = stage.keeper.books.published["team-a"]
    assert (known.safe, known.enforced) == (None, False)
    assert stage.keeper.books.figures["a"].committed == 80 * GPU_HOUR
