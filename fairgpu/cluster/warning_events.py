"""Warnings as core/v1 Events, which `kubectl describe` shows with the object that they are about."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from fairgpu.cluster.api import ApiError, Json

_log = structlog.get_logger(__name__)

LONGEST_MESSAGE = 1024
"""The longest message of an event that the API server accepts."""
REPEAT_SECONDS = 300.0
"""The time until `RepeatedWarnings` writes the same warning again: the kubelet tries a start every few seconds."""
RETRY_SECONDS = 60.0
"""The time until `RepeatedWarnings` tries again to write a warning that the API server did not take.

A try waits up to 35 s for an answer (fairgpu.cluster.api), and the thread that warns does nothing else meanwhile."""
REMEMBERED = 1024


class Creating(Protocol):
    """The part of a Kubernetes client that `post` needs."""

    def create(self, path: str, body: Json) -> Json:
        """Posts an object to the API server; returns the object as stored.

        Args:
            path: the path of the collection in the API.
        """


@dataclass(frozen=True)
class About:
    """The object of the cluster that an event is about.

    Attributes:
        kind: the object's kind.
        name: the object's name.
        uid: the object's uid.
        namespace: the object's namespace; empty for a cluster-scoped object, such as a Node.
    """

    kind: str
    name: str
    uid: str
    namespace: str = ""


def warning_event(
    about: About, reason: str, message: str, at: str, source: Mapping[str, str], suffix: str = ""
) -> Json:
    """Returns an event of type Warning, as JSON of the API.

    Args:
        about: the object that the event is about; an event of a cluster-scoped object lies in `default`, as the API
            server requires.
        reason: one word in CamelCase.
        message: a sentence for people, cut to LONGEST_MESSAGE.
        at: the present time in RFC 3339.
        source: the EventSource: `component`, and `host` if one node is meant.
        suffix: the end of the event's name; by default a digest of its content, so that two replicas write one event.
    """
    namespace = about.namespace or "default"
    involved = {"apiVersion": "v1", "kind": about.kind, "name": about.name, "uid": about.uid}
    digest = hashlib.sha256(f"{about.uid}/{reason}/{message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:200]}.{suffix or digest}", "namespace": namespace},
        "involvedObject": {**involved, **({"namespace": about.namespace} if about.namespace else {})},
        "type": "Warning",
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": dict(source),
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def post(api: Creating, event: Json) -> None:
    """Writes an event; an event of that name that exists already is left as it is.

    Args:
        api: writes objects into the cluster.
        event: the event, as JSON of the API.

    Raises:
        ApiError: the API server refused or did not answer.
    """
    try:
        api.create(f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)
    except ApiError as error:
        if not error.conflict:
            raise


class RepeatedWarnings:
    """Writes warnings of one component on one node, the same one at most once in REPEAT_SECONDS.

    A warning that the API server refuses is logged, and raises no error.
    """

    def __init__(self, api: Creating, component: str, node: str) -> None:
        self._api = api
        self._source = {"component": component, "host": node}
        self._tried: dict[tuple[About, str, str], tuple[float, float]] = {}
        """The Unix time at which each warning was last tried, and the seconds from then on in which it is not due."""

    def warn(self, about: About, reason: str, message: str, now: dt.datetime) -> bool:
        """Writes a warning about an object, unless the same one was written in the last REPEAT_SECONDS.

        Returns whether it was due, even if the API server refused it: then it is due again after RETRY_SECONDS.

        A try that was later than `now`, before the clock was set back, does not count.

        Args:
            reason: one word in CamelCase.
            message: a sentence for people.
            now: the present time, with a time zone.
        """
        key, now_seconds = (about, reason, message), now.timestamp()
        tried_at, quiet_seconds = self._tried.get(key, (now_seconds, 0.0))
        if 0 <= now_seconds - tried_at < quiet_seconds:
            return False
        if len(self._tried) >= REMEMBERED:
            self._tried.clear()
        self._tried[key] = now_seconds, REPEAT_SECONDS
        at = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            post(self._api, warning_event(about, reason, message, at, self._source, secrets.token_hex(8)))
        except ApiError as error:
            self._tried[key] = now_seconds, RETRY_SECONDS
            _log.warning("node event not written", object=about.name, reason=reason, error=str(error))
        return True
