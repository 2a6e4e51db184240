"""Keeps the running pods and their devices as arrays over all nodes; only the rows of changed nodes are made anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler.placement.fleet import Flags, Fleet, Ints
from scheduler.placement.holding import Holding
from scheduler.placement.learning import Floats


class Running(NamedTuple):
    """The facts about a running pod that may be evicted.

    Attributes:
        namespace: the pod's namespace.
        high_priority: whether its author chose a high task priority.
        since: the time from which it holds its devices, in seconds since 1970.
    """

    namespace: str
    high_priority: bool
    since: float


class Pieces(NamedTuple):
    """The parts of devices that running pods hold, as arrays with an item for each pod's part of one device.

    Attributes:
        pod: the pod's index in the arrays of `Holders`.
        device: the device, as a number: its node's row in the fleet times the number of columns, plus its column.
        core, memory, slots: the part in percent of GPU time, in MiB and in containers.
    """

    pod: Ints
    device: Ints
    core: Ints
    memory: Ints
    slots: Ints


@dataclass(frozen=True, slots=True)
class Holders:
    """The running pods that hold devices and may be evicted, as arrays with an item for each pod.

    Attributes:
        uids: the pods' uids.
        row: the index in the fleet of each pod's node.
        namespace: the index of each pod's namespace in `Roster.namespaces`.
        high_priority: whether each pod's task priority is high.
        since: the time from which each pod holds its devices, in seconds since 1970.
        core_percent: the GPU time that each pod holds, summed over its devices, in percent of a GPU; at least 1.
        cpu_milli, host_mib: the processor time (thousandths of a core) and memory (MiB) that each pod holds of its
            node.
        pieces: the parts of devices that the pods hold.
    """

    uids: list[str]
    row: Ints
    namespace: Ints
    high_priority: Flags
    since: Floats
    core_percent: Ints
    cpu_milli: Ints
    host_mib: Ints
    pieces: Pieces

    def places(self, uids: set[str]) -> Flags:
        """Returns, for each running pod in order, whether its uid is among the given ones."""
        return np.fromiter((uid in uids for uid in self.uids), np.bool_, len(self.uids))


class _Row(NamedTuple):
    """The running pods of one node that may be evicted.

    Attributes:
        uids: the pods' uids.
        pods: an array with a row for each pod, as `Roster._figures` returns it.
        pieces: an array with a row for each pod's part of a device, as `pieces_on` returns it; its first number is the
            pod's index in `uids`.
    """

    uids: tuple[str, ...]
    pods: npt.NDArray[np.float64]
    pieces: Ints


NO_PODS = _Row((), np.zeros((0, 6)), np.zeros((0, 5), np.int64))


class Roster:
    """The running pods that may be evicted, kept node by node; each read computes only the nodes that have changed.

    Attributes:
        namespaces: the namespaces of the pods so far; `Holders.namespace` has indexes into this list.
    """

    def __init__(self) -> None:
        self.namespaces: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows: list[_Row] = []
        self._version = -1
        self._unsettled: set[int] = set()

    def read(self, fleet: Fleet, running: Callable[[str], Running | None]) -> Holders:
        """Returns the running pods of a fleet that hold devices and may be evicted.

        Args:
            fleet: the nodes and the parts that pods hold of them; always the same fleet.
            running: returns the facts about the pod with a uid; None if it must not be evicted. The facts about a pod
                must not change while its holding stays the same.
        """
        self._rows += [NO_PODS] * (fleet.size - len(self._rows))
        changed = np.flatnonzero(fleet.changed[: fleet.size] > self._version).tolist()
        for row in sorted({*changed, *self._unsettled}):
            self._rows[row] = self._read_row(fleet, row, running)
        self._version = fleet.version
        pods = np.concatenate([one.pods for one in self._rows] or [NO_PODS.pods])
        pieces = np.concatenate([one.pieces for one in self._rows] or [NO_PODS.pieces])
        counts = np.array([len(one.uids) for one in self._rows], np.int64)
        begins = np.cumsum(counts) - counts
        row_of_piece = np.repeat(np.arange(len(self._rows)), [len(one.pieces) for one in self._rows])
        return Holders(
            uids=list(chain.from_iterable(one.uids for one in self._rows)),
            row=np.repeat(np.arange(len(self._rows)), counts),
            namespace=pods[:, 0].astype(np.int64),
            high_priority=pods[:, 1] != 0,
            since=pods[:, 2],
            core_percent=pods[:, 3].astype(np.int64),
            cpu_milli=pods[:, 4].astype(np.int64),
            host_mib=pods[:, 5].astype(np.int64),
            pieces=Pieces(
                begins[row_of_piece] + pieces[:, 0],
                row_of_piece * fleet.core.shape[1] + pieces[:, 1],
                *pieces[:, 2:].T,
            ),
        )

    def _read_row(self, fleet: Fleet, row: int, running: Callable[[str], Running | None]) -> _Row:
        node = fleet.nodes[row]
        held = fleet.holders(node.name) if node is not None else {}
        held = {uid: holding for uid, holding in held.items() if holding.pieces}
        evictable = [(uid, one, holding) for uid, holding in held.items() if (one := running(uid)) is not None]
        # The fleet does not distinguish a reservation from a bound pod: a row with a reservation is read again later.
        (self._unsettled.discard if len(evictable) == len(held) else self._unsettled.add)(row)
        if not evictable:
            return NO_PODS
        return _Row(
            tuple(uid for uid, _, _ in evictable),
            np.array([self._figures(one, holding) for _, one, holding in evictable], np.float64),
            np.array(
                [line for at, (_, _, holding) in enumerate(evictable) for line in pieces_on(fleet, row, holding, at)],
                np.int64,
            ).reshape(-1, 5),
        )

    def _figures(self, one: Running, holding: Holding) -> tuple[float, ...]:
        """Returns the figures of a running pod; adds its namespace to `namespaces` if it is new.

        They are the index of its namespace in `namespaces`, 1 for high task priority (else 0), the time from which it
        holds its devices (seconds since 1970), and the parts that it holds: GPU time in percent of a GPU (at least 1),
        processor time in thousandths of a core, and the node's memory in MiB.
        """
        number = self._numbers.get(one.namespace)
        if number is None:
            number = self._numbers[one.namespace] = len(self.namespaces)
            self.namespaces.append(one.namespace)
        core = max(sum(piece.core_percent for piece in holding.pieces), 1)
        return number, one.high_priority, one.since, core, holding.cpu_milli, holding.host_mib


def pieces_on(fleet: Fleet, row: int, holding: Holding, at: int = 0) -> list[tuple[int, int, int, int, int]]:
    """Returns the parts of one node's devices that a pod holds.

    Args:
        row: the node's index in the fleet.
        holding: all that the pod holds.
        at: a number that stands for the pod in the answer.

    Returns:
        For each part: `at`, the device's column in the fleet, percent of GPU time, MiB, and number of containers.
    """
    places: dict[str, Any] = fleet.places
    return [
        (at, places[uuid][1], core, memory, slots)
        for uuid, core, memory, slots in holding.pieces
        if places.get(uuid, (-1, 0))[0] == row
    ]
