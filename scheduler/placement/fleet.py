"""Keeps all nodes with the free parts of their devices in arrays: one row a node, one column a device.

A question about all nodes then takes a few operations on arrays. Their cost grows with the number of devices, and not
with the number of pods. If a node changes, only its row is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fairgpu.inventory import Health, Inventory
from scheduler.placement.holding import Holding

Ints: TypeAlias = npt.NDArray[np.integer[Any]]
Flags: TypeAlias = npt.NDArray[np.bool_]

FIRST_ROWS, FIRST_COLUMNS = 64, 8
NO_CLASS = 0
"""The class of a column without a device."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that offers devices.

    Attributes:
        name: the node's name.
        inventory: the devices that the node offers.
        cpu_milli, host_mib: the processor time (thousandths of a core) and memory (MiB) of the node that pods may take.
    """

    name: str
    inventory: Inventory
    cpu_milli: int = 0
    host_mib: int = 0


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A model of GPU with a total memory in MiB. Devices that agree in both are of one class."""

    model: str
    total_mib: int


@dataclass(frozen=True, slots=True)
class NodeSet:
    """Some nodes of a fleet, as `Fleet.set_of` returns them, in one bit for each row of the fleet.

    A node that is removed is no longer in the sets that were made before, even if it returns.

    Attributes:
        bits: one bit for each row: 1 if the row's node is in the set.
        version: the fleet's version when the set was made.
    """

    bits: bytes
    version: int


