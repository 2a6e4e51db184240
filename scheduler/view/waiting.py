"""`fairgpu why`: the causes that keep a pod waiting, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairgpu import names
from scheduler.cluster.earmarks import EarmarkError, decode
from scheduler.cluster.objects import PLACEABLE, PodError, read_waiting
from scheduler.placement.causes import Cause, explain
from scheduler.view.cluster import Cluster

Json = dict[str, Any]

REMEDIES = {
    Cause.DEVICES: "ask for fewer GPUs, or add nodes with more",
    Cause.MODEL: "choose other models, or add nodes that have them",
    Cause.UUID: "choose other GPUs",
    Cause.SIZE: "ask for less memory, or choose a model that has as much",
    Cause.MEMORY: "ask for less memory, or wait until a pod ends",
    Cause.CORE: "ask for a smaller share, or wait until a pod ends",
    Cause.SLOTS: "wait until a container ends",
    Cause.TOGETHER: "ask for less of what is scarce, or wait until a pod ends",
}
_OF_KUBE_SCHEDULER = ("FailedScheduling", "Scheduled", "Preempted")
FRAGMENTED = "enough is free in all, but on different GPUs: an autoscaler that counts sums adds no node for it"


@dataclass(frozen=True, slots=True)
class Reason:
    """A cause that keeps a pod from some nodes, for a person to read.

    Attributes:
        text: the cause, with the requested amount and the largest that is free, where the cause has amounts.
        remedy: the advice to the pod's author.
        nodes: the names of the nodes that the cause concerns; empty for a pod that FairGPU cannot place at all.
        fragmented: the names of the nodes among them that have enough free in sum, but in parts on several GPUs.
    """

    text: str
    remedy: str
    nodes: tuple[str, ...] = ()
    fragmented: tuple[str, ...] = ()


def stage_of(pod: Json) -> str:
    """Returns the present stage of a pod in a few words, such as `waits for a node`."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if status.get("phase") in names.TERMINAL_PHASES:
        return f"ended: {status['phase']}"
    if spec.get("nodeName"):
        return f"placed on {spec['nodeName']}"
    deleted = (pod.get("metadata") or {}).get("deletionTimestamp")
    return "deleted, and kept by its finalizers: it is not placed any more" if deleted else _stage_unbound(spec)


def _stage_unbound(spec: Json) -> str:
    gates = [str(gate.get("name")) for gate in spec.get("schedulingGates") or []]
    if names.BUDGET_GATE in gates:
        return "held by its budget until there is money"
    if gates:
        return f"held by {', '.join(gates)}, which FairGPU did not set"
    if spec.get("schedulerName") != names.SCHEDULER_NAME:
        return f"left to the scheduler {spec.get('schedulerName')}"
    return "waits for a node"


def conditions_of(pod: Json) -> list[tuple[str, str]]:
    """Returns the messages of kube-scheduler and FairGPU about why a pod waits, from the pod's conditions.

    Returns:
        For each of the two that has a message, a pair of `kube-scheduler` or `FairGPU` and the message.
    """
    conditions = {str(one.get("type")): one for one in (pod.get("status") or {}).get("conditions") or []}
    said = (("kube-scheduler", conditions.get("PodScheduled")), ("FairGPU", conditions.get(PLACEABLE)))
    return [(who, str(one["message"])) for who, one in said if one is not None and one.get("message")]


def reclaim_of(pod: Json) -> list[str]:
    """Returns sentences for people about the devices that are freed for a waiting pod; none without an earmark.

    The first names the node where devices are freed, the second the nodes where devices were freed in vain; either may
    be absent.
    """
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.EARMARK)
    try:
        earmark = decode(text) if isinstance(text, str) else None
    except EarmarkError:
        earmark = None
    if earmark is None:
        return []
    said = []
    if earmark.node:
        count = len(earmark.victims)
        goes = "1 pod gets notice and goes" if count == 1 else f"{count} pods get notice and go"
        said.append(f"GPUs of {earmark.node} are kept for it{f': {goes} first' if count else ''}.")
    if earmark.left_out:
        said.append(f"Pods went for it, and it was not placed there, on {', '.join(earmark.left_out)}.")
    return said


def latest_event(pod: Json, events: Iterable[Json]) -> str | None:
    """Returns the message of the latest event at a pod that FairGPU wrote; None if it wrote none.

    Events of FairGPU's kube-scheduler do not count: the pod's conditions have their content already.

    Args:
        events: events of the pod's namespace, as the core API has them.
    """
    uid = (pod.get("metadata") or {}).get("uid")
    ours = [
        event
        for event in events
        if (event.get("involvedObject") or {}).get("uid") == uid
        and _author(event).startswith("fairgpu")
        and event.get("reason") not in _OF_KUBE_SCHEDULER
    ]
    return str(max(ours, key=_time)["message"]) if ours else None


def _author(event: Json) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")


def _time(event: Json) -> str:
    """Returns when an event last happened, as the first 19 characters of RFC 3339, which sort by time."""
    last = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    return str(last)[: len("2026-01-01T00:00:00")]


def reasons_of(cluster: Cluster, pod: Json) -> list[Reason]:
    """Returns the causes that keep a pod from each node that offers GPUs; none if the pod fits on one of them.

    The list is also empty if no node offers GPUs. For a pod that FairGPU cannot place at all, the list has one
    reason, without nodes. kube-scheduler checks the taints, affinity, processor time and memory
    of nodes, which are not among the causes.
    """
    try:
        waiting = read_waiting(pod)
    except PodError as error:
        return [Reason(str(error), "change the pod as it says")]
    state, asked = cluster.state, waiting.request
    rows = np.array(sorted(state.fleet.rows.values()), np.int64)
    # Devices that are kept for this pod or for one of a lower class are free for it.
    with state.without(state.lifted_for(waiting)):
        if not len(rows) or len(state.fitting(waiting, rows)):
            return []
        return [
            Reason(
                explain(shortage, asked),
                REMEDIES[shortage.cause],
                tuple(state.fleet.names[short].tolist()),
                tuple(state.fleet.names[short[state.chooser.in_sum(asked, short)]].tolist()) if shortage.in_sum else (),
            )
            for shortage, short in state.chooser.why(asked, rows)
        ]


def fitting_nodes(cluster: Cluster, pod: Json) -> list[str]:
    """Returns the names, sorted, of the nodes on which a pod's GPUs are free now; none for an invalid pod."""
    try:
        waiting = read_waiting(pod)
    except PodError:
        return []
    state = cluster.state
    rows = np.array(sorted(state.fleet.rows.values()), np.int64)
    with state.without(state.lifted_for(waiting)):
        return sorted(state.fleet.names[state.fitting(waiting, rows)].tolist())
