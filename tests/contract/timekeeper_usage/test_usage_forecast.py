"""The forecast of usage by what its keys were billed in the last hour and the last day."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness
from timekeeper.api.problems import ProblemError
from timekeeper.api.usage import find, read_query
from timekeeper.domain.forecast import LONGEST_LAG, UsageForecast
from timekeeper.domain.money import GPU_HOUR, SECOND
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE
from timekeeper.domain.windows import Window
from timekeeper.ledger.keys import AccountKeys

Expected = dict[tuple[str, ...], list[int | None]]


def asked(harness: LedgerHarness, by: str, forecast: str = "month", **more: str) -> tuple[UsageForecast, Expected]:
    """Returns the forecast, and what each key comes to by the last hour's and by the last day's pace."""
    arguments: Mapping[str, str] = {"window": "month", "aggregate": by, "forecast": forecast, **more}
    found = find(harness.client, read_query(arguments, (), harness.now, more.get("namespace")), harness.now)
    assert found.forecast is not None
    return found.forecast, {item.key: found.forecast.expected(item.key, item.figures.billed) for item in found.items}


def hours(amount: int | None) -> float | None:
    return None if amount is None else round(amount / GPU_HOUR, 6)


def test_each_key_comes_to_what_it_was_billed_and_what_its_pace_adds(harness: LedgerHarness) -> None:
    """Metering began half an hour ago, so that both paces are those of this half hour."""
    harness.pod("p1", "team-a", model="A100")
    harness.pod("p2", "team-b", core=50, model="H100")
    harness.reconcile(0)
    harness.reconcile(30 * 60)
    left = (NOON + 17 * DAY - DAY // 2 - harness.now) / HOUR

    for by, keys in (("model", ("A100", "H100")), ("node,namespace", (("n1", "team-a"), ("n1", "team-b")))):
        forecast, expected = asked(harness, by)
        whole, half = ((key,) if isinstance(key, str) else key for key in keys)
        assert forecast.since == (NOON, NOON)
        assert [hours(amount) for amount in expected[whole]] == [0.5 + left] * 2
        assert [hours(amount) for amount in expected[half]] == [0.25 + left / 2] * 2


def test_the_last_hour_shows_what_has_ended_and_the_last_day_still_counts_it(harness: LedgerHarness) -> None:
    pod = harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(3600)
    harness.finish(pod)
    for _ in range(3):
        harness.reconcile(3600)
    forecast, expected = asked(harness, "namespace", "today")

    assert forecast.since == (NOON + 3 * HOUR, NOON)
    assert [hours(amount) for amount in expected["team-a",]] == [1, 1 + 8 / 4]


def test_a_pod_that_ran_within_the_day_before_the_window_is_named_too(harness: LedgerHarness) -> None:
    """So the lines add up to what all keys together come to."""
    pod = harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(3600)
    harness.finish(pod)
    for _ in range(12):
        harness.reconcile(3600)
    (_, expected) = asked(harness, "namespace", "today", window="today")

    assert harness.now == NOON + 13 * HOUR
    assert [hours(amount) for amount in expected["team-a",]] == [0, round(23 / 13, 6)]


def test_a_correction_is_billed_and_is_no_pace(harness: LedgerHarness) -> None:
    harness.budget("research", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(3600)
    harness.correct("refund", "research", "-0.5", NOON, namespace="team-a")
    harness.reconcile(0)
    (_, expected) = asked(harness, "namespace", "today")

    assert [hours(amount) for amount in expected["team-a",]] == [1 - 0.5 + 11] * 2


def test_there_is_none_until_ten_minutes_were_metered(harness: LedgerHarness) -> None:
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(9 * MINUTE / 10**9)
    assert asked(harness, "namespace")[1]["team-a",] == [None, None]
    harness.reconcile(60)
    assert None not in asked(harness, "namespace")[1]["team-a",]


def test_a_forecast_stays_as_it_was_at_the_last_settlement_and_is_not_known_ten_minutes_later(
    harness: LedgerHarness,
) -> None:
    """While no leader settles, what was billed and what the pace is measured by end with the last settlement."""
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(3600)
    forecast, expected = asked(harness, "namespace", "today")
    assert (forecast.until, [hours(amount) for amount in expected["team-a",]]) == (NOON + HOUR, [12, 12])

    harness.now += LONGEST_LAG
    assert [hours(amount) for amount in asked(harness, "namespace", "today")[1]["team-a",]] == [12, 12]
    harness.now += 1
    assert asked(harness, "namespace", "today")[1]["team-a",] == [None, None]
    harness.now += 2 * DAY
    assert asked(harness, "namespace", "week")[1]["team-a",] == [None, None]
    harness.reconcile(0)
    assert None not in asked(harness, "namespace", "week")[1]["team-a",]


def test_the_spending_of_ended_pods_is_known_as_of_the_last_reconciliation(harness: LedgerHarness) -> None:
    """The account has no open session, so that no round settles it."""
    pod = harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(3600)
    harness.finish(pod)
    harness.reconcile(3600)
    harness.now += LONGEST_LAG

    forecast, expected = asked(harness, "namespace", "today")
    assert (forecast.until, [hours(amount) for amount in expected["team-a",]]) == (NOON + 2 * HOUR, [0 + 1, 1 + 10 / 2])
    harness.now += 1
    assert asked(harness, "namespace", "today")[1]["team-a",] == [None, None]


def test_a_silent_node_leaves_the_forecast_of_all_others_as_it_is(harness: LedgerHarness) -> None:
    """Its account is settled only up to the node's last sign of life."""
    for team in ("team-a", "team-b"):
        harness.budget(f"of-{team}", [team])
        harness.pod(team, team, node=f"node-of-{team}")
    harness.reconcile(0)
    harness.reconcile(1800)
    harness.silence("node-of-team-b", harness.now)
    for _ in range(6):
        harness.reconcile(600)
    forecast, expected = asked(harness, "namespace", "today")

    assert forecast.until == harness.now
    assert [hours(amount) for amount in expected["team-a",]] == [12, 12]
    assert [hours(amount) for amount in expected["team-b",]] == [0.5 + 0.5 / 1.5 * 10.5] * 2


