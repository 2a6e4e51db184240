"""Each name of a grant or a correction counts once, also where its object was deleted and another one made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published
from timekeeper.controller.report.status_writer import PATIENCE, OrderAnswers
from timekeeper.controller.state.accounts import Account
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import DAY
from timekeeper.ledger import keys, reading


def order(harness: LedgerHarness, kind: str, gpu_hours: Any) -> None:
    """Makes a grant or a correction called `extra`."""
    if kind == "grant":
        harness.grant("extra", "a", gpu_hours)
    else:
        harness.correct("extra", "a", gpu_hours, harness.now)


def delete(harness: LedgerHarness, kind: str) -> None:
    """Deletes it, and its status with it."""
    (harness.folder / f"{kind}s" / "extra.json").unlink()
    (harness.folder / "status" / f"{kind}-extra.json").unlink()


def condition_of(harness: LedgerHarness, kind: str) -> tuple[str, str]:
    """Why it was or was not applied, and in which words."""
    assert harness.reconciler is not None
    OrderAnswers(harness.source, harness.reconciler.books).write(harness.now)
    harness.source.refresh()
    mirror = harness.source.mirrors.grants if kind == "grant" else harness.source.mirrors.corrections
    (item,) = mirror.items()
    (condition,) = item["status"]["conditions"]
    assert item["status"]["applied"] is (condition["status"] == "True")
    return condition["reason"], condition["message"]


def held(harness: LedgerHarness, kind: str) -> int:
    """Returns the sum of the ledger's entries of a kind."""
    return sum(entry.amount for entry in reading.ledger_page(harness.client, "a", "", 100) if entry.kind == kind)


def account(harness: LedgerHarness) -> Account:
    assert harness.reconciler is not None
    return harness.reconciler.books.accounts["a"]


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_another_order_under_a_used_name_changes_nothing_and_says_so_under_every_leader(
    harness: LedgerHarness, kind: str
) -> None:
    harness.budget("a", ["team-a"])
    order(harness, kind, 5)
    harness.reconcile()
    assert condition_of(harness, kind)[0] in {"Added", "Corrected"}
    delete(harness, kind)
    harness.reconcile(10)
    order(harness, kind, 7)
    harness.reconcile(10)
    reason, message = condition_of(harness, kind)
    assert reason == "NameTaken"
    assert f"a {kind} of this name, of 5.00 GPU-hours in the period from 2026-01-01T00:00:00Z" in message
    harness.lead()
    harness.reconcile(10)
    assert condition_of(harness, kind)[0] == "NameTaken"
    assert held(harness, kind) == 5 * GPU_HOUR


def test_a_grant_of_a_later_period_does_not_pass_for_the_earlier_one_of_its_name(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "day"})
    order(harness, "grant", 5)
    harness.reconcile()
    assert condition_of(harness, "grant")[0] == "Added"
    delete(harness, "grant")
    harness.reconcile(DAY // 10**9)
    order(harness, "grant", 5)
    harness.reconcile(10)
    assert condition_of(harness, "grant")[0] == "NameTaken"
    assert published(harness, "a").granted == 0


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_the_same_order_made_anew_as_from_a_backup_of_the_cluster_is_the_same_one(
    harness: LedgerHarness, kind: str
) -> None:
    harness.budget("a", ["team-a"])
    order(harness, kind, 5)
    harness.reconcile()
    said = condition_of(harness, kind)
    delete(harness, kind)
    harness.reconcile(10)
    order(harness, kind, 5)
    harness.lead()
    harness.reconcile(10)
    assert condition_of(harness, kind) == said
    assert held(harness, kind) == 5 * GPU_HOUR


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_one_that_was_asked_to_come_too_late_for_its_name_does_not_come_with_an_emptied_store(
    harness: LedgerHarness, kind: str
) -> None:
    harness.budget("a", ["team-a"])
    order(harness, kind, 5)
    harness.reconcile()
    condition_of(harness, kind)
    delete(harness, kind)
    harness.reconcile(10)
    order(harness, kind, 7)
    harness.reconcile(10)
    assert condition_of(harness, kind)[0] == "NameTaken"
    harness.client.flushall()
    harness.lead()
    harness.reconcile(10)
    assert held(harness, kind) == 0


def test_a_name_counts_once_for_each_budget(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    for budget, again in (("a", False), ("b", False), ("a", True)):
        harness.grant("extra", budget, 7 if again else 5)
        harness.reconcile(10)
        assert condition_of(harness, "grant")[0] == ("NameTaken" if again else "Added")
        delete(harness, "grant")
        harness.reconcile(10)
    assert [published(harness, name).granted for name in "ab"] == [5 * GPU_HOUR] * 2


def test_a_new_leader_knows_what_the_store_has_taken(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.grant("more", "a", 2)
    harness.correct("refund", "a", 1, NOON)
    harness.reconcile()
    harness.reconcile(1)
    before = account(harness)
    harness.lead()
    harness.reconcile(1)
    found = account(harness)
    assert (found.grants, found.corrections, found.unconfirmed) == (before.grants, before.corrections, set())
    assert (found.grants.keys(), found.corrections.keys()) == ({"more"}, {"refund"})


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_an_order_for_a_budget_that_is_not_there_says_so_and_is_applied_once_it_is(
    harness: LedgerHarness, kind: str
) -> None:
    order(harness, kind, 5)
    harness.reconcile()
    assert harness.reconciler is not None
    answers = OrderAnswers(harness.source, harness.reconciler.books)
    assert answers.write(harness.now) == 0  # both may have been applied together
    assert answers.write(harness.now + PATIENCE) == 1
    reason, message = condition_of(harness, kind)
    assert reason == "NoBudget"
    assert message == (
        f"There is no GPUBudget a: this {kind} is applied once there is one. If the name is wrong, delete it and "
        "make another under a name of its own."
    )
    assert answers.write(harness.now + 2 * PATIENCE) == 0
    harness.budget("a", ["team-a"])
    harness.reconcile(1)
    harness.reconcile(1)
    assert answers.write(harness.now) == 1
    assert condition_of(harness, kind)[0] in {"Added", "Corrected"}
    assert held(harness, kind) == 5 * GPU_HOUR


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_an_order_that_damaged_data_keep_from_its_period_is_refused_with_that_reason_under_every_leader(
    harness: LedgerHarness, kind: str
) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    period, field = keys.AccountKeys("a").period(MONTH), "granted" if kind == "grant" else "total"
    harness.client.hset(period, field, "damaged")
    order(harness, kind, 5)
    harness.reconcile(1, full=False)
    assert condition_of(harness, kind) == (
        "Refused",
        f"{field} in {period} is no whole number of at most 24 digits: damaged",
    )
    harness.client.hset(period, field, "0")
    harness.lead()
    harness.reconcile(1)
    assert condition_of(harness, kind)[0] == "Refused"
    assert held(harness, kind) == 0
