"""HAMi: vGPUs of NVIDIA devices, and the lists of devices that it writes on nodes and pods.

Volcano's vGPU plugin comes from HAMi's and writes the same lists (timekeeper.domain.holdings.volcano).

Sources: HAMi v2.10, pkg/device/devices.go (MarshalNodeDevices, EncodePodSingleDevice, DecodePodDevices),
pkg/device/nvidia/device.go (`hami.io/node-nvidia-register`, `hami.io/vgpu-devices-allocated`; AddResourceUsage, by
which a MIG instance has the memory and the multiprocessors of its profile there), pkg/device/initContainer.go
(CollapseInitContainerUsage) and charts/hami/values.yaml (resource names); for lists of nodes before v2.8, HAMi v2.6,
pkg/util/util.go (EncodeNodeDevices); Volcano ed72c7c8 (after v1.16.0-alpha.1),
pkg/scheduler/api/devices/nvidia/vgpu/utils.go (decodeNodeDevices, encodeContainerDevices, encodePodDevices).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

from fairgpu.dialects.hami import CORES, COUNT, MEMORY, PERCENTAGE, PRIORITY
from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import (
    NOTHING,
    UNKNOWN_MODEL,
    WHOLE,
    BoundPod,
    Container,
    Decision,
    Doubt,
    Holding,
    HostNode,
    InitStep,
    join,
    most_of,
)

MOST_DEVICES: Final = 256
"""The most devices in the list of a pod: those of 16 containers on 16 GPUs."""
MOST_CHARACTERS: Final = 256 * 1024
"""The largest total size of an object's annotations that the API server accepts."""


