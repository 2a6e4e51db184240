"""What GPUGrant and GPUCorrection objects have in common: an amount that may be negative, who ordered it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fairgpu.faults import Fault, explain, show
from timekeeper.rules.money import MoneyError, from_signed_gpu_hours

MAX_REASON = 1024
MAX_NAME = 253
REFUSED = "Refused"
"""The reason in the condition Applied of one that cannot be applied to the books as they are."""
NAME_TAKEN = "NameTaken"
"""The same where the ledger holds another order under its name, whose object was deleted since."""
NO_BUDGET = "NoBudget"
"""The same while there is no budget of the name that it gives."""
UNSIGNED = "unsigned"
"""Stands where an order names nobody who asked for it."""


class Taken(NamedTuple):
    """What the ledger holds under the name of an order: the start of its period, and microGPU-seconds."""

    period: int
    amount: int


class OrderError(ValueError):
    """An object that cannot be applied; the message holds every fault."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(explain(faults))
        self.faults = faults


def order_note(reason: str, requested_by: str) -> str:
    """Why and by whom, as the ledger tells it: the last parentheses are never the reason's own."""
    return f"{reason} ({requested_by or UNSIGNED})"


def order_amount(spec: Mapping[str, Any], instead: str, faults: list[Fault]) -> int:
    """What `gpuHours` says, in microGPU-seconds; 0 and one more fault where it says none."""
    try:
        return from_signed_gpu_hours(spec.get("gpuHours"))
    except MoneyError as error:
        faults.append(Fault("spec.gpuHours", show(spec.get("gpuHours")), str(error), instead))
        return 0


def text_faults(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with the texts that every order has: its name, its budget and its reason."""
    texts = {
        "metadata.name": (metadata.get("name"), MAX_NAME),
        "spec.budget": (spec.get("budget"), MAX_NAME),
        "spec.reason": (spec.get("reason"), MAX_REASON),
    }
    for path, (value, longest) in texts.items():
        if not isinstance(value, str) or not value.strip() or len(value) > longest:
            allowed = f"text of at most {longest} characters"
            yield Fault(path, show(value), allowed, f"its {path.rpartition('.')[2]}")


def refusal(item: Mapping[str, Any]) -> str:
    """Why the books did not take an order, as its status says; empty where it does not. That was told, and stays so."""
    found = _not_applied(mapping(item.get("status")))
    reason = found.get("reason")
    return (str(found.get("message", "")) or str(reason)) if reason in {REFUSED, NAME_TAKEN} else ""


def condition_reason(status: Mapping[str, Any]) -> str:
    """In a word, why an order was not applied, as a status says; empty where it does not."""
    return str(_not_applied(status).get("reason", ""))


def _not_applied(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that tells why an order was not applied; an empty one where there is none."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        found = mapping(condition)
        if (found.get("type"), found.get("status")) == ("Applied", "False"):
            return found
    return {}


def mapping(value: Any) -> Mapping[str, Any]:
    """An object's part that is a mapping where it is well-formed; an empty one where it is not."""
    return value if isinstance(value, dict) else {}
