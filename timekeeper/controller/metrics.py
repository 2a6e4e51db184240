"""The metrics of a jobs process, and the Prometheus series of budgets, which the leader alone exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairgpu.states import BudgetState
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.forecast import lasts_until, runs_out_early
from timekeeper.domain.holdings.holding import Doubt
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.ledger.client import Store
from timekeeper.ledger.connection import ask_each

EVICTION_OUTCOMES = ("notice", "evict", "call-off", "without-notice", "blocked", "refused", "failed")
POD_STEPS = ("label", "notice", "evict", "call-off", "release", "finalizer")
POD_OUTCOMES = ("written", "changed", "blocked", "refused", "failed", "away")
NOTIFICATION_OUTCOMES = ("delivered", "failed", "refused", "expired", "dropped")
EXPORT_OUTCOMES = ("written", "unchanged", "failed", "conflict")
PRESENT_USE_OUTCOMES = (
    "answered",
    "empty",
    "unreachable",
    "timeout",
    "refused",
    "redirected",
    "too-large",
    "unreadable",
    "error",
    "no-vector",
    "stale",
    "misconfigured",
    "not-stored",
    "failed",
)
PRESENT_USE_SERIES = ("metered", "not-metered", "no-pod", "no-number", "out-of-scale")
JOB_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class JobMeasures:
    """The metrics of one process of `fairgpu timekeeper jobs`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("fairgpu_timekeeper_leading", "Whether this process leads.", registry=self.registry)
        self.mode = Gauge(
            "fairgpu_timekeeper_mode",
            "The mode of this process (1): share, account or look.",
            ["mode"],
            registry=self.registry,
        )
        self.settled_at = Gauge(
            "fairgpu_timekeeper_settled_timestamp_seconds",
            "When every session was last settled.",
            registry=self.registry,
        )
        self.not_settled = Gauge(
            "fairgpu_timekeeper_accounts_not_settled",
            "Accounts of which the last attempt did not settle or publish everything.",
            registry=self.registry,
        )
        self.held_back = Gauge(
            "fairgpu_timekeeper_sessions_held_back",
            "Sessions of running pods that are opened once the store has room for them.",
            registry=self.registry,
        )
        self.unknown_model = Gauge(
            "fairgpu_timekeeper_gpus_of_unknown_model",
            "GPUs, at price 1, that open sessions hold by other stacks and whose model no label names.",
            registry=self.registry,
        )
        self.doubtful = Gauge(
            "fairgpu_timekeeper_sessions_charged_by_rule",
            "Open sessions by other stacks that are charged by a rule, since labels or annotations do not state it.",
            ["cause"],
            registry=self.registry,
        )
        for cause in Doubt:
            self.doubtful.labels(cause.value)
        self.held_idle = Gauge(
            "fairgpu_timekeeper_gpus_held_idle",
            "GPUs, at their models' prices, of claims that are allocated and that no pod reserves.",
            registry=self.registry,
        )
        self.unlisted_claims = Gauge(
            "fairgpu_timekeeper_claims_of_unlisted_drivers",
            "Resource claims with devices of a driver that is not metered, such as those of network cards.",
            registry=self.registry,
        )
        self.clock_ahead = Gauge(
            "fairgpu_timekeeper_api_server_clock_ahead_seconds",
            "How far the latest creation that the API server has stamped lies ahead of this process's clock.",
            registry=self.registry,
        )
        self.ahead_of_store = Gauge(
            "fairgpu_timekeeper_clock_ahead_of_store_seconds",
            "How far the leading process's clock lies ahead of Redis's; below 0 where it lies behind.",
            registry=self.registry,
        )
        self.durations = Histogram(
            "fairgpu_timekeeper_job_duration_seconds",
            "How long a job of the leading process took.",
            ["task"],
            buckets=JOB_BUCKETS,
            registry=self.registry,
        )
        self.failures = Counter(
            "fairgpu_timekeeper_job_failures", "Jobs that failed, by error.", ["task", "error"], registry=self.registry
        )
        self.pods = PodMeasures(self.registry)
        self.notifications = _by_outcome(
            "fairgpu_timekeeper_notifications",
            "Notifications, by outcome.",
            NOTIFICATION_OUTCOMES,
            self.registry,
        )
        self.notifications_pending = Gauge(
            "fairgpu_timekeeper_notifications_pending",
            "Notifications that wait to be delivered by this process.",
            registry=self.registry,
        )

    def clear_leader(self) -> None:
        """Sets to 0 the gauges that reconciliations set, but `settled_at`; called while this process does not lead."""
        for gauge in (
            self.not_settled,
            self.held_back,
            self.unknown_model,
            self.held_idle,
            self.unlisted_claims,
            self.clock_ahead,
            self.ahead_of_store,
            *(self.doubtful.labels(cause.value) for cause in Doubt),
        ):
            gauge.set(0)


class PodMeasures:
    """The metrics of writes to pods, by their outcome."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.evictions = _by_outcome(
            "fairgpu_timekeeper_evictions",
            "Notices, evictions and withdrawn notices of running pods of spent budgets, by outcome.",
            EVICTION_OUTCOMES,
            registry,
        )
        self.writes = Counter(
            "fairgpu_timekeeper_pod_writes",
            "Writes to pods, by step and outcome.",
            ["step", "outcome"],
            registry=registry,
        )
        self.not_written = Gauge(
            "fairgpu_timekeeper_pods_not_written",
            "Pods of which a write has failed three times in a row or more, by what was to be written.",
            ["step"],
            registry=registry,
        )
        for step in POD_STEPS:
            self.not_written.labels(step)
            for outcome in POD_OUTCOMES:
                self.writes.labels(step, outcome)


class ExportMeasures:
    """The metrics of the export of closed months."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = _by_outcome(
            "fairgpu_timekeeper_exports", "Exports of months, by outcome.", EXPORT_OUTCOMES, registry
        )
        self.pending = Gauge(
            "fairgpu_timekeeper_exports_pending",
            "Closed months whose export does not hold what the store holds.",
            registry=registry,
        )


