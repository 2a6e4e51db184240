"""The pods that wait for a node, and the reasons that their conditions show.

kube-scheduler asks again about a pod that fitted nowhere when something changes that its own plugins know of, and else
after five minutes. A change of a pod's own condition brings it back at once, and shows its user why it waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler.cluster.objects import WaitingPod

FITS = "a node has room for it"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting pod, and the text of its condition.

    Attributes:
        pod: the pod as it waits.
        text: what its condition says; empty where it has none of ours.
        answer: the text of its last refusal; empty where this replica has not refused it.
        fragmented: whether only fragmentation was in the way on some node when it was refused last.
        kept_from: the nodes that had room for it when it was refused last, and about which kube-scheduler did not ask.
    """

    pod: WaitingPod
    text: str = ""
    answer: str = ""
    fragmented: bool = False
    kept_from: frozenset[str] = frozenset()


class WaitingPods:
    """The pods that were refused, by the extender or by kube-scheduler before it, since they were last placed.

    Attributes:
        version: grows with each pod that comes or goes.
    """

    def __init__(self) -> None:
        self.version = 0
        self._pods: dict[str, Waiting] = {}
        self._refused: set[str] = set()

    def add(self, pod: WaitingPod, text: str = "") -> None:
        """Notes a pod that waits, and the text of its condition if no later text is known."""
        known = self._pods.get(pod.uid)
        if known is None:
            self.version += 1
        self._pods[pod.uid] = Waiting(pod, text) if known is None else replace(known, pod=pod)

    def refuse(
        self, pod: WaitingPod, answer: str, *, fragmented: bool = False, kept_from: frozenset[str] = frozenset()
    ) -> None:
        """Notes a pod that was refused; when it fits again, its condition is written again."""
        self.add(pod)
        self._pods[pod.uid] = replace(self._pods[pod.uid], answer=answer, fragmented=fragmented, kept_from=kept_from)
        self._refused.add(pod.uid)
        if self._pods[pod.uid].text == FITS:
            self.set_text(pod.uid, "")

    def remove(self, uid: str) -> None:
        """Removes a pod that was placed or deleted."""
        if self._pods.pop(uid, None) is not None:
            self.version += 1

    def take_refused(self) -> set[str]:
        """Returns the uids of the pods that were refused since the last call."""
        refused, self._refused = self._refused, set()
        return refused

    def set_text(self, uid: str, text: str) -> None:
        """Notes the text that was written into a pod's condition."""
        if uid in self._pods:
            self._pods[uid] = replace(self._pods[uid], text=text)

    @property
    def count(self) -> int:
        """Returns the number of waiting pods."""
        return len(self._pods)

    @property
    def fragmented(self) -> int:
        """Returns the number of pods for which only fragmentation was in the way on some node."""
        return sum(one.fragmented for one in self._pods.values())

    def all(self) -> Iterator[WaitingPod]:
        """Returns all waiting pods."""
        return (one.pod for one in self._pods.values())

    def in_order(self) -> list[Waiting]:
        """Returns all waiting pods: the highest class first, then by creation."""
        return sorted(self._pods.values(), key=lambda one: (-one.pod.priority, one.pod.created, one.pod.uid))
