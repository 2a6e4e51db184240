"""Finds the container that is about to start, and its allocation, from the slots that the kubelet names. Pure.

The kubelet's PodResources API lists main containers and native sidecars, and one entry for each device. It does not
list ordinary init containers, whose slots it hands on to containers that start later (kubelet's device manager). Such
slots identify the pod; the container is then the first init container, in the order of the spec, that asks for as many
GPUs as there are slots and has not completed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairgpu import names
from fairgpu.allocation import Allocation, AllocationError, ContainerAllocation, DeviceShare, decode
from fairgpu.demand import is_native_sidecar
from fairgpu.quantity import QuantityError, parse_count
from nodeagent.containers.refusal import Cause, PlacementRefusedError

MAX_DEVICES = 16
"""The most devices of one container, by its configuration file (vcuda/include/usage.h, VCUDA_MAX_DEVICES)."""


BEFORE_A_START = ("PodInitializing", "ContainerCreating")
"""The reasons by which a pod's status shows that a container was not started, or that its start is not yet reported."""


@dataclass(frozen=True)
class Listed:
    """A container as the kubelet's PodResources API lists it.

    Attributes:
        namespace, pod: the pod's namespace and name.
        container: the container's name.
        slots: the ids of all slots of `fairgpu.io/gpu` that it holds.
    """

    namespace: str
    pod: str
    container: str
    slots: frozenset[str]


@dataclass(frozen=True)
class Claim:
    """A container that is about to start, and its part of its pod's allocation.

    Attributes:
        namespace, pod, uid: the pod's namespace, name and uid.
        container: the container's name.
        slots: the ids of the slots of `fairgpu.io/gpu` that it holds.
        allocation: its parts of GPUs.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    slots: frozenset[str]
    allocation: ContainerAllocation

    @property
    def identity(self) -> tuple[str, str, str]:
        """The pod's namespace, name and uid."""
        return self.namespace, self.pod, self.uid


