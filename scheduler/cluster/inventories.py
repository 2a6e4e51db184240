"""Keeps all nodes' inventories. Nodes that offer the same device are all left out: which one has it is unknown."""

from __future__ import annotations

from scheduler.placement.fleet import Fleet, Node


class Inventories:
    """All nodes with their inventories of devices; those whose devices are unique are added to the scheduler's fleet.

    A node is left out of the fleet if another node offers one of its devices as well. So a change of one node can move
    other nodes into the fleet or out of it: each method that makes a change returns the names of all nodes that it may
    have moved.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, Node] = {}
        self._refused: set[str] = set()
        # By uuid. The devices of one node share a tuple: a set for each would take 8 MB with 40,000 devices.
        self._offering: dict[str, tuple[str, ...]] = {}

    def put(self, node: Node) -> set[str]:
        """Adds a node, or replaces its inventory.

        Returns:
            The node's name, and the names of the nodes that offer one of its devices as well, or did until now.
        """
        before = self._forget(node.name)
        self._refused.discard(node.name)
        self._nodes[node.name] = node
        alone = (node.name,)
        for device in node.inventory.devices:
            others = self._offering.get(device.uuid)
            self._offering[device.uuid] = (*others, node.name) if others else alone
        touched = {node.name} | before | self._beside(node)
        self._settle(touched)
        return touched

    def remove(self, name: str) -> set[str]:
        """Removes the node of this name.

        Returns:
            The node's name, and the names of the nodes that offered one of its devices as well.
        """
        self._refused.discard(name)
        touched = self._forget(name) | {name}
        self._settle(touched)
        return touched

    def refuse(self, name: str) -> set[str]:
        """Removes a node from the fleet, because its inventory is invalid, and counts it as refused.

        Returns:
            The node's name, and the names of the nodes that offered one of its devices as well.
        """
        touched = self.remove(name)
        self._refused.add(name)
        return touched

    def left_out(self) -> tuple[int, int]:
        """Returns, for metrics, how many nodes have an invalid inventory, and how many offer another node's device."""
        return len(self._refused), sum(name not in self._fleet.rows for name in self._nodes)

    def shared(self, name: str) -> str | None:
        """Returns the uuid of a device that the node of this name and another one offer; None without such a device."""
        node = self._nodes.get(name)
        devices = node.inventory.devices if node is not None else ()
        return next((device.uuid for device in devices if len(self._offering[device.uuid]) > 1), None)

    def _forget(self, name: str) -> set[str]:
        """Removes the node of this name; returns the names of the other nodes that offer one of its devices."""
        node = self._nodes.pop(name, None)
        if node is None:
            return set()
        beside = self._beside(node) - {name}
        for device in node.inventory.devices:
            others = tuple(other for other in self._offering.pop(device.uuid) if other != name)
            if others:
                self._offering[device.uuid] = others
        return beside

    def _beside(self, node: Node) -> set[str]:
        return {name for device in node.inventory.devices for name in self._offering[device.uuid]}

    def _settle(self, touched: set[str]) -> None:
        """Adds those of the named nodes to the fleet whose devices no other node offers, and removes the others.

        Removals come first, so that the fleet never has a device twice.
        """
        sound = {name for name in touched if name in self._nodes and self.shared(name) is None}
        for name in sorted(touched - sound):
            self._fleet.remove(name)
        for name in sorted(sound):
            self._fleet.put(self._nodes[name])
