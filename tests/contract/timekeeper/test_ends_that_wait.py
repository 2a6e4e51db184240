"""A pod that is deleted while its account cannot be settled ends when that was seen, however late all is mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import MONTH, LedgerHarness
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.sessions import MeterFrom
from timekeeper.ledger import keys, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_A = keys.AccountKeys("a")
BROKEN: Mapping[str, tuple[str, str]] = {
    "its record": (OF_A.sessions, "p1"),
    "its amount": (OF_A.amounts(MONTH), "p1"),
    "the total of its period": (OF_A.period(MONTH), "total"),
    "the version of its account": (OF_A.head, "version"),
    "its payers": (keys.NAMESPACES, "team-a"),
}


def spoil(harness: LedgerHarness, broken: str) -> Callable[[], object]:
    """Spoils one value of an account; returns what mends it."""
    key, field = BROKEN[broken]
    known = harness.client.hget(key, field)
    assert isinstance(known, bytes)
    harness.client.hset(key, field, "nonsense")
    return lambda: harness.client.hset(key, field, known)


@pytest.mark.parametrize("another", [False, True], ids=["the leader goes on", "another leader follows"])
@pytest.mark.parametrize("seen", [False, True], ids=["between two leaders", "while one leads"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_pod_that_is_deleted_while_its_account_is_not_settled_is_charged_until_then(
    harness: LedgerHarness, broken: str, *, seen: bool, another: bool
) -> None:
    harness.budget("a", ["team-a"])
    for uid in ("p1", "stays"):
        harness.pod(uid, "team-a")
    harness.reconcile()
    harness.reconcile(100)
    mend = spoil(harness, broken)
    if not seen:
        harness.remove("p1")
    harness.lead()
    harness.reconcile(50)
    if seen:
        harness.remove("p1")
        harness.reconcile()
    for _ in range(3):
        harness.reconcile(1000)
        if another:
            harness.lead()
    mend()
    harness.reconcile(600)
    harness.reconcile(1)
    assert harness.reconciler is not None
    assert harness.reconciler.books.not_settled == {}
    assert harness.spent("a") == (3751 + (150 if seen else 100)) * GPU_SECOND
    assert reading.unmetered(harness.client) == {}


@pytest.mark.parametrize(("seen", "charged"), [(False, 40), (True, 150)])
def test_a_node_that_is_found_silent_later_ends_a_pod_earlier_only_if_the_pod_was_not_seen_deleted(
    harness: LedgerHarness, *, seen: bool, charged: int
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a", node="n1")
    harness.reconcile()
    harness.reconcile(100)
    mend = spoil(harness, "its record")
    if not seen:
        harness.remove("p1")
    harness.lead()
    harness.reconcile(50)
    if seen:
        harness.remove("p1")
        harness.reconcile()
    harness.reconcile(100)
    harness.silence("n1", harness.now - 210 * SECOND)
    harness.lead()
    harness.reconcile(10)
    mend()
    harness.lead()
    harness.reconcile(600)
    harness.reconcile(1)
    assert harness.spent("a") == charged * GPU_SECOND
    assert reading.unmetered(harness.client) == {}


@pytest.mark.parametrize("another", [False, True], ids=["the leader goes on", "another leader follows"])
@pytest.mark.parametrize("until", ["", "finished before", "finished", "deleted"])
@pytest.mark.parametrize("meter_from", list(MeterFrom))
def test_a_session_whose_record_could_not_be_read_keeps_its_start_and_ends_with_its_pod(
    harness: LedgerHarness, meter_from: MeterFrom, until: str, *, another: bool
) -> None:
    rules = ControllerRules(meter_from=meter_from)
    harness.budget("a", ["team-a"])
    harness.lead(rules)
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(100)
    mend = spoil(harness, "its record")
    if until == "finished before":
        harness.finish(pod)
    harness.lead(rules)
    harness.reconcile(50)
    if until == "finished":
        harness.finish(pod)
    if until == "deleted":
        harness.remove("p1")
    harness.reconcile()
    harness.reconcile(1000)
    if another:
        harness.lead(rules)
    mend()
    harness.reconcile(600)
    harness.reconcile(1)
    ran = {"": 1751, "finished before": 100, "finished": 150, "deleted": 150}[until]
    assert harness.spent("a") == ran * GPU_SECOND
    assert harness.reconciler is not None
    assert harness.reconciler.books.not_settled == {}
