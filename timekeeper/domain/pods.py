"""The facts of a pod that metering needs, parsed from the raw object of the API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairgpu import names
from fairgpu.json_values import list_of, mapping
from fairgpu.request import HIGH_PRIORITY
from fairgpu.states import BudgetState
from timekeeper.domain.attribution import UNKNOWN_ORIGIN, Origin, read_origin
from timekeeper.domain.holdings.holding import NOTHING, Decision
from timekeeper.domain.money import SECOND
from timekeeper.domain.reservations import Reservation, read_asked_reservation, read_reservation
from timekeeper.domain.timestamps import instant_or_none

OUR_GATE = {"name": names.BUDGET_GATE}
_STARTED = ("running", "terminated")


class PodFacts(NamedTuple):
    """A pod at one moment. Instants are nanoseconds since 1970, None if the object states none; `created` is then 0.

    Attributes:
        scheduled: the instant at which PodScheduled became True, according to the API server's clock.
        bound: whether it has a node.
        running: whether its phase is past Pending, or a container with a canonical request has begun. The phase alone
            does not suffice: it is Pending while init containers run or while a main container waits for its image.
        started: whether a container with a canonical request runs, or ran before, by its kubelet's status.
        terminal: whether its phase is Succeeded or Failed.
        begun: the earliest time at which its kubelet states that the pod or one of its containers started, according to
            the node's clock.
        finished: the latest finishedAt of all its containers, according to the node's clock; None while one of them
            runs, or if none of them states it.
        changed: the instant at which one of its conditions changed last.
        origin: the origin that its use is attributed to.
        gated: whether FairGPU's scheduling gate holds it.
        gated_elsewhere: whether another scheduling gate holds it, such as Kueue's.
        reservation: the reservation that it holds or asks for; None without a GPU.
        deadline: its activeDeadlineSeconds in nanoseconds; None without one.
        admitted_over_budget: whether its budget was in the state OVER when admission admitted it.
        held: whether it has the meter's finalizer. The API server keeps a deleted pod as long as it has a finalizer.
        deleted: its deletionTimestamp, according to the API server's clock; None if it is not being deleted.
        deletion_grace: its grace period for ending, in seconds; None if it is not being deleted.
        removed: whether it is deleted but for its finalizers: its kubelet has finished with it, or it was deleted by
            force.
        high_priority: whether its author asked for the task priority that places it before other pods of its namespace.
        evict_at: the instant at which it is to be evicted, from the pod's annotation.
        reserves_claims: whether it asks for devices with claims of Dynamic Resource Allocation.
        group: the name of the group of pods that start together with it (see `group_of`); empty for none, and for a pod
            with a canonical request.
        admitted_held: whether its budget was in the state HELD when admission admitted it.
        guarded: whether it has the label of GPU pods. FairGPU's admission policies protect pods by this label, and the
            timekeeper may evict only pods that have it.
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
    origin: Origin = UNKNOWN_ORIGIN
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
    reserves_claims: bool = False
    group: str = ""
    admitted_held: bool = False
    guarded: bool = False


GROUP_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/group-key",
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.x-k8s.io/pod-group",
)
"""The labels that name a pod's group, the largest first: of JobSet, LeaderWorkerSet, Kueue and coscheduling."""
GROUP_ANNOTATIONS = ("pod-group-name", "scheduling.k8s.io/group-name")
"""The annotations that name a pod's group: KAI's and Volcano's."""
_LONGEST_NAME = 253
_SINGLE = ("ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node")
"""The kinds of controllers whose pods each work alone, so that they form no group."""


def group_of(metadata: Mapping[str, Any]) -> str:
    """Returns the name of the group of pods that start together with a pod; empty if the pod belongs to no group.

    The name is unique in the pod's namespace. Labels or annotations of a scheduler or a workload controller state it. A
    pod without these belongs to the group of its controller, such as its Job; controllers of independent pods, such as
    a ReplicaSet, form no group.
    """
    for where, keys in (("labels", GROUP_LABELS), ("annotations", GROUP_ANNOTATIONS)):
        given = mapping(metadata.get(where))
        group = next((value for key in keys if isinstance(value := given.get(key), str) and value), "")
        if group:
            return group[:_LONGEST_NAME]
    owners = (mapping(owner) for owner in list_of(metadata.get("ownerReferences")))
    controller: Mapping[str, Any] = next((owner for owner in owners if owner.get("controller") is True), {})
    kind, name = controller.get("kind"), controller.get("name")
    return f"{kind}/{name}" if kind and kind not in _SINGLE and name else ""


