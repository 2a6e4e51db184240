"""The extender as a service: its routes, its probes, and the threads that keep its state current."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import numpy as np
import structlog

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.reflector import reflect
from fairgpu.keeping import Wait
from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import Request, Response, problem
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.probes import build_about, build_probes
from fairgpu.serving.server import freeze, serve
from fairgpu.states_client import authority_config_map, authority_file, follow_authority, follow_states
from scheduler.cluster.acting import Acting, follow_lease
from scheduler.cluster.state import State
from scheduler.cluster.watches import NODES, PODS, AllocationFaults, NodesView, NodeWarnings, PodsView
from scheduler.extender.binding import ATTEMPT_SECONDS, GIVE_UP_SECONDS, BindError, Clock, bind, keep_settling
from scheduler.extender.filtering import filter_nodes, prioritize_nodes
from scheduler.extender.preempting import preempt
from scheduler.extender.waking import Conditions, keep_waking
from scheduler.extender.wire import (
    ArgumentsError,
    BindArguments,
    BindResult,
    decode_bind,
    decode_filter,
    decode_preempt,
    encode,
    encode_scores,
)
from scheduler.gangs.holding import arrive, release_overdue
from scheduler.measures import Measures
from scheduler.placement.worth import learn
from scheduler.reclaim.reclaimer import Clocks, Reclaimer, keep_reclaiming
from scheduler.reclaim.roster import Roster
from scheduler.settings import ExtenderSettings, LeaseSettings, SchedulerSettings, StatesSettings

_log = structlog.get_logger(__name__)

LEARN_AT = (100, 250, 500, 1000, 2000, 4000, 8000)
"""The numbers of pods' requests after which the figures of nodes' worth are computed anew. After the last of these
numbers, they are computed anew after every LEARN_EVERY requests.
"""
LEARN_EVERY = 8000
LEARN_LOOK_SECONDS = 1.0
LEARN_PAUSE_SECONDS = 0.005
"""The pause after each millisecond or so of learning. The interpreter runs one thread at a time. Without pauses, the
thread that answers kube-scheduler would wait for the learning after each call of the system or of numpy.
"""
GANG_LOOK_SECONDS = 1.0
"""The interval at which a bind that waits for its gang checks the gang's deadline."""
SHOW_SECONDS = 2.0
OVERLAP_LOOK_SECONDS = 2.0
SWITCH_SECONDS = 0.001
"""The time after which a thread lets the event loop run: learning and planning take 40 to 100 ms of processor time.

Python's default is 5 ms. Each of several threads may take that long before a pod is answered.
"""
ANSWER_SECONDS = ATTEMPT_SECONDS + 2.0
"""The longest wait for the API server's answer in a bind."""
BINDS_AT_ONCE = 32
"""The most Bindings that wait for the API server at once. asyncio's own pool, with 4 threads more than the machine has
CPUs, would be too small."""
RunPart = Callable[[str, Callable[[], None]], None]
"""Runs a part of the scheduler, one of scheduler.measures.PARTS, in a thread of its own."""
NOT_ACTING = "this replica does not lead"


