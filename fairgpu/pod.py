"""Reads a whole pod: what each container asks of GPUs, what the pod chooses, what it demands, what is wrong with it.

Works on the raw JSON object and takes any: a field that is missing or of another type is one that asks for nothing,
as the API server has its own words for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fairgpu.choices import NOTHING_CHOSEN, Path, contradictions, merge_choices, read_choices
from fairgpu.demand import NO_DEMAND, Demand, pod_demand
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import DIALECTS, DialectSet
from fairgpu.faults import Fault
from fairgpu.listening import ContainerReading, Listener, mapping, texts
from fairgpu.permissions import Permission, Wish
from fairgpu.pod_faults import beyond_a_node, misplaced, mistyped_annotations, oversized, too_many
from fairgpu.request import HIGH_PRIORITY, NO_CHOICES, CorePolicy, PodChoices

__all__ = ["ContainerReading", "PodReading", "read_pod"]


class PodReading:
    """A pod as FairGPU understands it. The three tuples of containers hold only those that speak a dialect, in order.

    Attributes:
        all_containers: all that speak a dialect, main ones first.
        choices: the pod's own and the dialects' choices together, before permissions (`permissions.grant`).
        wishes: which of them need a permission of the namespace.
        strip_annotations: the dialects' keys to take off the pod.
        faults: everything that is wrong with it, all at once.
        warnings: what is done otherwise than was asked.
        demand: what the pod as a whole demands.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        *,
        containers: tuple[ContainerReading, ...] = (),
        init: tuple[ContainerReading, ...] = (),
        ephemeral: tuple[ContainerReading, ...] = (),
        choices: PodChoices = NO_CHOICES,
        wishes: tuple[Wish, ...] = (),
        strip_annotations: tuple[str, ...] = (),
        faults: tuple[Fault, ...] = (),
        warnings: tuple[str, ...] = (),
        demand: Demand = NO_DEMAND,
    ) -> None:
        self.containers: Final = containers
        self.init: Final = init
        self.ephemeral: Final = ephemeral
        self.all_containers: Final = containers + init + ephemeral
        self.choices: Final = choices
        self.wishes: Final = wishes
        self.strip_annotations: Final = strip_annotations
        self.faults: Final = faults
        self.warnings: Final = warnings
        self.demand: Final = demand

    @property
    def speaks(self) -> bool:
        """Whether any container has a key of a dialect; false means that the pod is none of our business."""
        return bool(self.all_containers)

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
    spec = mapping(pod.get("spec"))
    metadata = mapping(pod.get("metadata"))
    annotations = mapping(metadata.get("annotations"))
    too_large = oversized(annotations, root)
    if too_large:
        return PodReading(faults=too_large)
    listener = Listener(
        settings=settings,
        root=root,
        dialects=dialects,
        annotations=texts(annotations, dialects.annotations),
        labels=mapping(metadata.get("labels")),
    )
    containers = listener.hear(spec, "containers")
    init = listener.hear(spec, "initContainers")
    ephemeral = listener.hear(spec, "ephemeralContainers")
    everyone = containers + init + ephemeral
    unheard = listener.unheard(everyone)
    if not everyone and not unheard:
        return _NOT_ASKING
    demand = pod_demand(
        [container.request for container in containers],
        [(container.request, container.native_sidecar) for container in init],
    )
    pod_faults = [
        *(fault for container in everyone for fault in misplaced(container)),
        *too_many(spec, root),
        *beyond_a_node(demand, settings, root),
        *unheard,
        *mistyped_annotations(annotations, dialects, root),
    ]
    return _joined(containers, init, ephemeral, demand, _Pod(annotations, (*root, "metadata"), pod_faults))


class _Pod:
    """The pod around its containers."""

    def __init__(self, annotations: Mapping[Any, Any], metadata: Path, faults: list[Fault]) -> None:
        self.annotations: Final = annotations
        self.metadata: Final = metadata
        self.faults: Final = faults


def _joined(
    containers: tuple[ContainerReading, ...],
    init: tuple[ContainerReading, ...],
    ephemeral: tuple[ContainerReading, ...],
    demand: Demand,
    pod: _Pod,
) -> PodReading:
    """Joins what the containers say with what the pod chooses; one that wants no GPU chooses nothing."""
    everyone = containers + init + ephemeral
    asking = [container for container in everyone if container.request is not None or container.reading.faults]
    own = read_choices(pod.annotations, pod.metadata) if asking or pod.faults else NOTHING_CHOSEN
    choices = own.choices
    for container in asking:
        choices = merge_choices(choices, container.reading.choices)
    readings = [container.reading for container in everyone]
    return PodReading(
        containers=containers,
        init=init,
        ephemeral=ephemeral,
        choices=choices,
        wishes=_live_wishes([*own.wishes, *(wish for c in asking for wish in c.reading.wishes)], choices),
        strip_annotations=_once([reading.strip_annotations for reading in readings]),
        faults=_once(
            [
                *(reading.faults for reading in readings),
                pod.faults,
                own.faults,
                contradictions(choices, pod.metadata),
            ]
        ),
        warnings=_once([*(reading.warnings for reading in readings), own.warnings]),
        demand=demand,
    )


def _live_wishes(wishes: Sequence[Wish], choices: PodChoices) -> tuple[Wish, ...]:
    """One wish for each permission that the choices still need: the pod's own stands before the dialects'."""
    if not wishes:
        return ()
    needed = {
        Permission.ELASTIC: choices.core_policy is CorePolicy.ELASTIC,
        Permission.HIGH_PRIORITY: choices.task_priority == HIGH_PRIORITY,
    }
    return tuple({wish.permission: wish for wish in reversed(wishes) if needed[wish.permission]}.values())


_Item = TypeVar("_Item")


def _once(groups: Iterable[Iterable[_Item]]) -> tuple[_Item, ...]:
    """The items of all groups in order, each once."""
    items = [item for group in groups for item in group]
    return tuple(dict.fromkeys(items)) if len(items) > 1 else tuple(items)