def test_an_account_whose_settlement_fails_for_ten_minutes_has_none_and_all_others_do(harness: LedgerHarness) -> None:
    """It was billed less than its pods cost, so that a forecast would be too low."""
    for team in ("team-a", "team-b"):
        harness.budget(f"of-{team}", [team])
        harness.pod(team, team, model="A100")
    harness.reconcile(0)
    harness.reconcile(3600)
    head = AccountKeys("of-team-b").head
    before = harness.client.hget(head, "burn")
    harness.client.hset(head, "burn", "[1]")
    reconciler = harness.lead()
    harness.reconcile(LONGEST_LAG // SECOND)
    assert reconciler.books.not_settled.keys() == {"of-team-b"}
    forecast, expected = asked(harness, "namespace", "today")
    assert (forecast.not_settled, None in expected["team-b",]) == ((), False)

    harness.reconcile(60)
    forecast, expected = asked(harness, "namespace", "today")
    assert (forecast.until, forecast.not_settled) == (harness.now, ("of-team-b",))
    assert [hours(amount) for amount in expected["team-a",]] == [12, 12]
    assert expected["team-b",] == [None, None]
    assert asked(harness, "model", "today")[1] == {("A100",): [None, None]}
    assert asked(harness, "namespace", "today", namespace="team-a")[0].not_settled == ()

    harness.client.hset(head, "burn", before)
    harness.lead()
    harness.reconcile(60)
    forecast, expected = asked(harness, "namespace", "today")
    assert (forecast.not_settled, [hours(amount) for amount in expected["team-b",]]) == ((), [12, 12])


def test_an_account_that_is_not_settled_hides_only_what_it_has_paid_for_since(harness: LedgerHarness) -> None:
    """A namespace that it paid for before is settled by another account; one that came to it lately is not."""
    harness.budget("fails", ["stays", "leaves"])
    harness.budget("works", ["comes"])
    for team, model in (("stays", "A100"), ("leaves", "H100"), ("comes", "L40")):
        harness.pod(team, team, model=model)
    harness.reconcile(0)
    harness.reconcile(3600)
    harness.budget("fails", ["stays"])
    harness.budget("works", ["leaves", "comes"])
    harness.reconcile(600)
    harness.client.hset(AccountKeys("fails").head, "burn", "[1]")
    harness.lead()
    harness.budget("fails", ["stays", "comes"])
    harness.budget("works", ["leaves"])
    harness.reconcile(LONGEST_LAG // SECOND + 60)

    forecast, of_namespaces = asked(harness, "namespace", "today")
    assert forecast.not_settled == ("fails",)
    assert {key[0] for key, expected in of_namespaces.items() if None in expected} == {"stays", "comes"}
    of_models = asked(harness, "model", "today")[1]
    assert {key[0] for key, expected in of_models.items() if None in expected} == {"A100", "L40"}
    assert asked(harness, "namespace", "today", namespace="leaves")[0].not_settled == ()


def test_pods_that_are_charged_for_the_time_before_metering_began_are_measured_from_then_on(
    harness: LedgerHarness,
) -> None:
    harness.pod("p1", "team-a")
    harness.pass_time(3 * 3600)
    harness.reconcile(0)
    forecast, expected = asked(harness, "namespace", "today")

    assert forecast.since == (NOON + 2 * HOUR, NOON)
    assert [hours(amount) for amount in expected["team-a",]] == [3 + 9] * 2


def test_a_namespace_has_its_own_and_pages_hold_what_one_answer_holds(harness: LedgerHarness) -> None:
    for team in ("team-a", "team-b", "team-c"):
        harness.pod(team, team)
    harness.reconcile(0)
    harness.reconcile(1800)
    _, whole = asked(harness, "namespace")

    assert len(whole) == 3
    for team in ("team-a", "team-b", "team-c"):
        assert asked(harness, "namespace", namespace=team)[1] == {(team,): whole[team,]}
    query = read_query({"window": "month", "forecast": "month", "limit": "2"}, (), harness.now)
    assert [item.key for item in find(harness.client, query, harness.now).items] == [("team-a",), ("team-b",)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"window": "month", "forecast": "yesterday"},
        {"window": "month", "forecast": "2026-01-15T11:59:59Z"},
        {"window": "month", "forecast": "2027-02-01T00:00:00Z"},
        {"window": "lastmonth", "forecast": "month"},
        {"window": "month", "step": "day", "forecast": "month"},
    ],
)
def test_one_that_says_nothing_is_refused(arguments: Mapping[str, str]) -> None:
    with pytest.raises(ProblemError, match="today, week or month"):
        read_query(arguments, (), NOON)


def test_a_week_ends_with_saturday() -> None:
    query = read_query({"window": "week", "forecast": "week"}, (), NOON)

    assert (query.forecast, query.window) == (NOON + 2 * DAY + DAY // 2, Window(NOON - 4 * DAY - DAY // 2, NOON + HOUR))
