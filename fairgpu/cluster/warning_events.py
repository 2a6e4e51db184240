"""Writes warnings as core/v1 Events; `kubectl describe` shows each with the object that it is about."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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

A try waits up to 35 s for an answer (fairgpu.cluster.api)."""
KEPT_SECONDS = 3600.0
"""The time after which a warning that the API server has not taken is given up.

The API server keeps an event for as long (kube-apiserver's --event-ttl)."""
MOST_WAITING = 256
"""The most warnings that wait for the API server."""
REMEMBERED = 1024
"""The most warnings whose repetition is noticed. Beyond it all are forgotten, and each may be written again at once."""
NEVER_TAKEN = frozenset({400, 404, 422})
"""The HTTP statuses with which the API server would refuse a second try, too: for a malformed event, or a deleted
namespace."""


class Creating(Protocol):
    """The part of a Kubernetes client that `post` needs."""

    def create(self, path: str, body: Json) -> Json:
        """Posts an object to the API server; returns the object as stored.

        Args:
            path: the path of the collection in the API.
            body: the object, as JSON.
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
        about: the object that the event is about; an event of a cluster-scoped object lies in the namespace `default`,
            as the API server requires.
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
    """Writes an event into the cluster. If an event of the same name exists already, it is left as it is.

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


Key = tuple[About, str, str]
"""The object that a warning is about, its reason, and its message."""


@dataclass(frozen=True)
class _Waiting:
    """A warning that the API server has not taken yet. Times are seconds of a monotonic clock.

    Attributes:
        event: the event. Each try writes it under the same name, so that a repetition after a lost answer makes no
            second event.
        since_seconds: when the component warned.
        due_seconds: when the next try is due.
    """

    event: Json
    since_seconds: float
    due_seconds: float


class RepeatedWarnings:
    """Writes the warnings of one component on one node as events, the same warning at most once in REPEAT_SECONDS.

    Any thread may call `warn`, which waits for no server. One thread calls `write`, which writes the events. If the API
    server does not take an event, `write` tries it again every RETRY_SECONDS, for up to KEPT_SECONDS, and raises no
    error. An event that it refuses with a status in NEVER_TAKEN is dropped at once.
    """

    def __init__(self, api: Creating, component: str, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes an object without warnings.

        Args:
            api: writes the events.
            component, node: the names of the component and the node that the events give as their source.
            clock: returns seconds of a monotonic clock.
        """
        self._api = api
        self._source = {"component": component, "host": node}
        self._clock = clock
        self._changed = threading.Condition()
        self._quiet_until: dict[Key, float] = {}
        self._waiting: dict[Key, _Waiting] = {}
        self._has_ended = False

    def warn(self, about: About, reason: str, message: str, now: dt.datetime) -> bool:
        """Hands a warning to `write`; drops it if the same warning waits or came in the last REPEAT_SECONDS.

        If MOST_WAITING warnings wait already, the one that has waited longest is dropped.

        Args:
            about: the object that the warning is about.
            reason: one word in CamelCase.
            message: a sentence for people.
            now: the present time, with a time zone, which the event states.

        Returns:
            True if the warning was handed to `write`; False if it was dropped.
        """
        key: Key = about, reason, message
        with self._changed:
            now_seconds = self._clock()
            if key in self._waiting or now_seconds < self._quiet_until.get(key, now_seconds):
                return False
            if len(self._quiet_until) >= REMEMBERED:
                self._quiet_until.clear()
            if len(self._waiting) >= MOST_WAITING:
                self._give_up(next(iter(self._waiting)), f"{MOST_WAITING} others wait")
            self._quiet_until[key] = now_seconds + REPEAT_SECONDS
            at = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            event = warning_event(about, reason, message, at, self._source, secrets.token_hex(8))
            self._waiting[key] = _Waiting(event, now_seconds, now_seconds)
            self._changed.notify_all()
        return True

    def write(self) -> None:
        """Writes the warnings as they come, until `end` is called."""
        while not self._has_ended:
            left_seconds = self.write_due()
            with self._changed:
                self._changed.wait_for(lambda: self._has_ended or self._due() is not None, left_seconds)

    def write_due(self) -> float | None:
        """Tries to write each warning that is due.

        Returns:
            The seconds until the next warning is due; None if no warning waits.
        """
        while not self._has_ended:
            with self._changed:
                key = self._due()
                if key is None:
                    break
                waiting = self._waiting[key]
            self._try(key, waiting)
        with self._changed:
            due = [each.due_seconds for each in self._waiting.values()]
            return max(min(due) - self._clock(), 0.0) if due else None

    def end(self) -> None:
        """Lets `write` return after the try that is under way. Warnings that still wait are not written."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _due(self) -> Key | None:
        """Returns the key of the oldest warning that is due; None if none is due. The caller holds the lock."""
        now_seconds = self._clock()
        return next((key for key, each in self._waiting.items() if each.due_seconds <= now_seconds), None)

    def _try(self, key: Key, waiting: _Waiting) -> None:
        error: ApiError | None = None
        try:
            post(self._api, waiting.event)
        except ApiError as failed:
            error = failed
        with self._changed:
            if self._waiting.get(key) is not waiting:  # given up meanwhile
                return
            now_seconds = self._clock()
            if error is None:
                del self._waiting[key]
            elif error.status in NEVER_TAKEN or now_seconds - waiting.since_seconds >= KEPT_SECONDS:
                self._give_up(key, str(error))
            else:
                self._waiting[key] = replace(waiting, due_seconds=now_seconds + RETRY_SECONDS)
                if waiting.due_seconds == waiting.since_seconds:  # the first try
                    about, reason, _ = key
                    _log.warning("node event not written", object=about.name, reason=reason, error=str(error))

    def _give_up(self, key: Key, why: str) -> None:
        """Drops a waiting warning and logs why. The caller holds the lock.

        The next warning of the same content is then written at once, without a wait for REPEAT_SECONDS.
        """
        del self._waiting[key]
        self._quiet_until.pop(key, None)
        about, reason, _ = key
        _log.warning("node event given up", object=about.name, reason=reason, error=why)
