"""The GPUs that the node offers: their identity, health, and the CDI edits that a container needs for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairgpu.inventory import MAX_SLOTS, Device, Inventory
from nodeagent.driver_figures import DriverSample

Edits = tuple[str, Mapping[str, Any]]
"""The version of a CDI spec, and the edits that give a container one GPU."""


@dataclass(frozen=True)
class Offer:
    """The devices that the node offers now, and those that it withholds.

    Attributes:
        inventory: the devices that are offered, fenced ones among them.
        edits: the vendor's CDI edits, by uuid.
        withheld: the reason why each other device is not offered, by uuid; for events.
    """

    inventory: Inventory
    edits: Mapping[str, Edits]
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> dict[str, Device]:
        """Returns the devices by uuid."""
        return {device.uuid: device for device in self.inventory.devices}


class Vendor(Protocol):
    """The interface to a vendor's driver."""

    def offer(self) -> Offer:
        """Reads the devices.

        Raises:
            OSError: the driver does not answer; the message contains the driver's.
        """

    def sample(self, uuid: str) -> DriverSample:
        """What the driver says now of one device and of the processes on it.

        Raises:
            OSError: the driver does not answer.
        """

    def watch(self, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Calls `changed` after each fault that the driver reports, for as long as the caller continues.

        Raises:
            OSError: the driver reports no faults, or stopped reporting them.
        """


def slot_ids(devices: int) -> tuple[str, ...]:
    """Returns the device plugin's slots for so many devices; slots count containers and identify no device."""
    return tuple(f"slot-{number}" for number in range(devices * MAX_SLOTS))
