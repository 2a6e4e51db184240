"""Prices of GPU models over time, and the amount billed for a session: its reservation, its use, or the larger of both.

Use comes from the pod's own reports, which FairGPU cannot verify. It is therefore bounded by what the pod can have
used: its reservation, or the whole of its devices if it may borrow the GPU time that other pods leave idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fairgpu.allocation import DeviceShare
from fairgpu.models import match
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.timestamps import Instant


class Bill(StrEnum):
    """The quantity for which a session is billed: its reservation, its use, or the larger of both."""

    RESERVED = "reserved"
    USED = "used"
    MAX = "max"


def billed(bill: Bill, reserved: int, used: int, ceiling: int) -> int:
    """Returns the amount to bill for a session, in microGPU-seconds.

    Use above `ceiling` is not billed, since FairGPU cannot verify the reports that state it.

    Args:
        bill: the quantity that is billed.
        reserved: the cost of the session's reservation, in microGPU-seconds.
        used: the price of the use that the session's reports state, in microGPU-seconds.
        ceiling: the price of the most that the session can have used, in microGPU-seconds: `reserved`, or the cost of
            its whole devices if it may use the GPU time that other pods do not use.
    """
    if bill is Bill.RESERVED:
        return reserved
    believed = min(max(used, 0), max(ceiling, reserved))
    return believed if bill is Bill.USED else max(reserved, believed)


ANY_MODEL = "*"
"""The key of the price for every model that has no price of its own."""
BY_WORDS = ":by-words"
"""A key of Prices that is no model. From the instant of its first point on, a key stands for every model whose name
contains the key's words; before, a key is a whole model name.
"""
REMOVED = Fraction(-1)
"""The price of a point from which on the settings no longer name the model."""
ONE = Fraction(1)
"""The price of a model if neither the model nor ANY_MODEL has one."""
FOREVER = 1 << 62
"""Later than any instant that matters."""


@dataclass(frozen=True, slots=True)
class PricePoint:
    """A price from an instant (nanoseconds since 1970) on: GPU-hours charged for an hour of a whole GPU."""

    effective_from: int
    price: Fraction


Prices = Mapping[str, tuple[PricePoint, ...]]
"""The price points in order of time, keyed by a model's name, by some words of it, by ANY_MODEL or by BY_WORDS."""


def price_at(prices: Prices, model: str, instant: Instant) -> Fraction:
    """Returns a model's price at an instant, in GPU-hours for an hour of a whole GPU.

    It is the price that is set for the model, else that for ANY_MODEL, else 1. Once words count (`by_words`), a key
    stands for each model whose name contains its words; of several such keys, the best match counts
    (`fairgpu.models.match`). Before, only a key that is exactly the model's name stands for it.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
    """
    if by_words(prices, instant):
        matches = [
            (matched, price)
            for key in prices
            if (matched := match(key, model)) is not None and (price := named_price(prices, key, instant)) is not None
        ]
        if matches:
            return max(matches)[1]
    elif (price := named_price(prices, model, instant)) is not None:
        return price
    price = named_price(prices, ANY_MODEL, instant)
    return ONE if price is None else price


def by_words(prices: Prices, instant: Instant) -> bool:
    """Returns whether, at an instant, a key of the prices stands for every model whose name contains the key's words.

    True from the instant of the first price point under the key BY_WORDS on. Before that instant, and if there is no
    such point, a key stands only for the model with exactly that name.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
    """
    points = prices.get(BY_WORDS, ())
    return bool(points) and points[0].effective_from <= instant


def named_price(prices: Prices, key: str, instant: Instant) -> Fraction | None:
    """Returns the price that is set for exactly this key at an instant; None if none is set.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
        key: a model's name, some of its words, or ANY_MODEL.
    """
    if key == BY_WORDS:
        return None
    for point in reversed(prices.get(key, ())):
        if point.effective_from <= instant:
            return None if point.price == REMOVED else point.price
    return None


def prices_in_force(prices: Prices, instant: Instant) -> dict[str, Fraction]:
    """Returns the prices at an instant, keyed by a model's name or some of its words; ANY_MODEL costs 1 if none is set.

    Args:
        prices: the prices over time, keyed by the same names.
    """
    named = {key: price for key in prices if (price := named_price(prices, key, instant)) is not None}
    return {ANY_MODEL: ONE} | named


def dearest_at(prices: Prices, instant: Instant) -> Fraction:
    """Returns the highest of all prices in force at an instant, with that of ANY_MODEL, which is 1 if none is set.

    It is charged for a reservation whose devices are unknown.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
    """
    return max(prices_in_force(prices, instant).values())


def price_changes(prices: Prices, after: int, before: int) -> tuple[int, ...]:
    """Returns the instants at which any price changes, in order; instants are nanoseconds since 1970.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
        after: only later instants are returned.
        before: only earlier instants are returned.
    """
    moments = {point.effective_from for points in prices.values() for point in points}
    return tuple(sorted(moment for moment in moments if after < moment < before))


def amended(history: Prices, configured: Prices, now: Instant) -> Prices:
    """Returns the prices after an admin changed the setting: as configured from now on, and as they were before now.

    Metered use is never priced again, so a price that is configured for the past takes effect now. A name that is no
    longer in the settings has no price from now on: otherwise it would still match models that other names price.

    Args:
        history: the prices that were charged so far, keyed by a model's name or some of its words.
        configured: the prices in the settings, keyed by the same names.
    """
    result: dict[str, tuple[PricePoint, ...]] = {}
    moments = (now, *price_changes(configured, now, FOREVER))
    for key in sorted({*history, *configured, ANY_MODEL} - {BY_WORDS}):
        points = [point for point in history.get(key, ()) if point.effective_from < now]
        for moment in moments:
            price = price_at(configured, key, moment) if key == ANY_MODEL else named_price(configured, key, moment)
            shown = REMOVED if price is None else price
            if shown != (points[-1].price if points else REMOVED):
                points.append(PricePoint(moment, shown))
        if points:
            result[key] = tuple(points)
    if by_words(configured, now):
        earlier = [point for point in history.get(BY_WORDS, ()) if point.effective_from < now]
        result[BY_WORDS] = tuple(earlier[:1]) or (PricePoint(now, Fraction(1)),)
    return result


def device_rate(device: DeviceShare, price: Fraction, best_effort_floor_percent: int) -> int:
    """Returns the rate of one vGPU in microGPU-seconds a second, rounded up.

    The rate is the price times the larger of the vGPU's shares of GPU time and memory.

    Args:
        device: the vGPU's shares of its device.
        price: GPU-hours charged for an hour of the whole device.
        best_effort_floor_percent: the least share of GPU time, in percent, that a best-effort vGPU (core 0) is charged
            for, since it uses the GPU time that other pods do not use.
    """
    core = device.core_percent or best_effort_floor_percent
    held, whole = core, 100
    if device.memory_mib * whole > held * device.total_mib:
        held, whole = device.memory_mib, device.total_mib
    # Equal to arithmetic with Fraction and fifty times as fast: a new leader computes it for every pod.
    return -(-GPU_SECOND * price.numerator * held // (price.denominator * whole))


def devices_rate(
    devices: Sequence[DeviceShare], prices: Prices, instant: Instant, best_effort_floor_percent: int
) -> int:
    """Returns the rate of several vGPUs together, in microGPU-seconds a second.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
        instant: the instant of the prices.
        best_effort_floor_percent: the least share of GPU time, in percent, that a best-effort vGPU is charged for.
    """
    return sum(
        device_rate(device, price_at(prices, device.model, instant), best_effort_floor_percent) for device in devices
    )
