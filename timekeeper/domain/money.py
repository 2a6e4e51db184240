"""Money is whole microGPU-seconds: one whole GPU for one second at price 1 is 1,000,000 of them.

Amounts are integers because a sum of doubles depends on its order and loses units from 2^53 on. GPU-hours
(3,600,000,000 microGPU-seconds) are for display; nothing is computed from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

GPU_SECOND: Final = 1_000_000
GPU_HOUR: Final = 3600 * GPU_SECOND
SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

MAX_GPU_HOURS: Final = 999_999_999

_GPU_HOURS = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?")


class MoneyError(ValueError):
    """A value that states no GPU-hours; the message says what is allowed."""


def from_gpu_hours(value: Any) -> int:
    """Parses GPU-hours, as a manifest states them, to microGPU-seconds.

    The value is a whole number, or a quoted decimal of at most six places.

    Raises:
        MoneyError: the value is anything else. A float that is not whole is refused: 0.1 has no exact double.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not _GPU_HOURS.fullmatch(str(value)):
        raise MoneyError(f'a number from 0 to {MAX_GPU_HOURS}, or a quoted decimal of at most six places such as "2.5"')
    return int(Decimal(value) * GPU_HOUR)


def from_signed_gpu_hours(value: Any) -> int:
    """Parses GPU-hours to microGPU-seconds like `from_gpu_hours`, but accepts values below 0 and refuses 0.

    Raises:
        MoneyError: the value is anything else.
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
    """Converts microGPU-seconds to GPU-hours, for display only."""
    return amount / GPU_HOUR


def amount_cells(amount: int | None) -> tuple[str, str]:
    """Returns the two cells of a CSV row for an amount; both are empty for None.

    The first states GPU-hours with six decimal places, the second microGPU-seconds.

    Args:
        amount: microGPU-seconds.
    """
    return ("", "") if amount is None else (f"{amount / GPU_HOUR:.6f}", str(amount))


def display(amount: int) -> str:
    """Formats microGPU-seconds as GPU-hours with two decimal places; below one GPU-hour with up to six, except 0."""
    hours = Decimal(amount) / GPU_HOUR
    places = 2 if amount == 0 or abs(hours) >= 1 else 6
    text = f"{hours:.{places}f}"
    return text.rstrip("0").rstrip(".") if places > 2 else text


_PLACES = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency, and the cost of a GPU-hour in it.

    A GPU-hour is an hour of a whole GPU at price 1: amounts already contain the higher price of dearer models.

    Attributes:
        code: the code of ISO 4217, such as EUR.
        per_gpu_hour: the cost of a GPU-hour.
    """

    code: str
    per_gpu_hour: Decimal

    def worth(self, amount: int) -> float:
        """Converts microGPU-seconds to the currency, rounded to a hundredth, half to even."""
        exact = Decimal(amount) * self.per_gpu_hour / GPU_HOUR
        return float(exact.quantize(_PLACES, ROUND_HALF_EVEN))
