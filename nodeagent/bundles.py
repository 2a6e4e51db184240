"""Checks that the runtime applied a container's CDI spec, by the configuration that it made the container from.

The runtime keeps each container's OCI configuration on the host, where no container can change it. (A look into the
container itself would prove nothing: a program may change what is mounted in a namespace of its own.)
https://github.com/opencontainers/runtime-spec/blob/main/config.md#mounts
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nodeagent.containers.records import Record

PROOF = "/etc/vcuda/config"
"""A file that the CDI spec of each container with a shim mounts."""
LARGEST = 16 << 20


def running(records: Iterable[Record], pods: Iterable[Mapping[str, Any]]) -> dict[str, Record]:
    """Returns the containers with a shim that run now, by the runtime's id."""
    ids = {
        (str(pod["metadata"]["uid"]), str(status["name"])): str(status["containerID"]).rpartition("/")[2]
        for pod in pods
        for key in ("containerStatuses", "initContainerStatuses")
        for status in pod.get("status", {}).get(key) or []
        if "running" in (status.get("state") or {}) and status.get("containerID")
    }
    keyed = ((ids.get((record.uid, record.container)), record) for record in records if not record.whole)
    return {each: record for each, record in keyed if each}


def is_applied(bundles: Path, container_id: str) -> bool | None:
    """Returns whether the container was made with its CDI spec; None where the runtime keeps no configuration of it."""
    try:
        with (bundles / container_id / "config.json").open("rb") as file:
            document = json.loads(file.read(LARGEST))
        return any(mount.get("destination") == PROOF for mount in document.get("mounts") or [])
    except (OSError, ValueError, AttributeError):
        return None


class Bundles:
    """Looks at each container once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._proved: frozenset[str] = frozenset()
        self.failed = False
        """Whether any container was made without its CDI spec since the agent started."""

    def look(self, records: Iterable[Record], pods: Iterable[Mapping[str, Any]]) -> list[Record]:
        """Returns the containers that are newly found to have been made without their CDI specs."""
        here = running(records, pods)
        applied_by_id = {each: is_applied(self._folder, each) for each in here.keys() - self._proved}
        looked_at = frozenset(each for each, applied in applied_by_id.items() if applied is not None)
        self._proved = (self._proved & here.keys()) | looked_at
        new = [here[each] for each, applied in applied_by_id.items() if applied is False]
        self.failed = self.failed or bool(new)
        return new