def holds_nothing_else(_pod: Mapping[str, Any]) -> Decision:
    """Returns no holdings for any pod; `read_pod` uses it if other stacks are not metered."""
    return NOTHING


def asks_for_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns True only if two versions of a pod surely ask for the same GPUs: their specs and annotations are equal.

    The caller then need not parse the pod's reservation again. False does not prove that the pod asks for other GPUs.
    """
    return one.get("spec") == other.get("spec") and _annotations(one) == _annotations(other)


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(pod.get("metadata")).get("annotations"))


def read_pod(
    pod: Mapping[str, Any],
    held_of: Callable[[Mapping[str, Any]], Decision] = holds_nothing_else,
    reservation: Reservation | None = None,
) -> PodFacts:
    """Parses a pod's object; a field that is missing or of another type counts as absent.

    A pod of another stack that is not bound yet gets a reservation by its request if it has the label of GPU pods.

    Args:
        held_of: returns the parts of GPUs that a bound pod without a canonical request holds by another stack.
        reservation: the pod's reservation according to its canonical request, as an earlier version of the pod gave
            it; None to parse it.
    """
    metadata, spec, status = (mapping(pod.get(key)) for key in ("metadata", "spec", "status"))
    label = mapping(metadata.get("labels")).get(names.POD_LABEL)
    phase = status.get("phase")
    annotations = mapping(metadata.get("annotations"))
    node = spec.get("nodeName")
    gates, finalizers = list_of(spec.get("schedulingGates")), metadata.get("finalizers")
    started = _has_begun(spec, status)
    deleted = instant_or_none(metadata.get("deletionTimestamp"))
    grace = metadata.get("deletionGracePeriodSeconds")
    bound = isinstance(node, str) and bool(node)
    canonical = reservation = reservation or read_reservation(pod)
    if reservation is None and bound and (decision := held_of(pod)).holdings:
        reservation = Reservation((), holdings=decision.holdings, doubts=decision.doubts)
    if reservation is None and not bound and label:
        reservation = read_asked_reservation(pod)
    return PodFacts(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        node=node if isinstance(node, str) else "",
        created=instant_or_none(metadata.get("creationTimestamp")) or 0,
        scheduled=_scheduled(status.get("conditions")),
        bound=bound,
        running=phase not in {None, "Pending"} or started,
        terminal=phase in names.TERMINAL_PHASES,
        finished=_finished(status),
        gated=OUR_GATE in gates,
        gated_elsewhere=any(gate != OUR_GATE for gate in gates),
        group=group_of(metadata) if canonical is None else "",
        admitted_held=annotations.get(names.BUDGET_STATE) == BudgetState.HELD,
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
        reserves_claims=bool(spec.get("resourceClaims") or status.get("extendedResourceClaimStatus")),
        guarded=label == names.POD_LABEL_VALUE,
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
    """Returns the latest finishedAt of all containers; None while a container runs by its status, or if none states it.

    A container may run by its status in a pod with a terminal phase: if a node is lost, Kubernetes sets the phase of
    the node's pods, and leaves the status of their containers.
    """
    moments = []
    for kind in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(kind) or []:
            state = mapping(mapping(container).get("state"))
            if "running" in state:
                return None
            moments.append(instant_or_none(mapping(state.get("terminated")).get("finishedAt")))
    return max((moment for moment in moments if moment is not None), default=None)


def _begun(status: Mapping[str, Any]) -> int | None:
    moments = [instant_or_none(status.get("startTime"))]
    for kind in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(kind) or []:
            states = [mapping(mapping(container).get(state)) for state in ("state", "lastState")]
            moments += [instant_or_none(mapping(each.get(how)).get("startedAt")) for each in states for how in _STARTED]
    return min((moment for moment in moments if moment is not None), default=None)


def _has_begun(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a container with a canonical request runs, or ran before, by its kubelet's status."""
    begun = {
        each.get("name")
        for kind in ("containerStatuses", "initContainerStatuses")
        for each in map(mapping, list_of(status.get(kind)))
        if any(how in mapping(each.get(state)) for state in ("state", "lastState") for how in _STARTED)
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
