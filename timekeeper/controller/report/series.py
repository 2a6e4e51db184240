"""Prometheus series of budgets, from the leader's state; other processes export none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairgpu.states import BudgetState
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.forecast import lasts_until, runs_out_early
from timekeeper.domain.money import GPU_SECOND, SECOND

AMOUNTS: Mapping[str, tuple[str, Callable[[Account, Figures], float]]] = {
    "allowance_gpu_seconds": (
        "What the budget allows in each period.",
        lambda account, _: (account.budget.allowance or 0) / GPU_SECOND,
    ),
    "available_gpu_seconds": (
        "What may be spent in the present period, with all that was added to it.",
        lambda _, figures: (figures.limits.available or 0) / GPU_SECOND,
    ),
    "spent_gpu_seconds": (
        "What was spent in the present period; falls to 0 where the next one begins.",
        lambda _, figures: figures.spent / GPU_SECOND,
    ),
    "remaining_gpu_seconds": (
        "What is left in the present period; negative once overspent.",
        lambda _, figures: figures.remaining / GPU_SECOND,
    ),
    "spending_gpus": (
        "What running reservations spend: GPU-seconds a second.",
        lambda _, figures: figures.rate / GPU_SECOND,
    ),
    "committed_gpu_seconds": (
        "What admitted pods may still spend, where admission is safe.",
        lambda _, figures: figures.committed / GPU_SECOND,
    ),
    "period_start_timestamp_seconds": (
        "When the present period began.",
        lambda _, figures: figures.period.start / SECOND,
    ),
    "period_end_timestamp_seconds": (
        "When the next period begins.",
        lambda _, figures: figures.period.end / SECOND,
    ),
}
"""Figures of a budget by the name of their metric, each with its help text and its value."""


@dataclass(frozen=True, slots=True)
class BooksRead:
    """The leader's accounts at the moment of a scrape by Prometheus.

    Attributes:
        sessions: the number of metered sessions.
        accounts: the accounts in no order, each with its figures.
    """

    sessions: int
    accounts: Sequence[tuple[Account, Figures]]


class BookSeries(Collector):
    """Exports metrics of budgets from the leader's state at each scrape; a process that does not lead exports none."""

    def __init__(self, read: Callable[[], BooksRead | None], most: int) -> None:
        """Makes a collector that has read nothing yet.

        Args:
            read: returns the leader's memory; None while this process does not lead.
            most: the most budgets that get series of their own; 0 for none.
        """
        self._read = read
        self._most = most

    def describe(self) -> Iterator[Metric]:
        """Returns no metrics: only a leader exports any, so none are announced at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of the leader's accounts; none in a process that does not lead."""
        books = self._read()
        if books is None:
            return
        limited = [pair for pair in books.accounts if pair[1].limits.available is not None]
        accounts = sorted(limited, key=lambda pair: (not pair[0].is_budget, pair[0].name))[: self._most]
        yield _gauge("fairgpu_timekeeper_sessions", "Sessions on the meter.", books.sessions)
        yield _gauge("fairgpu_timekeeper_accounts", "Accounts that are kept.", len(books.accounts))
        yield _gauge(
            "fairgpu_timekeeper_budgets_without_series",
            "Budgets without fairgpu_budget metrics, as timekeeper.jobs.budget_series limits their number.",
            len(limited) - len(accounts),
        )
        yield from _budgets(accounts)


def _budgets(accounts: Sequence[tuple[Account, Figures]]) -> Iterator[Metric]:
    for name, (text, value) in AMOUNTS.items():
        family = GaugeMetricFamily(f"fairgpu_budget_{name}", text, labels=["budget"])
        for account, figures in accounts:
            family.add_metric([account.name], value(account, figures))
        yield family
    yield from _forecasts(accounts)
    yield _states(accounts)


def _states(accounts: Sequence[tuple[Account, Figures]]) -> Metric:
    states = GaugeMetricFamily(
        "fairgpu_budget_state",
        "1 for the state that the budget is in, 0 for the others.",
        labels=["budget", "state"],
    )
    for account, figures in accounts:
        for state in BudgetState:
            states.add_metric([account.name, state.value], float(figures.state is state))
    return states


def _forecasts(accounts: Sequence[tuple[Account, Figures]]) -> Iterator[Metric]:
    rates = GaugeMetricFamily(
        "fairgpu_budget_burn_rate_gpus",
        "What was spent over the last hour and the last day: GPU-seconds a second.",
        labels=["budget", "window"],
    )
    ends = GaugeMetricFamily(
        "fairgpu_budget_exhaustion_timestamp_seconds",
        "When the money runs out at the rate of a window; absent where it lasts until the period's end.",
        labels=["budget", "window"],
    )
    early = GaugeMetricFamily(
        "fairgpu_budget_runs_out_early",
        "1 where the money runs out before the period's end, both at the last hour's rate and at the last day's.",
        labels=["budget"],
    )
    for account, figures in accounts:
        end, left = figures.period.end, figures.remaining
        for window, burn in (("1h", figures.burns.hour), ("1d", figures.burns.day)):
            if burn is not None:
                rates.add_metric([account.name, window], burn.rate / GPU_SECOND)
                exhaustion = lasts_until(left, burn, burn.until, end)
                if exhaustion is not None:
                    ends.add_metric([account.name, window], exhaustion / SECOND)
        last = figures.burns.hour.until if figures.burns.hour is not None else 0
        early.add_metric([account.name], float(left <= 0 or runs_out_early(left, figures.burns, last, end)))
    yield from (rates, ends, early)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
