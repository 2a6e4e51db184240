"""The gangs that pods name: their waiting pods, their placed pods, and the devices held for them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.cluster.objects import PodNote, WaitingPod
from scheduler.measures import HOLDS
from scheduler.placement.fleet import Ints


class GangKey(NamedTuple):
    """The identity of a gang: its name and its number of pods. Pods that give another number belong to another gang."""

    namespace: str
    name: str
    pods: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.pods}"


@dataclass(slots=True)
class Hold:
    """Devices that are held for pods of a gang until all of them are about to be bound.

    Attributes:
        until: the instant at which they are freed, in monotonic seconds.
        uids: the pods for which they are held.
        arrived: the pods among these that kube-scheduler is about to bind; their binds continue once all have arrived.
        outcome: empty once all have arrived; else the reason why the devices were freed.
    """

    until: float
    uids: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    outcome: Future[str] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """The reason why a gang was not placed, and the state for which that holds.

    Attributes:
        text: the reason.
        version: the fleet's version.
        rows: the nodes in question.
        uids: the pods of the gang.
    """

    text: str
    version: int
    rows: bytes
    uids: frozenset[str]


@dataclass(slots=True)
class Gang:
    """The waiting and the placed pods of one gang, and the devices held for it.

    Attributes:
        waiting: its pods that are not placed, by their uid.
        placed: the uids of those that are bound, or are being bound.
        hold: the devices held for the pods that wait.
        awaited: the pods that kube-scheduler did not ask about during the last hold; the next hold waits for them.
        rows: the nodes that kube-scheduler last named for each of its pods.
        refusal: the reason why the last attempt to place it failed.
        forecast: the reason why an attempt would have failed when it was last computed; its text is empty for none.
    """

    waiting: dict[str, WaitingPod] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    hold: Hold | None = None
    awaited: set[str] = field(default_factory=set)
    rows: dict[str, Ints] = field(default_factory=dict)
    refusal: GangRefusal | None = None
    forecast: GangRefusal | None = None


class GangPods:
    """The gangs that pods name.

    Attributes:
        version: grows when devices are held for a gang, whose pods kube-scheduler must then ask about.
        membership: grows when a pod joins a gang or leaves it.
        outcomes: the number of holds that ended, by outcome: `placed` with the whole gang, `released` without.
    """

    def __init__(self) -> None:
        self.version = 0
        self.membership = 0
        self.outcomes = dict.fromkeys(HOLDS, 0)
        self._gangs: dict[GangKey, Gang] = {}
        self._of_pod: dict[str, GangKey] = {}
        self._held: set[GangKey] = set()

    def of(self, key: GangKey) -> Gang:
        """Returns a gang; one that no pod has named is empty."""
        return self._gangs.setdefault(key, Gang())

    def key_of(self, uid: str) -> GangKey | None:
        """Returns the gang of a pod; None where it has none."""
        return self._of_pod.get(uid)

    def count(self) -> dict[str, int]:
        """Returns the number of gangs without held devices, and the number of gangs with them."""
        waiting = sum(bool(gang.waiting) and gang.hold is None for gang in self._gangs.values())
        return {"waiting": waiting, "held": len(self._held)}

    def held(self) -> Iterable[tuple[GangKey, Gang]]:
        """Returns the gangs for which devices are held."""
        return [(key, self._gangs[key]) for key in self._held]

    def begin_hold(self, key: GangKey, until: float) -> Hold:
        """Returns the hold of a gang; begins one until that instant where there is none."""
        gang = self.of(key)
        if gang.hold is None:
            gang.hold = Hold(until)
            self._held.add(key)
        return gang.hold

    def end_hold(self, key: GangKey) -> None:
        """Ends the hold of a gang."""
        self.of(key).hold = None
        self._held.discard(key)

    def put(self, note: PodNote) -> None:
        """Stores a pod's facts."""
        if note.gang is None:
            return
        if note.holding is not None and not note.holding.pieces:
            # It was bound by somebody else, or has no GPU.
            self.remove(note.uid)
        elif note.holding is not None:
            gang = self._join(note.uid, GangKey(note.namespace, *note.gang))
            gang.waiting.pop(note.uid, None)
            gang.placed.add(note.uid)
        elif note.member is not None and note.uid not in self._of_pod:
            self.wait(note.member)

    def wait(self, pod: WaitingPod) -> Gang | None:
        """Notes a pod as waiting; returns its gang, or None where it names none."""
        if pod.gang is None:
            return None
        gang = self._join(pod.uid, GangKey(pod.namespace, *pod.gang))
        gang.placed.discard(pod.uid)
        gang.waiting[pod.uid] = pod
        return gang

    def remove(self, uid: str) -> None:
        """Removes a pod that was deleted or has ended."""
        key = self._of_pod.pop(uid, None)
        if key is None:
            return
        self.membership += 1
        gang = self._gangs[key]
        gang.waiting.pop(uid, None)
        gang.placed.discard(uid)
        gang.awaited.discard(uid)
        gang.rows.pop(uid, None)
        if gang.hold is not None:
            gang.hold.uids.discard(uid)
            gang.hold.arrived.discard(uid)
        if not gang.waiting and not gang.placed and gang.hold is None:
            del self._gangs[key]

    def is_complete(self, pod: WaitingPod) -> bool:
        """Whether all pods of a pod's gang are there; true of a pod without a gang."""
        if pod.gang is None:
            return True
        gang = self._gangs.get(GangKey(pod.namespace, *pod.gang), Gang())
        return len(gang.placed) + len(gang.waiting) >= pod.gang.pods

    def _join(self, uid: str, key: GangKey) -> Gang:
        self.membership += self._of_pod.get(uid) != key
        self._of_pod[uid] = key
        return self.of(key)
