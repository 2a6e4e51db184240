"""Writes Events on Nodes whose inventory is not used, and on pods, for users of kubectl describe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from fairgpu.cluster.api import ApiError

_log = structlog.get_logger(__name__)

COMPONENT = "fairgpu-scheduler"
NAMESPACE = "default"
"""The namespace of events about cluster-scoped objects, as the API server requires."""
LONGEST_MESSAGE = 1024
"""The longest message of an event that the API server accepts."""


class Creating(Protocol):
    """The part of a Kubernetes client that writes events."""

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Posts an object."""


class Named(Protocol):
    """The parts of a pod that events name."""

    @property
    def uid(self) -> str:
        """The pod's uid."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    @property
    def name(self) -> str:
        """The pod's name."""


class NodeEvents:
    """Writes warnings about Nodes."""

    def __init__(self, api: Creating, stamp: Callable[[], str]) -> None:
        """Makes a writer; `stamp` returns the present time in the API's format."""
        self._api = api
        self._stamp = stamp

    def warn(self, node: str, uid: str, reason: str, message: str) -> None:
        """Writes a warning about a Node; a replica with the same finding does not write it again.

        An API server that refuses costs a log line.
        """
        event = node_event(node, uid, reason, message, self._stamp())
        try:
            self._api.create(f"/api/v1/namespaces/{NAMESPACE}/events", event)
        except ApiError as error:
            if not error.conflict:
                _log.warning("warning of a node not written", node=node, reason=reason, error=str(error))


def pod_event(pod: Named, reason: str, message: str, at: str) -> dict[str, Any]:
    """Returns the core/v1 Event about a pod, named by its content, so that it is written once."""
    digest = hashlib.sha256(f"{pod.uid}/{reason}/{message}".encode()).hexdigest()[:16]
    regarding = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod.name[:200]}.{digest}", "namespace": pod.namespace},
        "involvedObject": regarding,
        "type": "Warning",
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def node_event(node: str, uid: str, reason: str, message: str, at: str) -> dict[str, Any]:
    """Returns the core/v1 Event about a Node, named by its content, so that two replicas write one."""
    digest = hashlib.sha256(f"{uid}/{reason}/{message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{digest}", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "type": "Warning",
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
