"""Which nodes' inventories may be used: a device that two nodes offer is on neither, for nobody knows where it is."""

from __future__ import annotations

from collections import defaultdict

from scheduler.placement.fleet import Fleet, Node


class Inventories:
    """The nodes as the API server has them, and those of them that are in the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, Node] = {}
        self._offering: defaultdict[str, set[str]] = defaultdict(set)

    def put(self, node: Node) -> set[str]:
        """Adds or replaces a node; the nodes that offer a device of it as well, itself among them if there are any."""
        before = self._forget(node.name)
        self._nodes[node.name] = node
        for device in node.inventory.devices:
            self._offering[device.uuid].add(node.name)
        touched = {node.name} | before | self._beside(node)
        self._settle(touched)
        return {name for name in touched if self.shared(name)}

    def remove(self, name: str) -> None:
        """Takes a node out."""
        self._settle(self._forget(name) | {name})

    def names(self) -> set[str]:
        """All nodes that offer devices."""
        return set(self._nodes)

    def shared(self, name: str) -> str | None:
        """A device of a node that another one offers as well; None where there is none."""
        node = self._nodes.get(name)
        devices = node.inventory.devices if node is not None else ()
        return next((device.uuid for device in devices if len(self._offering[device.uuid]) > 1), None)

    def _forget(self, name: str) -> set[str]:
        """Drops what a node offers; the nodes that offered some of it as well."""
        node = self._nodes.pop(name, None)
        if node is None:
            return set()
        beside = self._beside(node) - {name}
        for device in node.inventory.devices:
            self._offering[device.uuid].discard(name)
            if not self._offering[device.uuid]:
                del self._offering[device.uuid]
        return beside

    def _beside(self, node: Node) -> set[str]:
        return {name for device in node.inventory.devices for name in self._offering[device.uuid]}

    def _settle(self, touched: set[str]) -> None:
        """Takes nodes into the fleet or out of it: first out, so that no device stands in two rows."""
        sound = {name for name in touched if name in self._nodes and self.shared(name) is None}
        for name in sorted(touched - sound):
            self._fleet.remove(name)
        for name in sorted(sound):
            self._fleet.put(self._nodes[name])
