"""Grants made over REST: a GPUGrant each."""

from __future__ import annotations

from dataclasses import dataclass

from fairgpu import names
from fairgpu.cluster.api import Json
from timekeeper.rest.problems import invalid
from timekeeper.rules.timestamps import TimeError, parse_instant


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """What somebody orders: GPU-hours for a budget, or from it, why, and who they are.

    `expires` is an RFC 3339 timestamp, or empty for the end of the present period.
    """

    name: str
    budget: str
    gpu_hours: str
    reason: str
    requested_by: str
    expires: str = ""


def grant_object(order: GrantOrder) -> Json:
    """The order as a GPUGrant."""
    spec = {
        "budget": order.budget,
        "gpuHours": order.gpu_hours,
        "reason": order.reason,
        "requestedBy": order.requested_by[:256],
    }
    if order.expires:
        spec["expires"] = order.expires
    return {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": order.name}, "spec": spec}


def expiry_text(value: str | None, gpu_hours: str, now: int) -> str:
    """When a grant expires as a GPUGrant states it; empty where it lapses with its period.

    Raises:
        ProblemError: it is no timestamp, is over already, or money is taken away.
    """
    if value is None:
        return ""
    try:
        expires = parse_instant(value)
    except TimeError:
        expires = 0
    if expires <= now:
        raise invalid("expires", value, "an RFC 3339 timestamp that is still to come, such as 2026-12-31T23:00:00Z")
    if gpu_hours.startswith("-"):
        raise invalid("expires", value, "nothing where gpuHours is below 0: what is taken away does not come back")
    return value
