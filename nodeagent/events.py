"""Writes Events on pods and on the node, for users of kubectl describe."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import dataclass

import structlog

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI

_log = structlog.get_logger(__name__)

COMPONENT = "fairgpu-nodeagent"
LONGEST_MESSAGE = 1024
"""The longest message of an event that the API server accepts."""
REPEAT_SECONDS = 300.0
"""The time until an event is written again: the kubelet tries a start every few seconds."""
REMEMBERED = 1024


@dataclass(frozen=True)
class About:
    """The object that an event is about. Events of the cluster's own objects, such as Nodes, lie in `default`."""

    kind: str
    name: str
    uid: str
    namespace: str = ""


class Events:
    """Writes events, each once in REPEAT_SECONDS. A refused event costs a log line; no start waits for events."""

    def __init__(self, api: KubernetesAPI, node: str) -> None:
        self._api = api
        self._node = node
        self._written: dict[tuple[About, str, str], float] = {}

    def warn(self, about: About, reason: str, message: str, now: dt.datetime) -> None:
        """Writes a warning, unless it was written lately."""
        key = (about, reason, message)
        if now.timestamp() - self._written.get(key, float("-inf")) < REPEAT_SECONDS:
            return
        if len(self._written) >= REMEMBERED:
            self._written.clear()
        self._written[key] = now.timestamp()
        namespace = about.namespace or "default"
        try:
            self._api.create(f"/api/v1/namespaces/{namespace}/events", event(about, reason, message, now, self._node))
        except ApiError as error:
            _log.warning("node event not written", object=about.name, reason=reason, error=str(error))


def event(about: About, reason: str, message: str, now: dt.datetime, node: str) -> Json:
    """Returns the core/v1 Event."""
    at = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {"apiVersion": "v1", "kind": about.kind, "name": about.name, "uid": about.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{secrets.token_hex(8)}", "namespace": about.namespace or "default"},
        "involvedObject": {**involved, **({"namespace": about.namespace} if about.namespace else {})},
        "type": "Warning",
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT, "host": node},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
