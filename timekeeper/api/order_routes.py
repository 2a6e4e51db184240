"""The routes that order grants and corrections: each creates a GPUGrant or a GPUCorrection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import structlog
from flask import Flask, Response, request

from fairgpu.cluster.api import Json
from timekeeper.api.dependencies import Dependencies, may_correct, may_grant
from timekeeper.api.figures import Book
from timekeeper.api.models import CorrectionAnswer, CorrectionRequest, GrantAnswer, GrantRequest
from timekeeper.api.order_stores import (
    gpu_hours_text,
    known_budget,
    order_name,
    order_object,
    ordered,
    place_order,
)
from timekeeper.api.problems import invalid
from timekeeper.auth.access_control import Caller
from timekeeper.domain.money import from_signed_gpu_hours
from timekeeper.domain.orders import no_less_than
from timekeeper.domain.timestamps import TimeError, parse_instant

_log = structlog.get_logger()


def add_grant_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/grants`, which orders a grant."""

    @app.post("/v1/grants")
    def grants() -> Response:
        caller = may_grant(parts.access)
        wanted = GrantRequest.model_validate_json(request.get_data())
        name = _name_of(parts.book, caller, wanted, "grant")
        gpu_hours = gpu_hours_text("gpuHours", wanted.gpuHours, negative=True)
        order = GrantOrder(
            name=name,
            budget=wanted.budget,
            gpu_hours=gpu_hours,
            reason=wanted.reason,
            requested_by=caller.name,
            expires=expiry_text(wanted.expires, gpu_hours, parts.now()),
        )
        item = grant_object(order)
        stored, made = place_order(parts.book, item, parts.grants)
        if made:
            _log.info("grant made", grant=order.name, budget=order.budget, hours=order.gpu_hours, by=caller.name)
        common, spec = _fields_of(stored, "grant")
        return _answered(GrantAnswer(**common, expires=spec.get("expires")), new=made)


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """An order of a grant of GPU-hours to a budget.

    Attributes:
        name: the name of the GPUGrant.
        budget: the budget's name.
        gpu_hours: the amount as decimal text; below 0 it takes money away.
        reason: the reason for people.
        requested_by: the user who ordered it.
        expires: an RFC 3339 timestamp; empty for the end of the present period.
    """

    name: str
    budget: str
    gpu_hours: str
    reason: str
    requested_by: str
    expires: str = ""


def grant_object(order: GrantOrder) -> Json:
    """Returns an order of a grant as a GPUGrant object."""
    common = _spec_of(order.budget, order.gpu_hours, order.reason, order.requested_by)
    return order_object("GPUGrant", order.name, {**common, "expires": order.expires or None})


def expiry_text(value: str | None, gpu_hours: str, now: int) -> str:
    """Checks the expiry of a grant that was ordered, and returns it; empty for a grant that expires with its period.

    Args:
        value: the expiry as an RFC 3339 timestamp; None for none.
        gpu_hours: the grant's amount as decimal text.
        now: nanoseconds since 1970.

    Raises:
        ProblemError: the expiry is not a timestamp or has passed already, or the grant takes money away.
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


def add_correction_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/corrections`, which orders a correction."""

    @app.post("/v1/corrections")
    def corrections() -> Response:
        caller = may_correct(parts.access)
        wanted = CorrectionRequest.model_validate_json(request.get_data())
        name = _name_of(parts.book, caller, wanted, "correction")
        item = correction_object(name, wanted, effective_text(wanted.effectivePeriod, parts.now()), caller.name)
        stored, made = place_order(parts.book, item, parts.corrections, partial(acceptable, parts.book))
        if made:
            hours = item["spec"]["gpuHours"]
            _log.info("correction made", correction=name, budget=wanted.budget, hours=hours, by=caller.name)
        common, spec = _fields_of(stored, "correction")
        effective, namespace = str(spec.get("effectivePeriod", "")), spec.get("namespace")
        return _answered(CorrectionAnswer(**common, effectivePeriod=effective, namespace=namespace), new=made)


def correction_object(name: str, wanted: CorrectionRequest, effective: str, caller: str) -> Json:
    """Returns an order of a correction as a GPUCorrection object.

    Args:
        effective: an RFC 3339 timestamp in the period to correct.
        caller: the name of the user who orders it.

    Raises:
        ProblemError: the amount is invalid.
    """
    gpu_hours = gpu_hours_text("gpuHours", wanted.gpuHours, negative=True)
    common = _spec_of(wanted.budget, gpu_hours, wanted.reason, caller)
    spec = {**common, "effectivePeriod": effective, "namespace": wanted.namespace}
    return order_object("GPUCorrection", name, spec)


def acceptable(book: Book, spec: Json) -> None:
    """Checks by the present ledger that a correction would not be refused by the leader later.

    Raises:
        ProblemError: the budget has never paid for the namespace, has no such period, or has spent less in it than the
            correction gives back.
    """
    budget, namespace = spec["budget"], spec.get("namespace")
    if namespace is not None and not book.has_paid_for(budget, namespace):
        raise invalid("namespace", namespace, f"a namespace that {budget!r} pays or has paid for, or nothing")
    spent = book.spent_in_period_of(budget, parse_instant(spec["effectivePeriod"]))
    if spent is None:
        allowed = f"a moment in a period that the ledger of {budget!r} knows"
        raise invalid("effectivePeriod", spec["effectivePeriod"], allowed)
    if from_signed_gpu_hours(spec["gpuHours"]) < min(-spent, 0):
        raise invalid("gpuHours", spec["gpuHours"], no_less_than(spent))


def effective_text(value: str, now: int) -> str:
    """Checks the timestamp that names the period of a correction, and returns it.

    Args:
        now: nanoseconds since 1970.

    Raises:
        ProblemError: it is not an RFC 3339 timestamp, or lies in the future.
    """
    try:
        effective = parse_instant(value)
    except TimeError:
        effective = now + 1
    if effective > now:
        allowed = "an RFC 3339 timestamp in a period that has begun, such as 2026-01-01T00:00:00Z"
        raise invalid("effectivePeriod", value, allowed)
    return value


_LONGEST_NAME = 256
"""The maxLength of `spec.requestedBy` in the CRDs."""
_COMMON = ("budget", "gpuHours", "reason", "requestedBy")
"""The fields of the spec of every order."""


def _name_of(book: Book, caller: Caller, wanted: GrantRequest | CorrectionRequest, noun: str) -> str:
    """Returns the name of an order for a budget that exists.

    Raises:
        ProblemError: the order has no name, or no GPUBudget has the name that it gives.
    """
    name = order_name(caller.name, wanted.name, request.headers.get("Idempotency-Key"), noun)
    known_budget(book, wanted.budget)
    return name


def _spec_of(budget: str, gpu_hours: str, reason: str, author: str) -> Json:
    return dict(zip(_COMMON, (budget, gpu_hours, reason, author[:_LONGEST_NAME]), strict=True))


def _fields_of(stored: Json, noun: str) -> tuple[dict[str, str], Json]:
    """Returns the answer's fields that every order has, and the stored spec.

    Raises:
        ProblemError: the stored object has no metadata or no spec.
    """
    metadata, spec = ordered(stored, noun)
    return {"name": str(metadata.get("name", "")), **{field: str(spec.get(field, "")) for field in _COMMON}}, spec


def _answered(answer: GrantAnswer | CorrectionAnswer, *, new: bool) -> Response:
    return Response(answer.model_dump_json(), 201 if new else 200, mimetype="application/json")
