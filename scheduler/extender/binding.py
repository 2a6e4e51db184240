"""Binds a pod: sends one Binding with the pod's uid and its allocation, and finds out its outcome.

A Binding that the API server refuses was not made, and its devices are free. After a time-out or a 5xx, the Binding may
have been made, or may still be made. So the same Binding is posted again until an answer is definite or its time is
over, and the devices are held meanwhile. A refusal that follows a time-out or a 5xx is about the last attempt alone:
the devices stay held until the earlier attempts are over. A Binding names the pod's uid, so that it never binds
another pod of the same name
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/registry/core/pod/storage/storage.go).

Each attempt is sent only while this replica leads for longer than the API server may work on the attempt. So no Binding
of a replica is made after another replica has begun to lead, if the API server keeps to the time that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from fairgpu import names
from fairgpu.allocation import encode
from fairgpu.cluster.api import ApiError, Json
from fairgpu.keeping import Wait
from scheduler.cluster.apart import apart
from scheduler.cluster.gang_pods import GangKey
from scheduler.cluster.objects import PodError, WaitingPod, allocation_of, read_note, read_waiting
from scheduler.cluster.state import Reservation, State
from scheduler.extender.filtering import budget_block
from scheduler.extender.wire import BindArguments
from scheduler.gangs.holding import FREED

_log = structlog.get_logger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
TOO_MANY = 429
"""The status of a request that the API server did not begin, and that is to be sent later."""
NOT_LEADING = "this replica of the scheduler does not lead any more"
SETTLE_LOOK_SECONDS = 1.0
GIVE_UP_SECONDS = 20.0
"""The time for which a bind tries: from kube-scheduler's call or, for a pod of a gang, from the end of its wait for
the gang. kube-scheduler waits longer for an extender (its httpTimeout)."""
LATE = "the API server has not answered earlier Bindings in time, and this one was not sent"
ATTEMPT_SECONDS = 5
"""The longest time that the API server works on one attempt: the parameter `timeout` of a request
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/staging/src/k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go).
"""


class Pods(Protocol):
    """A client of the API server, with the two kinds of requests that binding sends."""

    def create(self, path: str, body: Json, query: Mapping[str, str | int] | None = None, /) -> Json:
        """Posts an object; returns the API server's answer.

        Args:
            path: the path of the API, such as that of a pod's Bindings.
            body: the object as JSON.
            query: the parameters of the request; None for none.
        """

    def get(self, path: str) -> Json:
        """Returns the object at a path of the API, as JSON."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of the scheduler's threads, which gives the time and waits.

    Attributes:
        now: returns seconds of a monotonic clock.
        wait: waits for some seconds, and returns True if the process ends meanwhile.
    """

    now: Callable[[], float]
    wait: Wait


class BindError(RuntimeError):
    """Raised if a pod is not bound, or if it is unknown whether it is; the message becomes an event of the pod."""


class Fate(Enum):
    """The outcome of the attempts to bind a pod."""

    BOUND = "bound"
    """The pod is bound as intended."""
    NOT_BOUND = "not bound"
    """None of the attempts has bound the pod, or can bind it any more. Another Binding may have bound it."""
    UNKNOWN = "unknown"
    """An attempt may have bound it, or may still do so."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts to post one Binding, none of which is known to have bound the pod.

    Attributes:
        error: the error of the last attempt; None if no further attempt was sent since this replica no longer led.
        open: whether an attempt, of this bind or an earlier one, may still succeed: it had no definite answer.
    """

    error: ApiError | None
    open: bool

    @property
    def message(self) -> str:
        """The reason why the pod is not bound, for an event of the pod."""
        return NOT_LEADING if self.error is None else self.error.message


def bind(
    state: State, pods: Pods, arguments: BindArguments, clock: Clock, leads: Callable[[], bool], deadline: float
) -> None:
    """Binds a pod to a node, with the devices of its reservation there; reserves devices if it has none there.

    If it is certain after the attempts that the pod is not bound, the reservation is removed. If another Binding has
    bound the pod, the allocation of that one replaces it. If the outcome is not certain, the devices stay reserved, and
    `settle` finds it out.

    Args:
        state: the scheduler's state, with the pod's reservation.
        pods: the client of the API server.
        arguments: kube-scheduler's request: the pod and the node.
        leads: returns whether this replica leads for the next ATTEMPT_SECONDS.
        deadline: the end of the time for the bind, in seconds of the clock. A call after it sends nothing, and no
            second or later attempt is sent after it.

    Raises:
        BindError: the pod is not bound, or it is unknown whether it is.
    """
    if clock.now() > deadline:
        # kube-scheduler may have turned to another node: it would not count this Binding until it sees it.
        raise BindError(LATE)
    uid, path = arguments.pod_uid, f"/api/v1/namespaces/{arguments.pod_namespace}/pods/{arguments.pod_name}"
    kept, doubted = _reserved(state, pods, arguments, path, clock)
    fate, found = Fate.UNKNOWN, None
    try:
        failed = _post(pods, _binding(arguments, kept.sent), clock, leads, deadline, doubted=doubted)
        fate, found = (Fate.BOUND, None) if failed is None else _fate(pods, path, arguments, kept.sent, failed)
    finally:
        with state.lock:
            if fate is not Fate.NOT_BOUND:
                state.bind_ended(uid, clock.now())
            elif found is None:
                state.forget(uid)
            elif state.reservation(uid) is kept:
                # It is bound in another way. What it holds counts before the watch shows it.
                state.put_pod(read_note(found))
    if failed is not None and fate is Fate.UNKNOWN:
        raise BindError(f"it is not known whether the pod is bound: {failed.message}") from failed.error
    if failed is not None and fate is Fate.NOT_BOUND:
        raise BindError(f"the Binding was not made: {failed.message}") from failed.error
    _log.info("bound", pod=f"{arguments.pod_namespace}/{arguments.pod_name}", uid=uid, node=arguments.node)


def keep_settling(state: State, pods: Pods, clock: Clock, failed: Callable[[], None] = lambda: None) -> None:
    """Finds out the outcome of Bindings without a definite answer, every SETTLE_LOOK_SECONDS, until the process ends.

    Args:
        state: the scheduler's state, with the reservations.
        pods: the client of the API server.
        clock: the clock, whose wait ends the loop.
        failed: called after an unexpected error at a pod.
    """
    while not clock.wait(SETTLE_LOOK_SECONDS):
        settle(state, pods, clock.now(), failed)


def settle(state: State, pods: Pods, now: float, failed: Callable[[], None] = lambda: None) -> None:
    """Looks up each Binding whose outcome was not known in time, and frees the devices of the pods that are not bound.

    It reads each pod of `State.doubtful` from the API server. If the pod is bound, it stores what the pod holds. No
    attempt at such a Binding is under way any more, so the API server's present answer is final. The answer is ignored
    if, after the read began, the extender has sent the Binding again, or the watch has shown that the pod is bound or
    gone. If the read fails, the pod's devices stay reserved, and the next call reads the pod again.

    Args:
        state: the scheduler's state, with the reservations.
        pods: the client of the API server.
        now: the present time, in seconds of a monotonic clock.
        failed: called after an unexpected error at a pod.
    """
    for kept in state.doubtful(now):
        with apart("settling", kept.pod, failed):
            _settle(state, pods, kept)


def _settle(state: State, pods: Pods, kept: Reservation) -> None:
    pod = kept.pod
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    try:
        item: Json | None = pods.get(path)
    except ApiError as error:
        if not error.not_found:
            _log.warning("binding in doubt", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, error=str(error))
            return
        item = None
    with state.lock:
        if state.reservation(pod.uid) is not kept:
            return
        if item is None or item["metadata"].get("uid") != pod.uid:
            state.remove_pod(pod.uid)
        elif (item.get("spec") or {}).get("nodeName"):
            state.put_pod(read_note(item))
        else:
            state.release_unbound(pod.uid)


def _reserved(state: State, pods: Pods, arguments: BindArguments, path: str, clock: Clock) -> tuple[Reservation, bool]:
    """Returns the pod's reservation on the node, and whether an earlier Binding of the pod may be under way.

    The reservation has the allocation to send. If the pod has no reservation on the node, one is made now. If the
    budget keeps the pod back, its reservation is removed. `path` is the pod's path in the API.

    Raises:
        BindError: the devices are not free, the node cannot take the pod any more, the budget keeps the pod back, the
            devices for its gang were freed, the pod is gone or cannot be read, or it is not known whether the pod is
            bound.
    """
    uid = arguments.pod_uid
    with state.lock:
        kept = state.reservation(uid)
        if kept is not None and kept.sent:
            # It may be bound already, and must not hold other devices.
            if kept.placed.node != arguments.node:
                raise BindError(f"it is not known whether the pod is bound to {kept.placed.node}")
            fault = state.withdrawn(kept)
            if fault:
                raise BindError(f"it is not known whether the pod is bound: {fault}")
            # The same allocation: the API server may have taken it already.
            return state.binding(kept, kept.sent), True
    pod = (kept.pod if kept is not None else state.pod_asked_about(uid)) or _read(pods, arguments, path)
    with state.lock:
        if state.gone(uid):
            raise BindError("the pod was deleted, or has ended")
        block = budget_block(state, pod)
        if block is not None:
            state.forget(uid)
            raise BindError(f"since the node was chosen: {block.message}")
        kept = state.reservation(uid)
        if kept is not None and kept.placed.node == arguments.node:
            doubted = bool(kept.sent)
            return state.binding(kept, kept.sent or _allocation(state, kept)), doubted
        if pod.gang is not None and len(state.gangs.of(GangKey(pod.namespace, *pod.gang)).placed) < pod.gang.pods:
            raise BindError(FREED)
        state.expire(clock.now())
        row = state.fleet.rows.get(arguments.node)
        with state.without(state.lifted_for(pod)):
            kept = None if row is None or state.bound(uid) else state.reserve(pod, row, clock.now())
        if kept is None:
            raise BindError(f"the devices on {arguments.node} were taken since they were chosen")
        return state.binding(kept, _allocation(state, kept)), False


def _read(pods: Pods, arguments: BindArguments, path: str) -> WaitingPod:
    try:
        pod = read_waiting(pods.get(path))
    except ApiError as error:
        raise BindError(f"the pod cannot be read: {error.message}") from error
    except PodError as error:
        raise BindError(str(error)) from error
    if pod.uid != arguments.pod_uid:
        raise BindError("the pod was deleted, and another one of its name was created")
    return pod


def _allocation(state: State, kept: Reservation) -> str:
    """Returns, as JSON, the allocation for a reservation whose Binding was never sent.

    Raises:
        BindError: the pod can no longer go to the node; its devices are then freed.
    """
    fault = state.withdrawn(kept)
    if fault:
        state.forget(kept.pod.uid)
        raise BindError(f"since the node was chosen: {fault}")
    node = state.fleet.nodes[state.fleet.rows[kept.placed.node]]
    assert node is not None  # noqa: S101 - `withdrawn` has looked
    return encode(allocation_of(kept.pod, kept.placed, node))


def _binding(arguments: BindArguments, text: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": arguments.pod_name,
            "namespace": arguments.pod_namespace,
            "uid": arguments.pod_uid,
            "annotations": {names.ALLOCATION: text},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": arguments.node},
    }


def _post(
    pods: Pods, binding: Json, clock: Clock, leads: Callable[[], bool], deadline: float, *, doubted: bool
) -> Attempts | None:
    """Posts a Binding until the answer is definite, the deadline has passed, or this replica no longer leads.

    It also returns if the process ends. Returns the failed attempts, or None if the pod is bound.

    Args:
        pods: the client of the API server.
        binding: the Binding as JSON.
        leads: returns whether this replica leads for long enough to send an attempt.
        deadline: the time after which no second or later attempt is sent, in seconds of the clock.
        doubted: whether an earlier bind's attempt has no definite answer.
    """
    metadata, pause = binding["metadata"], FIRST_RETRY_SECONDS
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    failed = Attempts(None, doubted)
    while leads():
        try:
            pods.create(f"{path}/binding", binding, {"timeout": f"{ATTEMPT_SECONDS}s"})
        except ApiError as error:
            failed = Attempts(error, failed.open or not (_definite(error) or error.status == TOO_MANY))
            if _definite(error) or clock.now() + pause > deadline or clock.wait(pause):
                return failed
            pause = min(2 * pause, LAST_RETRY_SECONDS)
        else:
            return None
    return Attempts(None, failed.open)


def _definite(error: ApiError) -> bool:
    """Returns True if an error of the API server proves that this attempt did not bind the pod; else False.

    It returns False for TOO_MANY as well: the API server did not begin the attempt, which is then sent again.
    """
    return 400 <= error.status < 500 and error.status != TOO_MANY


def _fate(pods: Pods, path: str, arguments: BindArguments, text: str, failed: Attempts) -> tuple[Fate, Json | None]:
    """Returns the outcome of a Binding whose last attempt failed, and the pod (JSON) if another Binding has bound it.

    The pod is read if the last attempt was refused for certain. The outcome is then:

    - BOUND if the pod has the node and the allocation of this Binding;
    - NOT_BOUND, with the pod, if it has another node or another allocation;
    - NOT_BOUND if the pod is deleted, or another pod (uid) has its name;
    - UNKNOWN if the API server does not answer.

    If the pod has no node, or the last attempt was not refused for certain, the outcome is UNKNOWN while an attempt may
    still succeed, and else NOT_BOUND. The second value is None in all cases but the second one.

    Args:
        pods: the client of the API server.
        path: the pod's path in the API.
        arguments: kube-scheduler's request: the pod and the node.
        text: the allocation in the Binding.
        failed: the failed attempts.
    """
    unsettled = Fate.UNKNOWN if failed.open else Fate.NOT_BOUND
    if failed.error is None or not _definite(failed.error):
        return unsettled, None
    try:
        pod = pods.get(path)
    except ApiError as error:
        return (Fate.NOT_BOUND if error.not_found else Fate.UNKNOWN), None
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if metadata.get("uid") != arguments.pod_uid:
        return Fate.NOT_BOUND, None
    if not spec.get("nodeName"):
        return unsettled, None
    written = (metadata.get("annotations") or {}).get(names.ALLOCATION)
    if spec["nodeName"] == arguments.node and written == text:
        return Fate.BOUND, None
    # A pod that is bound in another way refuses every Binding from then on.
    return Fate.NOT_BOUND, pod
