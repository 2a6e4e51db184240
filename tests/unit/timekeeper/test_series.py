from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from fairgpu.states import BudgetState
from timekeeper.controller.metrics import BookSeries, BooksRead
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.figures import Figures, figures
from timekeeper.domain.budgets import Budget
from timekeeper.domain.forecast import Burn, Burns
from timekeeper.domain.money import GPU_HOUR, SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger.totals import PeriodTotals


def account(name: str, allowance: int | None, spent: int) -> tuple[Account, Figures]:
    period = Period(0, 100 * SECOND)
    made = Account(name, Budget(name, allowance=allowance), [period], {0: PeriodTotals(spent, GPU_HOUR, 0, None)})
    return made, figures(made, 2_000_000, 50 * SECOND)


def shown(books: BooksRead | None, most: int = 10) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(BookSeries(lambda: books, most))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_budget_is_shown_in_gpu_seconds() -> None:
    found = shown(BooksRead(3, [account("a", 10 * GPU_HOUR, 12 * GPU_HOUR)]))
    assert found['fairgpu_budget_allowance_gpu_seconds{budget="a"}'] == 36_000
    assert found['fairgpu_budget_available_gpu_seconds{budget="a"}'] == 39_600
    assert found['fairgpu_budget_spent_gpu_seconds{budget="a"}'] == 43_200
    assert found['fairgpu_budget_remaining_gpu_seconds{budget="a"}'] == -3_600
    assert found['fairgpu_budget_spending_gpus{budget="a"}'] == 2
    assert found['fairgpu_budget_period_end_timestamp_seconds{budget="a"}'] == 100
    assert found["fairgpu_timekeeper_sessions"] == 3


def test_the_forecast_is_shown_for_the_hour_and_the_day_beside_each_other() -> None:
    made, found = account("a", 100 * GPU_HOUR, 10 * GPU_HOUR)
    period = Period(0, 200 * HOUR)
    hour, day = Burn(99 * HOUR, 100 * HOUR, GPU_HOUR), Burn(76 * HOUR, 100 * HOUR, 12 * GPU_HOUR)
    found = found._replace(period=period, burns=Burns(hour, day))
    lines = shown(BooksRead(1, [(made, found._replace(spent=made.budget.allowance or 0))]))
    assert lines['fairgpu_budget_burn_rate_gpus{budget="a",window="1h"}'] == 1
    assert lines['fairgpu_budget_burn_rate_gpus{budget="a",window="1d"}'] == 0.5
    assert lines['fairgpu_budget_exhaustion_timestamp_seconds{budget="a",window="1h"}'] == 101 * 3600
    assert lines['fairgpu_budget_exhaustion_timestamp_seconds{budget="a",window="1d"}'] == 102 * 3600
    assert lines['fairgpu_budget_runs_out_early{budget="a"}'] == 1


def test_exactly_one_state_of_a_budget_is_1() -> None:
    found = shown(BooksRead(0, [account("a", 10 * GPU_HOUR, 12 * GPU_HOUR)]))
    states = {state: found[f'fairgpu_budget_state{{budget="a",state="{state.value}"}}'] for state in BudgetState}
    assert states == {state: float(state is BudgetState.OVER) for state in BudgetState}


def test_a_replica_that_does_not_lead_shows_nothing_of_the_books() -> None:
    assert shown(None) == {}


def test_a_budget_without_a_limit_has_no_series() -> None:
    found = shown(BooksRead(0, [account("namespace:x", None, 5)]))
    assert not [name for name in found if name.startswith("fairgpu_budget_")]
    assert found["fairgpu_timekeeper_accounts"] == 1


def test_budgets_come_before_namespaces_where_not_all_get_series() -> None:
    names = ["namespace:a", "b", "namespace:c", "a"]
    books = BooksRead(0, [account(name, 5, 0) for name in names])
    found = shown(books, most=3)
    spent = sorted(name for name in found if name.startswith("fairgpu_budget_spent"))
    assert [name.split('"')[1] for name in spent] == ["a", "b", "namespace:a"]
    assert found["fairgpu_timekeeper_budgets_without_series"] == 1


def test_none_get_series_where_the_admin_wants_none() -> None:
    found = shown(BooksRead(0, [account("a", 5, 0)]), most=0)
    assert sorted(found) == [
        "fairgpu_timekeeper_accounts",
        "fairgpu_timekeeper_budgets_without_series",
        "fairgpu_timekeeper_sessions",
    ]
