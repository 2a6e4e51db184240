"""The gangs that pods name: who of them waits, who is placed, and what is held for those that wait."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.cluster.objects import PodNote, WaitingPod
from scheduler.placement.fleet import Ints


class GangKey(NamedTuple):
    """Which gang; pods that name it with another number are of another."""

    namespace: str
    name: str
    pods: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.pods}"


@dataclass(slots=True)
class Hold:
    """Devices that are kept for pods of a gang until all of them are to be bound.

    Attributes:
        until: when they are freed, in monotonic seconds.
        uids: for which pods.
        arrived: those of them that kube-scheduler is about to bind; it goes on once they are all.
        outcome: empty once all have arrived; else why they were let go.
    """

    until: float
    uids: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    outcome: Future[str] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang was not placed, and for what that holds.

    Attributes:
        text: why.
        version: the fleet's.
        rows: the nodes that were asked about.
        uids: the pods that were there.
    """

    text: str
    version: int
    rows: bytes
    uids: frozenset[str]


@dataclass(slots=True)
class Gang:
    """What is known of one gang.

    Attributes:
        waiting: its pods that are not placed, by their uid.
        placed: the uids of those that are bound, or are being bound.
        hold: what is held for those that wait.
        awaited: those for which kube-scheduler did not ask while all were held: the next hold waits for them.
        rows: the nodes that were last asked about for each of its pods.
        refusal: why it was not placed when that was tried last.
    """

    waiting: dict[str, WaitingPod] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    hold: Hold | None = None
    awaited: set[str] = field(default_factory=set)
    rows: dict[str, Ints] = field(default_factory=dict)
    refusal: Refusal | None = None


class GangPods:
    """The gangs that some pod names.

    Attributes:
        version: grows when devices are held for a gang: its pods are to be asked about then.
    """

    def __init__(self) -> None:
        self.version = 0
        self._gangs: dict[GangKey, Gang] = {}
        self._of_pod: dict[str, GangKey] = {}
        self._held: set[GangKey] = set()

    def of(self, key: GangKey) -> Gang:
        """A gang; one that no pod named before is empty."""
        return self._gangs.setdefault(key, Gang())

    def key_of(self, uid: str) -> GangKey | None:
        """The gang of a pod."""
        return self._of_pod.get(uid)

    def held(self) -> Iterable[tuple[GangKey, Gang]]:
        """The gangs for which devices are held."""
        return [(key, self._gangs[key]) for key in self._held]

    def begin_hold(self, key: GangKey, until: float) -> Hold:
        """The hold of a gang; one until that instant where it has none."""
        gang = self.of(key)
        if gang.hold is None:
            gang.hold = Hold(until)
            self._held.add(key)
        return gang.hold

    def end_hold(self, key: GangKey) -> None:
        """Takes the hold from a gang."""
        self.of(key).hold = None
        self._held.discard(key)

    def put(self, note: PodNote) -> None:
        """Takes what the API server has of a pod."""
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
        """Notes a pod that waits, whatever was known of it; its gang, or None where it names none."""
        if pod.gang is None:
            return None
        gang = self._join(pod.uid, GangKey(pod.namespace, *pod.gang))
        gang.placed.discard(pod.uid)
        gang.waiting[pod.uid] = pod
        return gang

    def remove(self, uid: str) -> None:
        """Forgets a pod that is gone or has ended."""
        key = self._of_pod.pop(uid, None)
        if key is None:
            return
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

    def _join(self, uid: str, key: GangKey) -> Gang:
        self._of_pod[uid] = key
        return self.of(key)
