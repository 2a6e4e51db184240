"""The pods of this node as the API server has them, reduced to the fields that the agent reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json
from nodeagent.containers.resolving import live_pod

CONTAINER_FIELDS = ("name", "resources", "restartPolicy")
STATUS_FIELDS = ("name", "state", "restartCount", "containerID")


def read(pod: Json) -> Json:
    """Returns the fields of a pod that the agent reads; a node has a hundred pods of up to a megabyte each."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return {
        "metadata": {
            **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata},
            "annotations": {
                key: value for key, value in annotations.items() if key.startswith(names.ANNOTATION_PREFIX)
            },
        },
        "spec": {
            key: [_some(container, CONTAINER_FIELDS) for container in spec.get(key) or []]
            for key in ("containers", "initContainers")
        },
        "status": {
            "phase": status.get("phase"),
            **{
                key: [_some(each, STATUS_FIELDS) for each in status.get(key) or []]
                for key in ("containerStatuses", "initContainerStatuses")
            },
        },
    }


def _some(item: Mapping[str, Any], keys: tuple[str, ...]) -> Json:
    return {key: item[key] for key in keys if key in item}


class NodePods:
    """A view of the node's pods for `fairgpu.cluster.reflector.reflect`; any thread may read it and wait for pods."""

    def __init__(
        self,
        changed: Callable[[], None],
        failed: Callable[[ApiError], None],
        current: Callable[[], None] = lambda: None,
    ) -> None:
        self._news = threading.Condition()
        self._pods: dict[str, Json] = {}
        self._changed = changed
        self._failed = failed
        self._current = current
        self.known = threading.Event()
        """Set once the whole collection was read."""

    def replaced(self, items: list[Json]) -> None:
        """Takes the whole present collection."""
        with self._news:
            self._pods = {item["metadata"]["uid"]: item for item in items}
            self._news.notify_all()
        self.known.set()
        self._changed()

    def changed(self, kind: str, item: Json) -> None:
        """Takes one event: ADDED, MODIFIED or DELETED."""
        with self._news:
            if kind == "DELETED":
                self._pods.pop(item["metadata"]["uid"], None)
            else:
                self._pods[item["metadata"]["uid"]] = item
            self._news.notify_all()
        self._changed()

    def confirmed(self) -> None:
        """Passes on that the view is current; no decision depends on its age."""
        self._current()

    def failed(self, error: ApiError) -> None:
        """Passes on that the API server did not answer; the view stays as it is."""
        self._failed(error)

    def all(self) -> list[Json]:
        """Returns every pod of the node."""
        with self._news:
            return list(self._pods.values())

    def wait_for(self, namespace: str, name: str, seconds: float) -> Mapping[str, Any] | None:
        """Returns the one live pod of that name, after waiting for it; None where it does not come in time.

        Raises:
            PlacementRefusedError: several live pods have that name.
        """
        limit = time.monotonic() + seconds
        with self._news:
            while True:
                found = live_pod(self._pods.values(), namespace, name)
                left = limit - time.monotonic()
                if found is not None or left <= 0:
                    return found
                self._news.wait(left)
