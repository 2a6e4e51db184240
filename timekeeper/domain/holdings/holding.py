"""The types of a decision about the GPUs that a pod holds by another stack: pod and node, holdings and doubts.

A holding is equal parts of GPUs of one model that a pod holds by another stack. A decision has holdings, and the doubts
under which it was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, NamedTuple

from fairgpu.charging import GPU_SECOND
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import mapping, mappings
from fairgpu.quantity import QuantityError, parse_quantity

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""The label by which a cloud names the kind of a node's machine."""


@dataclass(frozen=True, slots=True)
class Container:
    """The extended resources, such as GPUs, that a container asks for.

    Attributes:
        resources: the amount of each extended resource in whole units, keyed by name.
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
    """A pod that is bound to a node, with the fields that determine the parts of GPUs that it holds.

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
        """Returns the most units of an extended resource that the pod holds at any time, as kube-scheduler computes."""
        steps = [(item.resources.get(resource, 0), item.keeps_running) for item in self.init]
        return peak([item.resources.get(resource, 0) for item in self.containers], steps)


@dataclass(frozen=True, slots=True)
class HostNode:
    """The node of a pod, with the fields that determine the parts of GPUs that the pod holds.

    Attributes:
        labels: the node's labels.
        annotations: its annotations.
        capacity: its capacity of each extended resource in whole units, keyed by name.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)

    def label(self, *keys: str) -> str:
        """Returns the value of the first of these labels that the node has; empty if it has none."""
        return next((value for key in keys if (value := self.labels.get(key))), "")

    def number(self, key: str) -> int | None:
        """Returns the whole number that a label of the node states; None if the label is missing or no number.

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
    """Returns the amounts of extended resources, rounded up to whole units, keyed by name.

    Their names have a domain. Amounts that are negative or no quantity are left out.
    """
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


WHOLE: Final = Fraction(1)
UNKNOWN_MODEL: Final = ""
"""The model of a holding whose node names none; it is charged at the price of `*`."""
MOST_PARTS: Final = 10**6
"""The most equal parts that one pod is charged for.

No node has as many. A pod that names its node itself may ask for 2^63 - 1: a month of so many has no 64-bit amount.
"""


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """Equal parts of GPUs of one model that a pod holds by another stack.

    Attributes:
        way: the stack by whose rules the parts were determined, such as `nvidia`.
        model: the model's name; UNKNOWN_MODEL if no source names it.
        count: the number of parts.
        time: the share of a GPU's time that each part has, from 0 to 1; 0 if the stack does not bound it.
        memory: the share of a GPU's memory that each part has, from 0 to 1.
    """

    way: str
    model: str
    count: int
    time: Fraction
    memory: Fraction


def summed(parts: Iterable[tuple[str, Fraction]]) -> dict[str, Fraction]:
    """Adds up pairs of a model and a number of GPUs; returns the number of GPUs keyed by model."""
    sums: dict[str, Fraction] = {}
    for model, gpus in parts:
        sums[model] = sums.get(model, Fraction(0)) + gpus
    return sums


class InitStep(NamedTuple):
    """The parts of GPUs that a pod holds while an init container runs; the container is no native sidecar.

    Attributes:
        held: the container's parts.
        beside: the parts of the native sidecars that run at the same time.
    """

    held: tuple[Holding, ...]
    beside: tuple[Holding, ...] = ()


def most_of(lasting: Sequence[Holding], steps: Sequence[InitStep]) -> tuple[Holding, ...]:
    """Returns the parts of GPUs of one model that a pod is charged for, from its start to its end.

    These are the dearest parts that it holds at one time: while one init container runs, or later. If the dearest
    cannot be determined, the pod is charged for the parts of all its containers. That happens if the comparison depends
    on the admin's best-effort floor (see `_costs_no_less`), or if there are more than FEW parts. No init container
    lowers the cost.

    Args:
        lasting: the parts of the containers that run until the pod ends.
        steps: the init containers that end, in order.
    """
    most = tuple(lasting)
    for step in steps:
        together = (*step.beside, *step.held)
        if not _costs_no_less(most, together):
            if not _costs_no_less(together, most):
                return (*lasting, *(part for each in steps for part in each.held))
            most = together
    return most


def held_at_once(pod: BoundPod, part: Callable[[Container], Holding]) -> tuple[Holding, ...]:
    """Returns the parts of GPUs of one model that a pod is charged for, if containers share no part with each other.

    Args:
        part: returns the holding of a container; its count is 0 if the container asks for no GPU.
    """
    running: tuple[Holding, ...] = ()
    steps = []
    for item in pod.init:
        if item.keeps_running:
            running = join(*running, part(item))
        else:
            steps.append(InitStep(join(part(item)), running))
    return join(*most_of(join(*running, *map(part, pod.containers)), steps))