def build_application(
    lifecycle: Lifecycle, api: KubernetesAPI, settings: SchedulerSettings, measures: Measures
) -> Application:
    """Builds the extender's HTTP application, and starts the threads that keep its state current.

    Args:
        lifecycle: starts the threads, and ends them with the process.
        api: the API server, which the threads watch and to which the extender writes.
        measures: the metrics that the threads and the routes set.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    state, wait = State(settings.extender.gang_seconds), lifecycle.ending.wait
    lease = settings.lease
    acting = Acting(lease.pod_name)

    def acts(seconds: float = 0.0) -> bool:
        return not lease.pod_name or acting.acts(_boot_seconds(), seconds)

    def informed(seconds: float = 0.0) -> bool:
        return acts(seconds) and not state.missing()

    def run_part(part: str, target: Callable[[], None]) -> None:
        lifecycle.run_thread(part, target, partial(measures.part_failed, part))

    _follow_budgets(run_part, api, settings.states, state, wait)
    _follow_cluster(run_part, api, lease, acting, state, wait)
    settling = partial(measures.part_failed, "settling")
    run_part("settling", lambda: keep_settling(state, api, Clock(time.monotonic, wait), settling))
    conditions = Conditions(api, informed, _stamp, measures)
    run_part("waking", lambda: keep_waking(state, conditions, Clock(time.monotonic, wait)))
    run_part("learning", lambda: keep_worth_current(state, wait))
    run_part("measures", lambda: keep_showing(state, measures, informed, wait))
    reclaimer = Reclaimer(state, api, settings.reclaim, Clocks(time.monotonic, time.time), measures, informed)
    run_part("reclaim", lambda: keep_reclaiming(reclaimer, wait))
    routes = Routes(state, api.within(ANSWER_SECONDS), Clock(time.monotonic, wait), informed, measures)
    immediate = {
        ("POST", "/filter"): routes.filter,
        ("POST", "/prioritize"): routes.prioritize,
        **build_probes(lifecycle, state.missing),
    }
    if settings.extender.preempt:
        immediate["POST", "/preempt"] = routes.preempt
    return Application(
        lifecycle, {("POST", "/bind"): routes.bind}, build_about("fairgpu-scheduler"), 2, immediate=immediate
    )


def _follow_budgets(run_part: RunPart, api: KubernetesAPI, states: StatesSettings, state: State, wait: Wait) -> None:
    authority = (
        authority_file(states.ca_file)
        if states.ca_file is not None
        else authority_config_map(api, states.ca_namespace, states.ca_config_map)
    )
    run_part("authority", lambda: follow_authority(authority, state.budgets, wait))
    run_part("states", lambda: follow_states(states, state.budgets, wait, time.monotonic, random.random))


def _follow_cluster(
    run_part: RunPart, api: KubernetesAPI, lease: LeaseSettings, acting: Acting, state: State, wait: Wait
) -> None:
    warnings = NodeWarnings(api, _stamp)
    faults = AllocationFaults(state, warnings.warn_of_pod)
    # The pods of a list live long. A garbage collection that looks at 40,000 of them keeps all threads for 0.2 seconds.
    pods = PodsView(state, f"{lease.namespace}/{lease.pod_name}", acting.show, faults, freeze)
    nodes = NodesView(state, warnings.warn, faults)
    if lease.pod_name:
        run_part("lease", lambda: follow_lease(api, lease.namespace, lease.name, acting, _boot_seconds, wait))
    run_part("pods", lambda: reflect(api, PODS, pods, wait, random.random))
    run_part("nodes", lambda: reflect(api, NODES, nodes, wait, random.random))
    run_part("overlaps", lambda: keep_looking_for_overlaps(faults, wait))


class Acts(Protocol):
    """A function that returns whether this replica may act: answer kube-scheduler, and change objects.

    It may act while it leads, once it has read all nodes and pods.
    """

    def __call__(self, seconds: float = 0.0) -> bool:
        """Returns True if this replica may act now and its leader Lease lasts for `seconds` or longer; else False."""


class Routes:
    """The extender's HTTP routes: each takes a request of kube-scheduler and returns the response."""

    def __init__(self, state: State, api: KubernetesAPI, clock: Clock, acts: Acts, measures: Measures) -> None:
        self._state = state
        self._api = api
        self._clock = clock
        self._acts = acts
        self._measures = measures
        self._roster = Roster()
        self._binders = ThreadPoolExecutor(BINDS_AT_ONCE, "bind")

    def filter(self, body: bytes) -> Response:
        """Answers kube-scheduler's call `filter` with the node for a pod, or the reason against each node.

        Some pods get several nodes (see `filter_nodes`).

        Returns:
            Status 200 with the answer, 400 for a body that cannot be read, or 503 if this replica must not act
                (`Acts`).
        """
        started = time.perf_counter()
        if not self._acts():
            return self._not_acting("filter", started)
        try:
            result = filter_nodes(self._state, decode_filter(body), self._clock.now())
        except ArgumentsError as error:
            return self._unreadable("filter", error, started)
        self._answered("filter", "placed" if result.node_names else "refused", started)
        return Response(200, encode(result))

    def prioritize(self, body: bytes) -> Response:
        """Answers kube-scheduler's call `prioritize` with a score from 0 to 10 for each node.

        Returns:
            Status 200 with the scores, 400 for a body that cannot be read, or 503 if this replica must not act
                (`Acts`).
        """
        started = time.perf_counter()
        if not self._acts():
            return self._not_acting("prioritize", started)
        try:
            arguments = decode_filter(body)
            scores = prioritize_nodes(self._state, arguments)
        except ArgumentsError as error:
            return self._unreadable("prioritize", error, started)
        self._answered("prioritize", "placed", started)
        return Response(200, encode_scores(arguments.names_text, scores))

    def preempt(self, body: bytes) -> Response:
        """Answers kube-scheduler's call `preempt` with the pods to evict from each node so that a pod can be placed.

        Returns:
            Status 200 with the pods, 400 for a body that cannot be read, or 503 if this replica must not act (`Acts`).
        """
        started = time.perf_counter()
        if not self._acts():
            return self._not_acting("preempt", started)
        try:
            arguments = decode_preempt(body)
        except ArgumentsError as error:
            return self._unreadable("preempt", error, started)
        result = preempt(self._state, self._roster, arguments, time.time())
        self._answered("preempt", "placed" if result.victims else "refused", started)
        return Response(200, encode(result))

    async def bind(self, request: Request) -> Response:
        """Answers kube-scheduler's call `bind`: binds a pod to a node.

        A thread sends the requests to the API server. If devices are held for the pod with others of its gang, the bind
        first waits until kube-scheduler has called `bind` for all of them.

        Returns:
            Status 200 with an error text that is empty if the pod is bound, 400 for a body that cannot be read, or 503
            if this replica must not act (`Acts`).
        """
        started = time.perf_counter()
        if not self._acts():
            return self._not_acting("bind", started)
        try:
            arguments = decode_bind(request.body)
        except ArgumentsError as error:
            return self._unreadable("bind", error, started)
        error_text = await self._wait_for_gang(arguments)
        if not error_text:
            loop, deadline = asyncio.get_running_loop(), self._clock.now() + GIVE_UP_SECONDS
            error_text = await loop.run_in_executor(self._binders, self._bind, arguments, deadline)
        self._answered("bind", "refused" if error_text else "placed", started)
        return Response(200, encode(BindResult(error_text)))

    async def _wait_for_gang(self, arguments: BindArguments) -> str:
        """Waits until kube-scheduler has called `bind` for every pod of a gang's hold, if the given pod is in a hold.

        A hold keeps devices for pods of one gang. After its deadline the devices are freed, and the wait ends with a
        reason. The deadline is checked every GANG_LOOK_SECONDS. For a pod without a hold, the call does not wait.

        Returns:
            The reason why the pod must not be bound; empty if the bind can go on.
        """
        hold = arrive(self._state, arguments.pod_uid, arguments.node, self._clock.now())
        if hold is None:
            return ""
        while not hold.outcome.done():
            await asyncio.wait([asyncio.wrap_future(hold.outcome)], timeout=GANG_LOOK_SECONDS)
            release_overdue(self._state, self._clock.now())
        return hold.outcome.result()

    def _bind(self, arguments: BindArguments, deadline: float) -> str:
        try:
            bind(self._state, self._api, arguments, self._clock, lambda: self._acts(ATTEMPT_SECONDS), deadline)
        except BindError as error:
            pod = f"{arguments.pod_namespace}/{arguments.pod_name}"
            _log.warning("not bound", pod=pod, uid=arguments.pod_uid, node=arguments.node, error=str(error))
            return str(error)
        return ""

    def _not_acting(self, verb: str, started: float) -> Response:
        self._answered(verb, "not_acting", started)
        return problem(503, "Service Unavailable", NOT_ACTING)

    def _unreadable(self, verb: str, error: ArgumentsError, started: float) -> Response:
        self._answered(verb, "unreadable", started)
        return problem(400, "Bad Request", str(error))

    def _answered(self, verb: str, outcome: str, started: float) -> None:
        self._measures.answered(verb, outcome, time.perf_counter() - started)


