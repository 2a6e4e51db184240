"""GPUCorrection objects read into frozen corrections: they set right what a budget spent in a period that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu.faults import Fault, explain, show
from timekeeper.rules.grants import MAX_NAME, MAX_REASON
from timekeeper.rules.money import MoneyError, from_signed_gpu_hours
from timekeeper.rules.timestamps import TimeError, parse_instant


class CorrectionError(ValueError):
    """A correction that cannot be applied; the message holds every fault."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(explain(faults))
        self.faults = faults


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
    """

    name: str
    budget: str
    amount: int
    effective: int
    namespace: str
    reason: str
    requested_by: str
    applied: bool = False

    @property
    def note(self) -> str:
        """Why and by whom, as the ledger tells it."""
        return f"{self.reason} ({self.requested_by})" if self.requested_by else self.reason


def parse_correction(item: Mapping[str, Any]) -> Correction:
    """Reads a GPUCorrection object.

    Raises:
        CorrectionError: a field is missing, or cannot be what it says; all faults at once.
    """
    metadata, spec = _mapping(item.get("metadata")), _mapping(item.get("spec"))
    faults: list[Fault] = []
    amount = effective = 0
    try:
        amount = from_signed_gpu_hours(spec.get("gpuHours"))
    except MoneyError as error:
        faults.append(Fault("spec.gpuHours", show(spec.get("gpuHours")), str(error), "-2.5"))
    try:
        effective = parse_instant(spec.get("effectivePeriod"))
    except TimeError:
        allowed = "an RFC 3339 timestamp within the period that is set right"
        faults.append(Fault("spec.effectivePeriod", show(spec.get("effectivePeriod")), allowed, "2026-01-01T00:00:00Z"))
    texts = {
        "metadata.name": (metadata.get("name"), MAX_NAME),
        "spec.budget": (spec.get("budget"), MAX_NAME),
        "spec.reason": (spec.get("reason"), MAX_REASON),
    }
    faults.extend(
        Fault(path, show(value), f"text of at most {longest} characters", f"its {path.rpartition('.')[2]}")
        for path, (value, longest) in texts.items()
        if not isinstance(value, str) or not value.strip() or len(value) > longest
    )
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
        applied=_mapping(item.get("status")).get("applied") is True,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
