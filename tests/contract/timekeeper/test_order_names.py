"""Each name of a grant or a correction counts once, also where its object was deleted and another one made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published
from timekeeper.controller.report.order_answers import PATIENCE, OrderAnswers
from timekeeper.controller.state.accounts import Account
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import DAY
from timekeeper.ledger import reading


def order(stage: LedgerHarness, kind: str, gpu_hours: Any) -> None:
    """Makes a grant or a correction called `extra`."""
    if kind == "grant":
        stage.grant("extra", "a", gpu_hours)
    else:
        stage.correct("extra", "a", gpu_hours, stage.now)


def delete(stage: LedgerHarness, kind: str) -> None:
    """Deletes it, and its status with it."""
    (stage.folder / f"{kind}s" / "extra.json").unlink()
    (stage.folder / "status" / f"{kind}-extra.json").unlink()


def condition_of(stage: LedgerHarness, kind: str) -> tuple[str, str]:
    """Why it was or was not applied, and in which words."""
    assert stage.keeper is not None
    OrderAnswers(stage.source, stage.keeper.books).write(stage.now)
    stage.source.refresh()
    mirror = stage.source.mirrors.grants if kind == "grant" else stage.source.mirrors.corrections
    (item,) = mirror.items()
    (condition,) = item["status"]["conditions"]
    assert item["status"]["applied"] is (condition["status"] == "True")
    return condition["reason"], condition["message"]


def held(stage: LedgerHarness, kind: str) -> int:
    """What the ledger holds under that kind."""
    return sum(entry.amount for entry in reading.ledger_page(stage.client, "a", "", 100) if entry.kind == kind)


def account(stage: LedgerHarness) -> Account:
    assert stage.keeper is not None
    return stage.keeper.books.accounts["a"]


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_another_order_under_a_used_name_changes_nothing_and_says_so_under_every_leader(
    stage: LedgerHarness, kind: str
) -> None:
    stage.budget("a", ["team-a"])
    order(stage, kind, 5)
    stage.round()
    assert condition_of(stage, kind)[0] in {"Added", "Corrected"}
    delete(stage, kind)
    stage.round(10)
    order(stage, kind, 7)
    stage.round(10)
    reason, message = condition_of(stage, kind)
    assert reason == "NameTaken"
    assert f"a {kind} of this name, of 5.00 GPU-hours in the period from 2026-01-01T00:00:00Z" in message
    stage.lead()
    stage.round(10)
    assert condition_of(stage, kind)[0] == "NameTaken"
    assert held(stage, kind) == 5 * GPU_HOUR


def test_a_grant_of_a_later_period_does_not_pass_for_the_earlier_one_of_its_name(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "day"})
    order(stage, "grant", 5)
    stage.round()
    assert condition_of(stage, "grant")[0] == "Added"
    delete(stage, "grant")
    stage.round(DAY // 10**9)
    order(stage, "grant", 5)
    stage.round(10)
    assert condition_of(stage, "grant")[0] == "NameTaken"
    assert published(stage, "a").granted == 0


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_the_same_order_made_anew_as_from_a_backup_of_the_cluster_is_the_same_one(
    stage: LedgerHarness, kind: str
) -> None:
    stage.budget("a", ["team-a"])
    order(stage, kind, 5)
    stage.round()
    said = condition_of(stage, kind)
    delete(stage, kind)
    stage.round(10)
    order(stage, kind, 5)
    stage.lead()
    stage.round(10)
    assert condition_of(stage, kind) == said
    assert held(stage, kind) == 5 * GPU_HOUR


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_one_that_was_asked_to_come_too_late_for_its_name_does_not_come_with_an_emptied_store(
    stage: LedgerHarness, kind: str
) -> None:
    stage.budget("a", ["team-a"])
    order(stage, kind, 5)
    stage.round()
    condition_of(stage, kind)
    delete(stage, kind)
    stage.round(10)
    order(stage, kind, 7)
    stage.round(10)
    assert condition_of(stage, kind)[0] == "NameTaken"
    stage.client.flushall()
    stage.lead()
    stage.round(10)
    assert held(stage, kind) == 0


def test_a_new_leader_knows_what_the_store_has_taken(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.grant("more", "a", 2)
    stage.correct("refund", "a", 1, NOON)
    stage.round()
    stage.round(1)
    before = account(stage)
    stage.lead()
    stage.round(1)
    found = account(stage)
    assert (found.grants, found.corrections, found.unconfirmed) == (before.grants, before.corrections, set())
    assert (found.grants.keys(), found.corrections.keys()) == ({"more"}, {"refund"})


@pytest.mark.parametrize("kind", ["grant", "correction"])
def test_an_order_for_a_budget_that_is_not_there_says_so_and_is_applied_once_it_is(
    stage: LedgerHarness, kind: str
) -> None:
    order(stage, kind, 5)
    stage.round()
    assert stage.keeper is not None
    answers = OrderAnswers(stage.source, stage.keeper.books)
    assert answers.write(stage.now) == 0  # both may have been applied together
    assert answers.write(stage.now + PATIENCE) == 1
    reason, message = condition_of(stage, kind)
    assert reason == "NoBudget"
    assert message == (
        f"There is no GPUBudget a: this {kind} is applied once there is one. If the name is wrong, delete it and "
        "make another under a name of its own."
    )
    assert answers.write(stage.now + 2 * PATIENCE) == 0
    stage.budget("a", ["team-a"])
    stage.round(1)
    stage.round(1)
    assert answers.write(stage.now) == 1
    assert condition_of(stage, kind)[0] in {"Added", "Corrected"}
    assert held(stage, kind) == 5 * GPU_HOUR
