"""Finds out whether a pod's other containers have ended, for a sidecar of the ancestor's API that asks when to end."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.auth.signed_tokens import PodIdentity

MOST_POD_BYTES = 2 * 1024 * 1024
"""The most bytes that are read of a pod; more than the API server stores of an object (1.5 MiB)."""
READ_SECONDS = 5.0
"""The time-out, in seconds, of the request to the API server for one pod."""
ANSWER_SECONDS = 5.0
"""The seconds for which an answer about a pod is reused: half of the time within which callers must learn of its end.
"""
MOST_PODS = 20_000
"""The most pods whose answers are cached; the least recently used one is dropped first."""


class PodReader(Protocol):
    """Reads the object of a pod, to find out whether its containers have ended."""

    def read(self, pod: PodIdentity) -> Json | None:
        """Returns the object of a pod; None if the pod does not exist any more.

        Raises:
            ApiError: the API server cannot be asked now.
        """


class ClusterPods:
    """Reads pods from the API server."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api.within(READ_SECONDS)

    def read(self, pod: PodIdentity) -> Json | None:
        """Returns the object of a pod from the API server; None if the pod does not exist or has another uid.

        Raises:
            ApiError: the API server cannot be asked now.
        """
        try:
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.pod}"
            item = self._api.get(path, most_bytes=MOST_POD_BYTES)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return item if item.get("metadata", {}).get("uid") == pod.uid else None


class FolderPods:
    """Reads pods from the folder that stands in for a cluster."""

    def __init__(self, folder: Path) -> None:
        self._pods = folder / "pods"

    def read(self, pod: PodIdentity) -> Json | None:
        """Returns the object of a pod from the file that its uid names; None if there is no such readable file.

        A uid that would lead out of the folder names no file.
        """
        if "/" in pod.uid or pod.uid.startswith("."):
            return None
        try:
            item = json.loads((self._pods / f"{pod.uid}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return item if isinstance(item, dict) else None


class _Answer(NamedTuple):
    ended: bool
    at: float


class EndedPods:
    """Finds out whether all containers of a pod but the one that asks have ended. Thread-safe.

    The answer that they have not ended is cached for ANSWER_SECONDS; the answer that they have ended never changes and
    is cached without a limit in time.
    """

    def __init__(self, pods: PodReader, clock: Callable[[], float]) -> None:
        """Makes an empty cache; `pods` reads the pods, and `clock` is monotonic, in seconds."""
        self._pods = pods
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the two below; it is not held while a pod is read."""
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._reading: set[str] = set()

    def ended(self, pod: PodIdentity) -> bool:
        """Returns whether all containers of a pod but the one that asks have ended, as of at most ANSWER_SECONDS ago.

        `others_have_ended` decides it. While another thread reads the pod, the result is the last answer, however old,
        or False without a last answer.

        Raises:
            ApiError: the API server cannot be asked now.
        """
        with self._lock:
            cached = self._answers.get(pod.uid)
            fresh = cached is not None and (cached.ended or self._clock() - cached.at < ANSWER_SECONDS)
            if fresh or pod.uid in self._reading:
                return cached is not None and cached.ended
            self._reading.add(pod.uid)
        try:
            answer = _Answer(others_have_ended(self._pods.read(pod)), self._clock())
        finally:
            with self._lock:
                self._reading.discard(pod.uid)
        with self._lock:
            self._answers[pod.uid] = answer
            self._answers.move_to_end(pod.uid)
            while len(self._answers) > MOST_PODS:
                self._answers.popitem(last=False)
        return answer.ended


def others_have_ended(pod: Json | None) -> bool:
    """Returns whether at least one container of a pod has ended, and at most one has not: the one that asks.

    The request does not say which container asks. FairGPU's own sidecar never sends this request, so it does not count.
    Init containers do not count either.

    The result is also True for a pod that does not exist any more, or is in a terminal phase.

    Args:
        pod: the pod as JSON; None if it does not exist.
    """
    if pod is None:
        return True
    status = pod.get("status") or {}
    if status.get("phase") in names.TERMINAL_PHASES:
        return True
    containers = [item for item in (pod.get("spec") or {}).get("containers") or [] if _counts(item)]
    ended = [
        item
        for item in status.get("containerStatuses") or []
        if _counts(item) and (item.get("state") or {}).get("terminated")
    ]
    return len(ended) > 0 and len(containers) - len(ended) <= 1


def _counts(item: Json) -> bool:
    return item.get("name") != names.SIDECAR_CONTAINER
