from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
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
def stage(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        found = LedgerHarness(tmp_path, client)
        found.budget("a", ["team-a"])
        yield found


def held(stage: LedgerHarness, uid: str, **metadata: Any) -> dict[str, Any]:
    pod = stage.pod(uid, "team-a")
    pod["metadata"] |= {"finalizers": ["example.org/own", METER], **metadata}
    stage.write_pod(pod)
    return pod


def deleted(stage: LedgerHarness, pod: dict[str, Any], grace: int) -> None:
    pod["metadata"] |= {
        "deletionTimestamp": format_instant(stage.now + grace * SECOND),
        "deletionGracePeriodSeconds": grace,
    }
    stage.write_pod(pod)


def released(stage: LedgerHarness) -> int:
    assert stage.keeper is not None
    return PodJobs(stage.source, stage.keeper.books).remove_finalizers()


def finalizers(stage: LedgerHarness, uid: str) -> list[str]:
    stage.source.refresh()
    (pod,) = [item for item in stage.source.mirrors.pods.items() if item["metadata"]["uid"] == uid]
    found: list[str] = pod["metadata"]["finalizers"]
    return found


def test_a_pod_is_held_until_the_store_has_its_end_and_then_its_own_finalizers_stay(stage: LedgerHarness) -> None:
    stage.lead(HOLDING)
    pod = held(stage, "p1")
    stage.round()
    deleted(stage, pod, grace=30)
    stage.round(10)
    assert released(stage) == 0
    stage.finish(pod)
    stage.source.refresh()
    assert released(stage) == 0, "the books have not seen it end yet"
    stage.round(0.5)
    assert released(stage) == 1
    assert finalizers(stage, "p1") == ["example.org/own"]
    assert stage.spent("a") == 10 * GPU_SECOND


@pytest.mark.parametrize("away", [1, 100_000])
def test_whoever_looks_when_charges_a_held_pod_to_the_same_instant(stage: LedgerHarness, away: int) -> None:
    stage.lead(HOLDING)
    finished, forced, refused = held(stage, "finished"), held(stage, "forced"), held(stage, "refused")
    stage.round()
    stage.pass_time(20)
    stage.finish(finished, seconds_ago=5)
    deleted(stage, finished, grace=0)
    deleted(stage, forced, grace=0)
    at = format_instant(stage.now - 3 * SECOND)
    refused["status"] |= {"phase": "Failed", "containerStatuses": []}
    refused["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at})
    stage.write_pod(refused)
    stage.pass_time(away)
    stage.lead(HOLDING)
    stage.round()
    assert stage.spent("a") == (15 + 20 + 17) * GPU_SECOND
    notes = {entry.session: entry.note.split()[0] for entry in reading.ledger_page(stage.client, "a", "", 10)}
    assert notes == {"finished": "finished", "forced": "deleted", "refused": "terminal"}
    assert released(stage) == 3


def test_a_pod_that_began_and_ended_while_nobody_watched_is_charged_to_the_second(stage: LedgerHarness) -> None:
    stage.lead(HOLDING)
    stage.round()
    pod = held(stage, "p1")
    stage.now += 7 * SECOND
    deleted(stage, pod, grace=0)
    stage.now += 5000 * SECOND
    stage.lead(HOLDING)
    stage.round()
    assert stage.spent("a") == 7 * GPU_SECOND
    assert released(stage) == 1


def test_a_pod_that_never_held_anything_goes_as_soon_as_it_is_deleted(stage: LedgerHarness) -> None:
    stage.lead(HOLDING)
    stage.gated("p1", "team-a")
    stage.source.refresh()
    (pod,) = stage.source.mirrors.pods.items()
    pod = {**pod, "metadata": {**pod["metadata"], "finalizers": [METER]}}
    stage.write_pod(pod)
    stage.round()
    assert released(stage) == 0
    deleted(stage, pod, grace=0)
    stage.round(1)
    assert released(stage) == 1
    assert not (stage.folder / "pods" / "p1.json").exists()


def test_switching_it_off_lets_every_pod_go_and_charges_on(stage: LedgerHarness) -> None:
    stage.lead(HOLDING)
    held(stage, "p1")
    stage.round()
    stage.lead(ControllerRules())
    stage.round(10)
    assert released(stage) == 1
    stage.round(10)
    assert stage.spent("a") == 20 * GPU_SECOND


def test_a_refusal_is_tried_again_later_and_holds_up_nobody(
    stage: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.lead(HOLDING)
    for uid in ("p1", "p2", "p3"):
        stage.finish(held(stage, uid))
    stage.round(1)
    assert stage.keeper is not None
    tried: list[str] = []
    remove = stage.source.remove_finalizer

    def sometimes(pod: dict[str, Any]) -> None:
        tried.append(pod["metadata"]["uid"])
        if pod["metadata"]["uid"] == "p1":
            raise RefusedError("a policy")
        if pod["metadata"]["uid"] == "p2":
            raise ChangedMeanwhileError("gone")
        remove(pod)

    monkeypatch.setattr(stage.source, "remove_finalizer", sometimes)
    jobs = PodJobs(stage.source, stage.keeper.books, lambda: stage.now / SECOND)
    assert jobs.remove_finalizers() == 1
    stage.now += SECOND
    assert jobs.remove_finalizers() == 0
    assert sorted(tried) == ["p1", "p2", "p2", "p3"]
    stage.now += 40 * SECOND
    jobs.remove_finalizers()
    assert tried.count("p1") == 2


def test_a_finalizer_that_is_added_again_is_removed_again(stage: LedgerHarness) -> None:
    stage.lead()
    pod = held(stage, "p1")
    stage.round()
    assert stage.keeper is not None
    jobs = PodJobs(stage.source, stage.keeper.books, lambda: stage.now / SECOND)
    assert jobs.remove_finalizers() == 1
    stage.round(1)
    stage.write_pod(pod)
    stage.round(1)
    jobs.remove_finalizers()
    stage.round(10)
    assert jobs.remove_finalizers() == 1
    assert finalizers(stage, "p1") == ["example.org/own"]