def holder(listing: Iterable[Listed], slots: frozenset[str], pods: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the namespace and name of the pod that holds some slots of `fairgpu.io/gpu`.

    Args:
        listing: the containers that the kubelet lists.
        slots: the ids of the slots of the container that is about to start.
        pods: the node's pods as JSON; a refusal names those of them that may hold the slots.

    Raises:
        PlacementRefusedError: the kubelet lists no pod with these slots, or several.
    """
    holders = sorted({(each.namespace, each.pod) for each in listing if each.slots & slots})
    if not holders:
        raise PlacementRefusedError(
            Cause.UNKNOWN_CONTAINER,
            f"the kubelet lists no container with the slots {_shown(slots)}: a pod whose init containers alone "
            "ask for GPUs cannot be distinguished from others; ask for the GPU in a main container as well",
            *sorted(identity_of(pod) for pod in pods if _is_unlisted(pod, len(slots))),
        )
    if len(holders) > 1:
        raise PlacementRefusedError(
            Cause.AMBIGUOUS,
            f"the kubelet lists the slots {_shown(slots)} for {', '.join('/'.join(pod) for pod in holders)}",
            *sorted(identity_of(pod) for pod in pods if identity_of(pod)[:2] in holders),
        )
    return holders[0]


def live_pod(pods: Iterable[Mapping[str, Any]], namespace: str, name: str) -> Mapping[str, Any] | None:
    """Returns the one pod of a namespace and name that has not ended, as JSON; None if there is none.

    Raises:
        PlacementRefusedError: several pods that have not ended have that name.
    """
    found = [pod for pod in pods if identity_of(pod)[:2] == (namespace, name) and is_live(pod)]
    if len(found) > 1:
        identities = sorted(identity_of(pod) for pod in found)
        uids = ", ".join(uid for _, _, uid in identities)
        raise PlacementRefusedError(
            Cause.AMBIGUOUS, f"two live pods are called {namespace}/{name}: {uids}", *identities
        )
    return found[0] if found else None


def identity_of(pod: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns the namespace, name and uid of a pod, which is given as JSON."""
    metadata = pod["metadata"]
    return str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"])


def container_of(pod: Mapping[str, Any], listing: Iterable[Listed], slots: frozenset[str]) -> str:
    """Returns the name of a pod's container that is about to start.

    Args:
        listing: the containers that the kubelet lists.
        slots: the ids of the container's slots of `fairgpu.io/gpu`.

    Raises:
        PlacementRefusedError: no container of the pod is listed with exactly these slots, and none of its init
            containers can hold them; or several containers are listed with these slots; or the kubelet lists an earlier
            pod of this name as well.
    """
    spec, identity = pod["spec"], identity_of(pod)
    of_pod = [each for each in listing if (each.namespace, each.pod) == identity[:2]]
    if len({each.container for each in of_pod}) != len(of_pod):
        raise PlacementRefusedError(
            Cause.AMBIGUOUS,
            f"the kubelet lists two pods called {'/'.join(identity[:2])}: the slots {_shown(slots)} may be of the one "
            "that ends",
            identity,
        )
    exact = {each.container for each in of_pod if each.slots == slots}
    completed = _completed(pod)
    for container in spec.get("initContainers") or []:
        name = str(container["name"])
        if is_native_sidecar(container):
            if name in exact:
                return name
        elif gpus_of(container) == len(slots) and name not in completed:
            return name
    main = [name for name in (str(container["name"]) for container in spec["containers"]) if name in exact]
    if len(main) == 1:
        return main[0]
    cause = Cause.AMBIGUOUS if main else Cause.UNKNOWN_CONTAINER
    exact_ones = ", ".join(main) or "no container"
    raise PlacementRefusedError(
        cause, f"the kubelet lists {exact_ones} of the pod with exactly the slots {_shown(slots)}", identity
    )


def without_ends_before(pod: Mapping[str, Any], booted: dt.datetime) -> Mapping[str, Any]:
    """Returns a pod without the statuses of init containers that ended before the host booted: they start again.

    After a boot, the pod's status shows those ends until each init container has started again.

    Args:
        pod: the pod as JSON.
        booted: when the host booted.
    """
    status = pod.get("status", {})
    kept = [each for each in status.get("initContainerStatuses") or [] if not _ended_before(each, booted)]
    return {**pod, "status": {**status, "initContainerStatuses": kept}}


def _ended_before(status: Mapping[str, Any], at: dt.datetime) -> bool:
    ended = (status.get("state") or {}).get("terminated") or {}
    try:
        return dt.datetime.fromisoformat(ended["finishedAt"]) < at
    except (KeyError, TypeError, ValueError):
        return False


def start_is_certain(pod: Mapping[str, Any], container: str) -> bool:
    """Returns whether a pod's status proves that an init container, which has started before, starts once more.

    The status must show a failure of the container, or a wait for its restart. The caller must also read the status
    again, after the time in which the kubelet would report a change, and find that it still proves this. Any other
    status may be out of date for longer: the kubelet may start the next init container, with the same slots, before it
    reports that this one has completed.
    """
    for status in pod.get("status", {}).get("initContainerStatuses") or []:
        if status.get("name") == container:
            state = status.get("state") or {}
            failed = (state.get("terminated") or {}).get("exitCode") not in (None, 0)
            return failed or (state.get("waiting") or {}).get("reason") not in (None, *BEFORE_A_START)
    return False


def claim(pod: Mapping[str, Any], container: str, slots: frozenset[str], node: str) -> Claim:
    """Returns a container's part of its pod's allocation, after checking it against the container's limits and slots.

    Args:
        pod: the pod as JSON.
        container: the container's name.
        slots: the ids of the container's slots of `fairgpu.io/gpu`.
        node: this node's name.

    Raises:
        PlacementRefusedError: the pod has no allocation or one that cannot be read, or the allocation is of another
            node; or it does not give the container as many different GPUs as the container's limits and slots say, or
            it gives another part of one of them than the limits say, or more than MAX_DEVICES GPUs.
    """
    identity = identity_of(pod)
    allocation = _allocation(pod["metadata"], identity)
    if allocation.node != node:
        raise PlacementRefusedError(
            Cause.ANOTHER_NODE, f"the allocation is of node {allocation.node}, this is {node}", identity
        )
    given = next((each for each in allocation.containers if each.name == container), None)
    if given is None:
        raise PlacementRefusedError(
            Cause.NO_ALLOCATION, f"the allocation gives container {container} nothing", identity
        )
    spec = next(each for each in _all_containers(pod) if each["name"] == container)
    count, asked = len(given.devices), gpus_of(spec)
    if not count == len(slots) == asked or len({device.uuid for device in given.devices}) != count:
        raise PlacementRefusedError(
            Cause.BAD_ALLOCATION,
            f"container {container} asks for {asked} GPUs and holds {len(slots)} slots; "
            f"the allocation gives it {[device.uuid for device in given.devices]}",
            identity,
        )
    for share in given.devices:
        _check_amounts(share, spec, count, identity)
    if count > MAX_DEVICES:
        raise PlacementRefusedError(
            Cause.BAD_ALLOCATION, f"container {container} has {count} GPUs; at most {MAX_DEVICES} are allowed", identity
        )
    return Claim(*identity, container, slots, given)


def _check_amounts(
    share: DeviceShare, container: Mapping[str, Any], count: int, identity: tuple[str, str, str]
) -> None:
    """Checks that a container's part of one GPU is what its limits say, divided by the number of its GPUs, `count`.

    Raises:
        PlacementRefusedError: it is another part; the error names the pod by `identity`.
    """
    core, memory, percentage = (
        _amount(container, resource) // count
        for resource in (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENTAGE)
    )
    memory = memory or share.total_mib * percentage // 100
    if (share.core_percent, share.memory_mib) != (core, memory):
        raise PlacementRefusedError(
            Cause.BAD_ALLOCATION,
            f"the limits of container {container['name']} say {core} percent and {memory} MiB of each GPU; the "
            f"allocation gives it {share.core_percent} percent and {share.memory_mib} MiB of GPU {share.uuid}",
            identity,
        )


def devices_of(pod: Mapping[str, Any], container: str) -> frozenset[str] | None:
    """Returns the uuids of the GPUs that a pod's allocation gives to a container; empty if it names no such container.

    None if the pod has no allocation, or one that cannot be read.
    """
    try:
        allocation = _allocation(pod["metadata"], identity_of(pod))
    except PlacementRefusedError:
        return None
    return frozenset(device.uuid for each in allocation.containers if each.name == container for device in each.devices)


def gpus_of(container: Mapping[str, Any]) -> int:
    """Returns the number of GPUs in a container's limits; 0 if there is none, or it is not a whole number.

    Args:
        container: the container as in its pod's spec.
    """
    return _amount(container, names.GPU)


def _amount(container: Mapping[str, Any], resource: str) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    try:
        return parse_count(limits.get(resource, 0))
    except QuantityError:
        return 0


def _allocation(metadata: Mapping[str, Any], identity: tuple[str, str, str]) -> Allocation:
    text = (metadata.get("annotations") or {}).get(names.ALLOCATION)
    if text is None:
        raise PlacementRefusedError(
            Cause.NO_ALLOCATION,
            f"the pod has no annotation {names.ALLOCATION}: it was not placed by {names.SCHEDULER_NAME}",
            identity,
        )
    try:
        return decode(text)
    except AllocationError as error:
        raise PlacementRefusedError(Cause.BAD_ALLOCATION, str(error), identity) from error


def is_live(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod, given as JSON, has not ended."""
    return pod.get("status", {}).get("phase") not in names.TERMINAL_PHASES


def _is_unlisted(pod: Mapping[str, Any], gpus: int) -> bool:
    """Returns whether the kubelet does not list a pod, and one of its init containers with `gpus` GPUs may start next.

    The kubelet lists a pod only if a main container or a native sidecar of it has GPUs.
    """
    completed = _completed(pod)
    init = pod["spec"].get("initContainers") or []
    listed = [*pod["spec"]["containers"], *(container for container in init if is_native_sidecar(container))]
    return (
        is_live(pod)
        and not any(gpus_of(container) for container in listed)
        and any(gpus_of(container) == gpus and container["name"] not in completed for container in init)
    )


def _completed(pod: Mapping[str, Any]) -> frozenset[str]:
    found = set()
    for status in pod.get("status", {}).get("initContainerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if ended is not None and ended.get("exitCode") == 0:
            found.add(str(status["name"]))
    return frozenset(found)


def _all_containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]


def _shown(slots: Iterable[str]) -> str:
    return ", ".join(sorted(slots))
