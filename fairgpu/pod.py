"""Reads a whole pod: what each container asks of GPUs, what the pod chooses, what it demands, what is wrong with it.

Works on the raw JSON object and takes any: a field that is missing or of another type is one that asks for nothing,
as the API server has its own words for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairgpu import names
from fairgpu.choices import NOTHING_CHOSEN, Path, contradictions, merge_choices, read_choices
from fairgpu.demand import NO_DEMAND, Demand, is_native_sidecar, pod_demand
from fairgpu.dialects.building import WHOLE_GPU_PERCENT
from fairgpu.dialects.reading import Container, DialectSettings, Reading
from fairgpu.dialects.registry import DIALECTS, DialectSet, read_container, unheard
from fairgpu.faults import Fault, field_path, show
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
    dialects: DialectSet = DIALECTS,
) -> PodReading:
    """Reads a pod, or a pod template.

    Args:
        pod: the raw object with `metadata` and `spec`.
        settings: what the admin decides about how requests are read.
        root: the field path of `pod` in the object that messages speak of, such as `("spec", "template")`.
        dialects: the dialects to listen for (`registry.NATIVE`, `registry.FOREIGN`, or all); what others say is
            then not seen at all.
    """
    spec = _mapping(pod.get("spec"))
    metadata = _mapping(pod.get("metadata"))
    given_annotations = _mapping(metadata.get("annotations"))
    listener = _Listener(
        settings=settings,
        root=root,
        dialects=dialects,
        annotations=_texts(given_annotations, dialects.annotations),
        labels=_texts(_mapping(metadata.get("labels")), frozenset()),
    )
    containers = listener.hear(spec, "containers")
    init = listener.hear(spec, "initContainers")
    ephemeral = listener.hear(spec, "ephemeralContainers")
    everyone = containers + init + ephemeral
    heard = frozenset(name for container in everyone for name in container.dialect.split(" and "))
    pod_faults = unheard(listener.annotations, heard, root, dialects) if listener.called_by_annotation else []
    if not everyone and not pod_faults:
        return _NOT_ASKING
    pod_faults += _mistyped_annotations(given_annotations, dialects, root)
    asking = [container for container in everyone if container.request is not None or container.reading.faults]
    own = read_choices(given_annotations, (*root, "metadata")) if asking or pod_faults else NOTHING_CHOSEN
    demand = pod_demand(
        [container.request for container in containers],
        [(container.request, container.native_sidecar) for container in init],
    )
    choices = own.choices
    for container in asking:
        choices = merge_choices(choices, container.reading.choices)
    return PodReading(
        containers=containers,
        init=init,
        ephemeral=ephemeral,
        choices=choices,
        wishes=_live_wishes([*own.wishes, *(wish for c in asking for wish in c.reading.wishes)], choices),
        strip_annotations=tuple(dict.fromkeys(key for c in everyone for key in c.reading.strip_annotations)),
        faults=_once(
            [
                *(fault for container in everyone for fault in container.reading.faults),
                *(_no_place_for_a_gpu(container) for container in everyone if _has_no_place(container, ephemeral)),
                *_faults_of_demand(demand, settings, root),
                *pod_faults,
                *own.faults,
                *contradictions(choices, (*root, "metadata")),
            ]
        ),
        warnings=tuple(dict.fromkeys([*(w for c in everyone for w in c.reading.warnings), *own.warnings])),
        demand=demand,
    )


@dataclass(frozen=True, slots=True)
class _Listener:
    """What all containers of a pod are read with."""

    settings: DialectSettings
    root: Path
    dialects: DialectSet
    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def called_by_annotation(self) -> bool:
        """Whether the pod's annotations ask for a GPU, so that any container may be the one that is meant."""
        return not self.dialects.speaking_annotations.isdisjoint(self.annotations)

    def hear(self, spec: Mapping[str, Any], field: str) -> tuple[ContainerReading, ...]:
        """The containers of one list that speak."""
        items = spec.get(field)
        if not isinstance(items, list):
            return ()
        anyone = self.called_by_annotation
        readings = []
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                continue
            resources = _mapping(item.get("resources"))
            requests, limits = _mapping(resources.get("requests")), _mapping(resources.get("limits"))
            if anyone or self.dialects.may_speak(requests, limits):
                readings.append(self._read(item, (*self.root, "spec", field, index), requests, limits))
        return tuple(reading for reading in readings if reading is not None)

    def _read(
        self, item: Mapping[str, Any], path: Path, requests: Mapping[str, Any], limits: Mapping[str, Any]
    ) -> ContainerReading | None:
        given_name = item.get("name")
        name = given_name if isinstance(given_name, str) else ""
        container = Container(
            path=path,
            name=name,
            requests=requests,
            limits=limits,
            annotations=self.annotations,
            labels=self.labels,
            first=path[-2:] == ("containers", 0),
        )
        spoken = read_container(container, self.settings, self.dialects)
        if spoken is None:
            return None
        dialect, reading = spoken
        return ContainerReading(path, name, dialect, reading, path[-2] == "initContainers" and is_native_sidecar(item))


def _texts(given: Mapping[Any, Any], read_anyway: frozenset[str]) -> Mapping[str, str]:
    """The entries that are text, and those that should be where their key is in `read_anyway`, as their JSON."""
    return {
        key: value if isinstance(value, str) else show(value)
        for key, value in given.items()
        if isinstance(key, str) and (isinstance(value, str) or key in read_anyway)
    }


def _mistyped_annotations(given: Mapping[Any, Any], dialects: DialectSet, root: Path) -> list[Fault]:
    """An annotation such as `gpu-fraction: 0.5`, which YAML reads as a number and the API server refuses."""
    return [
        Fault(
            path=field_path(*root, "metadata", "annotations", key),
            given=show(value),
            allowed="text, as every annotation is",
            instead=f'"{show(value)}", in quotes',
        )
        for key, value in given.items()
        if isinstance(key, str) and key in dialects.annotations and not isinstance(value, str)
    ]


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


def _has_no_place(container: ContainerReading, ephemeral: tuple[ContainerReading, ...]) -> bool:
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
    if demand.core_percent <= most and demand.memory_percentage <= most:
        return []
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
