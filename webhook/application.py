"""The webhook as a service: two routes over the pure functions, probes, and the threads that keep it informed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import structlog

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.reflector import reflect
from fairgpu.faults import explain
from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import ImmediateAnswer, Response, problem
from webhook.admission.review import ReviewError, decode, encode, judge
from webhook.admission.verdict import Subject, Verdict, mapping
from webhook.ingress import openness
from webhook.learning.following import ReadAuthority, follow_authority, follow_states
from webhook.learning.memory import Memory
from webhook.learning.watches import NAMESPACES, PRIORITY_CLASSES, NamespacesView, PriorityClassesView
from webhook.measures import Measures
from webhook.probes import build_probes
from webhook.settings import Webhook

_log = structlog.get_logger(__name__)

TELLING_SECONDS = 1.0
START_STEP_SECONDS = 0.02


def build_application(
    lifecycle: Lifecycle,
    settings: Webhook,
    measures: Measures,
    read_authority: ReadAuthority,
    api: KubernetesAPI | None,
) -> Application:
    """The application of one worker; without an API server, nothing is known of namespaces and classes."""
    memory = Memory()
    wait = lifecycle.ending.wait
    lifecycle.run_thread("authority", lambda: follow_authority(read_authority, memory, wait))
    lifecycle.run_thread("states", lambda: follow_states(settings.states, memory, wait, time.monotonic, random.random))
    lifecycle.run_thread("measures", lambda: _tell(memory, measures, wait))
    lifecycle.on_stop(measures.tell)
    if api is not None:
        namespaces, classes = NamespacesView(memory), PriorityClassesView(memory, settings.priorities)
        lifecycle.run_thread("namespaces", lambda: reflect(api, NAMESPACES, namespaces, wait, random.random))
        lifecycle.run_thread("ingress", lambda: openness.follow(api, measures.set_ingress_open, wait))
        lifecycle.run_thread("classes", lambda: reflect(api, PRIORITY_CLASSES, classes, wait, random.random))
    reviews = {
        ("POST", f"/{route}"): review_answer(route, memory, settings, measures) for route in ("mutate", "validate")
    }
    waits_until = time.monotonic() + settings.states.first_wait_seconds

    def missing() -> tuple[str, ...]:
        return memory.missing(cluster=api is not None, states=time.monotonic() < waits_until)

    # The other workers may be informed already: reviews are theirs until this one is.
    lifecycle.on_start(lambda: _wait_until(lambda: not missing(), settings.states.first_wait_seconds, wait))
    probes = build_probes(lifecycle, missing)
    return Application(lifecycle, {}, probes, wsgi_threads=2, immediate=reviews)


def _wait_until(done: Callable[[], bool], seconds: float, wait: Callable[[float], bool]) -> None:
    """Returns once it is done, after so many seconds, or when everything is to end."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline and not wait(START_STEP_SECONDS):
        pass


def review_answer(route: str, memory: Memory, settings: Webhook, measures: Measures) -> ImmediateAnswer:
    """What answers the bodies that a review route gets."""

    def answer(body: bytes) -> Response:
        started = time.perf_counter()
        try:
            subject = decode(body)
        except ReviewError as error:
            measures.reviewed(route, "unreadable", time.perf_counter() - started)
            return problem(400, "Bad Request", str(error))
        verdict = _judge(route, subject, memory, settings)
        measures.reviewed(route, _outcome(verdict), time.perf_counter() - started)
        return Response(200, encode(subject.uid, verdict))

    return answer


def _judge(route: str, subject: Subject, memory: Memory, settings: Webhook) -> Verdict:
    verdict = judge(route, subject, memory.knowledge, settings, time.monotonic())
    if verdict.faults:
        _log.info("refused", webhook=route, **_ids(subject), faults=explain(verdict.faults))
    return verdict


def _ids(subject: Subject) -> dict[str, str]:
    metadata = mapping(subject.item.get("metadata"))
    name = subject.name or metadata.get("name") or metadata.get("generateName")
    return {"uid": subject.uid, "kind": subject.kind, "namespace": subject.namespace, "name": str(name)}


def _outcome(verdict: Verdict) -> str:
    if verdict.faults:
        return "refused"
    return "changed" if verdict.operations else "untouched"


def _tell(memory: Memory, measures: Measures, wait: Callable[[float], bool]) -> None:
    while not wait(TELLING_SECONDS):
        measures.tell()
        states = memory.knowledge.states
        if states is not None:
            measures.set_states_confirmed(time.time() - (time.monotonic() - states.confirmed_at))
