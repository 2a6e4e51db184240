"""GPUs in memory behind `nodeagent.offer.Vendor`, in place of hardware that the machine lacks.

A test states which GPUs there are, whether their driver answers, and which of them fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairgpu.inventory import Device, Health, Inventory, Link
from nodeagent.driver_figures import DriverSample
from nodeagent.offer import DriverReplacedError, Offer

MEMORY_MIB = 16384
WATCH_SECONDS = 0.05


def gpus(count: int) -> tuple[Device, ...]:
    """Returns `count` devices of one model, with the uuids `GPU-0`, `GPU-1` and so on."""
    return tuple(Device(f"GPU-{number}", "Fake GPU", MEMORY_MIB, None, f"0:{number}") for number in range(count))


class FakeVendor:
    """A driver whose GPUs and answers a test sets.

    Attributes:
        devices: the GPUs that it has.
        silent: whether it does not answer.
        replaced: whether another driver has taken its place.
        faults: why each broken GPU is fenced, keyed by uuid.
        changed: an event that a test sets after a new fault, to wake the agent's watch.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.silent = False
        self.replaced = False
        self.faults: dict[str, str] = {}
        self.changed = threading.Event()

    def offer(self) -> Offer:
        self._answer()
        devices = tuple(
            replace(each, health=Health.FENCED, why=self.faults[each.uuid]) if each.uuid in self.faults else each
            for each in self.devices
        )
        links = tuple(tuple(Link.SELF if one is two else Link.SYSTEM for two in devices) for one in devices)
        edits = {each.uuid: ("0.6.0", {"deviceNodes": [{"path": f"/dev/{each.uuid}"}]}) for each in devices}
        return Offer(Inventory("fake", "1", 64, devices, links), edits)

    def sample(self, uuid: str) -> DriverSample:
        self._answer()
        if all(each.uuid != uuid for each in self.devices):
            raise OSError(f"there is no GPU {uuid}")
        return DriverSample(time.monotonic_ns(), 0, {})

    def watch(self, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        self._answer()
        while goes_on():
            if self.changed.wait(WATCH_SECONDS):
                self.changed.clear()
                changed()

    def _answer(self) -> None:
        if self.replaced:
            raise DriverReplacedError("the driver's library is of another version")
        if self.silent:
            raise OSError("the driver does not answer")