@dataclass(frozen=True, slots=True)
class RegisteredDevice:
    """A device in the list that HAMi or Volcano writes on its node.

    Attributes:
        uuid: the device's uuid.
        model: the model's name; UNKNOWN_MODEL if the list names none.
        memory: the device's memory. The unit is 1 MiB, or `gpu-memory-factor` MiB with that setting of Volcano's
            plugin. Lists on pods use the same unit.
        cores: the sum of what containers may have of its time, in percent or, for Ascend, in AI cores; 0 if the list
            states none, or is not JSON.
    """

    uuid: str
    model: str
    memory: int
    cores: int = 0


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A container's part of a device, in the list that HAMi or Volcano writes on the pod.

    Attributes:
        uuid: the device's uuid.
        memory: the container's memory on the device, in the unit of the node's list (see `RegisteredDevice`).
        cores: the container's share of the device's time in percent; 0 for no bound.
        is_instance: whether the list names a place in the device's layout behind the uuid, so that the part is a MIG
            instance. Volcano, and HAMi before v2.10, name it. Later versions of HAMi do not: False for their instances.
    """

    uuid: str
    memory: int
    cores: int
    is_instance: bool = False


class DeviceListError(ValueError):
    """The annotation of a node or pod is not a list of devices; the message states the fault."""


def decode_node(text: str) -> dict[str, RegisteredDevice]:
    """Returns the devices in HAMi's or Volcano's annotation of a node, keyed by uuid.

    The annotation is JSON (HAMi since v2.8), or the text of earlier versions and Volcano. The text has a colon after
    each device. A device's fields are, in this order: uuid, count, memory, cores, and type. The field for cores can be
    missing: a fourth field that is no number is the type.

    Args:
        text: the annotation's value.

    Raises:
        DeviceListError: the annotation is in neither form, or is longer than MOST_CHARACTERS.
    """
    if len(text) > MOST_CHARACTERS:
        raise DeviceListError(f"it is longer than {MOST_CHARACTERS} characters")
    devices = _from_json(text) if text.lstrip().startswith("[") else _from_text(text)
    return {device.uuid: device for device in devices}


def decode_pod(text: str) -> tuple[tuple[AllocatedDevice, ...], ...]:
    """Returns the devices of each container, in the annotation's order, from HAMi's or Volcano's annotation of a pod.

    A semicolon ends a container's list, and a colon each device.

    Args:
        text: the annotation's value.

    Raises:
        DeviceListError: a device has fewer than four fields or no uuid, a figure is no whole number from 0, or the
            annotation is longer than MOST_CHARACTERS or has more than MOST_DEVICES devices.
    """
    if len(text) > MOST_CHARACTERS:
        raise DeviceListError(f"it is longer than {MOST_CHARACTERS} characters")
    if (devices := text.count(",") // 3) > MOST_DEVICES:
        raise DeviceListError(f"it has {devices} devices; allowed: at most {MOST_DEVICES}")
    return tuple(
        tuple(_allocated(device) for device in container.split(":") if device.strip()) for container in text.split(";")
    )


def _allocated(text: str) -> AllocatedDevice:
    fields = text.split(",")
    if len(fields) < 4 or not fields[0]:
        raise DeviceListError(f"a device has {len(fields)} fields of 4")
    # Volcano, and HAMi before v2.10, write the place of a MIG instance behind its device's uuid, in brackets.
    uuid, bracket, _ = fields[0].partition("[")
    return AllocatedDevice(uuid, _whole(fields[2]), _whole(fields[3]), bool(bracket))


def _from_json(text: str) -> list[RegisteredDevice]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeviceListError(f"it is no JSON: {error}") from error
    devices = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            raise DeviceListError("a device has no id")
        cores = item.get("devcore")
        memory = _whole(item.get("devmem"))
        devices.append(
            RegisteredDevice(item["id"], _model(item.get("type")), memory, cores if type(cores) is int else 0)
        )
    return devices


def _from_text(text: str) -> list[RegisteredDevice]:
    devices = []
    for device in text.split(":"):
        fields = device.split(",")
        if not device.strip():
            continue
        if len(fields) < 5:
            raise DeviceListError(f"a device has {len(fields)} fields of 5")
        model = fields[4] if fields[3].isdigit() else fields[3]
        devices.append(RegisteredDevice(fields[0], _model(model), _whole(fields[2])))
    return devices


def _model(value: Any) -> str:
    """Returns a model's name in a device list without the prefix `NVIDIA-`, which the plugins add to the driver's name.

    HAMi since v2.8 adds it only to a name that does not begin with NVIDIA.
    """
    return value.removeprefix("NVIDIA-") if isinstance(value, str) else UNKNOWN_MODEL


def _whole(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise DeviceListError(f"{value!r} is no whole number from 0")
    return int(text)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the extended resources by which pods ask a stack for vGPUs.

    Attributes:
        count: the resource for the number of vGPUs.
        memory: the resource for the memory of each.
        percentage: the resource for the memory of each in percent of the device's.
        cores: the resource for the time of each in percent of the device's.
    """

    count: str
    memory: str
    percentage: str
    cores: str

    def number(self, asked: Mapping[str, int]) -> int:
        """Returns the number of vGPUs that a container asks for; 1 if it states only their size, 0 for none.

        Args:
            asked: the container's amount of each extended resource, keyed by name.
        """
        named = any(asked.get(name) for name in (self.memory, self.percentage, self.cores))
        return asked.get(self.count, 0) or int(named)


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of devices that HAMi or Volcano wrote on a node and on a pod.

    Attributes:
        node: the node's devices, keyed by uuid; None if the list is missing, cut short or invalid.
        pod: the devices of each container of the pod; None if the list is missing, cut short or invalid.
    """

    node: dict[str, RegisteredDevice] | None
    pod: tuple[tuple[AllocatedDevice, ...], ...] | None


def decode_lists(node: str | None, pod: str | None) -> Lists:
    """Decodes the lists of devices that HAMi or Volcano wrote on a node and on a pod; a missing or invalid one is None.

    Args:
        node: the node's annotation; None for none.
        pod: the pod's annotation; None for none.
    """
    try:
        registered = decode_node(node) if node else None
    except DeviceListError:
        registered = None
    try:
        allocated = decode_pod(pod) if pod else None
    except DeviceListError:
        allocated = None
    return Lists(registered, allocated)


def parts(way: str, pod: BoundPod, names: Names, lists: Lists) -> tuple[tuple[Holding, ...], frozenset[Doubt]]:
    """Returns the parts of GPUs that a pod's containers hold by HAMi or Volcano, and the doubts about them.

    Each container holds what was allocated to it, and no less than it requested. An init container that ends before the
    main containers begin passes its devices on to them. Native sidecars that are declared before such an init container
    run at the same time. Therefore the pod is charged, for its whole life, for the most that it holds of each device at
    one time. An init container never lowers the cost.

    Args:
        way: the stack's name for the holdings, such as `hami`.
        names: the resources by which pods ask the stack for vGPUs.
        lists: the devices on the pod's node, and those that were allocated to the pod.
    """
    doubts: set[Doubt] = set()
    asking = [item for item in (*pod.init, *pod.containers) if names.number(item.resources)]
    first = [item for item in pod.init if names.number(item.resources)]
    allocated = [devices for devices in lists.pod or () if devices]
    if not allocated:
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
    running: list[_Part] = []
    steps: dict[str, list[InitStep]] = {}
    lasting: list[_Part] = []
    for index, container in enumerate(asking):
        devices = allocated[index] if index < len(allocated) else ()
        if allocated and len(devices) < names.number(container.resources):
            doubts.add(Doubt.ALLOCATION_BELOW_REQUEST)
        held = _container_parts(way, container, names, devices, lists.node or {}, doubts)
        if index >= len(first):
            lasting += held
        elif container.keeps_running:
            running += held
        else:
            for uuid, on_device in _by_device(held).items():
                beside = join(*(part.holding for part in running if part.uuid == uuid))
                steps.setdefault(uuid, []).append(InitStep(join(*on_device), beside))
    for devices in allocated[len(asking) :]:
        lasting += _container_parts(way, Container({}), names, devices, lists.node or {}, doubts)
    at_the_end = _by_device([*running, *lasting])
    # A part whose device is unknown counts in full, as if no other part were on that device.
    unknown = [*at_the_end.pop("", ()), *(part for step in steps.pop("", ()) for part in step.held)]
    uuids = at_the_end.keys() | steps.keys()
    found = (most_of(join(*at_the_end.get(uuid, ())), steps.get(uuid, ())) for uuid in uuids)
    return join(*unknown, *(part for device in found for part in device)), frozenset(doubts)


class _Part(NamedTuple):
    """A container's part of a device, or its parts of devices that are not known.

    Attributes:
        uuid: the device's uuid; empty if the container requested the parts, and no list states their devices.
        holding: the part, with its shares of the device's time and memory, each from 0 to 1. Its `count` is 1 for a
            known device, else the number of the parts.
    """

    uuid: str
    holding: Holding


def _by_device(held: Iterable[_Part]) -> dict[str, list[Holding]]:
    """Returns the holdings of parts, keyed by the uuid of their device; the key of unknown devices is empty."""
    found: dict[str, list[Holding]] = {}
    for uuid, holding in held:
        found.setdefault(uuid, []).append(holding)
    return found


def _container_parts(
    way: str,
    container: Container,
    names: Names,
    devices: Sequence[AllocatedDevice],
    registered: dict[str, RegisteredDevice],
    doubts: set[Doubt],
) -> list[_Part]:
    """Returns the parts of GPUs that one container holds: those of its devices, then what it requested beyond these.

    Args:
        way: the stack's name for the holdings, such as `hami`.
        container: the container, with its requests.
        names: the resources by which pods ask the stack for vGPUs.
        devices: the devices that were allocated to the container.
        registered: the node's devices, keyed by uuid.
        doubts: the set to which facts that are not known are added.
    """
    asked = container.resources
    cores = min(Fraction(asked.get(names.cores, 0), 100), WHOLE)
    models = {device.model for device in registered.values()}
    missing = max(names.number(asked) - len(devices), 0)
    found = []
    for given, count in [*((device, 1) for device in devices), *([(None, missing)] if missing else [])]:
        device = None if given is None else registered.get(given.uuid)
        if given is not None and device is None:
            doubts.add(Doubt.DEVICE_UNKNOWN)
        model = device.model if device else next(iter(models)) if len(models) == 1 else UNKNOWN_MODEL
        if not model:
            doubts.add(Doubt.MODEL_UNKNOWN)
        # Where the device is unknown, a share of memory is a share of the smallest device that it can be.
        total = device.memory if device else min((other.memory for other in registered.values()), default=0)
        memory = _asked_memory(asked, names, total)
        if given is not None:
            memory = max(memory, Fraction(given.memory, total) if total else WHOLE)
        elif not memory:
            memory = WHOLE  # both projects give the whole device's memory where a request names none
        if not total:
            doubts.add(Doubt.SIZE_UNKNOWN)
        time = max(cores, min(Fraction(given.cores, 100), WHOLE)) if given is not None else cores
        if given is not None and given.is_instance:
            # Volcano writes the memory that was asked for, and no object states which instance has the place.
            least = nvidia.smallest_instance(model, min(memory, WHOLE)) or (time, memory)
            time, memory = max(time, least[0]), max(memory, least[1])
        uuid = given.uuid if given is not None else ""
        found.append(_Part(uuid, Holding(way, model, count, time, min(memory, WHOLE))))
    return found


def _asked_memory(asked: Mapping[str, int], names: Names, total: int) -> Fraction:
    """Returns the share of a device's memory that a container asks for on each vGPU; it may be above 1.

    Args:
        asked: the container's amount of each extended resource, keyed by name.
        names: the resources by which pods ask the stack for vGPUs.
        total: the device's memory in the unit of the request; 0 if it is not known, and then any amount is all of it.
    """
    percent = Fraction(asked.get(names.percentage, 0), 100)
    mib = asked.get(names.memory, 0)
    return max(percent, (Fraction(mib, total) if total else WHOLE) if mib else Fraction(0))


WAY: Final = "hami"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
REGISTER: Final = "hami.io/node-nvidia-register"
RESOURCES: Final = frozenset({COUNT, MEMORY, PERCENTAGE, CORES, PRIORITY})
_NAMES: Final = Names(COUNT, MEMORY, PERCENTAGE, CORES)


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the vGPUs that a pod holds by HAMi.

    A request for `nvidia.com/gpu` alone is one to HAMi on a node with HAMi's list of devices, and one to NVIDIA's
    plugin on any other node. An annotation on the pod alone decides nothing: its author could write it to pay for a
    part of a GPU and hold the whole.
    """
    asked = pod.resources & RESOURCES
    if not asked - {PRIORITY} or not (node.annotations.get(REGISTER) or asked - {COUNT, PRIORITY}):
        return NOTHING
    lists = decode_lists(node.annotations.get(REGISTER), pod.annotations.get(ALLOCATED))
    holdings, doubts = parts(WAY, pod, _NAMES, lists)
    return Decision(holdings, doubts, asked)
