"""Asks the driver once a second what each container uses, and finds the processes that no share limits.

The next look comes sooner if a program asks how much memory is free.

GpuWatch runs in a thread of its own, so that a driver that hangs delays neither starts of containers nor writes of
pages. The figures on the pages show their age.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from nodeagent.containers.folders import Folders
from nodeagent.containers.records import Record
from nodeagent.driver_figures import DriverSample, Figure, Placed, figures, place
from nodeagent.ledger_slots import Registered, registered
from nodeagent.owners import Owned, ProcessState, container_names, owner, unheld_since
from nodeagent.pages import Ledgers
from nodeagent.processes import PROC, Process, Processes, read_process
from nodeagent.schedule_page import Activity
from nodeagent.turns import Policy

_log = structlog.get_logger(__name__)

LEAST_SECONDS = 0.25
"""The least time between two looks, however often programs ask for one. A program that asks gets the next look within
LEAST_SECONDS (docs/vcuda.md)."""
WAITS = 4
"""The number of waits of LEAST_SECONDS between two looks if no program asks for one sooner."""
KILL_AFTER_SECONDS = 10.0

ContainerDevice = tuple[str, str, str]
"""A pod's uid, a container's name, and the uuid of a GPU that it has a piece of."""


@dataclass(frozen=True)
class Node:
    """The functions by which GpuWatch learns of the node's containers and asks the driver.

    Attributes:
        records: returns the records of all containers that are alive or starting.
        pods: returns the node's pods as JSON.
        uuids: returns the uuids of the GPUs that the node offers.
        sample: returns the driver's figures of the GPU with a uuid, and of the processes on it. Raises OSError if the
            driver does not answer.
        unread: returns the pod's uid and the name of each container whose record cannot be read. Such a container may
            be running.
    """

    records: Callable[[], list[Record]]
    pods: Callable[[], Iterable[Mapping[str, Any]]]
    uuids: Callable[[], Iterable[str]]
    sample: Callable[[str], DriverSample]
    unread: Callable[[], Collection[tuple[str, str]]] = tuple


@dataclass(frozen=True)
class Observation:
    """The result of asking the driver once about all GPUs of the node.

    Figures by container and GPU are keyed by the pod's uid, the container's name and the GPU's uuid.

    Attributes:
        figures: the figures of each container on each GPU; the earlier ones if the driver's answer was incomplete.
        strays: for each process that no share limits, the uuid of its GPU, and the process.
        busy_percent: the part of the time since the last look in which each container kept each GPU busy, in percent;
            0 on a GPU that is not in `timed`. A container has no entry for a GPU on which it has no process.
        processes: the number of processes that each container has on its GPUs, keyed by the pod's uid and the
            container's name. A process on several GPUs counts once. A container without a process has no entry.
        silent: the driver's error for each GPU about which it did not answer, keyed by the GPU's uuid.
        timed: the uuids of the GPUs for which the driver measured the time that each process kept them busy. A GPU
            that a container has whole is left out while the pod's status does not name the container of a process on
            it.
    """

    figures: Mapping[ContainerDevice, Figure] = field(default_factory=dict)
    strays: tuple[tuple[str, Owned], ...] = ()
    busy_percent: Mapping[ContainerDevice, float] = field(default_factory=dict)
    processes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    timed: Collection[str] = ()


class GpuWatch:
    """Asks the driver, at each `look`, for containers' use of the node's GPUs; finds processes that no share limits."""

    def __init__(self, node: Node, folders: Folders, proc: Path = PROC) -> None:
        self._node = node
        self._folders = folders
        self._processes = Processes(proc)
        self._ledgers = Ledgers()
        self._placed: dict[str, Placed] = {}
        self._since: dict[tuple[int, int], float] = {}
        self._looked_seconds = 0.0
        self._asking: list[tuple[str, int]] = []
        """The ledger of each container with a piece of a GPU, and the GPU's index in it."""
        self._looked_ns = 0
        self.seen = Observation()
        """The last look; replaced whole, so that it can be read from any thread."""

    def _samples(self, uuids: Iterable[str]) -> tuple[dict[str, DriverSample], dict[str, str]]:
        """Returns the driver's sample of each GPU about which it answers, and its error for each other GPU.

        Both are keyed by the GPU's uuid.
        """
        samples: dict[str, DriverSample] = {}
        silent: dict[str, str] = {}
        for uuid in uuids:
            try:
                samples[uuid] = self._node.sample(uuid)
            except OSError as error:
                silent[uuid] = str(error)
        return samples, silent

    def look(self, now_seconds: float) -> Observation:
        """Asks the driver about each GPU once; returns the result, and keeps it in `seen`.

        The GPUs are those that the node offers, and those that a container holds: one that is offered no more is still
        used, and a container that has it whole is billed for that.

        Args:
            now_seconds: the present time, in seconds of a monotonic clock.
        """
        self._looked_ns = time.monotonic_ns()
        records = self._node.records()
        names = container_names(self._node.pods())
        found: dict[ContainerDevice, Figure] = {}
        strays: list[tuple[str, Owned]] = []
        busy: dict[ContainerDevice, float] = {}
        pids: dict[tuple[str, str], set[int]] = {}
        timed: set[str] = set()
        by_pod, by_gpu = _grouped(records)
        uuids = dict.fromkeys([*self._node.uuids(), *by_gpu])
        samples, silent = self._samples(uuids)
        alive = self._processes.look(frozenset().union(*(_pids(sample) for sample in samples.values())))
        shims = cache(registered)  # a ledger has up to 1,024 slots, and each process on each GPU is looked up in one
        for uuid in uuids:
            here = by_gpu.get(uuid, [])
            sample = samples.get(uuid)
            if sample is not None:
                percents = sample.percent_by_pid or {}
                owned, unnamed = self._owned(uuid, sample, alive, by_pod, names, shims)
                if sample.percent_by_pid is not None and not any(each.whole and each.uid in unnamed for each in here):
                    timed.add(uuid)
                strays += [(uuid, each) for each in owned if each.state is not ProcessState.HELD]
                for each in owned:
                    if each.record is not None:
                        key = (each.record.uid, each.record.container, uuid)
                        pids.setdefault(key[:2], set()).add(each.process.pid)
                        busy[key] = busy.get(key, 0.0) + percents.get(each.process.pid, 0.0)
                found |= self._figures(uuid, sample, owned, [each for each in here if each.uid not in unnamed])
            for record in here:
                key = (record.uid, record.container, uuid)
                if key not in found and key in self.seen.figures:
                    found[key] = self.seen.figures[key]
        self._since = unheld_since(self._since, (each for _, each in strays), now_seconds)
        self._looked_seconds = now_seconds
        pieces = [(self._folders.ledger(record), record) for record in records if not record.whole]
        self._ledgers.keep(ledger for ledger, _ in pieces)
        self._asking = [(ledger, index) for ledger, record in pieces for index in range(len(record.devices))]
        processes = {container: len(here) for container, here in pids.items()}
        self.seen = Observation(found, tuple(strays), busy, processes, silent, timed)
        return self.seen

    def is_wanted(self) -> bool:
        """Returns whether a program has asked for newer figures since the last look began."""
        looked_ns, activity = self._looked_ns, self._ledgers.activity
        return any(activity(ledger, index).sample_wanted_ns > looked_ns for ledger, index in self._asking)

    def stops_before_the_next_look(self, wait: Callable[[float], bool]) -> bool:
        """Waits until the driver is to be asked again, sooner if a program asks; returns whether the agent stops.

        Args:
            wait: waits for the given seconds, or until the agent stops; returns whether it stops.
        """
        for _ in range(WAITS):
            if wait(LEAST_SECONDS):
                return True
            if self.is_wanted():
                break
        return False

    def reportable(self) -> list[tuple[str, Owned]]:
        """Returns the pods' processes that no share limited at the last look, each with the uuid of its GPU.

        A process whose container the pod's status does not name is left out for KILL_AFTER_SECONDS: the kubelet writes
        the status after the container's start.
        """
        return [
            (uuid, each)
            for uuid, each in self.seen.strays
            if each.process.pod_uid and (each.container or self._is_overdue(each))
        ]

    def overdue(self) -> list[Process]:
        """Returns the pods' processes that, by the last look, no share has limited for KILL_AFTER_SECONDS or longer."""
        return [each.process for _, each in self.seen.strays if self._is_overdue(each)]

    def _is_overdue(self, owned: Owned) -> bool:
        since = self._since.get((owned.process.pid, owned.process.start_time), self._looked_seconds)
        return self._looked_seconds - since >= KILL_AFTER_SECONDS

    def _owned(
        self,
        uuid: str,
        sample: DriverSample,
        alive: Mapping[int, Process],
        by_pod: Mapping[str, list[Record]],
        names: Mapping[str, str],
        shims: Callable[[str], Registered],
    ) -> tuple[list[Owned], frozenset[str]]:
        """Returns the living processes on a GPU with their containers, as far as these are known.

        A process is left out if its container has to be known, and the pod's status does not name the container yet.
        The second value has the uids of the pods of such processes.

        Args:
            alive: the living processes, keyed by the host's process id.
            by_pod: the records of each pod's containers, keyed by the pod's uid.
            names: the containers' names, keyed by their ids in the runtime.
            shims: returns the processes that a container's shim has registered, given the path of its ledger.
        """
        owned = []
        unnamed = set()
        unread = self._node.unread()
        for process in (alive[pid] for pid in _pids(sample) if pid in alive):
            of_pod = by_pod.get(process.pod_uid, ())
            one = owner(process, uuid, of_pod, names, lambda record: shims(self._folders.ledger(record)), unread)
            if one is None:
                unnamed.add(process.pod_uid)
            else:
                owned.append(one)
        return owned, frozenset(unnamed)

    def _figures(
        self, uuid: str, sample: DriverSample, owned: list[Owned], here: list[Record]
    ) -> dict[ContainerDevice, Figure]:
        indexes = {
            (record.uid, record.container): next(
                index for index, device in enumerate(record.devices) if device.uuid == uuid
            )
            for record in here
        }
        slots = {key: record.devices[indexes[key]].slot for record in here for key in [(record.uid, record.container)]}
        members = {
            each.process.pid: slots[each.record.uid, each.record.container]
            for each in owned
            if each.record is not None and (each.record.uid, each.record.container) in slots
        }
        alive = frozenset(each.process.pid for each in owned)
        placed = self._placed[uuid] = place(sample, members, alive, self._placed.get(uuid, Placed()))
        charged: dict[int, int] = {}
        shares: dict[int, float] = {}
        before: dict[int, Figure] = {}
        for record in here:
            key = (record.uid, record.container)
            slot = slots[key]
            charged[slot] = self._activity(record, indexes[key]).charged_bytes
            if record.policy is Policy.HARD:
                shares[slot] = float(record.devices[indexes[key]].core_percent)
            last = self.seen.figures.get((*key, uuid))
            if last is not None:
                before[slot] = last
        alive_by_ledger = frozenset(each.process.pid for each in owned if each.state is ProcessState.HELD)
        made = figures(sample, placed, charged, shares, before, alive_by_ledger)
        return {(*key, uuid): made[slot] for key, slot in slots.items()}

    def _activity(self, record: Record, index: int) -> Activity:
        return Activity() if record.whole else self._ledgers.activity(self._folders.ledger(record), index)


def _grouped(records: Iterable[Record]) -> tuple[Mapping[str, list[Record]], Mapping[str, list[Record]]]:
    """Returns the records of containers, keyed by pod (uid), and keyed by GPU (uuid)."""
    by_pod: dict[str, list[Record]] = {}
    by_gpu: dict[str, list[Record]] = {}
    for record in records:
        by_pod.setdefault(record.uid, []).append(record)
        for uuid in {device.uuid for device in record.devices}:
            by_gpu.setdefault(uuid, []).append(record)
    return by_pod, by_gpu


def _pids(sample: DriverSample) -> frozenset[int]:
    return frozenset(sample.bytes_by_pid) | frozenset(sample.unmeasured)


def end(process: Process) -> bool:
    """Kills a process if it is still the one that was observed, and still in a pod; returns whether it was signalled.

    The process id may belong to another process by now: a descriptor of the process is opened first, and the process is
    checked then.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not process.pod_uid or read_process(process.pid) != process:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError as error:
        _log.warning("process not ended", pid=process.pid, error=str(error))
        return False
    finally:
        os.close(descriptor)
    return True
