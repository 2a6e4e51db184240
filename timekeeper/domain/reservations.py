"""The GPU reservation of a pod, and the rate that the pod is charged while it holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu import names
from fairgpu.allocation import AllocationError, DeviceShare, decode
from fairgpu.asks import StackNames, read_asked
from fairgpu.charging import ChargeRules, UnplacedShare, unplaced_rate
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import FOREIGN
from fairgpu.json_values import mapping, mappings
from fairgpu.quantity import QuantityError, parse_count
from timekeeper.domain.holdings.holding import Doubt, Holding, holding_rate
from timekeeper.domain.pricing import FOREVER, Prices, dearest_at, devices_rate, price_at, price_changes
from timekeeper.domain.timestamps import Instant

Held = tuple[DeviceShare, ...] | UnplacedShare | None
"""The devices that a container holds; its request if no allocation names the devices; None if it asks for no GPU."""
Tariff = tuple[tuple[int, int], ...]
"""Pairs of an instant and the rate from then on, in microGPU-seconds a second, in order of time.

The first rate also counts for all earlier time.
"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The GPUs and shares of GPUs that a pod holds or asks for.

    Attributes:
        containers: the share of each main container; None for a container that asks for no GPU.
        init_steps: for each init container, its share (None as above), and whether it is a native sidecar, which runs
            to the pod's end.
        lends: whether the pod may use GPU time beyond its share, since it is elastic or best effort.
        placed: whether an allocation names the devices.
        holdings: the parts of GPUs that the pod holds by another stack, beside the containers' shares.
        doubts: the facts about the holdings that were not known, so that a rule decided the charge.
    """

    containers: tuple[Held, ...]
    init_steps: tuple[tuple[Held, bool], ...] = ()
    lends: bool = False
    placed: bool = True
    holdings: tuple[Holding, ...] = ()
    doubts: frozenset[Doubt] = frozenset()

    @property
    def devices(self) -> dict[str, DeviceShare]:
        """One share of each device that the pod holds shares of, keyed by the device's uuid; holdings are left out."""
        held = [*self.containers, *(step for step, _ in self.init_steps)]
        return {device.uuid: device for share in held if isinstance(share, tuple) for device in share}


def read_reservation(pod: Mapping[str, Any]) -> Reservation | None:
    """Parses the reservation of a pod with a canonical request or an allocation; None for any other pod.

    The reservation is read from the pod's allocation, or from its request if the allocation is missing, invalid or of
    another node, or gives a container another number of devices than it requests.
    """
    spec = mapping(pod.get("spec"))
    containers = mappings(spec.get("containers"))
    init = mappings(spec.get("initContainers"))
    requests = {str(item.get("name")): _request(item) for item in (*containers, *init)}
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    placed = _placed(annotations.get(names.ALLOCATION), spec.get("nodeName"), requests)
    if placed is None and not any(requests.values()):
        return None
    held: Mapping[str, Held] = requests if placed is None else placed

    def of(item: Mapping[str, Any]) -> Held:
        return held.get(str(item.get("name"))) or None

    lends = annotations.get(names.CORE_POLICY) == "elastic" or any(
        request is not None and request.core_percent == 0 for request in requests.values()
    )
    return Reservation(
        containers=tuple(of(item) for item in containers),
        init_steps=tuple((of(item), is_native_sidecar(item)) for item in init),
        lends=lends,
        placed=placed is not None,
    )


