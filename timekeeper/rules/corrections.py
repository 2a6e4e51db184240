"""GPUCorrection objects read into frozen corrections: they set right what a budget spent in a period that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any

from fairgpu.faults import Fault, show
from timekeeper.rules.money import GPU_HOUR
from timekeeper.rules.orders import OrderError, mapping, order_amount, order_note, refusal, text_faults
from timekeeper.rules.timestamps import TimeError, parse_instant


class CorrectionError(OrderError):
    """A correction that cannot be applied; the message holds every fault."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What a budget spent more, or less, than the ledger said.

    Attributes:
        name: the correction's name, its idempotency key.
        budget: the budget whose spend is set right.
        amount: microGPU-seconds; below 0 where less was spent.
        effective: an instant in the period that it is of, in nanoseconds since 1970.
        namespace: of whose use it is; empty where it is of the budget's as a whole.
        reason: why, for whoever reads the ledger.
        requested_by: who made it; may be empty.
        applied: whether its status says that the ledger holds it.
        refused: why it cannot be applied, as its status says; empty where it does not. That was told, and stays so.
    """

    name: str
    budget: str
    amount: int
    effective: int
    namespace: str
    reason: str
    requested_by: str
    applied: bool = False
    refused: str = ""

    @property
    def note(self) -> str:
        """Why and by whom, as the ledger tells it."""
        return order_note(self.reason, self.requested_by)


def parse_correction(item: Mapping[str, Any]) -> Correction:
    """Reads a GPUCorrection object.

    Raises:
        CorrectionError: a field is missing, or cannot be what it says; all faults at once.
    """
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    faults: list[Fault] = []
    amount = order_amount(spec, "-2.5", faults)
    effective = 0
    try:
        effective = parse_instant(spec.get("effectivePeriod"))
    except TimeError:
        allowed = "an RFC 3339 timestamp within the period that is set right"
        faults.append(Fault("spec.effectivePeriod", show(spec.get("effectivePeriod")), allowed, "2026-01-01T00:00:00Z"))
    faults.extend(text_faults(metadata, spec))
    if faults:
        raise CorrectionError(tuple(faults))
    return Correction(
        name=metadata["name"],
        budget=spec["budget"],
        amount=amount,
        effective=effective,
        namespace=str(spec.get("namespace", "")),
        reason=spec["reason"],
        requested_by=str(spec.get("requestedBy", "")),
        applied=mapping(item.get("status")).get("applied") is True,
        refused=refusal(item),
    )


def no_less_than(spent: int) -> str:
    """The least that a correction may be of a period with so much spent in it, as a manifest states it.

    Rounded towards 0, so that what is written as it stands here is taken.
    """
    most = max(Decimal(spent) / GPU_HOUR, Decimal(0)).quantize(Decimal("0.000001"), ROUND_DOWN)
    return f"no less than {-most.normalize():f}, as no more was spent in this period"
