"""Periods for tests that run in real time, of which neither end is near on any day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

LAST_DAY_OF_EVERY_MONTH = 28


def month_midway() -> dict[str, Any]:
    """Returns a GPUBudget's period of a month that began, and will end, about two weeks from now."""
    day = min((datetime.now(UTC) + timedelta(days=14)).day, LAST_DAY_OF_EVERY_MONTH)
    return {"every": "month", "start": {"dayOfMonth": day}}
