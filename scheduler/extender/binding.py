"""Binds a pod: sends one Binding with the pod's uid and its allocation, and finds out its outcome.

A Binding that the API server refuses was not made, and its devices are free. After a time-out or a 5xx it may have been
made: the same one is posted again until the answer is definite, and the devices are held meanwhile. The uid in it is a
precondition, so that it never meets another pod of that name
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/registry/core/pod/storage/storage.go).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from fairgpu import names
from fairgpu.allocation import encode
from fairgpu.cluster.api import ApiError
from scheduler.cluster.budgets import Standing
from scheduler.cluster.gang_pods import GangKey
from scheduler.cluster.objects import PodError, WaitingPod, allocation_of, read_note, read_waiting
from scheduler.cluster.state import Reservation, State
from scheduler.extender.wire import BindArguments
from scheduler.gangs.holding import FREED

_log = structlog.get_logger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
SETTLE_LOOK_SECONDS = 1.0
GIVE_UP_SECONDS = 20.0
"""The longest time of a bind; kube-scheduler waits longer for an extender (httpTimeout in its configuration)."""


class Pods(Protocol):
    """The two kinds of requests to the API server that binding sends."""

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Posts an object."""

    def get(self, path: str) -> dict[str, Any]:
        """Reads an object."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of binding: monotonic seconds, and a wait that returns whether the process ends."""

    now: Callable[[], float]
    wait: Callable[[float], bool]


class BindError(RuntimeError):
    """The pod is not bound; the message becomes its event."""


def bind(state: State, pods: Pods, arguments: BindArguments, clock: Clock) -> None:
    """Binds a pod to a node with devices there.

    Raises:
        BindError: the pod is not bound, or it is unknown whether it is.
    """
    uid, path = arguments.pod_uid, f"/api/v1/namespaces/{arguments.pod_namespace}/pods/{arguments.pod_name}"
    reservation = _reserved(state, pods, arguments, path, clock)
    text = _allocation(state, reservation)
    try:
        _post(pods, path, _binding(arguments, text), clock)
    except ApiError as error:
        if not _definite(error):
            with state.lock:
                state.bind_ended(uid, clock.now())
            raise BindError(f"the API server has not answered whether the pod is bound: {error.message}") from error
        if not _is_bound(pods, path, arguments, text):
            with state.lock:
                state.forget(uid)
            raise BindError(f"the API server refused the Binding: {error.message}") from error
    with state.lock:
        state.bind_ended(uid, clock.now())
    _log.info("bound", pod=f"{arguments.pod_namespace}/{arguments.pod_name}", uid=uid, node=arguments.node)


def keep_settling(state: State, pods: Pods, clock: Clock) -> None:
    """Reads the pods with Bindings of unknown outcome, at intervals, until the process ends."""
    while not clock.wait(SETTLE_LOOK_SECONDS):
        settle(state, pods, clock.now())


def settle(state: State, pods: Pods, now: float) -> None:
    """Settles Bindings of unknown outcome that are old: frees the devices of unbound pods, adopts the bound ones'.

    No such Binding is under way any more, so the API server's present answer is final.
    """
    for pod in state.doubtful(now):
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            found: dict[str, Any] | None = pods.get(path)
        except ApiError as error:
            if not error.not_found:
                _log.warning("binding in doubt", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, error=str(error))
                continue
            found = None
        with state.lock:
            if found is None or found["metadata"].get("uid") != pod.uid:
                state.remove_pod(pod.uid)
            elif (found.get("spec") or {}).get("nodeName"):
                state.put_pod(read_note(found))
            else:
                state.forget(pod.uid)


def _reserved(state: State, pods: Pods, arguments: BindArguments, path: str, clock: Clock) -> Reservation:
    """Returns the pod's reservation on this node; makes one where filter made none."""
    uid = arguments.pod_uid
    with state.lock:
        held = state.budgets.standing(arguments.pod_namespace) is Standing.HELD
        kept = state.reservation(uid)
        if held and not (kept is not None and kept.sent):
            state.forget(uid)
            raise BindError("the namespace's GPU budget was spent since the node was chosen, and holds its pods")
        if kept is not None and kept.placed.node == arguments.node:
            state.binding(uid)
            return kept
    pod = state.asked(uid) or _read(pods, arguments, path)
    with state.lock:
        if pod.gang is not None and len(state.gangs.of(GangKey(pod.namespace, *pod.gang)).placed) < pod.gang.pods:
            raise BindError(FREED)
        state.expire(clock.now())
        row = state.fleet.rows.get(arguments.node)
        with state.without(state.lifted_for(pod)):
            kept = None if row is None or state.bound(uid) else state.reserve(pod, row, clock.now())
        if kept is None:
            raise BindError(f"the devices on {arguments.node} were taken since they were chosen")
        state.binding(uid)
        return kept


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


def _allocation(state: State, reservation: Reservation) -> str:
    placed = reservation.placed
    with state.lock:
        row = state.fleet.rows.get(placed.node)
        node = state.fleet.nodes[row] if row is not None else None
        offered = {device.uuid for device in node.inventory.devices} if node is not None else set()
        if node is None or not all(share.uuid in offered for shares in placed.shares for share in shares):
            state.forget(reservation.pod.uid)
            raise BindError(f"{placed.node} offers the chosen devices no more")
        return encode(allocation_of(reservation.pod, placed, node))


def _binding(arguments: BindArguments, text: str) -> dict[str, Any]:
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


def _post(pods: Pods, path: str, binding: dict[str, Any], clock: Clock) -> None:
    """Posts a Binding until the answer is definite.

    Raises:
        ApiError: it was refused; or, after GIVE_UP_SECONDS, the last answer that leaves it open.
    """
    deadline, pause = clock.now() + GIVE_UP_SECONDS, FIRST_RETRY_SECONDS
    while True:
        try:
            pods.create(f"{path}/binding", binding)
        except ApiError as error:
            if _definite(error) or clock.now() + pause > deadline or clock.wait(pause):
                raise
            pause = min(2 * pause, LAST_RETRY_SECONDS)
        else:
            return


def _definite(error: ApiError) -> bool:
    """Whether the API server's refusal is final; 429 asks to try later."""
    return 400 <= error.status < 500 and error.status != 429


def _is_bound(pods: Pods, path: str, arguments: BindArguments, text: str) -> bool:
    """Whether the pod is bound as intended; an earlier attempt may have done it."""
    try:
        pod = pods.get(path)
    except ApiError:
        return False
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    written = (metadata.get("annotations") or {}).get(names.ALLOCATION)
    return bool(metadata.get("uid") == arguments.pod_uid and spec.get("nodeName") == arguments.node and written == text)
