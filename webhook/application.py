"""The webhook's application: its review routes, the probes, and the threads that keep the admission cache current."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable
from functools import partial

import structlog

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.reflector import reflect
from fairgpu.faults import explain
from fairgpu.json_values import mapping
from fairgpu.keeping import Wait
from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import ImmediateAnswer, Response, problem
from fairgpu.serving.probes import Missing, build_about, build_probes
from fairgpu.states_client import ReadAuthority, follow_authority, follow_states
from webhook.admission.review import ROUTES, ReviewError, answer
from webhook.admission.verdict import Subject, Verdict
from webhook.cache.admission_cache import AdmissionCache
from webhook.cache.watches import (
    CLAIM_TEMPLATES,
    CLAIMS,
    NAMESPACES,
    PRIORITY_CLASSES,
    ClaimsView,
    NamespacesView,
    PriorityClassesView,
    follow_claims,
)
from webhook.ingress import follow_policy
from webhook.metrics import Measures
from webhook.rendering import follow_differences
from webhook.settings import Webhook

_log = structlog.get_logger(__name__)

PUBLISH_SECONDS = 1.0
START_STEP_SECONDS = 0.02


def build_application(
    lifecycle: Lifecycle,
    settings: Webhook,
    measures: Measures,
    read_authority: ReadAuthority,
    api: KubernetesAPI | None,
) -> Application:
    """Returns the application of one worker process of the webhook, and registers its threads with the lifecycle.

    Args:
        lifecycle: runs the threads from the worker's start on, and ends them.
        settings: the webhook's settings.
        measures: the worker's metrics.
        read_authority: returns the CA that signs the timekeeper's certificate, in PEM.
        api: the API server; None in standalone mode, in which no namespaces and no priority classes are known.
    """
    cache = AdmissionCache()
    wait = lifecycle.ending.wait
    lifecycle.run_thread("authority", lambda: follow_authority(read_authority, cache, wait))
    lifecycle.run_thread("states", lambda: follow_states(settings.states, cache, wait, time.monotonic, random.random))
    waits_until = time.monotonic() + settings.states.first_wait_seconds

    def missing() -> tuple[str, ...]:
        return cache.missing(cluster=api is not None, states=time.monotonic() < waits_until)

    lifecycle.run_thread("measures", lambda: publish_measures(cache, missing, measures, wait))
    lifecycle.on_stop(measures.publish)
    if api is not None:
        namespaces, classes = NamespacesView(cache), PriorityClassesView(cache, settings.priorities)
        lifecycle.run_thread("namespaces", lambda: reflect(api, NAMESPACES, namespaces, wait, random.random))
        for kind in (CLAIMS, CLAIM_TEMPLATES):
            view = ClaimsView(cache, kind, settings.existing.device_classes)
            follow = partial(follow_claims, api, view, kind, wait, random.random)
            lifecycle.run_thread(kind, follow)
        now = partial(dt.datetime.now, dt.UTC)
        differing = partial(follow_differences, settings, api, measures.set_objects_differing, wait, now)
        lifecycle.run_thread("rendered", differing)
        lifecycle.run_thread("ingress", lambda: follow_policy(api, measures.set_ingress_open, wait))
        lifecycle.run_thread("classes", lambda: reflect(api, PRIORITY_CLASSES, classes, wait, random.random))
    reviews = {("POST", f"/{route}"): review_answer(route, cache, settings, measures) for route in ROUTES}
    # Other workers may have all knowledge already: they answer reviews until this one has it.
    lifecycle.on_start(lambda: _wait_until(lambda: not missing(), settings.states.first_wait_seconds, wait))
    immediate = {**reviews, **build_probes(lifecycle, missing)}
    return Application(lifecycle, {}, build_about("fairgpu-webhook"), wsgi_threads=2, immediate=immediate)


def _wait_until(done: Callable[[], bool], seconds: float, wait: Wait) -> None:
    """Waits until `done` returns true, until `seconds` have passed, or until `wait` returns true: the process ends."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline and not wait(START_STEP_SECONDS):
        pass


def review_answer(route: str, cache: AdmissionCache, settings: Webhook, measures: Measures) -> ImmediateAnswer:
    """Returns the function that answers a review: it takes the body of the request, and returns the response.

    A body that is no review gets a response with status 400. Other errors of `answer` leave the function.

    Args:
        route: the webhook: `mutate`, `validate` or `account`.
        cache: the worker's knowledge of the cluster.
        settings: the webhook's settings.
        measures: counts each answer and its duration.
    """

    def respond(body: bytes) -> Response:
        started = time.perf_counter()
        try:
            reviewed = answer(route, body, cache.knowledge, settings, time.monotonic())
        except ReviewError as error:
            measures.reviewed(route, "unreadable", time.perf_counter() - started)
            return problem(400, "Bad Request", str(error))
        verdict = reviewed.verdict
        if verdict.faults:
            _log.info("refused", webhook=route, **_ids(reviewed.subject), faults=explain(verdict.faults))
        measures.reviewed(route, _outcome(verdict), time.perf_counter() - started)
        return Response(200, reviewed.body)

    return respond


def _ids(subject: Subject) -> dict[str, str]:
    metadata = mapping(subject.item.get("metadata"))
    name = subject.name or metadata.get("name") or metadata.get("generateName")
    return {"uid": subject.uid, "kind": subject.kind, "namespace": subject.namespace, "name": str(name)}


def _outcome(verdict: Verdict) -> str:
    if verdict.faults:
        return "refused"
    return "changed" if verdict.operations else "untouched"


def publish_measures(cache: AdmissionCache, missing: Missing, measures: Measures, wait: Wait) -> None:
    """Publishes the worker's metrics each second, until the process ends.

    They are the counts of reviews, the worker's readiness, and the time of the timekeeper's last answer.

    Args:
        cache: the worker's knowledge of the cluster.
        missing: returns the names of the knowledge that the worker still waits for; empty once it is ready.
        measures: the metrics.
        wait: sleeps for the given seconds, and returns whether the process ends.
    """
    while not wait(PUBLISH_SECONDS):
        measures.publish()
        measures.set_ready(not missing())
        states = cache.knowledge.states
        if states is not None:
            measures.set_states_confirmed(time.time() - (time.monotonic() - states.confirmed_at))
