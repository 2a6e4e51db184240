"""Finds waiting pods that would have no place even if all other pods ended.

A pod of a spent budget waits until the pods within budget are placed. It does not wait for a pod without such a place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.cluster.eligible import Rules
from scheduler.cluster.objects import WaitingPod
from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Fleet, Ints
from scheduler.placement.request import Request
from scheduler.placement.together import Part, place_together

MAX_KNOWN = 20_000
"""The most pods whose prospects are remembered."""


class Prospects:
    """Says whether pods would have a place if all other pods ended. The answers are kept while the nodes stay the same.

    Devices, processor time, memory and the pods' rules (`Rules`) count. Other pods and volumes, which may also decide
    on a pod's node, do not.
    """

    def __init__(self, fleet: Fleet, allowed: Callable[[Rules], Ints]) -> None:
        """Stores the nodes, and the function that finds the nodes that meet a pod's rules, as indexes in the fleet."""
        self._fleet = fleet
        self._allowed = allowed
        self._versions = (-1, -1)
        self._empty = Fleet()
        self._of_pods: dict[str, tuple[Sequence[WaitingPod], bool]] = {}
        self._of_kinds: dict[tuple[tuple[Request, str], ...], bool] = {}

    def have_a_place(self, pods: Sequence[WaitingPod], offers: int, sites: int) -> bool:
        """Returns whether some pods, which are placed together, would have a place if all other pods ended.

        It also returns True if the search for devices of several containers reached its limit, so that no answer is
        known. If only the search for nodes of several pods reached its limit, it returns False.

        Args:
            pods: one pod, or the pods of a gang.
            offers: a number that grows when the devices of nodes change.
            sites: a number that grows when other properties of nodes change.
        """
        if self._versions != (offers, sites) or len(self._of_pods) >= MAX_KNOWN:
            if self._versions[0] != offers:
                self._empty = self._fleet.copy()
                self._empty.release_all()
            self._versions, self._of_pods, self._of_kinds = (offers, sites), {}, {}
        known = self._of_pods.get(pods[0].uid)
        if known is None or known[0] != pods:
            # Thousands of pods may ask for the same.
            kinds = tuple((pod.request, repr(pod.rules)) for pod in pods)
            if kinds not in self._of_kinds:
                self._of_kinds[kinds] = self._fit(pods)
            known = self._of_pods[pods[0].uid] = pods, self._of_kinds[kinds]
        return known[1]

    def _fit(self, pods: Sequence[WaitingPod]) -> bool:
        chooser = Chooser(self._empty)
        places, _ = place_together(chooser, [Part(pod.uid, pod.request, self._allowed(pod.rules)) for pod in pods])
        # A search that was cut says nothing.
        return bool(places) or chooser.cut > 0
