"""Modes and listed resources that change under running pods: nothing is charged twice, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tests.support.ledger.audited import KEYS, audited
from tests.support.ledger.harness import LedgerHarness
from timekeeper.audit.difference import Figure
from timekeeper.controller.archive import Archivist
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import PricePoint
from timekeeper.domain.windows import Retention
from timekeeper.ledger import keys, reading

DAY = 86400
ACCOUNT = ControllerRules(own_resources={})
SHARE = ControllerRules()
NPU = "npu.example.com/npu"
LISTED = ControllerRules(own_resources={NPU: Listed("npu")})
UNLISTED = ACCOUNT


def archive(harness: LedgerHarness) -> None:
    """Compacts what is due; the leader has forgotten what it finalized before."""
    assert harness.reconciler is not None
    books = harness.reconciler.books
    books.finalized = []
    Archivist(harness.client, harness.source, books, harness.reconciler.fencing_token, Retention()).archive(harness.now)


def pass_days(harness: LedgerHarness, days: int, rules: ControllerRules | None = None) -> None:
    """Lets days pass, each with a round and what is compacted; another leader follows each, if rules are given."""
    for _ in range(days):
        harness.reconcile(DAY)
        archive(harness)
        if rules is not None:
            harness.lead(rules)


def spent(harness: LedgerHarness, account: str = "a") -> int:
    """Returns the sum that all periods spent, in GPU-seconds."""
    starts: Any = harness.client.hkeys(keys.AccountKeys(account).periods)
    return sum(harness.spent(account, int(start)) for start in starts) // GPU_SECOND


def differences(harness: LedgerHarness) -> list[Any]:
    starts: Any = harness.client.hkeys(KEYS.periods)
    found = [each for start in (None, *map(int, starts)) for each in audited(harness, period=start).differences]
    return [each for each in found if each.figure is not Figure.STATUS]


@pytest.mark.parametrize("days", [0, 4])
@pytest.mark.parametrize("every", ["month", "day"])
def test_a_pod_of_another_stack_that_is_metered_again_is_charged_once(
    harness: LedgerHarness, every: str, days: int
) -> None:
    """It costs nothing while it is not metered, and its whole time once it is."""
    harness.budget("a", ["team-a"], period={"every": every})
    harness.lead(ACCOUNT)
    harness.reconcile()
    harness.pod_of_another_stack("stays")
    harness.pod_of_another_stack("goes")
    harness.pod("own", "team-a")
    harness.reconcile()
    harness.reconcile(100)
    harness.lead(SHARE)
    harness.reconcile(100)
    assert spent(harness) == 200 + 200
    pass_days(harness, days, SHARE)
    harness.remove("goes")
    assert spent(harness) == 200 + 200 + days * DAY
    assert differences(harness) == []
    harness.lead(ACCOUNT)
    harness.reconcile(10)
    harness.reconcile(10)
    assert spent(harness) == 100 + 2 * (220 + days * DAY)
    assert differences(harness) == []
    assert reading.unmetered(harness.client).keys() == {"goes"}
    pass_days(harness, 3)
    assert spent(harness) == 100 + 2 * (220 + (days + 3) * DAY)
    assert differences(harness) == []


@pytest.mark.parametrize("days", [0, 4])
def test_a_pod_whose_resource_is_listed_again_is_charged_once(harness: LedgerHarness, days: int) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(LISTED)
    harness.reconcile()
    harness.pod_of_another_stack("stays", resource=NPU)
    harness.pod_of_another_stack("goes", resource=NPU)
    harness.pod_of_another_stack("metered", resource="nvidia.com/gpu")
    harness.reconcile()
    harness.reconcile(100)
    harness.lead(UNLISTED)
    harness.reconcile(100)
    assert spent(harness) == 200 + 200
    pass_days(harness, days, UNLISTED)
    harness.remove("goes")
    harness.lead(LISTED)
    harness.reconcile(10)
    assert spent(harness) == 100 + 2 * (210 + days * DAY)
    assert differences(harness) == []
    assert reading.unmetered(harness.client).keys() == {"goes"}
    pass_days(harness, 3)
    assert spent(harness) == 100 + 2 * (210 + (days + 3) * DAY)
    assert differences(harness) == []


def test_a_session_that_ended_unseen_is_noted_as_long_as_a_period_may_have_its_amount(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ACCOUNT)
    harness.pod_of_another_stack("goes")
    harness.reconcile()
    harness.reconcile(100)
    harness.remove("goes")
    harness.lead(ACCOUNT)
    noted = []
    for _ in range(15):
        harness.reconcile(31 * DAY)
        archive(harness)
        noted.append("goes" in reading.unmetered(harness.client))
    assert noted == [True] * 13 + [False] * 2


def prices(*points: tuple[int, int]) -> dict[str, tuple[PricePoint, ...]]:
    return {"*": tuple(PricePoint(since, Fraction(price)) for since, price in points)}


def test_each_payer_and_each_price_count_for_their_time_where_modes_change_too(harness: LedgerHarness) -> None:
    """The namespace has pods of both modes, as after its label has changed."""
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    before = prices((0, 1))
    harness.lead(replace(ACCOUNT, prices=before))
    harness.reconcile()
    harness.pod_of_another_stack("nv")
    harness.pod("own", "team-a")
    harness.reconcile()
    harness.reconcile(100)
    harness.lead(replace(SHARE, prices=before))
    harness.reconcile(50)
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-a", "team-b"])
    harness.reconcile()
    assert (spent(harness, "a"), spent(harness, "b")) == (100 + 150, 0)
    after = prices((0, 1), (harness.now, 3))
    harness.lead(replace(SHARE, prices=after))
    harness.reconcile()
    harness.reconcile(50)
    assert (spent(harness, "a"), spent(harness, "b")) == (100 + 150, 3 * 50)
    harness.lead(replace(ACCOUNT, prices=after))
    harness.reconcile()
    assert (spent(harness, "a"), spent(harness, "b")) == (150 + 150, 2 * 3 * 50)
    harness.budget("b", ["team-b"])
    harness.budget("a", ["team-a"])
    harness.reconcile(100)
    harness.reconcile(100)
    assert spent(harness, "a") + spent(harness, "b") == 300 + 2 * 3 * 250
    assert spent(harness, "b") == 2 * 3 * 150
    assert differences(harness) == []
