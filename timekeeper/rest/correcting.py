"""The route that sets right what a budget spent: a GPUCorrection each."""

from __future__ import annotations

import structlog
from flask import Flask, Response, request

from fairgpu import names
from fairgpu.cluster.api import Json
from timekeeper.rest.answers import CorrectionAnswer
from timekeeper.rest.bodies import CorrectionRequest
from timekeeper.rest.figures import Book
from timekeeper.rest.guard import may_correct
from timekeeper.rest.ordering import gpu_hours_text, known_budget, order_name, place, unused_name
from timekeeper.rest.parts import Parts
from timekeeper.rest.problems import ProblemError, invalid
from timekeeper.rules.corrections import no_less_than
from timekeeper.rules.money import from_signed_gpu_hours
from timekeeper.rules.timestamps import TimeError, parse_instant

_log = structlog.get_logger()


def add_correction_routes(app: Flask, parts: Parts) -> None:
    """Adds the route."""

    @app.post("/v1/corrections")
    def corrections() -> Response:
        caller = may_correct(parts.authority)
        wanted = CorrectionRequest.model_validate_json(request.get_data())
        name = order_name(caller.name, wanted.name, request.headers.get("Idempotency-Key"), "correction")
        known_budget(parts.book, wanted.budget)
        item = correction_object(name, wanted, effective_text(wanted.effectivePeriod, parts.now()), caller.name)
        if parts.corrections.read(name) is None:
            unused_name(parts.book, item, parts.corrections)
            acceptable(parts.book, item["spec"])
        found, made = place(item, parts.corrections)
        if made:
            hours = item["spec"]["gpuHours"]
            _log.info("correction made", correction=name, budget=wanted.budget, hours=hours, by=caller.name)
        body = correction_answer(found).model_dump_json()
        return Response(body, 201 if made else 200, mimetype="application/json")


def correction_object(name: str, wanted: CorrectionRequest, effective: str, caller: str) -> Json:
    """What was asked for as a GPUCorrection.

    Raises:
        ProblemError: the amount is none.
    """
    spec = {
        "budget": wanted.budget,
        "gpuHours": gpu_hours_text("gpuHours", wanted.gpuHours, negative=True),
        "effectivePeriod": effective,
        "reason": wanted.reason,
        "requestedBy": caller[:256],
    }
    if wanted.namespace is not None:
        spec["namespace"] = wanted.namespace
    return {"apiVersion": names.BUDGET_API, "kind": "GPUCorrection", "metadata": {"name": name}, "spec": spec}


def acceptable(book: Book, spec: Json) -> None:
    """Refuses at once what the leader would refuse later, by the books as they are.

    Raises:
        ProblemError: the budget has never paid for the namespace, or has no such period, or has spent less in it.
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
    """An instant in the period that is set right, as a GPUCorrection states it.

    Raises:
        ProblemError: it is no timestamp, or still to come.
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
    """A GPUCorrection as it is told."""
    metadata, spec = found.get("metadata"), found.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise ProblemError(503, "unavailable", "the correction was made, and came back unreadable; ask again")
    return CorrectionAnswer(
        name=str(metadata.get("name", "")),
        budget=str(spec.get("budget", "")),
        gpuHours=str(spec.get("gpuHours", "")),
        effectivePeriod=str(spec.get("effectivePeriod", "")),
        namespace=spec.get("namespace"),
        reason=str(spec.get("reason", "")),
        requestedBy=str(spec.get("requestedBy", "")),
    )
