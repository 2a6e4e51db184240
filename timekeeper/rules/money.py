"""Money is whole microGPU-seconds: one whole GPU for one second at price 1 is 1,000,000 of them.

Whole numbers, because a sum of doubles depends on its order and loses units from 2^53 on; a ledger may do neither.
People read GPU-hours (3,600,000,000 microGPU-seconds), which never flow back into a computation.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

GPU_SECOND: Final = 1_000_000
GPU_HOUR: Final = 3600 * GPU_SECOND
SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

MAX_GPU_HOURS: Final = 999_999_999
MAX_AMOUNT: Final = 10**24 - 1
"""The largest amount that the store holds."""

_GPU_HOURS = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?")


class MoneyError(ValueError):
    """A value that is no amount; the message says what is allowed."""


def cost(rate: int, nanoseconds: int) -> int:
    """What a rate (microGPU-seconds a second) costs over a stretch of time, rounded down."""
    return rate * nanoseconds // SECOND


def from_gpu_hours(value: Any) -> int:
    """An amount as a manifest states it: a whole number of GPU-hours, or a quoted decimal of at most six places.

    Raises:
        MoneyError: it is anything else. A float is refused unless it is whole: 0.1 has no exact double.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not _GPU_HOURS.fullmatch(str(value)):
        raise MoneyError(f'a number from 0 to {MAX_GPU_HOURS}, or a quoted decimal of at most six places such as "2.5"')
    return int(Decimal(value) * GPU_HOUR)


def from_signed_gpu_hours(value: Any) -> int:
    """An amount that may be below 0, otherwise as `from_gpu_hours` reads it, and not 0.

    Raises:
        MoneyError: it is anything else.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    negative = text.startswith("-")
    try:
        amount = from_gpu_hours(text[1:] if negative and not isinstance(value, float) else value)
    except MoneyError:
        amount = 0
    if amount == 0:
        raise MoneyError(
            f"a number from -{MAX_GPU_HOURS} to {MAX_GPU_HOURS} but 0, or a quoted decimal of at most six places such "
            'as "2.5" or "-2.5"'
        )
    return -amount if negative else amount


def gpu_hours(amount: int) -> float:
    """GPU-hours, for display alone."""
    return amount / GPU_HOUR


def display(amount: int) -> str:
    """GPU-hours as people read them: two places, and more where the amount is too small to be seen in two."""
    hours = Decimal(amount) / GPU_HOUR
    places = 2 if amount == 0 or abs(hours) >= 1 else 6
    text = f"{hours:.{places}f}"
    return text.rstrip("0").rstrip(".") if places > 2 else text