class Fleet:
    """All nodes that offer devices, with the free parts of these, as arrays: a row is a node, a column a device.

    Attributes:
        rows: the row of each node, keyed by the node's name. A node keeps its row until it is removed.
        nodes: the node of each row; None if it was removed.
        names: the name of each row's node; empty if it was removed.
        places: the row and column of each device, keyed by the device's uuid.
        classes: the device classes; the first is that of a column without a device.
        version: a number that grows with each change.
        contents: a number that is equal at two times only if nodes and holdings were the same at both.
        changed: the version at which each row changed last.
        emptied: the version at which a node was last removed from each row; 0 if none was.
        cls: the class of each device, as an index into `classes`.
        core, memory, slots: the free part of each device in percent of GPU time, in MiB and in containers. It is below
            0 if pods hold more than the device has.
        total: the MiB that each device offers.
        offered: whether new containers may be placed on a device.
        idle: the free percent of each device, the smaller of GPU time and memory; 0 if the device is not offered or
            has no slot left.
        cpu, host: the free processor time (thousandths of a core) and memory (MiB) of each node.
        link_sets: the links and NUMA nodes of devices that occur on nodes, each combination once. An item is a pair:
            the matrix of the links between a node's devices (see `Inventory.links`), and the NUMA node of each of these
            devices, None if it is not known. Both are in the order of the columns.
        links: the index of each node's item in `link_sets`. Nodes with the same links and NUMA nodes share an item.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.nodes: list[Node | None] = []
        self.names: npt.NDArray[np.object_] = np.full(FIRST_ROWS, "", np.object_)
        self.places: dict[str, tuple[int, int]] = {}
        self.classes: list[DeviceClass] = [DeviceClass("", 0)]
        self.version = self.contents = 0
        self.link_sets: list[tuple[tuple[tuple[int, ...], ...], tuple[int | None, ...]]] = []
        self._class_ids: dict[DeviceClass, int] = {self.classes[0]: NO_CLASS}
        self._link_ids: dict[tuple[tuple[tuple[int, ...], ...], tuple[int | None, ...]], int] = {}
        self._held: dict[str, Holding] = {}
        self._of_node: dict[str, dict[str, Holding]] = {}
        self._free_rows: list[int] = []
        shape = (FIRST_ROWS, FIRST_COLUMNS)
        self.cls: Ints = np.zeros(shape, np.int32)
        self.core: Ints = np.zeros(shape, np.int32)
        self.memory: Ints = np.zeros(shape, np.int64)
        self.slots: Ints = np.zeros(shape, np.int32)
        self.total: Ints = np.zeros(shape, np.int64)
        self.idle: Ints = np.zeros(shape, np.int32)
        self.offered: Flags = np.zeros(shape, np.bool_)
        self.cpu: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.host: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.links: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.changed: Ints = np.zeros(FIRST_ROWS, np.int64)
        self.emptied: Ints = np.zeros(FIRST_ROWS, np.int64)
        self._alike: Ints = np.zeros(FIRST_ROWS, np.int64)
        self._alike_numbers: dict[bytes, int] = {}
        self._alike_version = -1

    def put(self, node: Node) -> None:
        """Adds a node with its devices, or replaces the devices of a known node."""
        row = self.rows.get(node.name)
        if row is None:
            row = self._new_row()
            self.rows[node.name] = row
        if len(node.inventory.devices) > self.cls.shape[1]:
            self._grow(0, len(node.inventory.devices) - self.cls.shape[1])
        self._forget_places(row)
        self.nodes[row] = node
        self.names[row] = node.name
        self.places |= {device.uuid: (row, at) for at, device in enumerate(node.inventory.devices)}
        self._describe(row, node.inventory)
        self._count(row, node)

    def remove(self, name: str) -> None:
        """Removes the node of this name. What pods hold of it stays recorded, and counts again if the node returns."""
        row = self.rows.pop(name, None)
        if row is not None:
            self._forget_places(row)
            self.nodes[row] = None
            self.names[row] = ""
            self._free_rows.append(row)
            for array in (self.cls, self.core, self.memory, self.slots, self.total, self.idle, self.cpu, self.host):
                array[row] = 0
            self.offered[row] = False
            self._mark(row)
            self.emptied[row] = self.version

    def hold(self, uid: str, holding: Holding) -> None:
        """Stores the part of a node that a pod holds, in place of the part that it held before.

        Args:
            uid: the pod's uid, or another text under which devices are held.
            holding: the node, and the pod's parts of its devices, processor time and memory.
        """
        if self._held.get(uid) == holding:
            return
        self.release(uid)
        self._held[uid] = holding
        self._of_node[holding.node] = {**self._of_node.get(holding.node, {}), uid: holding}
        self._count_node(holding.node)

    def release(self, uid: str) -> None:
        """Frees all that the pod with this uid holds."""
        holding = self._held.pop(uid, None)
        if holding is not None:
            # Never changed in place: a copy of the fleet shares it.
            left = {other: held for other, held in self._of_node[holding.node].items() if other != uid}
            if left:
                self._of_node[holding.node] = left
            else:
                del self._of_node[holding.node]
            self._count_node(holding.node)

    def release_all(self) -> None:
        """Frees all that any pod holds, so that the fleet has all parts free that its nodes offer."""
        self._held, self._of_node = {}, {}
        there, rows = self.cls != NO_CLASS, slice(0, self.size)
        offers = [
            (0, 0, 0) if one is None else (one.inventory.slots, one.cpu_milli, one.host_mib) for one in self.nodes
        ]
        slots, self.cpu[rows], self.host[rows] = np.array(offers, np.int64).reshape(-1, 3).T
        self.core[there], self.idle[self.offered], self.memory[:] = 100, 100, self.total
        self.slots[rows] = slots[:, None] * there[rows]
        self.version += 1
        self.changed[rows] = self.contents = self.version

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Keeps `contents` as it is. The with block must end with the nodes and holdings with which it began."""
        before = self.contents
        try:
            yield
        finally:
            self.contents = before

    def held_by(self, uid: str) -> Holding | None:
        """Returns the part of a node that the pod with this uid holds; None if it holds nothing."""
        return self._held.get(uid)

    def holders(self, name: str) -> dict[str, Holding]:
        """Returns the parts that are held of the node of this name, keyed by the uid or other text that `hold` took."""
        return dict(self._of_node.get(name, {}))

    def count(self, name: str) -> int:
        """Returns the number of parts that are held of the node of this name (`holders`)."""
        return len(self._of_node.get(name, {}))

    def copy(self) -> Fleet:
        """Returns a copy of the fleet that can be changed without changing this one; unchanged parts are shared."""
        other = Fleet()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict | list | np.ndarray) else value)
        return other

    def alike(self) -> Ints:
        """Returns a number for each row, equal for rows whose devices, in order, have the same classes and free parts.

        It also compares whether each device is offered. So a computation on one of these rows holds for the others,
        too. The numbers are at least 0. A node's processor time and memory, the links of its devices and their uuids
        are not compared.
        """
        if len(self._alike_numbers) > 2 * len(self.nodes):
            # Most of the known contents are those of no row any more.
            self._alike_numbers, self._alike_version = {}, -1
        changed = np.flatnonzero(self.changed[: self.size] > self._alike_version)
        if len(changed):
            columns = (self.cls, self.core, self.memory, self.slots, self.offered)
            contents = np.concatenate([column[changed].view(np.uint8) for column in columns], axis=1)
            whole, width, numbers = contents.tobytes(), contents.shape[1], self._alike_numbers
            keys = (whole[at : at + width] for at in range(0, len(whole), width))
            self._alike[changed] = [numbers.setdefault(key, len(numbers)) for key in keys]
        self._alike_version = self.version
        return self._alike[: self.size]

    def set_of(self, rows: Ints) -> NodeSet:
        """Returns some nodes as a set that is small enough to be kept for each pod.

        Args:
            rows: the rows of the nodes; none is of a node that was removed.
        """
        flags = np.zeros(self.size, np.bool_)
        flags[rows] = True
        return NodeSet(np.packbits(flags).tobytes(), self.version)

    def within(self, nodes: NodeSet) -> Flags:
        """Returns, for each row, whether its node is in a set."""
        flags = np.zeros(self.size, np.bool_)
        bits = np.unpackbits(np.frombuffer(nodes.bits, np.uint8))[: self.size]
        flags[: len(bits)] = bits
        return np.asarray(flags & (self.emptied[: self.size] <= nodes.version))

    def capacity(self) -> dict[int, int]:
        """Returns the number of devices of each class, keyed by the class's index in `classes`."""
        numbers, counts = np.unique(self.cls[: self.size], return_counts=True)
        return {int(n): int(count) for n, count in zip(numbers, counts, strict=True) if n != NO_CLASS}

    @property
    def size(self) -> int:
        """The number of rows in use, including the rows of removed nodes."""
        return len(self.nodes)

    def _forget_places(self, row: int) -> None:
        node = self.nodes[row]
        for device in node.inventory.devices if node is not None else ():
            if self.places.get(device.uuid, (-1, 0))[0] == row:
                del self.places[device.uuid]

    def _count_node(self, name: str) -> None:
        row = self.rows.get(name)
        node = None if row is None else self.nodes[row]
        if row is not None and node is not None:
            self._count(row, node)

    def _mark(self, row: int) -> None:
        self.version += 1
        self.changed[row] = self.contents = self.version

    def _new_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        if len(self.nodes) == len(self.cls):
            self._grow(len(self.cls), 0)
        self.nodes.append(None)
        return len(self.nodes) - 1

    def _grow(self, rows: int, columns: int) -> None:
        lines, table = (0, rows), ((0, rows), (0, columns))
        self.names = np.append(self.names, np.full(rows, "", np.object_))
        self.cls = np.pad(self.cls, table)
        self.core = np.pad(self.core, table)
        self.memory = np.pad(self.memory, table)
        self.slots = np.pad(self.slots, table)
        self.total = np.pad(self.total, table)
        self.idle = np.pad(self.idle, table)
        self.offered = np.pad(self.offered, table)
        self.cpu = np.pad(self.cpu, lines)
        self.host = np.pad(self.host, lines)
        self.links = np.pad(self.links, lines)
        self.changed = np.pad(self.changed, lines)
        self.emptied = np.pad(self.emptied, lines)
        self._alike = np.pad(self._alike, lines)
        if columns:
            # The known contents lack these columns.
            self._alike_numbers, self._alike_version = {}, -1

    def _describe(self, row: int, inventory: Inventory) -> None:
        """Writes the class, memory, health and links of a node's devices into the arrays."""
        devices = inventory.devices
        unused = self.cls.shape[1] - len(devices)
        pad = [0] * unused
        self.total[row] = [device.memory_mib for device in devices] + pad
        self.offered[row] = [device.health is Health.OK for device in devices] + [False] * unused
        self.cls[row] = [self._class_id(DeviceClass(d.model, d.memory_mib)) for d in devices] + pad
        self.links[row] = self._link_id(inventory)

    def _count(self, row: int, node: Node) -> None:
        """Writes the free parts of a node and its devices into the arrays: all that it offers, less what pods hold."""
        devices = node.inventory.devices
        columns = {device.uuid: at for at, device in enumerate(devices)}
        core = [100] * len(devices)
        memory = [device.memory_mib for device in devices]
        slots = [node.inventory.slots] * len(devices)
        cpu, host = node.cpu_milli, node.host_mib
        for holding in self._of_node.get(node.name, {}).values():
            cpu -= holding.cpu_milli
            host -= holding.host_mib
            for piece in holding.pieces:
                at = columns.get(piece.uuid)
                if at is not None:
                    core[at] -= piece.core_percent
                    memory[at] -= piece.memory_mib
                    slots[at] -= piece.slots
        idle = [
            max(min(free, left * 100 // device.memory_mib), 0) if device.health is Health.OK and taken > 0 else 0
            for device, free, left, taken in zip(devices, core, memory, slots, strict=True)
        ]
        pad = [0] * (self.cls.shape[1] - len(devices))
        self.core[row], self.memory[row], self.slots[row] = core + pad, memory + pad, slots + pad
        self.idle[row] = idle + pad
        self.cpu[row], self.host[row] = cpu, host
        self._mark(row)

    def _class_id(self, device_class: DeviceClass) -> int:
        known = self._class_ids.get(device_class)
        if known is None:
            known = self._class_ids[device_class] = len(self.classes)
            self.classes.append(device_class)
        return known

    def _link_id(self, inventory: Inventory) -> int:
        links = tuple(tuple(int(tier) for tier in row) for row in inventory.links)
        key = (links, tuple(device.numa for device in inventory.devices))
        known = self._link_ids.get(key)
        if known is None:
            known = self._link_ids[key] = len(self.link_sets)
            self.link_sets.append(key)
        return known
