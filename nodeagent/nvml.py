"""Samples through NVML the memory and GPU time of each process, in a thread beside the writer of a schedule page.

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
"""The least time between two samples, however often programs ask for one."""
UTILISATION_NS = 900_000_000
"""The least time between two questions for the utilisation by processes: that of two looks which no program asks for,
less what a timer may lack. NVML takes a sample of it each second, or up to six times a second, depending on the product
(nvmlUtilization_t), and gives none at all for an idle GPU. So an earlier question might take a busy GPU for an idle
one."""
MOST_PERCENT = 100
"""The most utilisation of a sample that is one. Drivers give others of processes that have ended
(https://github.com/Syllo/nvtop/issues/110)."""
AHEAD_US = 60_000_000
"""The time, in us, by which a sample must lie in the future to count as taken before the clock was set back. NVML's
times are those of the calendar."""


class Nvml:
    """One GPU, read through NVML with the package nvidia-ml-py.

    Raises:
        OSError: there is no NVML, no such GPU, or NVML failed; the message contains NVML's.
        ImportError: the package is not installed.
    """

    def __init__(
        self,
        uuid: str,
        wall_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Opens NVML and finds the GPU.

        Args:
            uuid: the GPU's uuid.
            wall_ns: returns the present time in ns since 1970, the clock of NVML's samples.
            clock_ns: returns ns of CLOCK_MONOTONIC.
        """
        import pynvml  # noqa: PLC0415 (only where a GPU is to be asked)

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        self._wall_ns = wall_ns
        self._clock_ns = clock_ns
        self._utilisation_us = 0
        self._percents: dict[int, float] | None = None
        self._asked_ns = -UTILISATION_NS
        """The time of the question whose answer is `_percents`."""

    def sample(self) -> DriverSample:
        """Returns NVML's present figures of the GPU and of the processes on it.

        Raises:
            OSError: NVML failed, or names processes but gives the memory of none.
        """
        at_ns = self._clock_ns()
        try:
            compute = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._device)
            percent = self._percent(at_ns)
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        processes = [*compute, *self._graphics()]
        measured: dict[int, int] = {}
        for one in processes:
            if one.usedGpuMemory is not None:  # a process in both lists may have two figures
                measured[int(one.pid)] = max(int(one.usedGpuMemory), measured.get(int(one.pid), 0))
        unmeasured = frozenset(int(one.pid) for one in processes) - measured.keys()
        if compute and unmeasured and not measured:
            raise OSError("NVML: it gives the memory of no process")
        return DriverSample(at_ns, int(memory.used), measured, percent, unmeasured)

    def _graphics(self) -> list[Any]:
        """Returns the processes that use the GPU for graphics, such as by Vulkan; NVML lists them apart from CUDA's.

        The list is empty if NVML does not name them.
        """
        try:
            return list(self._nvml.nvmlDeviceGetGraphicsRunningProcesses(self._device))
        except self._nvml.NVMLError:
            return []

    def _percent(self, now_ns: int) -> dict[int, float] | None:
        """Returns the percent of time in which each process kept the GPU busy, by the last answer, keyed by pid.

        NVML is asked again once UTILISATION_NS have passed since it was asked.
        """
        if now_ns - self._asked_ns >= UTILISATION_NS:
            self._percents, self._asked_ns = self._utilisation(), now_ns
        return self._percents

    def _utilisation(self) -> dict[int, float] | None:
        """Returns the percent of the time since the last call in which each process kept the GPU busy, keyed by pid.

        The mapping is empty if NVML has no samples, and None if it does not measure this GPU. After the clock was set
        back, NVML's history still has samples of later times for a while. They do not count.
        """
        now_us = self._wall_ns() // 1000
        if self._utilisation_us > now_us + AHEAD_US:
            self._utilisation_us = now_us
        try:
            listed = self._nvml.nvmlDeviceGetProcessUtilization(self._device, self._utilisation_us)
        except self._nvml.NVMLError as error:
            # The package raises an error of the value NVML_SUCCESS where NVML has nothing to copy.
            return {} if error.value in (self._nvml.NVML_SUCCESS, self._nvml.NVML_ERROR_NOT_FOUND) else None
        samples = [one for one in listed if int(one.timeStamp) <= now_us + AHEAD_US and int(one.smUtil) <= MOST_PERCENT]
        self._utilisation_us = max([self._utilisation_us, *(int(one.timeStamp) for one in samples)])
        sums: dict[int, list[int]] = {}
        for one in samples:
            sums.setdefault(int(one.pid), []).append(int(one.smUtil))
        return {pid: sum(values) / len(values) for pid, values in sums.items()}


def members_of(containers: Iterable[Container]) -> dict[int, int]:
    """Returns, for each process in the containers' cgroups or in cgroups below them, the slot of its container.

    The slots are keyed by the host's process id.

    Args:
        containers: the containers on a GPU's schedule page; one whose cgroup is not known, or cannot be read, has no
            process in the answer.
    """
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
    """Returns the ids of the processes that each container's shim has registered, keyed by the container's slot.

    The ids are those in the processes' own PID namespaces. The processes live, or have just ended. A container is left
    out if its ledger file cannot be read.
    """
    pids = {}
    for container in containers:
        with contextlib.suppress(OSError):
            pids[container.slot] = frozenset(slot.own_pid for slot in read_slots(container.ledger))
    return pids


def living_pids(
    slots: Mapping[int, int | None], own: Mapping[int, int], living_by_slot: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """Returns the host's ids of the processes on a GPU that their container's shim lists as living.

    Args:
        slots: for each process on the GPU, the slot of its container, keyed by the host's process id. A process whose
            slot is None is not in the answer.
        own: the id of each living process in its own PID namespace, keyed by the host's.
        living_by_slot: the ids, in their own PID namespaces, of the processes that each container's shim lists as
            living.
    """
    return frozenset(
        pid for pid, slot in slots.items() if slot is not None and own.get(pid) in living_by_slot.get(slot, frozenset())
    )


def own_pids(pids: Iterable[int]) -> dict[int, int]:
    """Returns the id of each living process in its own PID namespace, keyed by the host's id.

    Args:
        pids: the host's ids of processes; those that do not live any more are left out.
    """
    own = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            own[pid] = own_pid_of(Path(f"/proc/{pid}/status").read_bytes())
    return own


def unregistered(
    slots: Mapping[int, int | None], own: Mapping[int, int], registered: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """Returns the host's ids of the containers' processes on a GPU that no shim has registered.

    A process can hide, since a container can write anything to its ledger file: a process that the file names is not
    found.

    Args:
        slots: for each process on the GPU, the slot of its container, keyed by the host's process id. A process whose
            slot is None is not in the answer.
        own: the id of each living process in its own PID namespace, keyed by the host's. A process without an entry is
            not in the answer.
        registered: the ids, in their own PID namespaces, of the processes that each container's shim has registered. No
            process of a container without an entry is in the answer.
    """
    return frozenset(
        pid
        for pid, slot in slots.items()
        if slot is not None and slot in registered and pid in own and own[pid] not in registered[slot]
    )


def log(event: str, **fields: object) -> None:
    """Writes an event with its fields as one JSON line to the standard error stream."""
    sys.stderr.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stderr.flush()


class Figures:
    """Computes the figures of each container on one GPU from the driver's latest sample, and keeps them in `latest`.

    `look` renews them once, and `watch` repeatedly until it is stopped.
    """

    def __init__(self, sample: Callable[[], DriverSample]) -> None:
        self._sample = sample
        self._placed = Placed()
        self.latest: Mapping[int, Figure] = {}
        """The figures, keyed by the container's slot. The mapping is replaced whole: any thread may read it."""
        self.listed: tuple[tuple[Container, ...], Mapping[int, int]] = ((), {})
        """The containers that `watch` looks at, and the bytes charged by slot; replaced whole."""
        self._wanted = threading.Event()
        self._looked_ns = 0
        self._unregistered: frozenset[int] = frozenset()
        self._reported: frozenset[int] = frozenset()

    def look(self, containers: tuple[Container, ...], charged: Mapping[int, int]) -> None:
        """Asks the driver once, and computes the figures of the containers anew.

        Args:
            containers: the containers on the GPU's schedule page.
            charged: the bytes of GPU memory that the shim has charged to each container, keyed by its slot.

        Raises:
            OSError: the driver does not answer.
            ImportError: the function that samples (`asked`) lacks the package nvidia-ml-py.
        """
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
        """Asks `watch` for a new sample; does nothing if the last one began at `wanted_ns` or later.

        Args:
            wanted_ns: the time, in ns of CLOCK_MONOTONIC.
        """
        if wanted_ns > self._looked_ns:
            self._wanted.set()

    def _find_unregistered(
        self, containers: tuple[Container, ...], sample: DriverSample, placed: Placed, own: Mapping[int, int]
    ) -> None:
        """Logs, once, each process of a container that no shim had registered at this sample and the one before.

        One sample is not enough, since the process may be ending. `placed` has the container of each process, and `own`
        the id of each process in its own PID namespace, keyed by the host's id.
        """
        found = unregistered(placed.slots, own, registered_pids(containers))
        lasting = found & self._unregistered
        for pid in sorted(lasting - self._reported):
            held = sample.bytes_by_pid.get(pid, 0)
            log("schedule.process_without_slot", slot=placed.slots[pid], pid=pid, bytes=held)
        self._unregistered, self._reported = found, lasting

    def watch(self, stop: threading.Event) -> None:
        """Asks the driver about the containers in the attribute `listed`, every INTERVAL_SECONDS, sooner after `ask`.

        It does so while the cgroup of at least one container is known. A failure is logged once, until the driver
        answers again: an unforeseen error would otherwise end the thread, and with it all later figures.

        Args:
            stop: ends the loop once it is set.
        """
        silent = False
        while not stop.wait(LEAST_SECONDS):
            self._wanted.wait(INTERVAL_SECONDS - LEAST_SECONDS)
            self._wanted.clear()
            if all(each.cgroup is None for each in self.listed[0]):
                continue
            try:
                self.look(*self.listed)
            except Exception as error:  # noqa: BLE001 - see above
                if not silent:
                    log("schedule.driver_silent", reason=str(error) if isinstance(error, OSError) else repr(error))
                silent = True
            else:
                silent = False


def asked(uuid: str) -> Callable[[], DriverSample]:
    """Returns a function that asks NVML for the figures of the GPU with this uuid.

    NVML is opened at the function's first call, and again at the next call after opening failed. The function raises
    OSError if NVML fails, and ImportError if the package nvidia-ml-py is not installed.
    """
    opened: list[Nvml] = []

    def sample() -> DriverSample:
        if not opened:
            opened.append(Nvml(uuid))
        return opened[0].sample()

    return sample
