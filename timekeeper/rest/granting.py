"""Grants made over REST: a GPUGrant each, whose name makes a repeated request harmless."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Protocol

from fairgpu import names
from fairgpu.cluster.api import Json
from timekeeper.rest.problems import ProblemError, invalid
from timekeeper.rules.money import MAX_GPU_HOURS, MoneyError, from_signed_gpu_hours
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.sources.source import ExistsError

MAX_KEY_LENGTH = 255
_ALLOWED = f"a number above 0 and up to {MAX_GPU_HOURS} with at most six decimal places, such as 2.5"
_SIGNED = f"a number from -{MAX_GPU_HOURS} to {MAX_GPU_HOURS} but 0 with at most six decimal places, such as -2.5"


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


class GrantStore(Protocol):
    """Where GPUGrants are kept."""

    def create_grant(self, grant: Json) -> Json:
        """Creates a grant.

        Raises:
            ExistsError: there is one of that name.
        """

    def read_grant(self, name: str) -> Json | None:
        """The grant of that name."""


def place(order: GrantOrder, store: GrantStore) -> tuple[Json, bool]:
    """The grant that stands for an order, and whether this call made it.

    Raises:
        ProblemError: a grant of that name was made for something else.
    """
    try:
        return store.create_grant(grant_object(order)), True
    except ExistsError:
        existing = store.read_grant(order.name)
    spec = (existing or {}).get("spec") or {}
    wanted = grant_object(order)["spec"]
    if existing is None or any(spec.get(key) != wanted[key] for key in ("budget", "reason")) or not _same(spec, wanted):
        detail = (
            f"the grant {order.name!r} was made already, for something else: choose another name or Idempotency-Key"
        )
        raise ProblemError(409, "conflict", detail)
    return existing, False


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


def gpu_hours_text(field: str, value: float | str, *, negative: bool = False) -> str:
    """An amount to grant as a GPUGrant states it. A JSON number counts as the decimal that was written.

    Args:
        field: whose value it is.
        value: what was given.
        negative: whether an amount below 0 is allowed.

    Raises:
        ProblemError: it is no such amount.
    """
    text = (value if isinstance(value, str) else f"{Decimal(repr(value)):f}").removesuffix(".0")
    try:
        amount = from_signed_gpu_hours(text)
    except MoneyError:
        amount = 0
    if amount == 0 or (amount < 0 and not negative):
        raise invalid(field, value, _SIGNED if negative else _ALLOWED)
    return text


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


def name_of_key(caller: str, key: str) -> str:
    """The name of a grant that was ordered with an Idempotency-Key: one for each caller and key.

    https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/

    Raises:
        ProblemError: the key is empty or too long.
    """
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise invalid("Idempotency-Key", key, f"1 to {MAX_KEY_LENGTH} characters, a new one for each grant")
    return f"rest-{sha256(json.dumps([caller, key]).encode()).hexdigest()[:32]}"


def missing_key(alternative: str) -> ProblemError:
    """A grant without a name would be made twice when its answer is lost."""
    detail = f"Idempotency-Key: given nothing; allowed: a text that is new for each grant{alternative}"
    fault = {"field": "Idempotency-Key", "given": "nothing", "allowed": "a text that is new for each grant"}
    return ProblemError(400, "no-idempotency-key", detail, (fault,))


def _same(spec: Json, wanted: Json) -> bool:
    """Whether two specs name one amount and one expiry, however they are written."""
    try:
        same_amount = from_signed_gpu_hours(spec.get("gpuHours")) == from_signed_gpu_hours(wanted["gpuHours"])
        return same_amount and _moment(spec) == _moment(wanted)
    except (MoneyError, TimeError):
        return False


def _moment(spec: Json) -> int | None:
    return parse_instant(spec["expires"]) if spec.get("expires") else None
