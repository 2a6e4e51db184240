"""The three endpoints of the ancestor, for clients that were written for it. Amounts are GPU-hours."""

from __future__ import annotations

import asyncio

import structlog
from flask import Flask, Response, request

from timekeeper.identity.pod_tokens import PodIdentity
from timekeeper.identity.refusals import ForbiddenError
from timekeeper.rest import answers
from timekeeper.rest.bodies import IncreaseRequest, PodReport, is_namespace
from timekeeper.rest.figures import is_budget
from timekeeper.rest.granting import GrantOrder, grant_object
from timekeeper.rest.guard import may_grant, may_read_namespace
from timekeeper.rest.hot_routes import refuse_unless_running
from timekeeper.rest.ordering import gpu_hours_text, missing_key, name_of_key, place, unused_name
from timekeeper.rest.parts import Parts
from timekeeper.rest.problems import ProblemError, invalid
from timekeeper.store.report_intake import Outcome, Submission

_log = structlog.get_logger()

LOOP_SECONDS = 20.0
"""How long a thread waits for the event loop to have a report stored."""


def add_ancestor_routes(app: Flask, parts: Parts) -> None:
    """Adds the three."""

    @app.get("/budget/<namespace>")
    def ancestor_budget(namespace: str) -> Response:
        may_read_namespace(parts.authority, namespace)
        _refuse_no_namespace(namespace)
        return _json(answers.ancestor_budget(parts.book.namespace(namespace)))

    @app.post("/budget/<namespace>/increase")
    def ancestor_increase(namespace: str) -> Response:
        caller = may_grant(parts.authority)
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
        unused_name(parts.book, item, parts.grants)
        _, made = place(item, parts.grants)
        if made:
            _log.info("grant made", grant=name, budget=figures.name, hours=gpu_hours, by=caller.name)
        return _json(answers.ancestor_budget(parts.book.namespace(namespace)))

    @app.post("/budget/<namespace>/report")
    def ancestor_report(namespace: str) -> Response:
        pod = _in_loop(parts, request.headers.get("Authorization"))
        wanted = PodReport.model_validate_json(request.get_data())
        if (pod.namespace, pod.pod) != (namespace, wanted.pod_name):
            raise ForbiddenError(f"the token is that of pod {pod.namespace}/{pod.pod}: a pod reports for itself alone")
        submission = Submission(pod.uid, "", 0, parts.now())
        taken = asyncio.run_coroutine_threadsafe(parts.submissions.submit(submission), parts.loop())
        outcome = taken.result(LOOP_SECONDS)
        ended = parts.pods.ended(pod)
        if outcome is Outcome.NOT_RUNNING and not ended:
            refuse_unless_running(outcome, pod)
        return _json(answers.AncestorVerdict(terminate=ended))


def _in_loop(parts: Parts, authorization: str | None) -> PodIdentity:
    """The pod that asks, recognised where all pods are."""
    return asyncio.run_coroutine_threadsafe(parts.recognise(authorization), parts.loop()).result(LOOP_SECONDS)


def _refuse_no_namespace(namespace: str) -> None:
    if not is_namespace(namespace):
        raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")


def _json(answer: answers.Answer) -> Response:
    return Response(answer.model_dump_json(), 200, mimetype="application/json")
