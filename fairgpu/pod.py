"""Reads a whole pod: what each container asks of GPUs, what the pod chooses, what it demands, what is wrong with it.

Works on the raw JSON object and takes any: a field that is missing or of another type is one that asks for nothing,
as the API server has its own words for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairgpu import names
from fairgpu.choices import Path, merge_choices, read_choices
from fairgpu.demand import NO_DEMAND, Demand, is_native_sidecar, pod_demand
from fairgpu.dialects.building import WHOLE_GPU_PERCENT
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.dialects.registry import DIALECTS, read_container
from fairgpu.faults import Fault, field_path
from fairgpu.permissions import Permission, Wish
from fairgpu.request import HIGH_PRIORITY, NO_CHOICES, CorePolicy, GPURequest, PodChoices


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """A container that speaks a dialect.

    Attributes:
        path: its field path, such as `("spec", "initContainers", 2)`.
        name: its name; empty where it has none.
        dialect: the dialect's name; several joined by " and " where it speaks several (which is a fault).
        reading: what it says.
        native_sidecar: whether it is an init container that keeps running.
    """

    path: Path
    name: str
    dialect: str
    reading: Reading
    native_sidecar: bool = False

    @property
    def index(self) -> int:
        """Its place in its list."""
        index = self.path[-1]
        assert isinstance(index, int)  # noqa: S101 - paths of containers are built here and end in their index
        return index

    @property
    def request(self) -> GPURequest | None:
        """What it asks for; nothing where it is faulty, or says that it wants no GPU."""
        return self.reading.request


@dataclass(frozen=True, slots=True)
class PodReading:
    """A pod as FairGPU understands it. The three tuples of containers hold only those that speak a dialect, in order.

    Attributes:
        choices: the pod's own and the dialects' choices together, before permissions (`permissions.grant`).
        wishes: which of them need a permission of the namespace.
        strip_annotations: the dialects' keys to take off the pod.
        faults: everything that is wrong with it, all at once.
        warnings: what is done otherwise than was asked.
        demand: what the pod as a whole demands.
    """

    containers: tuple[ContainerReading, ...] = ()
    init: tuple[ContainerReading, ...] = ()
    ephemeral: tuple[ContainerReading, ...] = ()
    choices: PodChoices = NO_CHOICES
    wishes: tuple[Wish, ...] = ()
    strip_annotations: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()
    demand: Demand = NO_DEMAND

    @property
    def all_containers(self) -> tuple[ContainerReading, ...]:
        """All that speak a dialect, main ones first."""
        return self.containers + self.init + self.ephemeral

    @property
    def speaks(self) -> bool:
        """Whether any container has a key of a dialect; false means that the pod is none of our business."""
        return bool(self.containers or self.init or self.ephemeral)

    @property
    def asks(self) -> bool:
        """Whether any container wants a GPU: keys that amount to nothing, such as `nvidia.com/gpu: 0`, want none."""
        return any(container.request is not None for container in self.all_containers)

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects spoken, each once, in order of appearance."""
        return tuple(dict.fromkeys(container.dialect for container in self.all_containers))


_NOT_ASKING = PodReading()


