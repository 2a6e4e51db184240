"""Samples through NVML the memory and GPU time of each process, beside the writing of the schedule page.

NVML can take long; the writer of the page uses the latest finished sample.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nodeagent.driver_figures import DriverSample, Figure, Placed, figures, place
from nodeagent.ledger_slots import living, read_slots
from nodeagent.processes import own_pid_of
from nodeagent.rounds import Container
from nodeagent.turns import Policy

INTERVAL_SECONDS = 0.5
LEAST_SECONDS = 0.25
"""The least time between two samples, however often programs ask for one: NVML's own history has one in a sixth."""


class Nvml:
    """One GPU through nvidia-ml-py.

    Raises:
        OSError: there is no NVML, no such GPU, or NVML failed; the message contains NVML's.
    """

    def __init__(self, uuid: str) -> None:
        import pynvml  # noqa: PLC0415 (only where a GPU is to be asked)

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        self._utilisation_us = 0

    def sample(self) -> DriverSample:
        """Returns NVML's present figures."""
        at_ns = time.monotonic_ns()
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._device)
            percent = self._percent()
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        measured = {int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory is not None}
        unmeasured = frozenset(int(one.pid) for one in processes) - measured.keys()
        if unmeasured and not measured:
            raise OSError("NVML: it gives the memory of no process")
        return DriverSample(at_ns, int(memory.used), measured, percent, unmeasured)

    def _percent(self) -> dict[int, float]:
        """Returns the mean utilisation of each process since the last call; none where NVML has none."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._device, self._utilisation_us)
        except self._nvml.NVMLError:
            return {}
        self._utilisation_us = max([self._utilisation_us, *(int(one.timeStamp) for one in samples)])
        sums: dict[int, list[int]] = {}
        for one in samples:
            sums.setdefault(int(one.pid), []).append(int(one.smUtil))
        return {pid: sum(values) / len(values) for pid, values in sums.items()}


def members_of(containers: Iterable[Container]) -> dict[int, int]:
    """Returns the processes in the containers' cgroups and in those below them: pid to slot."""
    found = {}
    for container in containers:
        for path in container.cgroup.rglob("cgroup.procs") if container.cgroup is not None else ():
            try:
                pids = path.read_text().split()
            except OSError:
                continue  # the container is just ending
            found.update({int(pid): container.slot for pid in pids})
    return found


def registered_pids(containers: Iterable[Container]) -> dict[int, frozenset[int]]:
    """Returns, by slot, the pids in each container's ledger, as the processes themselves know them.

    A ledger that cannot be read is left out.

    The processes live, or have just ended.
    """
    pids = {}
    for container in containers:
        with contextlib.suppress(OSError):
            pids[container.slot] = frozenset(slot.own_pid for slot in read_slots(container.ledger))
    return pids


def living_pids(
    slots: Mapping[int, int | None], own: Mapping[int, int], living_by_slot: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """Returns the host's pids of the containers' processes on the GPU that their container's ledger lists as living.

    Args:
        slots: the container of each process on the GPU, by its slot.
        own: the pids of those that still live in their own namespaces.
        living_by_slot: the own pids that each container's ledger lists as living.
    """
    return frozenset(
        pid for pid, slot in slots.items() if slot is not None and own.get(pid) in living_by_slot.get(slot, frozenset())
    )


def own_pids(pids: Iterable[int]) -> dict[int, int]:
    """Returns the pids of living processes in their own namespaces, by the host's."""
    own = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            own[pid] = own_pid_of(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    return own


def unregistered(
    slots: Mapping[int, int | None], own: Mapping[int, int], registered: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """Returns the host's pids of the containers' processes on the GPU that no shim has registered in a ledger.

    A container can write to its ledger what it likes, so that only processes are found that do not hide.

    Args:
        slots: the container of each process on the GPU, by its slot.
        own: the pids of those that still live in their own namespaces; another process is in no answer.
        registered: the own pids in each container's ledger; no process of another container is in the answer.
    """
    return frozenset(
        pid
        for pid, slot in slots.items()
        if slot is not None and slot in registered and pid in own and own[pid] not in registered[slot]
    )


def log(event: str, **fields: object) -> None:
    """Writes one JSON line."""
    sys.stderr.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stderr.flush()


class Figures:
    """The latest NVML figures of each container; `look` renews them once, `watch` until it is stopped."""

    def __init__(self, sample: Callable[[], DriverSample]) -> None:
        self._sample = sample
        self._placed = Placed()
        self.latest: Mapping[int, Figure] = {}
        """By slot; replaced whole, so that it can be read from any thread."""
        self.listed: tuple[tuple[Container, ...], Mapping[int, int]] = ((), {})
        """The containers that `watch` looks at, and the bytes charged by slot; replaced whole."""
        self._wanted = threading.Event()
        self._looked_ns = 0
        self._unregistered: frozenset[int] = frozenset()
        self._reported: frozenset[int] = frozenset()

    def look(self, containers: tuple[Container, ...], charged: Mapping[int, int]) -> None:
        """Asks the driver once."""
        self._looked_ns = time.monotonic_ns()
        members = members_of(containers)
        sample = self._sample()
        members |= members_of(containers)
        pids = sample.bytes_by_pid.keys() | sample.unmeasured
        alive = frozenset(pid for pid in pids if Path(f"/proc/{pid}").exists())
        placed = place(sample, members, alive, self._placed)
        shares = {each.slot: float(each.core_percent) for each in containers if each.policy is Policy.HARD}
        self._placed = placed
        own = own_pids(placed.slots)
        alive_by_ledger = {each.slot: frozenset(pid for pid, _ in living(each.ledger)) for each in containers}
        alive_here = living_pids(placed.slots, own, alive_by_ledger)
        self.latest = figures(sample, placed, charged, shares, self.latest, alive_here)
        self._find_unregistered(containers, sample, placed, own)

    def ask(self, wanted_ns: int) -> None:
        """Ends the wait of `watch` early where no sample was begun since the instant, in ns of CLOCK_MONOTONIC."""
        if wanted_ns > self._looked_ns:
            self._wanted.set()

    def _find_unregistered(
        self, containers: tuple[Container, ...], sample: DriverSample, placed: Placed, own: Mapping[int, int]
    ) -> None:
        """Logs once each process without a slot in two samples in a row. One that is just ending may lack it in one."""
        found = unregistered(placed.slots, own, registered_pids(containers))
        lasting = found & self._unregistered
        for pid in sorted(lasting - self._reported):
            held = sample.bytes_by_pid.get(pid, 0)
            log("schedule.process_without_slot", slot=placed.slots[pid], pid=pid, bytes=held)
        self._unregistered, self._reported = found, lasting

    def watch(self, stop: threading.Event) -> None:
        """Takes samples repeatedly, once a container's cgroup is named; sooner where one was asked for.

        A refusal of NVML is logged once, until NVML answers again.
        """
        silent = False
        while not stop.wait(LEAST_SECONDS):
            self._wanted.wait(INTERVAL_SECONDS - LEAST_SECONDS)
            self._wanted.clear()
            if all(each.cgroup is None for each in self.listed[0]):
                continue
            try:
                self.look(*self.listed)
            except OSError as error:
                if not silent:
                    log("schedule.driver_silent", reason=str(error))
                silent = True
            else:
                silent = False


def asked(uuid: str) -> Callable[[], DriverSample]:
    """Returns a function that samples a GPU; NVML is opened at the first call, and again after a failure."""
    opened: list[Nvml] = []

    def sample() -> DriverSample:
        if not opened:
            opened.append(Nvml(uuid))
        return opened[0].sample()

    return sample
