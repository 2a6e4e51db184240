"""Decides whether this extender may act, by kube-scheduler's leader Lease and by its own watch of pods.

The Lease must name this extender's pod, and the watch must have shown all Bindings of earlier leaders. The
kube-scheduler in the same pod elects its leader by that Lease. This replica times the renewals of the Lease by its
own clock, as it observes them: no clock of another machine decides
(https://kubernetes.io/docs/concepts/architecture/leases/).

When this replica begins to lead, Bindings of another replica may still be on their way through the watch of pods. So it
first writes a mark, a random text, on its own pod. The watch shows changes of pods in order: once it shows the mark, it
has shown all earlier Bindings.

The replica that led before, or an earlier process of this pod, may send Bindings until its Lease would have run out.
This replica may have the Lease sooner: a kube-scheduler that ends gives up the Lease, and if only the extender of this
pod was killed, the pod's kube-scheduler keeps the Lease. So this replica writes the mark only after the time at which
the earlier Lease would have run out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import structlog

from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError, KubernetesAPI
from fairgpu.keeping import Wait

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
CONDITION = "fairgpu.io/Leads"


class Acting:
    """Decides by kube-scheduler's leader Lease and the watch of pods whether this replica may answer kube-scheduler.

    A replica that begins to lead writes a random text, its mark, into a condition of its own pod. Once its watch of
    pods shows the mark, the watch has shown every earlier change of a pod, and the replica may answer.

    Attributes:
        pod_name: the name of this replica's pod.
    """

    def __init__(self, pod_name: str) -> None:
        self.pod_name = pod_name
        self._renewal: tuple[str, str] | None = None
        self._looked = 0.0
        # The last time at which another process may have had the Lease: its renewal for another pod, or our first look.
        self._others = float("-inf")
        self._until = self._settled = float("-inf")
        self._mark = ""
        self._shown = ""

    def see(self, spec: dict[str, Any], now: float) -> None:
        """Stores kube-scheduler's leader Lease as it was just read, for later calls of `acts` and `wanted_mark`.

        Args:
            spec: the Lease's `spec`.
            now: the time right before the read, in seconds of a monotonic clock.
        """
        self.acts(now)
        holder, duration = str(spec.get("holderIdentity") or ""), float(spec.get("leaseDurationSeconds") or 0)
        renewal = (holder, str(spec.get("renewTime")))
        ours = _pod_of(holder) == self.pod_name
        if self._renewal is None or (renewal != self._renewal and not ours):
            self._others = now
        elif ours and now < self._others + duration and _pod_of(self._renewal[0]) not in {"", self.pod_name}:
            # The Lease came to this pod before it ran out: its holder gave it up, perhaps after a renewal unseen here.
            self._others = now
        if not ours:
            self._until = float("-inf")
        elif self._renewal is not None and renewal != self._renewal:
            # It was renewed at some time since the last look; the earliest such time, the last look, counts.
            self._until = self._looked + duration
            self._settled = self._others + duration
        self._renewal, self._looked = renewal, now

    def wanted_mark(self, now: float) -> str:
        """Returns the mark, a random text, to write on this replica's pod now; empty if none is to be written.

        No mark is to be written if the replica may act already, while the Lease names another pod or has run out, and
        while the replica that led before may still send Bindings.

        Args:
            now: the present time, in seconds of a monotonic clock.
        """
        if self.acts(now) or not self._settled <= now < self._until:
            return ""
        self._mark = self._mark or secrets.token_hex(8)
        return self._mark

    def show(self, mark: str) -> None:
        """Stores the mark that the watch of pods has shown on this replica's own pod."""
        self._shown = mark

    def acts(self, now: float, seconds: float = 0.0) -> bool:
        """Returns True if this replica may answer kube-scheduler at a time, and from then on for some seconds.

        It returns False otherwise. Once the Lease has run out or names another pod, this replica needs a new mark
        before it may answer again.

        Args:
            now: the time, in seconds of a monotonic clock.
            seconds: the seconds after that time for which the Lease must last.
        """
        if now >= self._until:
            self._mark = ""
        return bool(self._mark) and self._mark == self._shown and now + seconds < self._until


def _pod_of(holder: str) -> str:
    """Returns the name of the pod whose kube-scheduler holds the Lease: the part of `holder` before `_` and a uuid."""
    return holder.rpartition("_")[0]


def follow_lease(
    api: KubernetesAPI,
    namespace: str,
    name: str,
    acting: Acting,
    clock: Callable[[], float],
    wait: Wait,
) -> None:
    """Reads kube-scheduler's leader Lease every LOOK_SECONDS until the process ends, and marks this replica's pod.

    Errors of the API server are logged, and the Lease is read again.

    Args:
        namespace, name: the Lease's namespace and name.
        acting: takes the Lease as it is read, and gives the mark to write.
        clock: returns seconds of a monotonic clock that counts the time in which the machine is suspended.
    """
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    pod = f"/api/v1/namespaces/{namespace}/pods/{acting.pod_name}/status"
    while not wait(LOOK_SECONDS):
        asked = clock()
        try:
            acting.see(api.get(path).get("spec") or {}, asked)
            mark = acting.wanted_mark(clock())
            if mark:
                condition = {"type": CONDITION, "status": "True", "reason": "Leads", "message": mark}
                api.patch(pod, {"status": {"conditions": [condition]}}, STRATEGIC_MERGE_PATCH)
        except ApiError as error:
            _log.warning("lease cannot be followed", lease=f"{namespace}/{name}", error=str(error))


def mark_of(pod: dict[str, Any]) -> str:
    """Returns the mark that a replica wrote on its own pod (see `Acting`); empty for a pod without a mark.

    The mark is the message of the pod's condition `fairgpu.io/Leads`.
    """
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((str(one.get("message")) for one in conditions if one.get("type") == CONDITION), "")
