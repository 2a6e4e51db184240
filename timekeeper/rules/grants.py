"""GPUGrant objects read into frozen grants: one-off money for the period in which it is made, or until it expires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu.faults import Fault, show
from timekeeper.rules.orders import OrderError, mapping, order_amount, order_note, refusal, text_faults
from timekeeper.rules.timestamps import TimeError, parse_instant


class GrantError(OrderError):
    """A grant that cannot be applied; the message holds every fault."""


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
        refused: why the books did not take it, as its status says; empty where it does not. That stays so.
    """

    name: str
    budget: str
    amount: int
    reason: str
    requested_by: str
    created: int
    applied: bool = False
    expires: int | None = None
    refused: str = ""

    @property
    def note(self) -> str:
        """Why and by whom, as the ledger tells it."""
        return order_note(self.reason, self.requested_by)


def parse_grant(item: Mapping[str, Any]) -> Grant:
    """Reads a GPUGrant object.

    Raises:
        GrantError: a field is missing, or cannot be what it says; all faults at once.
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
    applied = mapping(item.get("status")).get("applied") is True
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
