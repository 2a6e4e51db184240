"""The fields of pods and nodes that decide what a pod holds, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import mapping, mappings
from fairgpu.quantity import QuantityError, parse_quantity

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""The label by which a cloud names the kind of a node's machine."""


@dataclass(frozen=True, slots=True)
class Container:
    """The extended resources, such as GPUs, that a container asks for.

    Attributes:
        resources: the amount of each extended resource, by name.
        keeps_running: whether it is a native sidecar, which runs until the pod ends.
    """

    resources: Mapping[str, int]
    keeps_running: bool = False

    def without(self, resources: frozenset[str]) -> Container:
        """Returns the container as if it asked for none of these extended resources."""
        left = {name: amount for name, amount in self.resources.items() if name not in resources}
        return Container(left, self.keeps_running)


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The fields of a pod that has a node from which its parts of GPUs are determined.

    Attributes:
        namespace: the pod's namespace.
        labels: its labels.
        annotations: its annotations; every user who may edit the pod may write them.
        containers: the main containers, in their order.
        init: the init containers, in their order.
    """

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    init: tuple[Container, ...] = ()

    @property
    def resources(self) -> frozenset[str]:
        """The names of the extended resources that any container of the pod asks for."""
        return frozenset(
            name for item in (*self.containers, *self.init) for name, amount in item.resources.items() if amount > 0
        )

    def without(self, resources: frozenset[str]) -> BoundPod:
        """Returns the pod as if it asked for none of these extended resources."""
        if not resources & self.resources:
            return self
        return replace(
            self,
            containers=tuple(item.without(resources) for item in self.containers),
            init=tuple(item.without(resources) for item in self.init),
        )

    def amount(self, resource: str) -> int:
        """Returns the most of an extended resource that the pod holds at any time, as kube-scheduler computes it."""
        steps = [(item.resources.get(resource, 0), item.keeps_running) for item in self.init]
        return peak([item.resources.get(resource, 0) for item in self.containers], steps)


@dataclass(frozen=True, slots=True)
class HostNode:
    """The fields of a pod's node from which the pod's parts of GPUs are determined.

    Attributes:
        labels: the node's labels.
        annotations: its annotations.
        capacity: its capacity of each extended resource, by name.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)

    def label(self, *keys: str) -> str:
        """Returns the value of the first of these labels that the node has; empty where it has none."""
        return next((value for key in keys if (value := self.labels.get(key))), "")

    def number(self, key: str) -> int | None:
        """Returns the whole number that a label of the node states; None where the label is missing or no number.

        Args:
            key: the label's key.
        """
        text = self.labels.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


_DIGITS = 15
"""The most digits of a number that a label can state and a device can have."""


def read_bound_pod(pod: Mapping[str, Any]) -> BoundPod:
    """Parses a Pod object; a field that is missing or of another type counts as absent."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    return BoundPod(
        namespace=str(metadata.get("namespace", "")),
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        containers=tuple(_container(item) for item in mappings(spec.get("containers"))),
        init=tuple(_container(item) for item in mappings(spec.get("initContainers"))),
    )


def read_host_node(node: Mapping[str, Any]) -> HostNode:
    """Parses a Node object; a field that is missing or of another type counts as absent."""
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    return HostNode(
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        capacity=_amounts(status.get("capacity")),
    )


def _container(item: Mapping[str, Any]) -> Container:
    # The API server demands that an extended resource's request equals its limit, and fills in a request alone.
    resources = mapping(item.get("resources"))
    asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    return Container(_amounts(asked), is_native_sidecar(item))


def _amounts(values: Any) -> dict[str, int]:
    """Returns the extended resources, whose names have a domain, with whole amounts from 0."""
    amounts = {}
    for name, value in mapping(values).items():
        if "/" not in name:
            continue
        try:
            amount = parse_quantity(value)
        except QuantityError:
            continue
        if amount >= 0:
            amounts[name] = -(-amount.numerator // amount.denominator)
    return amounts


def _texts(values: Any) -> dict[str, str]:
    return {key: value for key, value in mapping(values).items() if isinstance(value, str)}
