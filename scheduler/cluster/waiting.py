"""The pods that wait for a node, and what they were told of it.

kube-scheduler asks again about a pod that fitted nowhere when something changes that its own plugins know of, and else
after five minutes. A change of a pod's own condition brings it back at once, and shows its user why it waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler.cluster.objects import WaitingPod

CONDITION = "fairgpu.io/Placeable"
FITS = "a node has room for it"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits.

    Attributes:
        pod: which.
        told: what its condition says; empty where it has none of ours.
    """

    pod: WaitingPod
    told: str = ""


class WaitingPods:
    """Those that were answered no, by the extender or by kube-scheduler before it asked, since they were last placed.

    Attributes:
        version: grows with each pod that comes or goes.
    """

    def __init__(self) -> None:
        self.version = 0
        self._pods: dict[str, Waiting] = {}

    def add(self, pod: WaitingPod) -> None:
        """Notes a pod that waits; what it was told stays."""
        known = self._pods.get(pod.uid)
        if known is None:
            self.version += 1
        self._pods[pod.uid] = Waiting(pod, known.told if known is not None else "")

    def refuse(self, pod: WaitingPod) -> None:
        """Notes a pod that was answered no; that it fits is told again when it does."""
        self.add(pod)
        if self._pods[pod.uid].told == FITS:
            self.tell(pod.uid, "")

    def remove(self, uid: str) -> None:
        """Forgets a pod that was placed, or is gone."""
        if self._pods.pop(uid, None) is not None:
            self.version += 1

    def tell(self, uid: str, told: str) -> None:
        """Notes what a pod was told."""
        if uid in self._pods:
            self._pods[uid] = replace(self._pods[uid], told=told)

    def all(self) -> Iterator[WaitingPod]:
        """All of them."""
        return (one.pod for one in self._pods.values())

    def in_order(self) -> list[Waiting]:
        """All of them: the highest class first, then by their creation."""
        return sorted(self._pods.values(), key=lambda one: (-one.pod.priority, one.pod.created, one.pod.uid))
