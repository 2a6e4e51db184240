"""What a budget allows, read anew from its GPUBudget, and the state that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from timekeeper.rules.timestamps import TimeError, parse_duration

GPU_HOUR = 3_600_000_000

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """A GPUBudget's spec; amounts in microGPU-seconds, durations in nanoseconds, None for no limit."""

    allowance: int | None
    grace_amount: int | None = None
    grace_duration: int | None = None
    holds: bool = False
    observed: bool = False
    simple: bool = True


def read_limits(spec: Json | None) -> BudgetLimits | None:
    """The limits of a spec; None where it is none that can be used: the books then go on with the last one that was."""
    if spec is None:
        return BudgetLimits(None)
    grace = spec.get("grace") or {}
    try:
        return BudgetLimits(
            allowance=_amount(spec["allowance"]["gpuHours"]),
            grace_amount=_amount(grace["gpuHours"]) if "gpuHours" in grace else None,
            grace_duration=parse_duration(grace["duration"]) if "duration" in grace else None,
            holds=spec.get("onExhausted") == "hold",
            observed=spec.get("enforcement") == "observe",
            simple=spec.get("admission", "simple") == "simple",
        )
    except (KeyError, TypeError, InvalidOperation, TimeError):
        return None


def state(limits: BudgetLimits, available: int | None, spent: int, exhausted_at: int | None, now: int) -> str:
    """The true state: unlimited, open, grace, over or held."""
    if available is None:
        return "unlimited"
    if spent < available:
        return "open"
    grace = limits.grace_amount is not None or limits.grace_duration is not None
    if limits.grace_amount is not None and spent - available >= limits.grace_amount:
        grace = False
    if limits.grace_duration is not None and exhausted_at is not None and now - exhausted_at >= limits.grace_duration:
        grace = False
    if grace:
        return "grace"
    return "held" if limits.holds else "over"


def acted_on(limits: BudgetLimits, true_state: str) -> str:
    """The state that admission is told: open wherever a limit is only observed."""
    return "open" if limits.observed and true_state != "unlimited" else true_state


def _amount(value: Any) -> int:
    return int(Decimal(str(value)) * GPU_HOUR)
