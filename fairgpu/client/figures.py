"""Formats figures for people: GPU-hours, rates in GPUs, instants and durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

_STEPS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def gpu_hours(money: Any) -> str:
    """Formats an amount as GPU-hours, to a hundredth or to three significant digits; `-` for no limit."""
    if not isinstance(money, dict):
        return ""
    hours = int(money["microGPUSeconds"]) / 3_600_000_000
    if hours == 0 or abs(hours) >= 1:
        return f"{hours:,.2f}"
    return f"{hours:.3g}" if abs(hours) >= 0.0001 else f"{hours:.6f}"


def gpus(rate: Any) -> str:
    """Formats a rate of spending as a number of GPUs."""
    return f"{rate['gpus']:.2f}"


def moment(text: str | None) -> str:
    """Formats an instant in the local time zone, to the second."""
    if text is None:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc_moment(text: str) -> str:
    """Formats an instant in UTC, in which usage divides days, to the minute."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def span(start: str, end: str) -> str:
    """Formats the time between two instants in its two largest units, such as 3h12m."""
    seconds = int((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    parts: list[str] = []
    for length, unit in _STEPS:
        count, seconds = divmod(max(seconds, 0), length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def percent(part: Any, whole: Any) -> str:
    """Formats one amount as a share of another, in whole percent."""
    if not isinstance(whole, dict) or int(whole["microGPUSeconds"]) == 0:
        return ""
    return f"{100 * int(part['microGPUSeconds']) / int(whole['microGPUSeconds']):.0f}%"


def worth(budget: Any, figure: str) -> str:
    """Formats a budget's figure in the admin's currency, such as ` (1,250.00 EUR)`; empty without a currency."""
    currency, costs = budget.get("currency"), budget.get("costs")
    if not currency or not costs or costs[figure] is None:
        return ""
    return f" ({costs[figure]:,.2f} {currency['code']})"
