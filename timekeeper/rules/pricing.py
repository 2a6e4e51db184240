"""What a reservation costs: prices per GPU model over time, and the rate that a share of devices earns.

A rate is in microGPU-seconds a second. It is rounded up per vGPU, so that no share is so small as to be free; the
amount that a rate earns over time is rounded down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairgpu.allocation import DeviceShare
from timekeeper.rules.money import GPU_SECOND

ANY_MODEL = "*"
"""The model whose price holds for every model that has none of its own."""
FOREVER = 1 << 62
"""Later than any instant that matters."""


@dataclass(frozen=True, slots=True)
class PricePoint:
    """A price from an instant (nanoseconds since 1970) on: GPU-hours charged for an hour of a whole GPU."""

    effective_from: int
    price: Fraction


Prices = Mapping[str, tuple[PricePoint, ...]]
"""Each model's points in order of time."""


def price_at(prices: Prices, model: str, instant: int) -> Fraction:
    """The model's price at an instant: its own, else that of any model, else 1."""
    for name in (model, ANY_MODEL):
        current = [point.price for point in prices.get(name, ()) if point.effective_from <= instant]
        if current:
            return current[-1]
    return Fraction(1)


def dearest_at(prices: Prices, instant: int) -> Fraction:
    """The highest price that any model has at an instant, for a reservation of devices that nobody can name."""
    return max((price_at(prices, model, instant) for model in {*prices, ANY_MODEL}), default=Fraction(1))


def price_changes(prices: Prices, after: int, before: int) -> tuple[int, ...]:
    """The instants strictly between two others at which any price changes, in order."""
    moments = {point.effective_from for points in prices.values() for point in points}
    return tuple(sorted(moment for moment in moments if after < moment < before))


def amended(history: Prices, configured: Prices, now: int) -> Prices:
    """The prices that hold once an admin has changed the setting: as configured from now on, before now as they were.

    What was metered is never priced again, so a point configured for the past takes effect now.
    """
    result: dict[str, tuple[PricePoint, ...]] = {}
    moments = (now, *price_changes(configured, now, FOREVER))
    for model in sorted({*history, *configured, ANY_MODEL}):
        points = [point for point in history.get(model, ()) if point.effective_from < now]
        for moment in moments:
            price = price_at(configured, model, moment)
            if not points or points[-1].price != price:
                points.append(PricePoint(moment, price))
        result[model] = tuple(points)
    return result


def device_rate(device: DeviceShare, price: Fraction, best_effort_floor_percent: int) -> int:
    """The rate of one vGPU: its price times the larger of its share of GPU time and of memory, rounded up.

    A best-effort share (core 0) is charged as at least the floor, since it uses what others leave.
    """
    core = device.core_percent or best_effort_floor_percent
    held, whole = core, 100
    if device.memory_mib * whole > held * device.total_mib:
        held, whole = device.memory_mib, device.total_mib
    # As fractions would, fifty times as fast: a new leader computes this of every pod.
    return -(-GPU_SECOND * price.numerator * held // (price.denominator * whole))


def devices_rate(devices: Sequence[DeviceShare], prices: Prices, instant: int, best_effort_floor_percent: int) -> int:
    """The rate of several vGPUs at an instant."""
    return sum(
        device_rate(device, price_at(prices, device.model, instant), best_effort_floor_percent) for device in devices
    )
