"""The route that grants money to a budget: a GPUGrant each."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from flask import Flask, Response, request

from fairgpu import names
from fairgpu.cluster.api import Json
from timekeeper.rest.answers import GrantAnswer
from timekeeper.rest.bodies import GrantRequest
from timekeeper.rest.guard import may_grant
from timekeeper.rest.ordering import gpu_hours_text, known_budget, order_name, place, unused_name
from timekeeper.rest.parts import Parts
from timekeeper.rest.problems import ProblemError, invalid
from timekeeper.rules.timestamps import TimeError, parse_instant

_log = structlog.get_logger()


def add_grant_routes(app: Flask, parts: Parts) -> None:
    """Adds the route."""

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
        unused_name(parts.book, item, parts.grants)
        found, made = place(item, parts.grants)
        if made:
            _log.info("grant made", grant=order.name, budget=order.budget, hours=order.gpu_hours, by=caller.name)
        body = grant_answer(found).model_dump_json()
        return Response(body, 201 if made else 200, mimetype="application/json")


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


def grant_answer(found: Json) -> GrantAnswer:
    """A GPUGrant as it is told."""
    metadata, spec = found.get("metadata"), found.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise ProblemError(503, "unavailable", "the grant was made, and came back unreadable; ask again")
    return GrantAnswer(
        name=str(metadata.get("name", "")),
        budget=str(spec.get("budget", "")),
        gpuHours=str(spec.get("gpuHours", "")),
        reason=str(spec.get("reason", "")),
        requestedBy=str(spec.get("requestedBy", "")),
        expires=spec.get("expires"),
    )
