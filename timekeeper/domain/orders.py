"""Orders of an admin: GPUGrant and GPUCorrection objects, each with an amount, a reason and an author."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any, NamedTuple

from fairgpu.faults import Fault, explain, show
from fairgpu.json_values import mapping
from timekeeper.domain.money import GPU_HOUR, MoneyError, from_signed_gpu_hours
from timekeeper.domain.timestamps import Instant, TimeError, instant_or_none, parse_instant

MAX_REASON = 1024
MAX_NAME = 253
REFUSED = "Refused"
"""The reason in the condition Applied of an order that the ledger refuses for good."""
NAME_TAKEN = "NameTaken"
"""The reason in the condition Applied if the ledger holds another order of the same name, whose object is deleted."""
NO_BUDGET = "NoBudget"
"""The reason in the condition Applied while no budget has the name that the order gives."""
UNSIGNED = "unsigned"
"""Stands for the author of an order that names none."""


class OrderEntry(NamedTuple):
    """The ledger's record of a grant or a correction.

    Attributes:
        period: the start of the period that the order changed.
        amount: microGPU-seconds.
    """

    period: Instant
    amount: int


class OrderError(ValueError):
    """A grant or correction that cannot be applied; the message lists the faults.

    Attributes:
        faults: the invalid fields, each with what is allowed.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(explain(faults))
        self.faults = faults


def order_note(reason: str, requested_by: str) -> str:
    """Returns the note of an order's ledger entry: the reason, then the author in parentheses.

    Args:
        requested_by: the author; UNSIGNED stands for an empty one.
    """
    return f"{reason} ({requested_by or UNSIGNED})"


def order_amount(spec: Mapping[str, Any], instead: str, faults: list[Fault]) -> int:
    """Reads `gpuHours` of an order's spec as microGPU-seconds; returns 0 and adds a fault if it is invalid.

    Args:
        instead: a valid value, for the text of the fault.
        faults: the list that the fault is added to.
    """
    try:
        return from_signed_gpu_hours(spec.get("gpuHours"))
    except MoneyError as error:
        faults.append(Fault("spec.gpuHours", show(spec.get("gpuHours")), str(error), instead))
        return 0


