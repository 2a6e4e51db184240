"""Finds the container of each process on a GPU, and the processes that no share limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nodeagent.containers.records import Record
from nodeagent.ledger_slots import Registered
from nodeagent.processes import Process


class ProcessState(StrEnum):
    """The ways in which a process on a GPU belongs to a container with a share of the GPU, or does not."""

    HELD = "held"
    """In a container with a piece of the GPU; the shim has registered it, or the container has the GPU whole.

    A process of a container whose record this agent cannot read counts as held, too: its piece is not known.
    """
    NOT_SHIMMED = "not_shimmed"
    """In a container with a piece of the GPU, and not registered by the shim, whose ledger has room for it.

    The program is linked statically or with musl, or works by another interface than CUDA, or went around the shim.
    """
    WITHOUT_SLOT = "without_slot"
    """In a container with a piece of the GPU, and not registered by the shim, whose ledger has no slot left.

    The shim refuses its memory, or it is another program that is not under the shim: the agent cannot see which.
    """
    WITHOUT_SHARE = "without_share"
    """In a pod's container without a piece of the GPU."""
    OUTSIDE_PODS = "outside_pods"
    """A process of the node's own."""


CONTAINER_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
"""The fields of a pod's status that name its containers. An ephemeral container for debugging holds no part of a GPU,
but its processes may use one."""


@dataclass(frozen=True)
class Owned:
    """A process on a GPU, with its container.

    Attributes:
        process: the process.
        state: whether and how its container's share limits it.
        record: the record of its container; None if the container has no part of the GPU, its record cannot be read,
            or there is no container.
        container: the container's name in its pod; empty outside all pods, and while the pod's status does not name it.
    """

    process: Process
    state: ProcessState
    record: Record | None = None
    container: str = ""


def container_names(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the name of each container that has started, keyed by the container's id in the runtime."""
    return {
        str(status["containerID"]).rpartition("/")[2]: str(status["name"])
        for pod in pods
        for key in CONTAINER_STATUSES
        for status in pod.get("status", {}).get(key) or []
        if status.get("containerID")
    }


def owner(
    process: Process,
    uuid: str,
    records: Iterable[Record],
    names: Mapping[str, str],
    registered: Callable[[Record], Registered],
    unread: Collection[tuple[str, str]] = (),
) -> Owned | None:
    """Returns a process on a GPU with its container; None while its pod's status does not name the container yet.

    The name is needed only to find the container's record. If no container of the pod has a record, the process has no
    share, and is returned without a name.

    Args:
        process: a process that the driver names on the GPU.
        uuid: the GPU's uuid.
        records: the records of the containers that are alive or starting, of this pod at least.
        names: the containers' names, keyed by their ids (`container_names`).
        registered: returns the processes that a container's shim has registered, given its record.
        unread: the pod's uid and the name of each container whose record cannot be read.
    """
    if not process.pod_uid:
        return Owned(process, ProcessState.OUTSIDE_PODS)
    of_pod = [record for record in records if record.uid == process.pod_uid]
    unread_of_pod = [container for uid, container in unread if uid == process.pod_uid]
    name = names.get(process.container_id)
    if name is None and (of_pod or unread_of_pod):
        return None
    if name in unread_of_pod:
        return Owned(process, ProcessState.HELD, container=name)
    found = next((record for record in of_pod if record.container == name), None)
    if found is None or all(device.uuid != uuid for device in found.devices):
        return Owned(process, ProcessState.WITHOUT_SHARE, container=name or "")
    shims = Registered() if found.whole else registered(found)
    if found.whole or (process.own_pid, process.start_time) in shims.processes:
        return Owned(process, ProcessState.HELD, found, found.container)
    state = ProcessState.WITHOUT_SLOT if shims.is_full else ProcessState.NOT_SHIMMED
    return Owned(process, state, found, found.container)


def unheld_since(
    before: Mapping[tuple[int, int], float], owned: Iterable[Owned], now_seconds: float
) -> dict[tuple[int, int], float]:
    """Returns when each process of a pod was first seen on a GPU without a share that limits it.

    If that lasts, the agent kills the process where the settings say so.

    Args:
        before: the previous answer; a process in it keeps its time.
        owned: the processes on the GPUs, with their containers.
        now_seconds: the present time, in seconds of a monotonic clock, which a new process gets.

    Returns:
        The time of each process, in seconds of a monotonic clock. Processes are keyed by the host's process id and the
        start time.
    """
    return {
        (each.process.pid, each.process.start_time): before.get(
            (each.process.pid, each.process.start_time), now_seconds
        )
        for each in owned
        if each.state in (ProcessState.NOT_SHIMMED, ProcessState.WITHOUT_SLOT, ProcessState.WITHOUT_SHARE)
    }
