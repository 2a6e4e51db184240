"""Writes that pods cause stop before Redis is full; closing and settling go on, though it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger import old_store
from tests.support.ledger.harness import EACH_REDIS, LedgerHarness, harness_on, state_answer
from timekeeper.controller.archive import Archivist
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.windows import Retention
from timekeeper.ledger import keys, reading
from timekeeper.ledger.connection import MemoryWatch, is_full_for_pods
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

HOUR = 3600


@pytest.fixture(params=EACH_REDIS)
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerHarness]:
    with harness_on(request.param, tmp_path, monkeypatch, "--maxmemory-policy", "noeviction") as found:
        yield found


def fill(client: redis.Redis) -> None:
    """Leaves no memory at all."""
    client.config_set("maxmemory", 1)


def make_room(client: redis.Redis) -> None:
    client.config_set("maxmemory", 0)


@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
def test_a_full_store_still_takes_closes_and_settlements_and_opens_the_rest_once_there_is_room(
    harness: LedgerHarness, leader: str
) -> None:
    harness.budget("a", ["team-a"], gpu_hours=1)
    harness.budget("b", ["team-b"], gpu_hours=1)
    for uid, namespace in (("old", "team-a"), ("ends", "team-a"), ("gone", "team-a"), ("other", "team-b")):
        harness.pod(uid, namespace)
    harness.reconcile()
    fill(harness.client)
    if leader == "another leader follows":
        harness.lead()
    harness.pod("new", "team-b")
    harness.finish(harness.source_pod("ends"))
    harness.remove("gone")
    for _ in range(3):
        harness.reconcile(HOUR)
    assert harness.reconciler is not None
    assert harness.reconciler.held_back == 1
    assert harness.reconciler.books.not_settled == {}
    assert set(harness.client.hkeys(keys.AccountKeys("a").sessions)) == {b"old"}
    assert harness.spent("a") == 3 * HOUR * GPU_SECOND + HOUR * GPU_SECOND
    assert harness.spent("b") == 3 * HOUR * GPU_SECOND
    assert (state_answer(harness, "team-a")["state"], state_answer(harness, "team-b")["state"]) == ("over", "over")
    make_room(harness.client)
    harness.reconcile(HOUR)
    assert harness.reconciler.held_back == 0
    assert harness.spent("b") == (4 + 4) * HOUR * GPU_SECOND


def test_a_session_that_began_and_ended_while_the_store_was_full_is_closed_in_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    fill(harness.client)
    pod = harness.pod("short", "team-a")
    harness.reconcile(10)
    harness.finish(pod)
    harness.reconcile(10)
    assert harness.spent("a") == 10 * GPU_SECOND
    assert harness.reconciler is not None
    assert harness.reconciler.held_back == 0


def test_reports_are_not_taken_from_four_fifths_of_the_memory_on_and_again_once_there_is_room(
    harness: LedgerHarness,
) -> None:
    harness.pod("p1", "team-a")
    harness.reconcile()
    clock = [0.0]
    intake = ReportIntake(harness.client, 0, MemoryWatch(harness.client, lambda: clock[0]).is_full)

    def take(number: int) -> IntakeOutcome | Exception:
        clock[0] += 2
        return intake.take([Submission("p1", "b", number, harness.now + number)])[0]

    harness.client.setrange("filler", 32_000_000, "x")  # beside it, what connections take is little
    used = int(harness.client.info("memory")["used_memory"])
    harness.client.config_set("maxmemory", used * 100 // 78)
    assert take(1) is IntakeOutcome.TAKEN
    harness.client.config_set("maxmemory", used * 100 // 82)
    before = harness.client.dump(keys.report("p1"))
    assert take(2) is IntakeOutcome.FULL
    assert harness.client.dump(keys.report("p1")) == before
    make_room(harness.client)
    assert take(3) is IntakeOutcome.TAKEN


def test_a_store_without_a_bound_is_never_full(harness: LedgerHarness) -> None:
    assert is_full_for_pods(harness.client) is False


def test_the_store_is_asked_for_its_memory_once_a_second(harness: LedgerHarness) -> None:
    clock = [0.0]
    watch = MemoryWatch(harness.client, lambda: clock[0])
    assert watch.is_full() is False
    fill(harness.client)
    assert watch.is_full() is False
    clock[0] = 1.0
    assert watch.is_full() is True


@pytest.mark.parametrize("before", ["it was led until then", "it went back to before it was converted"])
def test_a_new_leader_of_a_full_store_of_format_1_converts_settles_and_publishes(
    harness: LedgerHarness, before: str
) -> None:
    old_store.begin(harness)
    if before == "it went back to before it was converted":
        led_until_then = harness.lead()
        harness.reconcile()
        harness.client.flushall()
        old_store.fill(harness.client)
        fill(harness.client)
        harness.reconciler = Reconciler(harness.client, harness.source, ControllerRules(), led_until_then.fencing_token)
    else:
        fill(harness.client)
        harness.lead()
    harness.reconcile()
    old_store.check_converted(harness)
    harness.reconcile(HOUR)
    assert harness.reconciler is not None
    assert harness.reconciler.books.not_settled == {}
    assert harness.client.hget(keys.AccountKeys("research").head, "settled") == str(harness.now).encode()


def test_archiving_goes_on_in_a_full_store_as_it_makes_room(harness: LedgerHarness) -> None:
    old_store.begin(harness)
    reconciler = harness.lead()
    harness.reconcile()
    for file in (harness.folder / "pods").glob("*.json"):
        harness.remove(file.stem)
    harness.reconcile(HOUR)
    fill(harness.client)
    archivist = Archivist(
        harness.client, harness.source, reconciler.books, reconciler.fencing_token, Retention(hourly_days=1)
    )
    for _ in range(3):
        harness.reconcile(36 * HOUR)
        reconciler.books.finalized = []  # a checkpoint holds them
        archivist.archive(harness.now)
    for name in reading.account_names(harness.client):
        account = keys.AccountKeys(name)
        starts = map(int, harness.client.hkeys(account.periods))
        assert not harness.client.exists(account.hour_index, *map(account.amounts, starts))
        assert harness.client.xlen(account.ledger) <= 2
    make_room(harness.client)
    harness.reconcile(HOUR)
    assert old_store.differences(harness) == ()
