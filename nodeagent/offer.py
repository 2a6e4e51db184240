"""What a vendor's GPUs are to this node: who they are, whether they are healthy, what a container needs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairgpu.inventory import MAX_SLOTS, Device, Inventory

Edits = tuple[str, Mapping[str, Any]]
"""The version of a CDI spec, and the edits that give a container one GPU."""


@dataclass(frozen=True)
class Offer:
    """What the node offers now.

    Attributes:
        inventory: the devices that are offered, fenced ones among them.
        edits: the vendor's CDI edits, by uuid.
        withheld: why other devices are not offered, by uuid; for events.
    """

    inventory: Inventory
    edits: Mapping[str, Edits]
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> dict[str, Device]:
        """The devices by uuid."""
        return {device.uuid: device for device in self.inventory.devices}


class Vendor(Protocol):
    """All that the agent asks of a vendor's driver."""

    def offer(self) -> Offer:
        """Reads the devices anew.

        Raises:
            OSError: the driver does not answer; the message says what it said.
        """

    def watch(self, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Hears of faults as they come, and calls `changed` after each, for as long as the caller goes on.

        Raises:
            OSError: the driver tells of none, or no longer.
        """


def slot_ids(devices: int) -> tuple[str, ...]:
    """The device plugin's slots for so many devices: they count containers, and say nothing of which device."""
    return tuple(f"slot-{number}" for number in range(devices * MAX_SLOTS))
