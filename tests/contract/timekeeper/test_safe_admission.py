"""Safe admission, from the pods that are there to the answer for admission, and to the pods that are released."""

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


def safe_budget(harness: LedgerHarness, gpu_hours: Any, **spec: Any) -> None:
    harness.budget("a", ["team-a"], gpu_hours, **{"admission": "safe", "onExhausted": "hold", **spec})


def run(harness: LedgerHarness, uid: str, hours: float | None) -> None:
    item = harness.pod(uid, "team-a")
    if hours is not None:
        item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    harness.write_pod(item)


OURS, KUEUES = "fairgpu.io/budget", "kueue.x-k8s.io/admission"


def wait(harness: LedgerHarness, uid: str, hours: float, *, gates: tuple[str, ...] = (), state: str = "open") -> None:
    harness.gated(uid, "team-a")
    item = harness.source_pod(uid)
    item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    item["metadata"]["annotations"]["fairgpu.io/budget-state"] = state
    item["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    harness.write_pod(item)


def lift(harness: LedgerHarness, uid: str, gate: str) -> None:
    item = harness.source_pod(uid)
    item["spec"]["schedulingGates"].remove({"name": gate})
    harness.write_pod(item)


def safe_admission(harness: LedgerHarness) -> SafeAdmission:
    assert harness.reconciler is not None
    found = harness.reconciler.books.published["team-a"].safe
    assert found is not None
    return found


def test_running_pods_are_committed_to_what_is_left_of_their_deadline_or_to_the_default(harness: LedgerHarness) -> None:
    safe_budget(harness, 100, defaultCommit="2h")
    run(harness, "limited", 8)
    run(harness, "endless", None)
    harness.reconcile()
    assert safe_admission(harness) == SafeAdmission(10 * GPU_HOUR, 7200, hold=True)
    harness.reconcile(3 * HOUR)
    assert safe_admission(harness).committed == 7 * GPU_HOUR
    harness.reconcile(6 * HOUR)
    assert safe_admission(harness).committed == 2 * GPU_HOUR


def test_a_pod_that_waits_at_the_gate_comes_before_any_newcomer(harness: LedgerHarness) -> None:
    safe_budget(harness, 10)
    harness.lead()
    wait(harness, "first", 6, gates=(OURS,), state="held")
    wait(harness, "never", 11, gates=(OURS,), state="held")
    harness.reconcile()
    assert safe_admission(harness).committed == 6 * GPU_HOUR
    assert harness.reconciler is not None
    assert harness.reconciler.books.figures["a"].committed == 0


def test_pods_that_were_admitted_and_wait_are_committed_too_and_no_others(harness: LedgerHarness) -> None:
    safe_budget(harness, 100)
    harness.lead()
    wait(harness, "promised", 5)
    wait(harness, "over", 9, state="over")
    harness.reconcile()
    assert safe_admission(harness).committed == 5 * GPU_HOUR
    harness.remove("promised")
    harness.reconcile(1, full=False)
    assert safe_admission(harness).committed == 0


def test_a_pod_that_never_gets_a_node_keeps_money_for_as_long_as_the_budget_says_and_counts_again_once_it_runs(
    harness: LedgerHarness,
) -> None:
    safe_budget(harness, 100, pendingCommit="2h")
    harness.lead()
    wait(harness, "stuck", 5)
    harness.reconcile(2 * HOUR - 1)
    assert safe_admission(harness).committed == 5 * GPU_HOUR
    harness.reconcile(1)
    assert safe_admission(harness).committed == 0
    assert harness.reconciler is not None
    assert harness.reconciler.books.figures["a"].overdue == 1
    harness.lead()
    harness.reconcile(1)
    assert safe_admission(harness).committed == 0
    run(harness, "stuck", 5)
    harness.reconcile(1)
    assert safe_admission(harness).committed == 5 * GPU_HOUR - GPU_SECOND
    assert harness.reconciler.books.figures["a"].overdue == 0


def test_a_held_pod_keeps_money_from_when_it_was_released(harness: LedgerHarness) -> None:
    safe_budget(harness, 10, pendingCommit="2h")
    harness.lead()
    wait(harness, "held", 5, gates=(OURS,), state="held")
    harness.reconcile(5 * HOUR)
    lift(harness, "held", OURS)
    harness.reconcile(1)
    harness.reconcile(2 * HOUR - 1)
    assert safe_admission(harness).committed == 5 * GPU_HOUR
    harness.reconcile(1)
    assert safe_admission(harness).committed == 0


def test_a_pod_behind_somebody_elses_gate_is_promised_nothing_before_that_gate_is_gone(harness: LedgerHarness) -> None:
    safe_budget(harness, 10, pendingCommit="2h")
    harness.lead()
    wait(harness, "queued", 8, gates=(KUEUES,))
    wait(harness, "behind-both", 4, gates=(KUEUES, OURS), state="held")
    harness.reconcile(5 * HOUR)
    assert safe_admission(harness).committed == 0
    lift(harness, "queued", KUEUES)
    harness.reconcile(1)
    harness.reconcile(2 * HOUR - 1)
    assert safe_admission(harness).committed == 8 * GPU_HOUR
    harness.reconcile(1)
    assert safe_admission(harness).committed == 0


def test_a_pod_behind_two_gates_keeps_money_from_when_the_last_of_them_is_gone(harness: LedgerHarness) -> None:
    safe_budget(harness, 10, pendingCommit="2h")
    harness.lead()
    wait(harness, "queued", 8, gates=(KUEUES, OURS), state="held")
    harness.reconcile(1)
    lift(harness, "queued", OURS)
    harness.reconcile(5 * HOUR)
    lift(harness, "queued", KUEUES)
    harness.reconcile(1)
    harness.reconcile(HOUR)
    assert safe_admission(harness).committed == 8 * GPU_HOUR


@pytest.mark.parametrize("admission", ["safe", "simple"])
def test_a_pod_behind_another_projects_gate_is_not_released_and_holds_back_no_other(
    harness: LedgerHarness, admission: str
) -> None:
    safe_budget(harness, 10, admission=admission, minRuntime="8h")
    harness.lead()
    wait(harness, "queued", 8, gates=(KUEUES, OURS), state="held")
    wait(harness, "let-in", 8, gates=(KUEUES,))
    harness.now += 1
    wait(harness, "next", 8, gates=(OURS,), state="held")
    harness.reconcile()
    assert harness.reconciler is not None
    assert PodJobs(harness.source, harness.reconciler.books).release(harness.now) == 1
    assert harness.source_pod("next")["spec"]["schedulingGates"] == []
    assert harness.source_pod("queued")["spec"]["schedulingGates"] == [{"name": KUEUES}, {"name": OURS}]


@given(
    pods=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.5, 3, 8]), st.booleans()), max_size=12),
    kept=st.sampled_from(["1m", "10m", "1h"]),
)
def test_memory_kept_for_pods_that_do_not_run_is_bounded_and_that_of_those_that_run_is_exact(
    server: RedisServer, pods: list[tuple[int, float, bool]], kept: str
) -> None:
    with server.client() as client, tempfile.TemporaryDirectory() as folder:
        client.flushall()
        harness = LedgerHarness(Path(folder), client)
        safe_budget(harness, 1000, pendingCommit=kept)
        harness.lead()
        begun = []
        for index, (minutes, hours, runs) in enumerate(pods):
            harness.reconcile(minutes * 60)
            run(harness, f"p{index}", hours) if runs else wait(harness, f"p{index}", hours)
            begun.append(harness.now)
        harness.reconcile(0)
        longest = parse_duration(kept)
        expected = 0
        for (_, hours, runs), since in zip(pods, begun, strict=True):
            ran = harness.now - since
            if runs:
                expected += max(int(hours * GPU_HOUR) - ran // 1000, 0)
            elif ran < longest:
                expected += int(hours * GPU_HOUR)
        assert harness.reconciler is not None
        assert harness.reconciler.books.figures["a"].committed == expected


def test_a_pod_that_comes_is_shown_at_once_and_passing_time_is_not(harness: LedgerHarness) -> None:
    safe_budget(harness, 1000)
    run(harness, "limited", 8)
    harness.reconcile()
    before = harness.reconciler.books.published["team-a"] if harness.reconciler else None
    harness.reconcile(600)
    assert harness.reconciler is not None
    assert harness.reconciler.books.published["team-a"] is before
    wait(harness, "next", 5)
    harness.reconcile(1, full=False)
    assert safe_admission(harness).committed == 13 * GPU_HOUR - 601 * GPU_SECOND


def test_a_held_pod_is_released_once_its_whole_run_is_paid_for_first_come_first_served(harness: LedgerHarness) -> None:
    safe_budget(harness, 10)
    run(harness, "limited", 8)
    harness.lead()
    wait(harness, "long", 4, gates=(OURS,), state="held")
    harness.now += 1
    wait(harness, "short", 1, gates=(OURS,), state="held")
    harness.reconcile()
    assert harness.reconciler is not None
    jobs = PodJobs(harness.source, harness.reconciler.books)
    assert jobs.release(harness.now) == 0
    harness.finish(harness.source_pod("limited"))
    harness.reconcile(HOUR)
    assert jobs.release(harness.now) == 2
    assert jobs.release(harness.now) == 0
    harness.reconcile(1, full=False)
    assert safe_admission(harness).committed == 5 * GPU_HOUR


def test_a_budget_that_is_only_observed_holds_no_pod(harness: LedgerHarness) -> None:
    safe_budget(harness, 10, enforcement="observe")
    run(harness, "limited", 80)
    harness.reconcile()
    assert harness.reconciler is not None
    known = harness.reconciler.books.published["team-a"]
    assert (known.safe, known.enforced) == (None, False)
    assert harness.reconciler.books.figures["a"].committed == 80 * GPU_HOUR
