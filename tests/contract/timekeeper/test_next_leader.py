"""What the leader after the leader makes of what it finds: nothing may hang on what only one of them knew."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, report
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import Bill, PricePoint
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import reading, shared
from timekeeper.ledger.keys import AccountKeys


def priced(price: int) -> ControllerRules:
    return ControllerRules(prices={"A100": (PricePoint(0, Fraction(price)),)})


def test_a_changed_price_holds_under_every_later_leader(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(priced(1))
    stage.round()
    stage.pass_time(10)
    stage.lead(priced(3))
    stage.round()
    stage.round(10)
    assert stage.spent("a") == 40 * GPU_SECOND
    stage.lead(priced(3))
    stage.round()
    assert stage.spent("a") == 40 * GPU_SECOND
    stage.round(10)
    assert stage.spent("a") == 70 * GPU_SECOND


def test_a_changed_price_holds_where_the_leader_that_brought_it_ended_at_any_step(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(priced(1))
    stage.round()
    stage.pass_time(10)
    for ending in ("assign", "settle", "index", "prices", "publish"):

        def step(name: str, ending: str = ending) -> None:
            if name == ending:
                raise KeyboardInterrupt

        stage.lead(priced(3), step=step)
        with pytest.raises(KeyboardInterrupt):
            stage.round()
    stage.lead(priced(3))
    stage.round()
    stage.round(10)
    assert stage.spent("a") == 40 * GPU_SECOND


def test_a_pod_that_is_there_after_all_goes_on_being_charged_with_the_gap(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    pod = stage.pod("p1", "team-a")
    stage.round(10)
    stage.remove("p1")
    stage.pass_time(10)
    stage.lead()
    stage.round()
    assert stage.spent("a", NOON) == 10 * GPU_SECOND
    stage.pass_time(3600)
    stage.write_pod(pod)
    stage.round(10)
    stage.round(10)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 40 * GPU_SECOND
    assert reading.open_sessions(stage.client, "", 1) == [("p1", "a")]
    stage.remove("p1")
    stage.round(10)
    stage.round(10)
    assert stage.spent("a", NOON + HOUR) == 50 * GPU_SECOND
    standing = reading.period_totals(stage.client, "a", NOON + HOUR)
    assert standing is not None
    assert standing.finalized == standing.total


@pytest.mark.parametrize("finished", [False, True])
def test_a_pod_that_left_between_two_leaders_is_still_billed_what_it_used(
    stage: LedgerHarness, *, finished: bool
) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 7)
    if finished:
        stage.finish(pod)
    stage.round()
    assert stage.spent("a") == 7 * GPU_SECOND
    stage.remove("p1")
    stage.pass_time(10)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    assert stage.spent("a") == 7 * GPU_SECOND


def test_reports_are_taken_of_a_pod_whose_opening_was_the_last_thing_that_a_leader_did(stage: LedgerHarness) -> None:
    def step(name: str) -> None:
        if name == "index":
            raise KeyboardInterrupt

    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(step=step)
    shared.index_sessions(stage.client, [("left", "a")], [])
    with pytest.raises(KeyboardInterrupt):
        stage.round()
    stage.lead()
    stage.round(10)
    assert reading.open_sessions(stage.client, "", 10) == [("p1", "a")]


def test_a_budget_that_is_made_again_under_its_name_has_the_periods_that_it_says(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.budgets = []
    stage.write_budgets()
    stage.round(7200)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.round(10)
    stage.round(10)
    assert stage.keeper is not None
    account = stage.keeper.books.accounts["a"]
    assert [period.end - period.start for period in account.periods] == [HOUR] * 3
    assert stage.spent("a", NOON + 2 * HOUR) == 20 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 3600 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("hours", [1, 4, 30])
def test_an_end_that_was_taken_without_the_amount_of_an_earlier_period_is_settled_by_the_next_leader(
    stage: LedgerHarness, hours: int, bill: Bill
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    pod = stage.pod("p1", "team-a")
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    amounts = AccountKeys("a").amounts(NOON)
    amount = stage.client.hget(amounts, "p1")
    assert amount is not None
    stage.client.hset(amounts, "p1", "broken")
    for _ in range(hours):
        stage.round(3600)
    stage.pass_time(60)
    stage.finish(pod)
    stage.round()
    stage.client.hset(amounts, "p1", amount)
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + (hours - 1) * HOUR) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + hours * HOUR) == 60 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
def test_an_end_that_was_taken_without_the_amount_under_an_earlier_payer_is_settled_by_the_next_leader(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.budget("b", ["team-b"], period={"every": "hour"})
    pod = stage.pod("p1", "team-a")
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    amounts = AccountKeys("a").amounts(NOON)
    amount = stage.client.hget(amounts, "p1")
    assert amount is not None
    stage.client.hset(amounts, "p1", "broken")
    stage.pass_time(60)
    stage.budget("a", ["team-c"], period={"every": "hour"})
    stage.budget("b", ["team-b", "team-a"], period={"every": "hour"})
    for _ in range(4):
        stage.round(3600)
    stage.finish(pod)
    stage.round()
    stage.client.hset(amounts, "p1", amount)
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 60 * GPU_SECOND


def test_a_namespace_that_moves_as_a_period_ends_leaves_no_open_session_behind(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.budget("b", ["team-b"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3600)
    stage.budget("a", ["team-c"], period={"every": "hour"})
    stage.budget("b", ["team-b", "team-a"])
    stage.round()
    assert stage.client.hkeys(AccountKeys("a").sessions) == []
    assert stage.client.hkeys(AccountKeys("b").sessions) == [b"p1"]
    assert (stage.spent("a", NOON), stage.spent("b")) == (3600 * GPU_SECOND, 0)


def test_a_period_that_a_leader_could_not_read_when_it_began_is_charged_in_full_by_it_once_it_is_mended(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(1800)
    amounts = AccountKeys("a").amounts(NOON)
    text = stage.client.hget(amounts, "p1")
    assert text is not None
    stage.client.hset(amounts, "p1", "broken")
    stage.round(1860)
    stage.lead()
    stage.round()
    stage.client.hset(amounts, "p1", text)
    stage.round(60)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 120 * GPU_SECOND


def test_an_amount_that_no_leader_could_read_is_charged_in_full_once_it_is_mended(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(10)
    amounts = AccountKeys("a").amounts(NOON)
    text = stage.client.hget(amounts, "p1")
    assert text is not None
    stage.client.hset(amounts, "p1", "broken")
    stage.round(9000)
    stage.lead()
    stage.round()
    stage.client.hset(amounts, "p1", text)
    stage.round(10)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 3600 * GPU_SECOND


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_an_amount_of_an_ended_pod_that_a_leader_could_not_read_stands_once_it_is_mended(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=bill))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 7)
    stage.finish(pod)
    stage.round()
    spent = stage.spent("a", NOON)
    assert spent == {Bill.USED: 7, Bill.MAX: 100}[bill] * GPU_SECOND
    amounts = AccountKeys("a").amounts(NOON)
    text = stage.client.hget(amounts, "p1")
    assert text is not None
    stage.client.hset(amounts, "p1", "broken")
    keeper = stage.lead(ControllerRules(bill=bill))
    stage.round()
    stage.remove("p1")
    stage.round(10)
    assert "p1" in keeper.books.not_settled["a"]
    stage.client.hset(amounts, "p1", text)
    stage.round(600)
    stage.round(10)
    assert stage.spent("a", NOON) == spent
    assert "a" not in keeper.books.not_settled
    standing = reading.period_totals(stage.client, "a", NOON)
    assert standing is not None
    assert standing.finalized == spent


def test_a_leader_that_ends_between_naming_a_new_payer_and_opening_its_account_leaves_a_store_that_the_next_can_read(
    stage: LedgerHarness,
) -> None:
    def step(name: str) -> None:
        if name == "open":
            raise KeyboardInterrupt

    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.budget("a", ["team-b"])
    stage.lead(step=step)
    with pytest.raises(KeyboardInterrupt):
        stage.round(10)
    stage.lead()
    stage.round(10)
    assert (stage.spent("a"), stage.spent("namespace:team-a")) == (20 * GPU_SECOND, 10 * GPU_SECOND)


def test_an_account_that_a_leader_named_as_payer_and_did_not_list_is_listed_by_the_next(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.round(10)
    shared.write_assignments(stage.client, {"team-a": ((0, "a"), (stage.now, "namespace:team-a"))})
    stage.budget("a", ["team-b"])
    stage.lead()
    stage.pod("p1", "team-a")
    stage.round()
    stage.lead()
    stage.round(10)
    assert "namespace:team-a" in reading.account_names(stage.client)
    assert stage.spent("namespace:team-a") == 10 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("moves", [False, True])
def test_a_charge_after_an_end_that_the_store_refused_to_take_back_is_taken_back_by_the_next_leader(
    stage: LedgerHarness, bill: Bill, *, moves: bool
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.budget("b", ["team-b"], period={"every": "hour"})
    pod = stage.pod("p1", "team-a")
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    later = ("a", NOON + HOUR)
    if moves:
        stage.pass_time(3590 - 3600)
        later = ("b", NOON)
    stage.pass_time(3600)
    if moves:
        stage.budget("a", ["team-c"], period={"every": "hour"})
        stage.budget("b", ["team-b", "team-a"], period={"every": "hour"})
    stage.round()
    stage.round(2)
    amounts = AccountKeys(later[0]).amounts(later[1])
    amount = stage.client.hget(amounts, "p1")
    assert amount is not None
    stage.client.hset(amounts, "p1", "broken")
    stage.finish(pod, 5)
    stage.round()
    stage.client.hset(amounts, "p1", amount)
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    assert stage.spent(*later) == 0
    assert stage.spent("a", NOON) == (3587 if moves else 3597) * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
def test_a_store_that_is_read_again_leaves_pods_that_have_left_as_they_were_billed(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=bill))
    ended = stage.pod("ended", "team-a")
    stage.pod("leaves", "team-a")
    stage.round()
    stage.pass_time(3599)
    report(stage, "leaves", 1, 7)
    stage.round(101)
    stage.finish(ended)
    stage.round()
    amounts = AccountKeys("a").amounts(NOON + HOUR)
    text = stage.client.hget(amounts, "ended")
    assert text is not None
    stage.client.hset(amounts, "ended", "broken")
    stage.lead(ControllerRules(bill=bill))
    stage.round()
    stage.remove("leaves")
    stage.round()
    stage.client.hset(amounts, "ended", text)
    stage.round(600)
    stage.round(1)
    first, second = {Bill.USED: (7, 0)}.get(bill, (3600, 100))
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (
        (3600 + first) * GPU_SECOND,
        (100 + second) * GPU_SECOND,
    )
