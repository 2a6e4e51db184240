"""Whose each process on a GPU is, and which of them nothing holds to a share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodeagent.containers.records import Record
from nodeagent.processes import Process


class Standing(StrEnum):
    """What a process is to the GPU that it works on."""

    HELD = "held"
    """In a container that has a piece of the GPU; the shim has taken it up, or the container has the GPU whole."""
    WITHOUT_SLOT = "without_slot"
    """In a container that has a piece of the GPU; the shim has not taken it up: the program is linked statically or
    with musl, or went round the shim."""
    WITHOUT_SHARE = "without_share"
    """In a pod's container that has no piece of the GPU."""
    OUTSIDE_PODS = "outside_pods"
    """A process of the node's own."""


@dataclass(frozen=True)
class Owned:
    """A process on a GPU, and the container that it belongs to; None where that has no piece of the GPU."""

    process: Process
    standing: Standing
    record: Record | None = None


def container_names(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The names of containers that have started, by the ids that the runtime gave them."""
    return {
        str(status["containerID"]).rpartition("/")[2]: str(status["name"])
        for pod in pods
        for key in ("containerStatuses", "initContainerStatuses")
        for status in pod.get("status", {}).get(key) or []
        if status.get("containerID")
    }


def owner(
    process: Process,
    uuid: str,
    records: Iterable[Record],
    names: Mapping[str, str],
    taken_up: Callable[[Record], frozenset[tuple[int, int]]],
) -> Owned | None:
    """Whose the process is; None as long as nobody can say, which is until its container's status names it.

    Args:
        process: one that the driver names on the GPU.
        uuid: the GPU's.
        records: of all containers that live or are starting on this node.
        names: containers' names by their ids (`container_names`).
        taken_up: the processes, by own pid and start time, that a container's shim has taken up.
    """
    if not process.pod_uid:
        return Owned(process, Standing.OUTSIDE_PODS)
    of_pod = [record for record in records if record.uid == process.pod_uid]
    name = names.get(process.container_id)
    if name is None and of_pod:
        return None
    found = next((record for record in of_pod if record.container == name), None)
    if found is None or all(device.uuid != uuid for device in found.devices):
        return Owned(process, Standing.WITHOUT_SHARE)
    is_held = found.whole or (process.own_pid, process.start_time) in taken_up(found)
    return Owned(process, Standing.HELD if is_held else Standing.WITHOUT_SLOT, found)


def unheld_since(
    before: Mapping[tuple[int, int], float], owned: Iterable[Owned], now_seconds: float
) -> dict[tuple[int, int], float]:
    """Since when each process in a pod has been on a GPU that nothing holds it to, by pid and start time."""
    return {
        (each.process.pid, each.process.start_time): before.get(
            (each.process.pid, each.process.start_time), now_seconds
        )
        for each in owned
        if each.standing in (Standing.WITHOUT_SLOT, Standing.WITHOUT_SHARE)
    }
