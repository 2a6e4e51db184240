"""Answers kube-scheduler's call preempt with the pods to evict for a pod, if the admin allows preemption.

kube-scheduler proposes victims by sums over a node, which free no device in particular. If the answer has a node
without a victim, kube-scheduler gives up the whole preemption
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/framework/preemption/preemption.go).
"""

from __future__ import annotations

import numpy as np

from scheduler.cluster.objects import PodError, PodNote, WaitingPod, read_waiting
from scheduler.cluster.state import State
from scheduler.extender.wire import MetaPod, MetaVictims, PreemptArguments, PreemptResult
from scheduler.reclaim.plan import PodToPlace, Spare, Victims, victims_on
from scheduler.reclaim.roster import Roster, Running


def preempt(state: State, roster: Roster, arguments: PreemptArguments, wall: float) -> PreemptResult:
    """Returns the GPU pods of lower priority to evict for a pod, keyed by the name of their node.

    Only nodes of the proposal are considered. A node is left out if no pod needs to be evicted there, or if the
    eviction of all such pods would not suffice. The result is empty if the extender cannot place the pod at all.

    Args:
        roster: the running pods, with the devices that each holds.
        arguments: kube-scheduler's proposal: the pod, and the nodes with their victims.
        wall: the present time, in seconds since 1970.
    """
    try:
        pod = read_waiting(arguments.pod)
    except PodError:
        return PreemptResult()
    proposed = arguments.victims or {}
    with state.lock:
        rows, _ = state.rows_of(list(proposed))
        holders = roster.read(state.fleet, lambda uid: _running(state.note(uid)))
        there = np.isin(holders.row, rows)
        may_go = there.copy()
        may_go[there] = [_yields(state.note(holders.uids[at]), pod) for at in np.flatnonzero(there).tolist()]
        spent = np.maximum(wall - holders.since, 0.0) * holders.core_percent.astype(np.float64)
        victims = Victims(holders, may_go, np.zeros(len(may_go), np.bool_), spent, state.others())
        fleet = state.fleet.copy()
        others = pod.rules.others
        to_place = PodToPlace(pod.uid, pod.request, rows, pod.high_priority, others)
        spare = Spare(state.spare_pods(), state.spare_others({resource for resource, _ in others}))
        victims_by_row = victims_on(fleet, victims, to_place, spare)
        names = {row: str(state.fleet.names[row]) for row in victims_by_row}
    return PreemptResult(
        {
            names[row]: MetaVictims([MetaPod(uid) for uid in uids], proposed[names[row]].violations)
            for row, uids in victims_by_row.items()
        }
    )


def _running(note: PodNote | None) -> Running | None:
    return None if note is None or note.holding is None else Running(note.namespace, note.high_priority, note.since)


def _yields(note: PodNote | None, pod: WaitingPod) -> bool:
    return note is not None and not note.leaving and note.priority < pod.priority
