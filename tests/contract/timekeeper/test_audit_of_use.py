"""If use is billed, the auditor recomputes each amount from the pod's reports, also for pods that borrow."""

from __future__ import annotations

import json

import pytest

from tests.support.ledger.audited import KEYS, audited, harness, in_amount, server
from tests.support.ledger.harness import MONTH, LedgerHarness, report
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.ledger import keys

__all__ = ["harness", "server"]

AMOUNT = (Figure.AMOUNT, "p1")


@pytest.fixture(params=["hard", "elastic"])
def reporting(harness: LedgerHarness, request: pytest.FixtureRequest) -> LedgerHarness:
    """A pod with half a GPU that has used it for 40 of 100 seconds, or all of it where it may borrow."""
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    item = harness.pod("p1", "team-a", core=50)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = request.param
    harness.write_pod(item)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 90 if request.param == "elastic" else 40)
    harness.reconcile()
    # A report may be under way to the store for a minute after its receipt.
    harness.reconcile(120)
    return harness


def found(harness: LedgerHarness) -> set[tuple[Figure, str]]:
    differences = audited(harness, bill="used").differences
    return {(each.figure, each.subject) for each in differences if each.figure is Figure.AMOUNT}


def test_an_amount_that_follows_from_the_reports_is_no_difference(reporting: LedgerHarness) -> None:
    assert reporting.spent("a") in {40 * GPU_SECOND, 90 * GPU_SECOND}
    assert found(reporting) == set()
    reporting.reconcile(7)
    assert found(reporting) == set()


@pytest.mark.parametrize("off", [1, -1, 10**6])
def test_an_amount_that_is_off_is_named_also_of_a_pod_that_borrows(reporting: LedgerHarness, off: int) -> None:
    in_amount("p1", 2, str(reporting.spent("a") + off))(reporting)
    assert AMOUNT in found(reporting)


@pytest.mark.parametrize("off", [1, 10**6])
def test_an_amount_and_a_record_that_are_off_together_are_named_by_the_reports(
    reporting: LedgerHarness, off: int
) -> None:
    spent = reporting.spent("a")
    record = json.loads(reporting.client.hget(KEYS.sessions, "p1") or "{}")
    record["tally"] = [record["tally"][0] - off, []]
    reporting.client.hset(KEYS.sessions, "p1", json.dumps(record))
    in_amount("p1", 2, str(spent - off))(reporting)
    (reason,) = {each.reason for each in audited(reporting, bill="used").differences if each.figure is Figure.AMOUNT}
    assert "its reports as they came" in reason


@pytest.mark.parametrize("off", [1, 10**6])
def test_reports_that_the_intake_keeps_are_held_to_the_amount(reporting: LedgerHarness, off: int) -> None:
    state = json.loads(reporting.client.hget(keys.report("p1"), "state") or "[]")
    state[2][-1][2] += off
    reporting.client.hset(keys.report("p1"), "state", json.dumps(state))
    assert found(reporting) == {AMOUNT}
    assert reporting.client.hget(KEYS.amounts(MONTH), "p1") is not None
