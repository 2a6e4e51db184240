"""Whatever one account's data is, the other accounts are settled and their states are published in the same round."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import EACH_REDIS, MAX_AMOUNT, MONTH, NOON, LedgerHarness, harness_on, state_answer
from tests.support.ledger.stored_hours import rows_of, write_rows
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import StoreEmptyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOUR = 3600
GPU_HOUR = HOUR * 10**6


@pytest.fixture(params=EACH_REDIS)
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerHarness]:
    with harness_on(request.param, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def teams(harness: LedgerHarness) -> LedgerHarness:
    """Two teams of one GPU-hour each, with one running pod each."""
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"], gpu_hours=1)
        harness.pod(f"pod-{team}", f"team-{team}")
    harness.reconcile()
    return harness


def reported(harness: LedgerHarness, uid: str, used: int) -> None:
    """Sets the stored sum of a pod's reports, in microGPU-seconds."""
    harness.client.hset(keys.report(uid), mapping={"at": str(harness.now), "used": str(used)})


@pytest.mark.parametrize("used", [MAX_AMOUNT, MAX_AMOUNT + 1, 10**30])
def test_an_account_goes_on_spending_whatever_its_pod_has_reported(teams: LedgerHarness, used: int) -> None:
    teams.pod("absurd", "team-a", core=1)
    teams.reconcile(10)
    reported(teams, "absurd", used)
    teams.reconcile(HOUR)
    teams.reconcile(HOUR)
    assert state_answer(teams, "team-a")["state"] == "over"
    assert state_answer(teams, "team-b")["state"] == "over"
    assert teams.spent("a") > 2 * GPU_HOUR
    assert teams.reconciler is not None


@pytest.mark.parametrize("used", [9 * 10**23, MAX_AMOUNT, 10**30])
def test_pods_whose_use_passes_24_digits_together_stop_no_leader(teams: LedgerHarness, used: int) -> None:
    for uid in ("one", "two", "three"):
        pod = teams.pod(uid, "team-a", core=1)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        teams.write_pod(pod)
    teams.reconcile(3500)  # so that the next two entries share an hour
    for uid in ("one", "two", "three"):
        reported(teams, uid, used)
    for _ in range(4):
        teams.reconcile(HOUR)
    assert state_answer(teams, "team-a")["state"] == "over"
    assert state_answer(teams, "team-b")["state"] == "over"
    assert teams.spent("b") == 4 * GPU_HOUR + 3500 * 10**6
    teams.lead()
    teams.reconcile(HOUR)
    assert teams.spent("b") == 5 * GPU_HOUR + 3500 * 10**6
    for uid in ("one", "two", "three"):
        teams.finish(teams.source_pod(uid))
    teams.reconcile(1)
    assert teams.client.hlen(keys.AccountKeys("a").sessions) == 1


def test_a_row_of_25_digits_grows_no_further_and_stops_no_leader(teams: LedgerHarness) -> None:
    for uid in ("one", "two"):
        pod = teams.pod(uid, "team-a", core=1)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        teams.write_pod(pod)
    teams.reconcile(600)
    teams.finish(teams.source_pod("one"))
    teams.reconcile(1)
    row = f"6000000 6000000 0 {10**24}"
    write_rows(teams.client, "a", dict.fromkeys(rows_of(teams.client, "a"), row))
    teams.reconcile(599)
    teams.finish(teams.source_pod("two"))
    teams.reconcile(1)
    assert teams.spent("a") == 1201 * 10**6 + 18 * 10**6
    assert [int(row.split()[3]) <= MAX_AMOUNT for row in rows_of(teams.client, "a").values()] == [True]
    assert teams.client.hlen(keys.AccountKeys("a").sessions) == 1


@pytest.mark.parametrize("cut", [" not a cut", f" 1 1 1 {10**24}", " 1 2"])
def test_a_remembered_cut_that_cannot_be_read_is_replaced(teams: LedgerHarness, cut: str) -> None:
    teams.reconcile(HOUR)
    amounts = keys.AccountKeys("a").amounts(MONTH)
    stored = teams.client.hget(amounts, "pod-a")
    assert isinstance(stored, bytes)
    teams.client.hset(amounts, "pod-a", " ".join(stored.decode().split()[:5]) + cut)
    teams.reconcile(HOUR)
    assert teams.spent("a") == 2 * GPU_HOUR
    assert state_answer(teams, "team-a")["state"] == "over"


