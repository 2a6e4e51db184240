"""The pods of this node as the API server has them, reduced to the fields that the agent reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairgpu import names
from fairgpu.cluster.api import Json
from nodeagent.containers.resolving import live_pod
from nodeagent.mirror import Mirror
from nodeagent.owners import CONTAINER_STATUSES

CONTAINER_FIELDS = ("name", "resources", "restartPolicy")
STATUS_FIELDS = ("name", "state", "restartCount", "containerID")


MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror with the uid by which the kubelet knows the pod
(https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror)."""


def read(pod: Json) -> Json:
    """Returns a copy of a pod with only the fields that the agent reads.

    A node has a hundred pods of up to a megabyte each.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return {
        "metadata": {
            **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata},
            "annotations": {
                key: value
                for key, value in annotations.items()
                if key.startswith(names.ANNOTATION_PREFIX) or key == MIRROR
            },
        },
        "spec": {
            key: [_some(container, CONTAINER_FIELDS) for container in spec.get(key) or []]
            for key in ("containers", "initContainers")
        },
        "status": {
            "phase": status.get("phase"),
            **{key: [_some(each, STATUS_FIELDS) for each in status.get(key) or []] for key in CONTAINER_STATUSES},
        },
    }


def kubelets_uid(pod: Json) -> str:
    """Returns the uid by which the kubelet knows a pod: in the names of cgroups and folders, and in its events.

    A static pod's uid in the kubelet differs from its `metadata.uid`. `kubectl describe` finds a pod's events by the
    kubelet's uid.
    """
    metadata = pod["metadata"]
    return str(metadata.get("annotations", {}).get(MIRROR) or metadata["uid"])


def by_kubelets_uid(pods: Iterable[Json], uid: str) -> Json | None:
    """Returns the pod that has a uid, in the kubelet or on the API server; None if there is no such pod.

    If two pods match, the one with this uid on the API server is returned: the kubelet's uid is in an annotation, into
    which a pod's author can write another pod's uid.
    """
    listed = list(pods)
    by_either = {kubelets_uid(pod): pod for pod in listed} | {str(pod["metadata"]["uid"]): pod for pod in listed}
    return by_either.get(uid)


def _some(item: Mapping[str, Any], keys: tuple[str, ...]) -> Json:
    return {key: item[key] for key in keys if key in item}


@dataclass(eq=False)
class NodePods(Mirror):
    """A mirror of the node's pods. Any thread may read it and wait for a pod."""

    known: threading.Event = field(default_factory=threading.Event, init=False)
    """Set once the whole collection was read."""
    _pods_changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _pods: dict[str, Json] = field(default_factory=dict, init=False)

    def replaced(self, items: list[Json]) -> None:
        """Stores all pods of the node, given as JSON, in place of those that were stored before."""
        with self._pods_changed:
            self._pods = {item["metadata"]["uid"]: item for item in items}
            self._pods_changed.notify_all()
        self.known.set()
        self.notify()

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes one pod.

        Args:
            kind: the type of the watch's event: ADDED, MODIFIED or DELETED.
            item: the pod as JSON.
        """
        with self._pods_changed:
            if kind == "DELETED":
                self._pods.pop(item["metadata"]["uid"], None)
            else:
                self._pods[item["metadata"]["uid"]] = item
            self._pods_changed.notify_all()
        self.notify()

    def all(self) -> list[Json]:
        """Returns all pods of the node, as JSON."""
        with self._pods_changed:
            return list(self._pods.values())

    def wait_for(self, namespace: str, name: str, seconds: float) -> Mapping[str, Any] | None:
        """Waits until the node has a pod of this namespace and name that has not ended; returns the pod as JSON.

        Args:
            seconds: the longest time to wait.

        Returns:
            The pod; None if it did not come in time.

        Raises:
            PlacementRefusedError: several pods that have not ended have that name.
        """
        limit = time.monotonic() + seconds
        with self._pods_changed:
            while True:
                found = live_pod(self._pods.values(), namespace, name)
                left = limit - time.monotonic()
                if found is not None or left <= 0:
                    return found
                self._pods_changed.wait(left)
