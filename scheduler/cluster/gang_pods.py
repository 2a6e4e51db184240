"""The gangs that pods name: their waiting pods, their placed pods, and the devices held for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.cluster.objects import PodNote, WaitingPod
from scheduler.measures import HOLDS
from scheduler.placement.fleet import NodeSet


class GangKey(NamedTuple):
    """The identity of a gang: its namespace, its name, and the number of its pods.

    Pods that name the same gang with another number of pods belong to another gang.
    """

    namespace: str
    name: str
    pods: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.pods}"


@dataclass(slots=True)
class Hold:
    """The devices that are held for pods of a gang until kube-scheduler has called `bind` for all of them.

    Attributes:
        until: when the devices are freed if not all pods have arrived, in monotonic seconds.
        uids: the uids of the pods for which devices are held.
        arrived: the uids of those pods among them for which kube-scheduler has called `bind`. These binds continue
            once kube-scheduler has called `bind` for all of `uids`.
        outcome: completes when the hold ends: with an empty text once all pods have arrived, else with the reason why
            the devices were freed.
    """

    until: float
    uids: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    outcome: Future[str] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """The answer whether a gang can be placed, and the state of the cluster for which this answer holds.

    It comes from an attempt to place the gang, or from a forecast: an attempt that reserves no devices.

    Attributes:
        text: the reason why the gang cannot be placed; empty if it can.
        versions: the contents of the fleet (`Fleet.contents`), and the version of the nodes' other properties
            (`State.sites`).
        rows: the indexes of the nodes that were tried, as the bytes of an array.
        uids: the uids of the gang's waiting pods.
    """

    text: str
    versions: tuple[int, int]
    rows: bytes
    uids: frozenset[str]


@dataclass(slots=True)
class Gang:
    """The waiting and the placed pods of one gang, and the devices held for it.

    Attributes:
        waiting: the gang's pods that are not placed, keyed by their uid.
        placed: the uids of the gang's pods that are bound, or are being bound.
        done: the uids of the gang's pods that have ended with success, and are not deleted.
        hold: the devices held for the waiting pods; None if none are held.
        awaited: the uids of the pods for which kube-scheduler made no bind call during the last hold. Before the next
            hold, kube-scheduler must ask about each of them.
        nodes: for each pod's uid, the nodes that kube-scheduler last named for the pod.
        refusal: the reason of the last failed attempt to place the gang. None before one has failed, once
            kube-scheduler names other nodes for a pod of the gang, and once the last waiting pod is seen as bound.
        forecast: the last computed reason why an attempt would fail, with an empty text if it would not. None before
            the first computation, and once the last waiting pod is seen as bound.
    """

    waiting: dict[str, WaitingPod] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    hold: Hold | None = None
    awaited: set[str] = field(default_factory=set)
    nodes: dict[str, NodeSet] = field(default_factory=dict)
    refusal: GangRefusal | None = None
    forecast: GangRefusal | None = None

    def size(self, key: GangKey) -> int:
        """Returns how many pods of the gang must be placed at once: all that its key counts, less those that are done.

        So a pod that replaces another one does not wait for pods that have done their work. If no pod of the gang is
        placed, no pod counts as done: such pods belong to an earlier gang of that name.

        Args:
            key: the gang's key.
        """
        return key.pods - len(self.done) if self.placed else key.pods


class GangPods:
    """The gangs that pods name in their annotations, with their pods.

    Attributes:
        version: a number that grows when devices are held for a gang, so that its pods come back to kube-scheduler's
            queue.
        membership: a number that grows when a pod joins a gang or leaves it.
        forecasts: a version of the fleet and of the nodes' other properties, and how many pods of a gang fitted at once
            then, keyed by what they request and where they may run.
        outcomes: how many holds of devices have ended, keyed by outcome: `placed` with the whole gang, `released`
            without it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.membership = 0
        self.forecasts: tuple[tuple[int, int], dict[Hashable, int]] = (-1, -1), {}
        self.outcomes = dict.fromkeys(HOLDS, 0)
        self._gangs: dict[GangKey, Gang] = {}
        self._of_pod: dict[str, GangKey] = {}
        self._held: set[GangKey] = set()

    def of(self, key: GangKey) -> Gang:
        """Returns the gang with this key; creates an empty one if no pod has named it."""
        return self._gangs.setdefault(key, Gang())

    def key_of(self, uid: str) -> GangKey | None:
        """Returns the key of the gang to which the pod with this uid belongs; None if the pod is in no gang."""
        return self._of_pod.get(uid)

    def uids(self) -> set[str]:
        """Returns the uids of all pods that belong to a gang."""
        return set(self._of_pod)

    def count(self) -> dict[str, int]:
        """Returns the number of gangs that are not placed, for metrics: `waiting` without held devices, `held` with."""
        waiting = sum(bool(gang.waiting) and gang.hold is None for gang in self._gangs.values())
        return {"waiting": waiting, "held": len(self._held)}

    def held(self) -> Iterable[tuple[GangKey, Gang]]:
        """Returns a pair of key and gang for each gang for which devices are held."""
        return [(key, self._gangs[key]) for key in self._held]

    def begin_hold(self, key: GangKey, until: float) -> Hold:
        """Returns the present hold of a gang's devices; begins one if there is none.

        Args:
            until: when a new hold ends at the latest, in monotonic seconds.
        """
        gang = self.of(key)
        if gang.hold is None:
            gang.hold = Hold(until)
            self._held.add(key)
        return gang.hold

    def end_hold(self, key: GangKey) -> None:
        """Removes the present hold of a gang's devices, if there is one.

        The caller frees the devices and completes `Hold.outcome`.
        """
        self.of(key).hold = None
        self._held.discard(key)
        self._drop_if_empty(key)

    def put(self, note: PodNote) -> None:
        """Adds a pod to its gang, as placed or waiting, from the facts about the pod.

        Three kinds of pods are ignored: pods without a gang, waiting pods that kube-scheduler must not place, and
        waiting pods that are in their gang already. A pod that is bound without devices is removed from its gang.
        """
        if note.gang is None:
            return
        if note.holding is not None and not note.holding.pieces:
            # It was bound by somebody else, or has no GPU.
            self.remove(note.uid)
        elif note.holding is not None:
            gang = self._join(note.uid, GangKey(note.namespace, *note.gang))
            gang.waiting.pop(note.uid, None)
            gang.placed.add(note.uid)
            gang.nodes.pop(note.uid, None)
            if not gang.waiting:
                gang.refusal = gang.forecast = None
        elif note.member is not None and note.uid not in self._of_pod:
            self.wait(note.member)

    def finish(self, note: PodNote) -> None:
        """Adds a pod that has ended with success to its gang, as done; a pod without a gang is ignored."""
        if note.gang is not None:
            self._join(note.uid, GangKey(note.namespace, *note.gang)).done.add(note.uid)

    def wait(self, pod: WaitingPod) -> Gang | None:
        """Adds a pod to its gang as waiting, even if it was placed; returns the gang, None for a pod without one."""
        if pod.gang is None:
            return None
        gang = self._join(pod.uid, GangKey(pod.namespace, *pod.gang))
        gang.placed.discard(pod.uid)
        gang.waiting[pod.uid] = pod
        return gang

    def remove(self, uid: str) -> None:
        """Removes the pod with this uid from its gang and the gang's hold, if it is in one."""
        key = self._of_pod.pop(uid, None)
        if key is None:
            return
        self.membership += 1
        gang = self._gangs[key]
        gang.waiting.pop(uid, None)
        gang.placed.discard(uid)
        gang.done.discard(uid)
        gang.awaited.discard(uid)
        gang.nodes.pop(uid, None)
        if gang.hold is not None:
            gang.hold.uids.discard(uid)
            gang.hold.arrived.discard(uid)
        self._drop_if_empty(key)

    def together_with(self, pod: WaitingPod) -> list[WaitingPod]:
        """Returns the waiting pods that must be placed together, if the given one waits: the oldest of its gang.

        They are as many as the gang still needs; the given pod is not among them if it is younger. The answer is the
        given pod alone if it has no gang, or its gang needs no more pods. The answer is empty if fewer pods of the gang
        wait than the gang needs.
        """
        if pod.gang is None:
            return [pod]
        key = GangKey(pod.namespace, *pod.gang)
        gang = self._gangs.get(key, Gang())
        lacking = gang.size(key) - len(gang.placed)
        if lacking <= 0:
            return [pod]
        there = sorted(gang.waiting.values(), key=lambda one: (one.created, one.uid))
        return there[:lacking] if lacking <= len(there) else []

    def _drop_if_empty(self, key: GangKey) -> None:
        gang = self._gangs[key]
        if not (gang.waiting or gang.placed or gang.done) and gang.hold is None:
            del self._gangs[key]

    def _join(self, uid: str, key: GangKey) -> Gang:
        self.membership += self._of_pod.get(uid) != key
        self._of_pod[uid] = key
        return self.of(key)
