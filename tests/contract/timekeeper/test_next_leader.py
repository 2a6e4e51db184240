"""The leader after the next one needs nothing that only one leader knew."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, report
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import Bill, PricePoint
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import keys, reading, shared
from timekeeper.ledger.keys import AccountKeys


def priced(price: int) -> ControllerRules:
    return ControllerRules(prices={"A100": (PricePoint(0, Fraction(price)),)})


def break_amount(harness: LedgerHarness, amounts: str, uid: str) -> Callable[[], object]:
    """Makes a session's amount unreadable; returns what mends it."""
    text = harness.client.hget(amounts, uid)
    assert text is not None
    harness.client.hset(amounts, uid, "broken")
    return lambda: harness.client.hset(amounts, uid, text)


def test_a_changed_price_holds_under_every_later_leader(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.lead(priced(1))
    harness.reconcile()
    harness.pass_time(10)
    harness.lead(priced(3))
    harness.reconcile()
    harness.reconcile(10)
    assert harness.spent("a") == 40 * GPU_SECOND
    harness.lead(priced(3))
    harness.reconcile()
    assert harness.spent("a") == 40 * GPU_SECOND
    harness.reconcile(10)
    assert harness.spent("a") == 70 * GPU_SECOND


def test_a_changed_price_holds_where_the_leader_that_brought_it_ended_at_any_step(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.lead(priced(1))
    harness.reconcile()
    harness.pass_time(10)
    for ending in ("assign", "settle", "index", "prices", "publish"):

        def step(name: str, ending: str = ending) -> None:
            if name == ending:
                raise KeyboardInterrupt

        harness.lead(priced(3), step=step)
        with pytest.raises(KeyboardInterrupt):
            harness.reconcile()
    harness.lead(priced(3))
    harness.reconcile()
    harness.reconcile(10)
    assert harness.spent("a") == 40 * GPU_SECOND


def test_a_pod_that_is_there_after_all_goes_on_being_charged_with_the_gap(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    pod = harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.remove("p1")
    harness.pass_time(10)
    harness.lead()
    harness.reconcile()
    assert harness.spent("a", NOON) == 10 * GPU_SECOND
    harness.pass_time(3600)
    harness.write_pod(pod)
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 40 * GPU_SECOND
    assert reading.open_sessions(harness.client, "", 1) == [("p1", "a")]
    harness.remove("p1")
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.spent("a", NOON + HOUR) == 50 * GPU_SECOND
    standing = reading.period_totals(harness.client, "a", NOON + HOUR)
    assert standing is not None
    assert standing.finalized == standing.total


@pytest.mark.parametrize("finished", [False, True])
def test_a_pod_that_left_between_two_leaders_is_still_billed_what_it_used(
    harness: LedgerHarness, *, finished: bool
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 7)
    if finished:
        harness.finish(pod)
    harness.reconcile()
    assert harness.spent("a") == 7 * GPU_SECOND
    harness.remove("p1")
    harness.pass_time(10)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    assert harness.spent("a") == 7 * GPU_SECOND


def test_reports_are_taken_of_a_pod_whose_opening_was_the_last_thing_that_a_leader_did(harness: LedgerHarness) -> None:
    def step(name: str) -> None:
        if name == "index":
            raise KeyboardInterrupt

    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.lead(step=step)
    shared.index_sessions(harness.client, 10**9, [("left", "a")], [])
    with pytest.raises(KeyboardInterrupt):
        harness.reconcile()
    harness.lead()
    harness.reconcile(10)
    assert reading.open_sessions(harness.client, "", 10) == [("p1", "a")]


def test_a_budget_that_is_made_again_under_its_name_has_the_periods_that_it_says(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.budgets = []
    harness.write_budgets()
    harness.reconcile(7200)
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.reconciler is not None
    account = harness.reconciler.books.accounts["a"]
    assert [period.end - period.start for period in account.periods] == [HOUR] * 3
    assert harness.spent("a", NOON + 2 * HOUR) == 20 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 3600 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("hours", [1, 4, 30])
def test_an_end_that_was_taken_without_the_amount_of_an_earlier_period_is_settled_by_the_next_leader(
    harness: LedgerHarness, hours: int, bill: Bill
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    pod = harness.pod("p1", "team-a")
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    mend = break_amount(harness, AccountKeys("a").amounts(NOON), "p1")
    for _ in range(hours):
        harness.reconcile(3600)
    harness.pass_time(60)
    harness.finish(pod)
    harness.reconcile()
    mend()
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + (hours - 1) * HOUR) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + hours * HOUR) == 60 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
def test_an_end_that_was_taken_without_the_amount_under_an_earlier_payer_is_settled_by_the_next_leader(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.budget("b", ["team-b"], period={"every": "hour"})
    pod = harness.pod("p1", "team-a")
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    mend = break_amount(harness, AccountKeys("a").amounts(NOON), "p1")
    harness.pass_time(60)
    harness.budget("a", ["team-c"], period={"every": "hour"})
    harness.budget("b", ["team-b", "team-a"], period={"every": "hour"})
    for _ in range(4):
        harness.reconcile(3600)
    harness.finish(pod)
    harness.reconcile()
    mend()
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 60 * GPU_SECOND


def test_a_namespace_that_moves_as_a_period_ends_leaves_no_open_session_behind(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3600)
    harness.budget("a", ["team-c"], period={"every": "hour"})
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile()
    assert harness.client.hkeys(AccountKeys("a").sessions) == []
    assert harness.client.hkeys(AccountKeys("b").sessions) == [b"p1"]
    assert (harness.spent("a", NOON), harness.spent("b")) == (3600 * GPU_SECOND, 0)


def test_a_period_that_a_leader_could_not_read_when_it_began_is_charged_in_full_by_it_once_it_is_mended(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    mend = break_amount(harness, AccountKeys("a").amounts(NOON), "p1")
    harness.reconcile(1860)
    harness.lead()
    harness.reconcile()
    mend()
    harness.reconcile(60)
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 120 * GPU_SECOND


def test_an_amount_that_no_leader_could_read_is_charged_in_full_once_it_is_mended(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    mend = break_amount(harness, AccountKeys("a").amounts(NOON), "p1")
    harness.reconcile(9000)
    harness.lead()
    harness.reconcile()
    mend()
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 3600 * GPU_SECOND


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_an_amount_of_an_ended_pod_that_a_leader_could_not_read_stands_once_it_is_mended(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 7)
    harness.finish(pod)
    harness.reconcile()
    spent = harness.spent("a", NOON)
    assert spent == {Bill.USED: 7, Bill.MAX: 100}[bill] * GPU_SECOND
    mend = break_amount(harness, AccountKeys("a").amounts(NOON), "p1")
    reconciler = harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    harness.remove("p1")
    harness.reconcile(10)
    assert "p1" in reconciler.books.not_settled["a"]
    mend()
    harness.reconcile(600)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == spent
    assert "a" not in reconciler.books.not_settled
    standing = reading.period_totals(harness.client, "a", NOON)
    assert standing is not None
    assert standing.finalized == spent


def test_a_leader_that_ends_between_naming_a_new_payer_and_opening_its_account_leaves_a_store_that_the_next_can_read(
    harness: LedgerHarness,
) -> None:
    def step(name: str) -> None:
        if name == "open":
            raise KeyboardInterrupt

    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.budget("a", ["team-b"])
    harness.lead(step=step)
    with pytest.raises(KeyboardInterrupt):
        harness.reconcile(10)
    harness.lead()
    harness.reconcile(10)
    assert (harness.spent("a"), harness.spent("namespace:team-a")) == (20 * GPU_SECOND, 10 * GPU_SECOND)


def test_an_account_that_a_leader_named_as_payer_and_did_not_list_is_listed_by_the_next(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile(10)
    shared.write_assignments(harness.client, 10**9, {"team-a": ((0, "a"), (harness.now, "namespace:team-a"))})
    harness.client.srem(keys.ACCOUNTS, "namespace:team-a")  # it ended before it listed the account
    harness.budget("a", ["team-b"])
    harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.lead()
    harness.reconcile(10)
    assert "namespace:team-a" in reading.account_names(harness.client)
    assert harness.spent("namespace:team-a") == 10 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("moves", [False, True])
def test_a_charge_after_an_end_that_the_store_refused_to_take_back_is_taken_back_by_the_next_leader(
    harness: LedgerHarness, bill: Bill, *, moves: bool
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.budget("b", ["team-b"], period={"every": "hour"})
    pod = harness.pod("p1", "team-a")
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    later = ("a", NOON + HOUR)
    if moves:
        harness.pass_time(3590 - 3600)
        later = ("b", NOON)
    harness.pass_time(3600)
    if moves:
        harness.budget("a", ["team-c"], period={"every": "hour"})
        harness.budget("b", ["team-b", "team-a"], period={"every": "hour"})
    harness.reconcile()
    harness.reconcile(2)
    mend = break_amount(harness, AccountKeys(later[0]).amounts(later[1]), "p1")
    harness.finish(pod, 5)
    harness.reconcile()
    mend()
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    assert harness.spent(*later) == 0
    assert harness.spent("a", NOON) == (3587 if moves else 3597) * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
def test_a_store_that_is_read_again_leaves_pods_that_have_left_as_they_were_billed(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    ended = harness.pod("ended", "team-a")
    harness.pod("leaves", "team-a")
    harness.reconcile()
    harness.pass_time(3599)
    report(harness, "leaves", 1, 7)
    harness.reconcile(101)
    harness.finish(ended)
    harness.reconcile()
    mend = break_amount(harness, AccountKeys("a").amounts(NOON + HOUR), "ended")
    harness.lead(ControllerRules(bill=bill))
    harness.reconcile()
    harness.remove("leaves")
    harness.reconcile()
    mend()
    harness.reconcile(600)
    harness.reconcile(1)
    first, second = {Bill.USED: (7, 0)}.get(bill, (3600, 100))
    assert (harness.spent("a", NOON), harness.spent("a", NOON + HOUR)) == (
        (3600 + first) * GPU_SECOND,
        (100 + second) * GPU_SECOND,
    )
