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
from timekeeper.domain.money import from_signed_gpu_hours
from timekeeper.domain.orders import no_less_than
from timekeeper.domain.timestamps import TimeError, parse_instant

_log = structlog.get_logger()


def add_grant_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/grants`."""

    @app.post("/v1/grants")
    def grants() -> Response:
        caller = may_grant(parts.authority)
        wanted = GrantRequest.model_validate_json(request.get_data())
        name = order_name(caller.name, wanted.name, request.headers.get("Idempotency-Key"), "grant")
        known_budget(parts.book, wanted.budget)
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
        found, made = place_order(parts.book, item, parts.grants)
        if made:
            _log.info("grant made", grant=order.name, budget=order.budget, hours=order.gpu_hours, by=caller.name)
        body = grant_answer(found).model_dump_json()
        return Response(body, 201 if made else 200, mimetype="application/json")


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """A grant of GPU-hours to a budget, or from it, with its reason and author.

    `expires` is an RFC 3339 timestamp, or empty for the end of the present period.
    """

    name: str
    budget: str
    gpu_hours: str
    reason: str
    requested_by: str
    expires: str = ""


def grant_object(order: GrantOrder) -> Json:
    """Returns the order as a GPUGrant."""
    spec = {
        "budget": order.budget,
        "gpuHours": order.gpu_hours,
        "reason": order.reason,
        "requestedBy": order.requested_by[:256],
        "expires": order.expires or None,
    }
    return order_object("GPUGrant", order.name, spec)


def expiry_text(value: str | None, gpu_hours: str, now: int) -> str:
    """Checks a grant's expiry and returns it; empty for a grant that expires with its period.

    Raises:
        ProblemError: it is not a timestamp, has passed already, or the grant takes money away.
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


def grant_answer(found: Json) -> GrantAnswer:
    """Converts a GPUGrant to its answer."""
    metadata, spec = ordered(found, "grant")
    return GrantAnswer(
        name=str(metadata.get("name", "")),
        budget=str(spec.get("budget", "")),
        gpuHours=str(spec.get("gpuHours", "")),
        reason=str(spec.get("reason", "")),
        requestedBy=str(spec.get("requestedBy", "")),
        expires=spec.get("expires"),
    )


def add_correction_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the route `POST /v1/corrections`."""

    @app.post("/v1/corrections")
    def corrections() -> Response:
        caller = may_correct(parts.authority)
        wanted = CorrectionRequest.model_validate_json(request.get_data())
        name = order_name(caller.name, wanted.name, request.headers.get("Idempotency-Key"), "correction")
        known_budget(parts.book, wanted.budget)
        item = correction_object(name, wanted, effective_text(wanted.effectivePeriod, parts.now()), caller.name)
        found, made = place_order(parts.book, item, parts.corrections, partial(acceptable, parts.book))
        if made:
            hours = item["spec"]["gpuHours"]
            _log.info("correction made", correction=name, budget=wanted.budget, hours=hours, by=caller.name)
        body = correction_answer(found).model_dump_json()
        return Response(body, 201 if made else 200, mimetype="application/json")


def correction_object(name: str, wanted: CorrectionRequest, effective: str, caller: str) -> Json:
    """Returns the request as a GPUCorrection.

    Raises:
        ProblemError: the amount is invalid.
    """
    spec = {
        "budget": wanted.budget,
        "gpuHours": gpu_hours_text("gpuHours", wanted.gpuHours, negative=True),
        "effectivePeriod": effective,
        "reason": wanted.reason,
        "requestedBy": caller[:256],
        "namespace": wanted.namespace,
    }
    return order_object("GPUCorrection", name, spec)


def acceptable(book: Book, spec: Json) -> None:
    """Refuses, by the present ledger, a correction that the leader would refuse later.

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
    """Checks the instant in the period of a correction and returns it.

    Raises:
        ProblemError: it is not a timestamp, or lies in the future.
    """
    try:
        effective = parse_instant(value)
    except TimeError:
        effective = now + 1
    if effective > now:
        allowed = "an RFC 3339 timestamp in a period that has begun, such as 2026-01-01T00:00:00Z"
        raise invalid("effectivePeriod", value, allowed)
    return value


def correction_answer(found: Json) -> CorrectionAnswer:
    """Converts a GPUCorrection to its answer."""
    metadata, spec = ordered(found, "correction")
    return CorrectionAnswer(
        name=str(metadata.get("name", "")),
        budget=str(spec.get("budget", "")),
        gpuHours=str(spec.get("gpuHours", "")),
        effectivePeriod=str(spec.get("effectivePeriod", "")),
        namespace=spec.get("namespace"),
        reason=str(spec.get("reason", "")),
        requestedBy=str(spec.get("requestedBy", "")),
    )
