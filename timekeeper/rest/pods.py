"""The one question about a pod that the store cannot answer: whether its other containers have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.identity.pod_tokens import PodIdentity


class PodReader(Protocol):
    """Who knows pods."""

    def read(self, pod: PodIdentity) -> Json | None:
        """The pod object, or nothing where it is gone.

        Raises:
            ApiError: that cannot be found out now.
        """


class ClusterPods:
    """Pods of an API server."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self, pod: PodIdentity) -> Json | None:
        """The pod of that name, if it is still the one of that uid."""
        try:
            found = self._api.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.pod}")
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return found if found.get("metadata", {}).get("uid") == pod.uid else None


class FolderPods:
    """Pods of a standalone folder."""

    def __init__(self, folder: Path) -> None:
        self._pods = folder / "pods"

    def read(self, pod: PodIdentity) -> Json | None:
        """The pod in the file of its uid. A uid comes from a verified token, and still is not let out of the folder."""
        if "/" in pod.uid or pod.uid.startswith("."):
            return None
        try:
            found = json.loads((self._pods / f"{pod.uid}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def others_have_ended(pod: Json | None) -> bool:
    """Whether nothing but one container, the one that asks, still runs or waits.

    Which container asks is not told. FairGPU's own sidecar does not ask this way, so it does not count; a pod that is
    gone or in a terminal phase has ended altogether.
    """
    if pod is None:
        return True
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
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