class PresentUseMeasures:
    """The metrics of the queries for present use, shown only if a Prometheus is configured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queries = _by_outcome(
            "fairgpu_timekeeper_present_use_queries",
            "Queries of Prometheus for the present use of GPUs, by outcome.",
            PRESENT_USE_OUTCOMES,
            registry,
        )
        self.answered_at = Gauge(
            "fairgpu_timekeeper_present_use_answered_timestamp_seconds",
            "When Prometheus last answered with a series; 0 for never.",
            registry=registry,
        )
        self.series = Gauge(
            "fairgpu_timekeeper_present_use_series",
            "Series of the last answer, by whether they name a metered pod, or why they count for none.",
            ["outcome"],
            registry=registry,
        )
        for outcome in PRESENT_USE_SERIES:
            self.series.labels(outcome)


def _by_outcome(name: str, text: str, outcomes: Iterable[str], registry: CollectorRegistry) -> Counter:
    """Returns a counter by outcome, with a series at 0 for each outcome: rate() misses the first event of a new series.

    `name` and `text` are the metric's name and help.
    """
    counter = Counter(name, text, ["outcome"], registry=registry)
    for outcome in outcomes:
        counter.labels(outcome)
    return counter


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of one Redis server, or of several combined by `worst`.

    Attributes:
        append_only: whether an append-only file is written; without one, a restart loses acknowledged writes.
        append_only_ok: whether the last write to the append-only file succeeded.
        snapshot_ok: whether the last snapshot succeeded.
        replicas: the number of connected replicas of the primary that has the fewest.
        used_bytes: memory in use, added up.
        limit_bytes: the most memory that may be used, added up; 0 for no limit.
    """

    append_only: bool
    append_only_ok: bool
    snapshot_ok: bool
    replicas: int
    used_bytes: int
    limit_bytes: int


def read_health(info: dict[str, Any]) -> StoreHealth:
    """Returns the health of a Redis server, read from its answer to the command INFO.

    Args:
        info: the answer (https://redis.io/docs/latest/commands/info/).
    """
    return StoreHealth(
        append_only=bool(int(info.get("aof_enabled", 0))),
        append_only_ok=info.get("aof_last_write_status", "ok") == "ok",
        snapshot_ok=info.get("rdb_last_bgsave_status", "ok") == "ok",
        replicas=int(info.get("connected_slaves", 0)),
        used_bytes=int(info.get("used_memory", 0)),
        limit_bytes=int(info.get("maxmemory", 0)),
    )


def worst(healths: list[StoreHealth]) -> StoreHealth:
    """Combines the health of several primaries of Redis: the worst of each figure, and the sums of their memory.

    The limit of memory is 0, which means no limit, if any of the primaries has no limit.
    """
    return StoreHealth(
        append_only=all(health.append_only for health in healths),
        append_only_ok=all(health.append_only_ok for health in healths),
        snapshot_ok=all(health.snapshot_ok for health in healths),
        replicas=min(health.replicas for health in healths),
        used_bytes=sum(health.used_bytes for health in healths),
        limit_bytes=sum(health.limit_bytes for health in healths) if all(h.limit_bytes for h in healths) else 0,
    )


class StoreMeasures:
    """The metrics of the store's health, which every jobs process exports whether it leads or not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"fairgpu_timekeeper_store_{name}", text, registry=registry)

        self._up = gauge("up", "Whether Redis answered when it was last asked.")
        self._append_only = gauge("append_only_enabled", "Whether Redis writes an append-only file.")
        self._append_only_ok = gauge(
            "append_only_write_ok", "Whether the last write to the append-only file succeeded."
        )
        self._snapshot = gauge("snapshot_ok", "Whether the last snapshot succeeded.")
        self._replicas = gauge("connected_replicas", "Replicas that are connected, at the primary that has the fewest.")
        self._used = gauge("memory_used_bytes", "Memory that Redis uses.")
        self._limit = gauge("memory_limit_bytes", "The most memory that Redis may use; 0 for no limit.")

    def look(self, client: Store) -> None:
        """Asks the store's servers for their health, and sets the metrics to it.

        If a server does not answer, only `up` changes, to 0.
        """
        try:
            health = worst(ask_each(client, lambda server: read_health(server.info())))
        except (redis.RedisError, OSError) as error:
            self._up.set(0)
            _log.warning("store health unknown", error=str(error))
            return
        self._up.set(1)
        self._append_only.set(health.append_only)
        self._append_only_ok.set(health.append_only_ok)
        self._snapshot.set(health.snapshot_ok)
        self._replicas.set(health.replicas)
        self._used.set(health.used_bytes)
        self._limit.set(health.limit_bytes)


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
    """The leader's accounts and the number of its sessions at one moment, for a scrape by Prometheus.

    Attributes:
        sessions: the number of metered sessions.
        accounts: pairs of an account and its figures, in no order.
    """

    sessions: int
    accounts: Sequence[tuple[Account, Figures]]


class BookSeries(Collector):
    """Exports metrics of budgets from the leader's state at each scrape; a process that does not lead exports none."""

    def __init__(self, read: Callable[[], BooksRead | None], most: int) -> None:
        """Makes a collector that has read nothing yet.

        Args:
            read: returns the leader's accounts and figures; None while this process does not lead.
            most: the most accounts with a limit that get series of their own, GPUBudgets first; 0 for none.
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