def read_asked_reservation(pod: Mapping[str, Any]) -> Reservation:
    """Returns the reservation, without devices, that a pod of another stack asks for while it has no node.

    Such a reservation is charged at the price of the dearest model.

    The pod has the label of GPU pods, so it counts as asking for one GPU if no resource states an amount. Every
    extended resource of the object counts, because the mirror of pods has dropped all that do not ask for GPUs.
    """
    spec = mapping(pod.get("spec"))
    limits = [
        mapping(mapping(item.get("resources")).get("limits"))
        for key in ("containers", "initContainers")
        for item in mappings(spec.get(key))
    ]
    resources = frozenset(name for amounts in limits for name in amounts if "/" in name)
    claims = len(mappings(spec.get("resourceClaims")))
    asked = read_asked(pod, StackNames(resources, (), FOREIGN.requesting_annotations), DialectSettings(), claims)
    if asked is None:
        return Reservation((UnplacedShare(1, 100),), placed=False)
    by_claims = (UnplacedShare(claims, 100 * claims),) if claims else ()
    return Reservation((*asked.containers, *by_claims), asked.init, placed=False)


def rate_at(reservation: Reservation, prices: Prices, instant: Instant, rules: ChargeRules) -> int:
    """Returns a reservation's rate at an instant, in microGPU-seconds a second.

    It is the largest sum of the rates of the shares that the pod's containers hold at one time, while an init container
    runs or later, plus the rate of what the pod holds by other stacks. The largest sum counts for the pod's whole life.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
        instant: nanoseconds since 1970.
        rules: the admin's rules for charging.
    """

    def rate(held: Held) -> int:
        if held is None:
            return 0
        if isinstance(held, UnplacedShare):
            price = dearest_at(prices, instant)
            return unplaced_rate(held, price, rules)
        return devices_rate(held, prices, instant, rules.best_effort_floor_percent)

    own = peak(
        [rate(held) for held in reservation.containers], [(rate(held), keeps) for held, keeps in reservation.init_steps]
    )
    floor = rules.best_effort_floor_percent
    return own + sum(
        holding_rate(holding, price_at(prices, holding.model, instant), floor) for holding in reservation.holdings
    )


def tariff(reservation: Reservation, prices: Prices, start: int, rules: ChargeRules) -> Tariff:
    """Returns a reservation's rates over time: pairs of an instant and the rate from then on.

    Instants are nanoseconds since 1970, rates microGPU-seconds a second.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
        start: the start of the reservation, and the instant of the first rate.
        rules: the admin's rules for charging.
    """
    rates: list[tuple[int, int]] = []
    for instant in (start, *price_changes(prices, start, FOREVER)):
        rate = rate_at(reservation, prices, instant, rules)
        if not rates or rates[-1][1] != rate:
            rates.append((instant, rate))
    return tuple(rates)


def _placed(
    text: Any, node: Any, requests: Mapping[str, UnplacedShare | None]
) -> dict[str, tuple[DeviceShare, ...]] | None:
    """Returns the devices of each container by a pod's allocation, keyed by the container's name.

    None if the allocation is invalid, is of another node, or does not give each container as many devices as it
    requests.

    Args:
        text: the annotation's value.
        node: the name of the pod's node.
        requests: the GPU request of each container, keyed by name; None for one without.
    """
    if not isinstance(text, str):
        return None
    try:
        allocation = decode(text)
    except AllocationError:
        return None
    devices = {container.name: container.devices for container in allocation.containers}
    accounted = all(len(devices.get(name, ())) == request.gpus for name, request in requests.items() if request)
    if allocation.node != node or not devices.keys() <= requests.keys() or not accounted:
        return None
    return devices if any(devices.values()) else None


def _request(container: Mapping[str, Any]) -> UnplacedShare | None:
    limits = mapping(mapping(container.get("resources")).get("limits"))
    if not any(name in limits for name in names.CANONICAL_RESOURCES):
        return None
    gpus = _count(limits.get(names.GPU, 1), 1)
    return UnplacedShare(
        gpus=gpus,
        core_percent=_count(limits.get(names.GPU_CORE), 100 * gpus),
        memory_mib=_count(limits.get(names.GPU_MEMORY), 0),
        memory_percentage=_count(limits.get(names.GPU_MEMORY_PERCENTAGE), 0),
    )


def _count(value: Any, absent: int) -> int:
    try:
        return absent if value is None else parse_count(value)
    except QuantityError:
        return absent
