"""What the admin's settings mean for the books."""

from __future__ import annotations

from fractions import Fraction

from fairgpu.charging import ChargeRules
from fairgpu.commands import CommandError
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.rules.budgets import Budget, BudgetError, parse_budget
from timekeeper.rules.pricing import PricePoint, Prices
from timekeeper.rules.timestamps import from_datetime
from timekeeper.settings import MeteringSettings, TimekeeperSettings
from timekeeper.usage.retention import Retention


def keeper_rules(settings: TimekeeperSettings) -> KeeperRules:
    """The rules that the books are kept by.

    Raises:
        CommandError: the default budget cannot be used.
    """
    metering = settings.metering
    return KeeperRules(
        prices=_prices(metering),
        charge=ChargeRules(metering.best_effort_floor_percent, metering.unknown_device_mib),
        meter_from=metering.meter_from,
        bill=metering.bill,
        template=_template(metering),
        holds_pods=metering.end_proof == "finalizer",
        replica_wait_seconds=settings.redis.replica_wait_seconds,
        labels=settings.usage.labels,
        retention=Retention(settings.usage.hourly_days, settings.usage.months, settings.export.wanted),
    )


def _prices(settings: MeteringSettings) -> Prices:
    return {
        model: tuple(
            sorted(
                (PricePoint(from_datetime(point.effective_from), Fraction(point.price)) for point in points),
                key=lambda point: point.effective_from,
            )
        )
        for model, points in settings.prices.items()
    }


def _template(settings: MeteringSettings) -> Budget:
    if settings.default_budget is None:
        return Budget("default")
    item = {"metadata": {"name": "default"}, "spec": {**settings.default_budget, "namespaces": ["default"]}}
    try:
        return parse_budget(item)
    except BudgetError as error:
        raise CommandError(f"timekeeper.metering.default_budget: {error}") from error