def read_pod(
    pod: Mapping[str, Any],
    settings: DialectSettings,
    *,
    root: Path = (),
    dialects: Sequence[Dialect] = DIALECTS,
) -> PodReading:
    """Reads a pod, or a pod template.

    Args:
        pod: the raw object with `metadata` and `spec`.
        settings: what the admin decides about how requests are read.
        root: the field path of `pod` in the object that messages speak of, such as `("spec", "template")`.
        dialects: the dialects to listen for; what others say is then not seen at all.
    """
    spec = _mapping(pod.get("spec"))
    given_annotations = _mapping(_mapping(pod.get("metadata")).get("annotations"))
    annotations = {key: value for key, value in given_annotations.items() if isinstance(value, str)}
    lists = [
        _read_list(spec, field, annotations, settings, root, dialects)
        for field in ("containers", "initContainers", "ephemeralContainers")
    ]
    containers, init, ephemeral = lists
    if not (containers or init or ephemeral):
        return _NOT_ASKING
    own = read_choices(given_annotations, (*root, "metadata"))
    everyone = containers + init + ephemeral
    demand = pod_demand(
        [container.request for container in containers],
        [(container.request, container.native_sidecar) for container in init],
    )
    choices = own.choices
    for container in everyone:
        choices = merge_choices(choices, container.reading.choices)
    return PodReading(
        containers=tuple(containers),
        init=tuple(init),
        ephemeral=tuple(ephemeral),
        choices=choices,
        wishes=_live_wishes([*own.wishes, *(wish for c in everyone for wish in c.reading.wishes)], choices),
        strip_annotations=tuple(dict.fromkeys(key for c in everyone for key in c.reading.strip_annotations)),
        faults=_once(
            [
                *(fault for container in everyone for fault in container.reading.faults),
                *(_no_place_for_a_gpu(container) for container in everyone if _has_no_place(container, ephemeral)),
                *_faults_of_demand(demand, settings, root),
                *own.faults,
            ]
        ),
        warnings=tuple(dict.fromkeys([*(w for c in everyone for w in c.reading.warnings), *own.warnings])),
        demand=demand,
    )


def _read_list(
    spec: Mapping[str, Any],
    field: str,
    annotations: Mapping[str, str],
    settings: DialectSettings,
    root: Path,
    dialects: Sequence[Dialect],
) -> list[ContainerReading]:
    items = spec.get(field)
    if not isinstance(items, list):
        return []
    readings = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        name = item.get("name")
        resources = _mapping(item.get("resources"))
        container = Container(
            path=(*root, "spec", field, index),
            name=name if isinstance(name, str) else "",
            requests=_mapping(resources.get("requests")),
            limits=_mapping(resources.get("limits")),
            first=index == 0 and field == "containers",
        )
        spoken = read_container(container, annotations, settings, dialects)
        if spoken is not None:
            keeps_running = field == "initContainers" and is_native_sidecar(item)
            readings.append(ContainerReading(container.path, container.name, spoken[0], spoken[1], keeps_running))
    return readings


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _live_wishes(wishes: Sequence[Wish], choices: PodChoices) -> tuple[Wish, ...]:
    """One wish for each permission that the choices still need: the pod's own stands before the dialects'."""
    needed = {
        Permission.ELASTIC: choices.core_policy is CorePolicy.ELASTIC,
        Permission.HIGH_PRIORITY: choices.task_priority == HIGH_PRIORITY,
    }
    return tuple({wish.permission: wish for wish in reversed(wishes) if needed[wish.permission]}.values())


def _once(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(dict.fromkeys(faults))


def _has_no_place(container: ContainerReading, ephemeral: Sequence[ContainerReading]) -> bool:
    return container.name == names.SIDECAR_CONTAINER or container in ephemeral


def _no_place_for_a_gpu(container: ContainerReading) -> Fault:
    if container.name == names.SIDECAR_CONTAINER:
        return Fault(
            path=field_path(*container.path, "resources"),
            given=f"a GPU in the container {names.SIDECAR_CONTAINER}",
            allowed="no GPU there: the name is that of FairGPU's own reporter, which needs none",
            instead="the GPU in a container of another name",
        )
    return Fault(
        path=field_path(*container.path, "resources"),
        given="a GPU in an ephemeral container",
        allowed="no resources there, as for every ephemeral container",
        instead="the container without resources, or a pod of its own for it",
    )


def _faults_of_demand(demand: Demand, settings: DialectSettings, root: Path) -> list[Fault]:
    most = settings.max_gpus_per_node * WHOLE_GPU_PERCENT
    path = field_path(*root, "spec", "containers")
    return [
        Fault(
            path=path,
            given=f"{amount} percent of GPU {what} in the containers together",
            allowed=f"at most {most}, as the largest node has {settings.max_gpus_per_node} GPUs",
            instead="less in a pod, and more pods",
        )
        for what, amount in (("time", demand.core_percent), ("memory", demand.memory_percentage))
        if amount > most
    ]
