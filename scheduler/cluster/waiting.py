"""The pods that wait for a node, and the reasons that their conditions show.

kube-scheduler asks again about a pod that fitted nowhere when one of kube-scheduler's plugins sees a relevant change,
or after five minutes. A change of the pod's condition makes kube-scheduler ask at once, and shows the pod's user why
the pod waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scheduler.cluster.objects import WaitingPod
from scheduler.placement.fleet import NodeSet

FITS = "a node has room for it"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting pod, with the texts that say why it waits.

    Attributes:
        pod: the pod, with its request.
        text: the message of its condition fairgpu.io/Placeable; empty if it has none.
        answer: the reason that the extender last gave to kube-scheduler; empty if this replica has not refused the pod.
        fragmented: whether, at the last refusal, some node had enough free in sum, but in parts on several GPUs.
        kept_from: the nodes that had room at the last refusal, though kube-scheduler did not ask about them; None for
            none.
        outdated: whether the condition says that the pod fits, and the extender has refused it since.
        shows_fit: whether the condition still says that the pod fits, from before a node was last found for the pod.
            `text` is then empty, so that the condition is written again once the pod fits again.
    """

    pod: WaitingPod
    text: str = ""
    answer: str = ""
    fragmented: bool = False
    kept_from: NodeSet | None = None
    outdated: bool = False
    shows_fit: bool = False


class WaitingPods:
    """The pods that wait for a node, since the extender or kube-scheduler has found none for them.

    Attributes:
        version: a number that grows with each pod that comes or goes, or begins or ceases to wait for devices.
    """

    def __init__(self) -> None:
        self.version = 0
        self._pods: dict[str, Waiting] = {}
        # Kept in order: with 20,000 waiting pods, to sort them takes 40 ms, in which no pod is placed.
        self._order: list[tuple[int, str, str, str]] = []
        self._refused: set[str] = set()
        self._outdated: set[str] = set()

    def add(self, pod: WaitingPod, text: str = "") -> None:
        """Adds a waiting pod, or replaces its request.

        Args:
            text: the message of its condition fairgpu.io/Placeable; empty if it has none or is not known. For a pod
                that waits already, the message that is stored here is kept.
        """
        known = self._pods.get(pod.uid)
        if known is None:
            self.version += 1
            self._pods[pod.uid] = Waiting(pod, text)
            insort(self._order, _place(pod))
        else:
            if _place(known.pod) != _place(pod):
                self._drop_place(known.pod)
                insort(self._order, _place(pod))
            self.version += known.pod.waits_for_others != pod.waits_for_others
            shows_fit = known.shows_fit or (text == FITS and not known.text)
            self._pods[pod.uid] = replace(known, pod=pod, shows_fit=shows_fit)

    def take_back(self, pod: WaitingPod, text: str) -> None:
        """Adds a pod that waits again, since it was not bound to the node that was found for it.

        Args:
            text: the message of its condition fairgpu.io/Placeable. A message that says that the pod fits counts as
                none, so that it is written again once the pod fits again.
        """
        self.add(pod, text)
        one = self._pods[pod.uid]
        if one.text == FITS:
            self._pods[pod.uid] = replace(one, text="", shows_fit=True)

    def refuse(
        self, pod: WaitingPod, answer: str, *, fragmented: bool = False, kept_from: NodeSet | None = None
    ) -> None:
        """Stores that the extender has just refused a pod. When the pod fits later, its condition is written.

        Args:
            answer: the reason that kube-scheduler was given.
            fragmented: whether some node has enough free in sum, but in parts on several GPUs.
            kept_from: the nodes that have room, though kube-scheduler did not ask about them; None for none.
        """
        self.add(pod)
        one = self._pods[pod.uid]
        outdated = one.text == FITS or one.shows_fit
        self.version += not one.answer and pod.waits_for_others
        self._pods[pod.uid] = replace(one, answer=answer, fragmented=fragmented, kept_from=kept_from, outdated=outdated)
        self._refused.add(pod.uid)
        if outdated:
            self._outdated.add(pod.uid)

    def remove(self, uid: str) -> None:
        """Removes the pod with this uid, which was placed or deleted."""
        one = self._pods.pop(uid, None)
        if one is not None:
            self.version += 1
            self._drop_place(one.pod)

    def take_refused(self) -> set[str]:
        """Returns the uids of the pods that the extender has refused since the last call of this method.

        The extender perhaps refused them before it saw the end of another pod. So the caller computes their reasons
        again once it sees an end.
        """
        refused, self._refused = self._refused, set()
        return refused

    def take_outdated(self) -> set[str]:
        """Returns the uids of the pods whose condition has become outdated since the last call of this method."""
        outdated, self._outdated = self._outdated, set()
        return outdated

    def shown_to_fit(self) -> set[str]:
        """Returns the uids of the pods whose condition says that they fit."""
        return {uid for uid, one in self._pods.items() if one.text == FITS or one.shows_fit}

    def set_text(self, uid: str, text: str) -> None:
        """Stores the message that is being written into the condition fairgpu.io/Placeable of the pod with this uid."""
        if uid in self._pods:
            self._pods[uid] = replace(self._pods[uid], text=text, outdated=False, shows_fit=False)

    def not_written(self, before: Waiting, text: str) -> None:
        """Restores the earlier message of a pod's condition, since the new one could not be written.

        Nothing changes if the pod waits no more, if another message was stored since, or if a refusal has made this
        message outdated.

        Args:
            before: the pod as it was before `set_text`.
            text: the message that could not be written.
        """
        now = self._pods.get(before.pod.uid)
        if now is not None and now.text == text and not now.outdated:
            self._pods[now.pod.uid] = replace(
                now, text=before.text, outdated=before.outdated, shows_fit=before.shows_fit
            )

    @property
    def count(self) -> int:
        """The number of waiting pods."""
        return len(self._pods)

    @property
    def fragmented(self) -> int:
        """The number of waiting pods for which some node has enough free in sum, but in parts on several GPUs."""
        return sum(one.fragmented for one in self._pods.values())

    def get(self, uid: str) -> Waiting | None:
        """Returns the waiting pod with this uid; None for a pod that does not wait."""
        return self._pods.get(uid)

    def uids(self) -> set[str]:
        """Returns the uids of all waiting pods."""
        return set(self._pods)

    def all(self) -> Iterator[WaitingPod]:
        """Returns all waiting pods with their requests, in no particular order."""
        return (one.pod for one in self._pods.values())

    def in_order(self) -> list[Waiting]:
        """Returns all waiting pods with the reasons why they wait: the highest priority first, then the oldest."""
        return [self._pods[uid] for _, _, uid, _ in self._order]

    def lowest_first(self, counts: Callable[[str], bool]) -> Iterator[WaitingPod]:
        """Yields the pods of some namespaces that wait for devices, with their requests, the lowest priority first.

        A pod that waits for a volume, a resource claim or other pods alone, and that the extender has not refused, does
        not wait for devices.

        Args:
            counts: returns whether the pods of a namespace are wanted.
        """
        known: dict[str, bool] = {}
        for _, _, uid, namespace in reversed(self._order):
            if namespace not in known:
                known[namespace] = counts(namespace)
            one = self._pods[uid]
            if known[namespace] and (one.answer or not one.pod.waits_for_others):
                yield one.pod

    def _drop_place(self, pod: WaitingPod) -> None:
        del self._order[bisect_left(self._order, _place(pod))]


def _place(pod: WaitingPod) -> tuple[int, str, str, str]:
    """Returns the values by which waiting pods are sorted: the highest priority first, then the oldest."""
    return -pod.priority, pod.created, pod.uid, pod.namespace
