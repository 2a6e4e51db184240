"""What GPU-hours are worth in money that people know: for display alone, nothing is computed with it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from timekeeper.rules.money import GPU_HOUR

_PLACES = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency by its code (ISO 4217), and what a GPU-hour costs in it.

    A GPU-hour is an hour of a whole GPU at price 1: what a dearer model costs more is in the amount already.
    """

    code: str
    per_gpu_hour: Decimal

    def worth(self, amount: int) -> float:
        """What microGPU-seconds are worth, to a hundredth; halves go to the even neighbour."""
        exact = Decimal(amount) * self.per_gpu_hour / GPU_HOUR
        return float(exact.quantize(_PLACES, ROUND_HALF_EVEN))