def keep_worth_current(state: State, wait: Wait) -> None:
    """Keeps the figures by which nodes are scored current, until the process ends.

    The figures say how useful a free part of a GPU is for the requests that usually come. They are learned from the
    requests of all pods so far: after each number of requests in LEARN_AT, and then after every LEARN_EVERY further
    requests. They are also learned again once a new device class (`DeviceClass`) has appeared. The loop checks this
    every LEARN_LOOK_SECONDS.

    Args:
        state: counts the requests and knows the device classes; stores the figures.
    """
    learned = learned_classes = 0
    generator = np.random.default_rng()
    while not wait(LEARN_LOOK_SECONDS):
        due = next((count for count in LEARN_AT if count > learned), learned + LEARN_EVERY)
        has_new_classes = learned > 0 and len(state.fleet.classes) > learned_classes
        if state.counted < due and not has_new_classes:
            continue
        with state.lock:
            learned, mix = state.counted, state.mix()
            classes, capacity = list(state.fleet.classes), state.fleet.capacity()
        learned_classes = len(classes)
        state.learn(learn(mix, classes, capacity, generator, lambda: wait(LEARN_PAUSE_SECONDS)))
        _log.info("request statistics updated", requests=learned, kinds=len(mix.kinds))


def keep_looking_for_overlaps(faults: AllocationFaults, wait: Wait) -> None:
    """Calls `look_for_overlaps`, which reports overlaps, every OVERLAP_LOOK_SECONDS until the process ends."""
    while not wait(OVERLAP_LOOK_SECONDS):
        faults.look_for_overlaps()


def keep_showing(state: State, measures: Measures, acts: Callable[[], bool], wait: Wait) -> None:
    """Sets the metrics to the figures of the state, every SHOW_SECONDS, until the process ends.

    Args:
        state: gives the figures.
        measures: the metrics to set.
        acts: returns whether this replica may act, which one of the metrics shows.
    """
    while not wait(SHOW_SECONDS):
        measures.show(state.figures(), acting=acts())
        confirmed_at = state.budgets.confirmed_at
        if confirmed_at is not None:
            measures.set_states_confirmed(time.time() - (time.monotonic() - confirmed_at))


def _boot_seconds() -> float:
    """Returns seconds of a clock that also counts while the machine is suspended; the monotonic clock does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(settings: SchedulerSettings, api: KubernetesAPI) -> int:
    """Runs the scheduler's extender until a signal ends it; returns the exit status of the process."""
    options = server_options(settings.extender)
    return serve(options, lambda lifecycle: build_application(lifecycle, api, settings, Measures()), None)


def server_options(extender: ExtenderSettings) -> ServerOptions:
    """Returns the options of the extender's HTTP server, read from its settings."""
    return ServerOptions(
        name="fairgpu-scheduler",
        address=Address(extender.host, extender.port),
        metrics_address=Address(extender.metrics_host, extender.metrics_port),
        workers=1,
        drain_seconds=0.0,
    )
