"""Kueue's LocalQueues: they name the ClusterQueue of a pod that names its queue alone.

From 0.17 on Kueue writes the ClusterQueue on the pods that it admits. Before, a pod has at most the name of its
LocalQueue. The queues change no charge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from fairgpu.cluster.api import ApiError, Json
from fairgpu.json_values import mapping
from timekeeper.sources.base import name_of, namespace_of

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
"""The label by which its author gives a pod to a LocalQueue of its namespace."""
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"
"""The label that says by which ClusterQueue a pod was admitted."""

_log = structlog.get_logger()


def read_local_queue(item: Json) -> Json:
    """Returns only the fields of a LocalQueue of Kueue that are used: its namespace, its name and its ClusterQueue."""
    metadata = {"namespace": namespace_of(item), "name": name_of(item)}
    return {"metadata": metadata, "spec": {"clusterQueue": mapping(item.get("spec")).get("clusterQueue")}}


def with_cluster_queue(pod: Json, cluster_queue: Callable[[str, str], str]) -> Json:
    """Returns a pod with the label of its ClusterQueue, where it has the label of its LocalQueue alone.

    Args:
        pod: the pod as the API server has it; it stays unchanged.
        cluster_queue: returns the ClusterQueue of a LocalQueue by namespace and name; empty where it is not known.
    """
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    queue = labels.get(QUEUE_NAME)
    if not isinstance(queue, str) or CLUSTER_QUEUE in labels:
        return pod
    found = cluster_queue(namespace_of(pod), queue)
    return {**pod, "metadata": {**metadata, "labels": {**labels, CLUSTER_QUEUE: found}}} if found else pod


class LocalQueues:
    """Kueue's LocalQueues of a cluster as last seen. One thread writes them, and any other thread reads them."""

    def __init__(self, now: Callable[[], int]) -> None:
        """Makes an empty view; `now` is a clock, in nanoseconds since 1970."""
        self._now = now
        self._lock = threading.Lock()
        """Guards the two fields below."""
        self._cluster_queues: dict[tuple[str, str], str] = {}
        self._confirmed_at: int | None = None
        self._answered = threading.Event()

    @property
    def confirmed_at(self) -> int | None:
        """The last instant at which the queues were known to be current (ns since 1970); None before the first list."""
        with self._lock:
            return self._confirmed_at

    def cluster_queue(self, namespace: str, queue: str) -> str:
        """Returns the ClusterQueue of a LocalQueue; empty where there is no such LocalQueue.

        Args:
            namespace: the LocalQueue's namespace.
            queue: the LocalQueue's name.
        """
        with self._lock:
            return self._cluster_queues.get((namespace, queue), "")

    def wait_for_an_answer(self, seconds: float) -> bool:
        """Waits until a first request for LocalQueues has succeeded or failed; returns whether one has.

        Args:
            seconds: the longest wait.
        """
        return self._answered.wait(seconds)

    def replaced(self, items: list[Json]) -> None:
        """Replaces all LocalQueues by a list from the API server."""
        found = {(namespace_of(item), name_of(item)): _cluster_queue(item) for item in items}
        with self._lock:
            self._cluster_queues = found

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of the watch of LocalQueues.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
            item: the LocalQueue.
        """
        key = (namespace_of(item), name_of(item))
        with self._lock:
            if kind == "DELETED":
                self._cluster_queues.pop(key, None)
            else:
                self._cluster_queues[key] = _cluster_queue(item)

    def confirmed(self) -> None:
        """Records that the LocalQueues are current now."""
        with self._lock:
            self._confirmed_at = self._now()
        self._answered.set()

    def failed(self, error: ApiError) -> None:
        """Logs that a request for LocalQueues failed; they stay as they are, and no reader of pods waits for them."""
        _log.warning("collection not refreshed", collection="localqueues", status=error.status, reason=error.reason)
        self._answered.set()


def _cluster_queue(item: Json) -> str:
    name = mapping(item.get("spec")).get("clusterQueue")
    return name if isinstance(name, str) else ""