def test_one_session_that_cannot_be_settled_stops_no_other_of_its_account(teams: LedgerHarness) -> None:
    teams.pod("broken", "team-a")
    teams.reconcile(1)
    teams.client.hset(keys.AccountKeys("a").amounts(MONTH), "broken", "nonsense")
    teams.reconcile(HOUR)
    total = reading.period_totals(teams.client, "a", MONTH)
    assert total is not None
    assert total.total == GPU_HOUR + 2 * 10**6
    assert state_answer(teams, "team-a")["state"] == "over"
    assert state_answer(teams, "team-b")["state"] == "over"


BROKEN = {
    "a version that is no number": ("head", "HSET", ("version", "many")),
    "an epoch that is no number": ("head", "HSET", ("epoch", "first")),
    "samples of another shape": ("head", "HSET", ("burn", "[1]")),
    "a head of another type": ("head", "SET", ("text",)),
    "periods without an end": ("periods", "HSET", (str(MONTH), "soon")),
    "a total that is no number": ("period", "HSET", ("total", "all of it")),
    "a total of 25 digits": ("period", "HSET", ("total", str(10**24))),
    "grants that are no number": ("period", "HSET", ("granted", "much")),
    "an exhaustion without a time": ("period", "HSET", ("exhausted", "yesterday")),
    "sums that were deleted": ("period", "DEL", ()),
    "amounts of another type": ("amounts", "SET", ("text",)),
    "an amount of another shape": ("amounts", "HSET", ("pod-a", "nonsense")),
    "a session of another shape": ("sessions", "HSET", ("pod-a", "{}")),
    "sessions of another type": ("sessions", "SET", ("text",)),
    "ended sessions of another type": ("ended", "SADD", ("text",)),
    "grants of another shape": ("grants", "HSET", ("g", "now")),
    "corrections of another type": ("corrections", "SET", ("text",)),
    "hours of another type": ("hour_index", "SET", ("text",)),
    "an hour that was written to many times": ("hour_index", "HSET", (str(NOON // (HOUR * 10**9)), "many")),
    "a ledger of another type": ("ledger", "SET", ("text",)),
    "credits of another shape": ("credits", "HSET", ("", "much")),
}


def break_account(harness: LedgerHarness, account: str, broken: str) -> Callable[[], object]:
    """Spoils one key of an account; mends it."""
    client, (name, command, arguments) = harness.client, BROKEN[broken]
    place = getattr(keys.AccountKeys(account), name)
    key = place(MONTH) if callable(place) else place
    if command == "HSET":
        known = client.hget(key, arguments[0])
        client.hset(key, *arguments)
        return lambda: client.hdel(key, arguments[0]) if known is None else client.hset(key, arguments[0], known)
    before = client.dump(key)
    client.delete(key)
    if command != "DEL":
        client.execute_command(command, key, *arguments)

    def mend() -> None:
        client.delete(key)
        if before is not None:
            client.restore(key, 0, before)

    return mend


@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
@pytest.mark.parametrize("broken", BROKEN)
def test_the_others_are_settled_and_published_in_the_same_reconciliation_and_the_account_once_it_is_mended(
    teams: LedgerHarness, broken: str, leader: str
) -> None:
    teams.reconcile(60)
    mend = break_account(teams, "a", broken)
    if leader == "another leader follows":
        teams.lead()
    for minutes in (70, 1):
        with suppress(StoreEmptyError):  # which makes the next round read the store anew
            teams.reconcile(minutes * 60)
        assert state_answer(teams, "team-b")["state"] == "over"
        assert teams.spent("b") == sum((60, 70 * 60, 60)[: 2 + (minutes == 1)]) * 10**6
    assert teams.reconciler is not None
    teams.finish(teams.source_pod("pod-b"))
    teams.reconcile(1)
    assert not teams.client.exists(keys.AccountKeys("b").sessions)
    mend()
    teams.reconcile(600)
    teams.reconcile(1)
    assert teams.reconciler.books.not_settled == {}
    assert teams.spent("a") == (60 + 70 * 60 + 60 + 1 + 600 + 1) * 10**6
    assert state_answer(teams, "team-a")["state"] == "over"
