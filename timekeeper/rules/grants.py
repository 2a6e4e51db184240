"""GPUGrant objects read into frozen grants: one-off money for the period in which it is made, or until it expires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu.faults import Fault, explain, show
from timekeeper.rules.money import MoneyError, from_signed_gpu_hours
from timekeeper.rules.timestamps import TimeError, parse_instant

MAX_REASON = 1024
MAX_NAME = 253


class GrantError(ValueError):
    """A grant that cannot be applied; the message holds every fault."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(explain(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Grant:
    """Money that adds once to a budget's period, or is taken from it.

    Attributes:
        name: the grant's name, its idempotency key.
        budget: the budget that gets it.
        amount: microGPU-seconds; below 0 where it is taken away.
        reason: why, for whoever reads the ledger.
        requested_by: who made it; may be empty.
        created: nanoseconds since 1970, by the API server's clock. The period that holds it gets the money.
        applied: whether its status says that the ledger holds it.
        expires: until when it may be spent, in nanoseconds since 1970; None where it lapses with its period.
    """

    name: str
    budget: str
    amount: int
    reason: str
    requested_by: str
    created: int
    applied: bool = False
    expires: int | None = None

    @property
    def note(self) -> str:
        """Why and by whom, as the ledger tells it."""
        return f"{self.reason} ({self.requested_by})" if self.requested_by else self.reason


def parse_grant(item: Mapping[str, Any]) -> Grant:
    """Reads a GPUGrant object.

    Raises:
        GrantError: a field is missing, or cannot be what it says; all faults at once.
    """
    metadata, spec = _mapping(item.get("metadata")), _mapping(item.get("spec"))
    faults: list[Fault] = []
    amount = 0
    try:
        amount = from_signed_gpu_hours(spec.get("gpuHours"))
    except MoneyError as error:
        faults.append(Fault("spec.gpuHours", show(spec.get("gpuHours")), str(error), "100"))
    created = 0
    try:
        created = parse_instant(metadata.get("creationTimestamp"))
    except TimeError as error:
        faults.append(Fault("metadata.creationTimestamp", show(metadata.get("creationTimestamp")), str(error), "it"))
    expires = _expiry(spec, amount, created, faults)
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
        raise GrantError(tuple(faults))
    applied = _mapping(item.get("status")).get("applied") is True
    return Grant(
        name=metadata["name"],
        budget=spec["budget"],
        amount=amount,
        reason=spec["reason"],
        requested_by=str(spec.get("requestedBy", "")),
        created=created,
        applied=applied,
        expires=expires,
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