FEW: Final = 8
"""The most parts that are compared one by one."""


def _costs_no_less(these: Sequence[Holding], others: Sequence[Holding]) -> bool:
    """Whether parts cost no less than others of the same model, whatever the admin's best-effort floor is.

    The floor is the least share of a GPU's time, from 0 to 1, that a part without a bound of its time is charged for.
    Costs are compared at the floors 0 and 1, and at the share of memory of each part whose time has no bound: between
    these floors, costs are linear. False if there are more than FEW parts.
    """
    if len(these) + len(others) > FEW:
        return False
    floors = {Fraction(0), WHOLE} | {part.memory for part in (*these, *others) if not part.time}
    return all(_cost(these, floor) >= _cost(others, floor) for floor in floors)


def _cost(parts: Iterable[Holding], floor: Fraction) -> Fraction:
    return sum((part.count * max(part.time or floor, part.memory) for part in parts), Fraction(0))


class Doubt(StrEnum):
    """A fact that no object of the cluster states about what a pod holds, so that a rule decides what is charged.

    No such rule makes the parts cheaper than those that the pod's request proves.
    """

    MODEL_UNKNOWN = "model-unknown"
    """No label names the model: the parts are charged at the price of `*`."""
    REPLICAS_UNREADABLE = "replicas-unreadable"
    """The number of replicas of a shared GPU is no number: each is charged as a whole GPU."""
    LABELS_CONTRADICT = "labels-contradict"
    """Two labels exclude each other: the one with the higher charge counts."""
    PROFILE_UNKNOWN = "profile-unknown"
    """A partition's name has no form that FairGPU knows: the partition is charged as a whole GPU."""
    SIZE_UNKNOWN = "size-unknown"
    """No object states the size of the device: the rule charges a whole GPU, the part's share of time, or a part of the
    smallest device that the part can be on.
    """
    ALLOCATION_UNREADABLE = "allocation-unreadable"
    """The scheduler's list on the pod is missing, cut short or invalid: the request counts."""
    ALLOCATION_BELOW_REQUEST = "allocation-below-request"
    """The scheduler's list on the pod holds less than the request: the request counts."""
    DEVICE_UNKNOWN = "device-unknown"
    """The node does not list a device that the pod holds: the device's model and size are not known."""


class Decision(NamedTuple):
    """The parts of GPUs that a pod holds by other stacks, and the doubts about them.

    Attributes:
        holdings: the parts, sorted; equal parts are one holding. Empty for a pod that holds no GPU.
        doubts: the facts that were not known, so that a rule decided what is charged.
        resources: the names of the pod's extended resources that this decision covers. The stacks that decide later do
            not count them again.
    """

    holdings: tuple[Holding, ...] = ()
    doubts: frozenset[Doubt] = frozenset()
    resources: frozenset[str] = frozenset()


NOTHING: Final = Decision()


def join(*holdings: Holding) -> tuple[Holding, ...]:
    """Returns holdings, sorted, with holdings of equal parts joined into one.

    A holding whose count is 0 is left out. A count above MOST_PARTS becomes MOST_PARTS.
    """
    counts: dict[tuple[str, str, Fraction, Fraction], int] = {}
    for holding in holdings:
        if holding.count > 0:
            part = (holding.way, holding.model, holding.time, holding.memory)
            counts[part] = counts.get(part, 0) + holding.count
    return tuple(
        sorted(
            Holding(way, model, min(count, MOST_PARTS), time, memory)
            for (way, model, time, memory), count in counts.items()
        )
    )


def spread(amount: Fraction) -> tuple[int, Fraction]:
    """Divides an amount of GPUs evenly over as few GPUs as it needs; returns their number and the share of each.

    The number is at least 1.
    """
    count = max(math.ceil(amount), 1)
    return count, amount / count


def holding_rate(holding: Holding, price: Fraction, best_effort_floor_percent: int) -> int:
    """Returns the rate of a holding in microGPU-seconds a second.

    It is, for each part, the price times the larger of its shares of time and memory, rounded up.

    Args:
        holding: equal parts of GPUs.
        price: GPU-hours charged for an hour of a whole GPU.
        best_effort_floor_percent: the least share of GPU time, in percent, that a part without a bound of its time is
            charged for.
    """
    share = max(holding.time or Fraction(best_effort_floor_percent, 100), holding.memory)
    return holding.count * math.ceil(GPU_SECOND * price * share)
