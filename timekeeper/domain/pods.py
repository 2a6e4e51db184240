"""The facts of a pod that metering needs, parsed from the raw object of the API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairgpu import names
from fairgpu.json_values import list_of, mapping
from fairgpu.request import HIGH_PRIORITY
from fairgpu.states import BudgetState
from timekeeper.domain.attribution import Origin, read_origin
from timekeeper.domain.holdings.holding import Holding
from timekeeper.domain.money import SECOND
from timekeeper.domain.reservations import Reservation, read_reservation
from timekeeper.domain.timestamps import instant_or_none

TERMINAL_PHASES = ("Succeeded", "Failed")
OUR_GATE = {"name": names.BUDGET_GATE}
_STARTED = ("running", "terminated")


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod at one moment. Instants are nanoseconds since 1970, None where the object states none.

    Attributes:
        scheduled: when PodScheduled became True, by the API server's clock.
        bound: whether it has a node.
        running: whether its phase is past Pending, or a container that holds a GPU has begun. A pod whose init
            containers run, or one of whose main containers waits for its image, is Pending meanwhile.
        started: whether a container that holds a GPU runs, or ran before, by its kubelet's status.
        terminal: whether its phase is Succeeded or Failed.
        begun: the earliest time at which its kubelet had the pod, by the node's clock.
        finished: the latest finishedAt of all its containers, by the node's clock.
        changed: when the last of its conditions changed.
        origin: the origin that its use is attributed to.
        gated: whether FairGPU's scheduling gate holds it.
        gated_elsewhere: whether another scheduling gate holds it, such as Kueue's.
        reservation: the reservation that it holds or asks for; None without a GPU.
        deadline: its activeDeadlineSeconds in nanoseconds.
        admitted_over_budget: whether admission admitted it as over budget.
        held: whether the meter's finalizer keeps it on the API server.
        deleted: its deletionTimestamp, by the API server's clock, where it is being deleted.
        deletion_grace: its grace period for ending in seconds, where it is being deleted.
        removed: whether only finalizers keep it: its kubelet has finished with it, or it was deleted by force.
        high_priority: whether it goes first within its namespace.
        evict_at: the instant of its eviction that its annotation announces.
    """

    uid: str
    namespace: str
    name: str
    node: str
    created: int
    scheduled: int | None
    bound: bool
    running: bool
    terminal: bool
    finished: int | None
    gated: bool
    reservation: Reservation | None
    changed: int | None = None
    origin: Origin = field(default_factory=Origin)
    deadline: int | None = None
    admitted_over_budget: bool = False
    held: bool = False
    deleted: int | None = None
    deletion_grace: int | None = None
    removed: bool = False
    high_priority: bool = False
    evict_at: int | None = None
    begun: int | None = None
    started: bool = False
    gated_elsewhere: bool = False


def holds_nothing_else(_pod: Mapping[str, Any]) -> tuple[Holding, ...]:
    """Stands for a cluster whose other stacks are not metered."""
    return ()


def read_pod(
    pod: Mapping[str, Any], held_of: Callable[[Mapping[str, Any]], tuple[Holding, ...]] = holds_nothing_else
) -> PodFacts:
    """Parses a pod; a field that is missing or of another type counts as absent.

    `held_of` returns the parts of GPUs that a bound pod without a request in canonical form holds by another stack.
    """
    metadata, spec, status = (mapping(pod.get(key)) for key in ("metadata", "spec", "status"))
    phase = status.get("phase")
    annotations = mapping(metadata.get("annotations"))
    node = spec.get("nodeName")
    gates, finalizers = list_of(spec.get("schedulingGates")), metadata.get("finalizers")
    started = _has_begun(spec, status)
    deleted = instant_or_none(metadata.get("deletionTimestamp"))
    grace = metadata.get("deletionGracePeriodSeconds")
    bound = isinstance(node, str) and bool(node)
    reservation = read_reservation(pod)
    if reservation is None and bound and (holdings := held_of(pod)):
        reservation = Reservation((), holdings=holdings)
    return PodFacts(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        node=node if isinstance(node, str) else "",
        created=instant_or_none(metadata.get("creationTimestamp")) or 0,
        scheduled=_scheduled(status.get("conditions")),
        bound=bound,
        running=phase not in {None, "Pending"} or started,
        terminal=phase in TERMINAL_PHASES,
        finished=_finished(status),
        gated=OUR_GATE in gates,
        gated_elsewhere=any(gate != OUR_GATE for gate in gates),
        reservation=reservation,
        changed=_latest(status.get("conditions"), "lastTransitionTime"),
        origin=read_origin(metadata),
        deadline=_seconds(spec.get("activeDeadlineSeconds")),
        held=isinstance(finalizers, list) and names.METER_FINALIZER in finalizers,
        deleted=deleted,
        deletion_grace=grace if isinstance(grace, int) else None,
        removed=deleted is not None and grace == 0,
        admitted_over_budget=annotations.get(names.BUDGET_STATE) == BudgetState.OVER,
        high_priority=annotations.get(names.TASK_PRIORITY) == str(HIGH_PRIORITY),
        evict_at=instant_or_none(annotations.get(names.EVICTION_AT)),
        begun=_begun(status),
        started=started,
    )


def _seconds(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value * SECOND if whole else None


def _scheduled(conditions: Any) -> int | None:
    for condition in conditions if isinstance(conditions, list) else []:
        if mapping(condition).get("type") == "PodScheduled" and condition.get("status") == "True":
            return instant_or_none(condition.get("lastTransitionTime"))
    return None


def _finished(status: Mapping[str, Any]) -> int | None:
    moments = []
    for kind in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(kind) or []:
            state = mapping(mapping(container).get("state"))
            moments.append(instant_or_none(mapping(state.get("terminated")).get("finishedAt")))
    return max((moment for moment in moments if moment is not None), default=None)


def _begun(status: Mapping[str, Any]) -> int | None:
    moments = [instant_or_none(status.get("startTime"))]
    for kind in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(kind) or []:
            states = [mapping(mapping(container).get(state)) for state in ("state", "lastState")]
            moments += [
                instant_or_none(mapping(found.get(how)).get("startedAt")) for found in states for how in _STARTED
            ]
    return min((moment for moment in moments if moment is not None), default=None)


def _has_begun(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a container that asks for a GPU runs, or ran before, by its kubelet's status."""
    begun = {
        found.get("name")
        for kind in ("containerStatuses", "initContainerStatuses")
        for found in map(mapping, list_of(status.get(kind)))
        if any(how in mapping(found.get(state)) for state in ("state", "lastState") for how in _STARTED)
    }
    return bool(begun) and any(
        item.get("name") in begun and not _limits(item).keys().isdisjoint(names.CANONICAL_RESOURCES)
        for kind in ("containers", "initContainers")
        for item in map(mapping, list_of(spec.get(kind)))
    )


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(container.get("resources")).get("limits"))


def _latest(items: Any, field: str) -> int | None:
    moments = [instant_or_none(mapping(item).get(field)) for item in (items if isinstance(items, list) else [])]
    return max((moment for moment in moments if moment is not None), default=None)
