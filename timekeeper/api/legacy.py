"""The three endpoints of FairGPU's ancestor, for clients that were written for that project. Amounts are GPU-hours."""

from __future__ import annotations

import asyncio

import structlog
from flask import Flask, Response, request

from timekeeper.api import models
from timekeeper.api.dependencies import Dependencies, may_grant, may_read_namespace
from timekeeper.api.figures import is_budget
from timekeeper.api.models import IncreaseRequest, PodReport, is_namespace
from timekeeper.api.order_routes import GrantOrder, grant_object
from timekeeper.api.order_stores import gpu_hours_text, missing_key, name_of_key, place_order
from timekeeper.api.problems import ProblemError, invalid
from timekeeper.api.report_route import refuse_unless_running
from timekeeper.auth.access_control import ForbiddenError
from timekeeper.auth.pod_tokens import PodIdentity
from timekeeper.ledger.reports import IntakeOutcome, Submission

_log = structlog.get_logger()

LOOP_SECONDS = 20.0
"""The longest time that a thread waits for the event loop to store a report."""


def add_ancestor_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the three routes of the API of FairGPU's ancestor, for clients that were written for that project.

    They are `GET /budget/{ns}`, `POST /budget/{ns}/report` and `POST /budget/{ns}/increase`.
    """

    @app.get("/budget/<namespace>")
    def ancestor_budget(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        _refuse_no_namespace(namespace)
        return _json(models.ancestor_budget(parts.book.namespace(namespace)))

    @app.post("/budget/<namespace>/increase")
    def ancestor_increase(namespace: str) -> Response:
        caller = may_grant(parts.access)
        _refuse_no_namespace(namespace)
        wanted = IncreaseRequest.model_validate_json(request.get_data())
        key = request.headers.get("Idempotency-Key")
        if key is None:
            raise missing_key("")
        figures = parts.book.namespace(namespace)
        if figures is None or not is_budget(figures) or figures.available is None:
            detail = f"no GPUBudget with an allowance names namespace {namespace!r}: make one, then increase it"
            raise ProblemError(409, "no-budget", detail)
        gpu_hours = gpu_hours_text("gpu_hours", wanted.gpu_hours)
        name = name_of_key(caller.name, key)
        item = grant_object(GrantOrder(name, figures.name, gpu_hours, wanted.reason, caller.name))
        _, made = place_order(parts.book, item, parts.grants)
        if made:
            _log.info("grant made", grant=name, budget=figures.name, hours=gpu_hours, by=caller.name)
        return _json(models.ancestor_budget(parts.book.namespace(namespace)))

    @app.post("/budget/<namespace>/report")
    def ancestor_report(namespace: str) -> Response:
        pod = _in_loop(parts, request.headers.get("Authorization"))
        wanted = PodReport.model_validate_json(request.get_data())
        if (pod.namespace, pod.pod) != (namespace, wanted.pod_name):
            raise ForbiddenError(f"the token is that of pod {pod.namespace}/{pod.pod}: a pod reports for itself alone")
        submission = Submission(pod.uid, "", 0, parts.now())
        future = asyncio.run_coroutine_threadsafe(parts.submissions.submit(submission), parts.loop())
        outcome = future.result(LOOP_SECONDS)
        ended = parts.pods.ended(pod)
        if outcome is IntakeOutcome.NOT_RUNNING and not ended:
            refuse_unless_running(outcome, pod)
        return _json(models.AncestorVerdict(terminate=ended))


def _in_loop(parts: Dependencies, authorization: str | None) -> PodIdentity:
    """Authenticates the pod in the event loop, where the cache of pods' tokens is; returns the pod."""
    return asyncio.run_coroutine_threadsafe(parts.recognise(authorization), parts.loop()).result(LOOP_SECONDS)


def _refuse_no_namespace(namespace: str) -> None:
    if not is_namespace(namespace):
        raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")


def _json(answer: models.Answer) -> Response:
    return Response(answer.model_dump_json(), 200, mimetype="application/json")