def text_faults(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields the faults of an order's name, budget and reason.

    Args:
        metadata: the `metadata` of the GPUGrant or GPUCorrection object.
        spec: its `spec`.
    """
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
    """Returns the text in an order's status that says why the ledger refused it for good; empty if it is not refused.

    Args:
        item: the GPUGrant or GPUCorrection object.
    """
    condition = _not_applied(mapping(item.get("status")))
    reason = condition.get("reason")
    return (str(condition.get("message", "")) or str(reason)) if reason in {REFUSED, NAME_TAKEN} else ""


def condition_reason(status: Mapping[str, Any]) -> str:
    """Returns the reason of the condition Applied=False in an order's status; empty if there is none.

    Args:
        status: the `status` of a GPUGrant or GPUCorrection object.
    """
    return str(_not_applied(status).get("reason", ""))


def _not_applied(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the condition Applied=False of an order's status; an empty mapping if there is none."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        fields = mapping(condition)
        if (fields.get("type"), fields.get("status")) == ("Applied", "False"):
            return fields
    return {}


class GrantError(OrderError):
    """A grant that cannot be applied; the message lists the faults."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Money that is added once to a budget's period, or taken from it.

    Attributes:
        name: the grant's name, its idempotency key within its budget.
        budget: the name of the budget that gets the money.
        amount: microGPU-seconds; below 0 if money is taken away.
        reason: the reason, for readers of the ledger.
        requested_by: the author; may be empty.
        created: the object's creation by the API server's clock. The period that holds it gets the money.
        applied: whether the object's status says that the ledger holds the grant.
        expires: the instant at which the money expires; None if it expires with its period.
        refused: the reason for which the ledger refused the grant for good, from the object's status; empty if it
            did not.
        applied_at: the instant of that status; None if the grant is not applied, or if the instant is unreadable.
    """

    name: str
    budget: str
    amount: int
    reason: str
    requested_by: str
    created: Instant
    applied: bool = False
    expires: Instant | None = None
    refused: str = ""
    applied_at: Instant | None = None

    @property
    def note(self) -> str:
        """The note of the grant's ledger entry: the reason and the author."""
        return order_note(self.reason, self.requested_by)


def parse_grant(item: Mapping[str, Any]) -> Grant:
    """Parses a GPUGrant object.

    Args:
        item: the object, decoded from JSON.

    Raises:
        GrantError: a field is missing or invalid; the error names all faults at once.
    """
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    faults: list[Fault] = []
    amount = order_amount(spec, "100", faults)
    created = 0
    try:
        created = parse_instant(metadata.get("creationTimestamp"))
    except TimeError as error:
        faults.append(Fault("metadata.creationTimestamp", show(metadata.get("creationTimestamp")), str(error), "it"))
    expires = _expiry(spec, amount, created, faults)
    faults.extend(text_faults(metadata, spec))
    if faults:
        raise GrantError(tuple(faults))
    status = mapping(item.get("status"))
    applied, applied_at = status.get("applied") is True, None
    if applied:
        with suppress(TimeError):
            applied_at = parse_instant(status.get("appliedAt"))
    return Grant(
        name=metadata["name"],
        budget=spec["budget"],
        amount=amount,
        reason=spec["reason"],
        requested_by=str(spec.get("requestedBy", "")),
        created=created,
        applied=applied,
        expires=expires,
        refused=refusal(item),
        applied_at=applied_at,
    )


def _expiry(spec: Mapping[str, Any], amount: int, created: int, faults: list[Fault]) -> int | None:
    given = spec.get("expires")
    if given is None:
        return None
    allowed, instead = "an RFC 3339 timestamp after the grant was made", "2026-12-31T23:00:00Z"
    try:
        expires = parse_instant(given)
    except TimeError:
        expires = 0
    if expires <= created:
        faults.append(Fault("spec.expires", show(given), allowed, instead))
    elif amount < 0:
        allowed = "nothing where gpuHours is below 0: what is taken away does not come back"
        faults.append(Fault("spec.expires", show(given), allowed, "no expires"))
    return expires


class CorrectionError(OrderError):
    """A correction that cannot be applied; the message lists the faults."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of a budget's spending in one period: the amount that is added to what the ledger states.

    Attributes:
        name: the correction's name, its idempotency key within its budget.
        budget: the name of the budget whose spending is corrected.
        amount: microGPU-seconds; below 0 if the budget spent less than the ledger states.
        effective: an instant in the corrected period.
        namespace: the namespace whose use is corrected; empty for the budget as a whole.
        reason: the reason, for readers of the ledger.
        requested_by: the author; may be empty.
        created: the object's creation by the API server's clock; 0 if it is not known.
        applied: whether the object's status says that the ledger holds the correction.
        refused: the reason for which the ledger refused the correction for good, from the object's status; empty if
            it did not.
    """

    name: str
    budget: str
    amount: int
    effective: Instant
    namespace: str
    reason: str
    requested_by: str
    created: Instant = 0
    applied: bool = False
    refused: str = ""

    @property
    def note(self) -> str:
        """The note of the correction's ledger entry: the reason and the author."""
        return order_note(self.reason, self.requested_by)


def parse_correction(item: Mapping[str, Any]) -> Correction:
    """Parses a GPUCorrection object.

    Args:
        item: the object, decoded from JSON.

    Raises:
        CorrectionError: a field is missing or invalid; the error names all faults at once.
    """
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    faults: list[Fault] = []
    amount = order_amount(spec, "-2.5", faults)
    effective = 0
    try:
        effective = parse_instant(spec.get("effectivePeriod"))
    except TimeError:
        allowed = "an RFC 3339 timestamp within the period that is corrected"
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
        created=instant_or_none(metadata.get("creationTimestamp")) or 0,
        applied=mapping(item.get("status")).get("applied") is True,
        refused=refusal(item),
    )


def no_less_than(spent: int) -> str:
    """Returns a text for a fault: the least amount that a correction of a period may have, in GPU-hours.

    Such a correction takes back all that the period spent. The figure is rounded towards 0, so that a correction with
    exactly this amount is accepted.

    Args:
        spent: the amount spent in the period, in microGPU-seconds.
    """
    most = max(Decimal(spent) / GPU_HOUR, Decimal(0)).quantize(Decimal("0.000001"), ROUND_DOWN)
    return f"no less than {-most.normalize():f}, as no more was spent in this period"
