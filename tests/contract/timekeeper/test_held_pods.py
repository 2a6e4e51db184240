from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.controller.pod_writes import Progress
from timekeeper.controller.releases import Releaser
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.ledger import reading
from timekeeper.sources.base import ChangedMeanwhileError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

METER = "fairgpu.io/meter"
HOLDING = ControllerRules(holds_pods=True)


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        found = LedgerHarness(tmp_path, client)
        found.budget("a", ["team-a"])
        yield found


def held(harness: LedgerHarness, uid: str, **metadata: Any) -> dict[str, Any]:
    pod = harness.pod(uid, "team-a")
    pod["metadata"] |= {"finalizers": ["example.org/own", METER], **metadata}
    harness.write_pod(pod)
    return pod


def deleted(harness: LedgerHarness, pod: dict[str, Any], grace: int) -> None:
    pod["metadata"] |= {
        "deletionTimestamp": format_instant(harness.now + grace * SECOND),
        "deletionGracePeriodSeconds": grace,
    }
    harness.write_pod(pod)


def released(harness: LedgerHarness) -> int:
    assert harness.reconciler is not None
    return PodJobs(harness.source, harness.reconciler.books).remove_finalizers()


def finalizers(harness: LedgerHarness, uid: str) -> list[str]:
    harness.source.refresh()
    (pod,) = [item for item in harness.source.mirrors.pods.items() if item["metadata"]["uid"] == uid]
    found: list[str] = pod["metadata"]["finalizers"]
    return found


def test_a_pod_is_held_until_the_store_has_its_end_and_then_its_own_finalizers_stay(harness: LedgerHarness) -> None:
    harness.lead(HOLDING)
    pod = held(harness, "p1")
    harness.reconcile()
    deleted(harness, pod, grace=30)
    harness.reconcile(10)
    assert released(harness) == 0
    harness.finish(pod)
    harness.source.refresh()
    assert released(harness) == 0, "the books have not seen it end yet"
    harness.reconcile(0.5)
    assert released(harness) == 1
    assert finalizers(harness, "p1") == ["example.org/own"]
    assert harness.spent("a") == 10 * GPU_SECOND


@pytest.mark.parametrize("away", [1, 100_000])
def test_every_leader_charges_a_held_pod_to_the_same_instant_at_any_time(harness: LedgerHarness, away: int) -> None:
    harness.lead(HOLDING)
    finished, forced, refused = held(harness, "finished"), held(harness, "forced"), held(harness, "refused")
    harness.reconcile()
    harness.pass_time(20)
    harness.finish(finished, seconds_ago=5)
    deleted(harness, finished, grace=0)
    deleted(harness, forced, grace=0)
    at = format_instant(harness.now - 3 * SECOND)
    refused["status"] |= {"phase": "Failed", "containerStatuses": []}
    refused["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at})
    harness.write_pod(refused)
    harness.pass_time(away)
    harness.lead(HOLDING)
    harness.reconcile()
    assert harness.spent("a") == (15 + 20 + 17) * GPU_SECOND
    notes = {entry.session: entry.note.split()[0] for entry in reading.ledger_page(harness.client, "a", "", 10)}
    assert notes == {"finished": "finished", "forced": "deleted", "refused": "terminal"}
    assert released(harness) == 3


def test_a_pod_that_began_and_ended_while_no_leader_watched_is_charged_to_the_second(harness: LedgerHarness) -> None:
    harness.lead(HOLDING)
    harness.reconcile()
    pod = held(harness, "p1")
    harness.now += 7 * SECOND
    deleted(harness, pod, grace=0)
    harness.now += 5000 * SECOND
    harness.lead(HOLDING)
    harness.reconcile()
    assert harness.spent("a") == 7 * GPU_SECOND
    assert released(harness) == 1


def test_a_pod_that_never_held_anything_goes_as_soon_as_it_is_deleted(harness: LedgerHarness) -> None:
    harness.lead(HOLDING)
    harness.gated("p1", "team-a")
    harness.source.refresh()
    (pod,) = harness.source.mirrors.pods.items()
    pod = {**pod, "metadata": {**pod["metadata"], "finalizers": [METER]}}
    harness.write_pod(pod)
    harness.reconcile()
    assert released(harness) == 0
    deleted(harness, pod, grace=0)
    harness.reconcile(1)
    assert released(harness) == 1
    assert not (harness.folder / "pods" / "p1.json").exists()


@pytest.mark.parametrize("lifted", [False, True])
def test_a_deleted_pod_that_a_finalizer_keeps_takes_no_money_from_one_that_waits(
    harness: LedgerHarness, *, lifted: bool
) -> None:
    harness.budget("a", ["team-a"], gpu_hours="0.1", minRuntime="5m", onExhausted="hold")
    reconciler = harness.lead(HOLDING)
    harness.gated("first", "team-a")
    harness.source.refresh()
    (pod,) = harness.source.mirrors.pods.items()
    deleted(harness, {**pod, "metadata": {**pod["metadata"], "finalizers": ["example.org/own"]}}, grace=0)
    harness.gated("second", "team-a")
    harness.reconcile(1)
    progress = Progress(released=frozenset({"first"})) if lifted else Progress()
    writes, _ = Releaser(harness.source, reconciler.books).releases(harness.leaders_time(), reconciler.past, progress)
    assert [write.uid for write in writes] == ["second"]


def test_switching_it_off_lets_every_pod_go_and_charges_on(harness: LedgerHarness) -> None:
    harness.lead(HOLDING)
    held(harness, "p1")
    harness.reconcile()
    harness.lead(ControllerRules())
    harness.reconcile(10)
    assert released(harness) == 1
    harness.reconcile(10)
    assert harness.spent("a") == 20 * GPU_SECOND


def test_a_refusal_is_tried_again_later_and_delays_no_other(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.lead(HOLDING)
    for uid in ("p1", "p2", "p3"):
        harness.finish(held(harness, uid))
    harness.reconcile(1)
    assert harness.reconciler is not None
    tried: list[str] = []
    remove = harness.source.remove_finalizer

    def sometimes(pod: dict[str, Any]) -> None:
        tried.append(pod["metadata"]["uid"])
        if pod["metadata"]["uid"] == "p1":
            raise RefusedError("a policy")
        if pod["metadata"]["uid"] == "p2":
            raise ChangedMeanwhileError("gone")
        remove(pod)

    monkeypatch.setattr(harness.source, "remove_finalizer", sometimes)
    jobs = PodJobs(harness.source, harness.reconciler.books, lambda: harness.now / SECOND)
    assert jobs.remove_finalizers() == 1
    harness.now += SECOND
    assert jobs.remove_finalizers() == 0
    assert sorted(tried) == ["p1", "p2", "p2", "p3"]
    harness.now += 40 * SECOND
    jobs.remove_finalizers()
    assert tried.count("p1") == 2


def test_a_finalizer_that_is_added_again_is_removed_again(harness: LedgerHarness) -> None:
    harness.lead()
    pod = held(harness, "p1")
    harness.reconcile()
    assert harness.reconciler is not None
    jobs = PodJobs(harness.source, harness.reconciler.books, lambda: harness.now / SECOND)
    assert jobs.remove_finalizers() == 1
    harness.reconcile(1)
    harness.write_pod(pod)
    harness.reconcile(1)
    jobs.remove_finalizers()
    harness.reconcile(10)
    assert jobs.remove_finalizers() == 1
    assert finalizers(harness, "p1") == ["example.org/own"]
