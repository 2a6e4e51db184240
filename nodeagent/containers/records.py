"""The node agent's records of the containers to which it gave parts of GPUs, one JSON file each. Pure.

`{"v":1,"namespace":"team","pod":"train","uid":"...","container":"main","slots":["slot-3"],"start":2,"whole":false,
"policy":"hard","taskPriority":1,"devices":[{"uuid":"GPU-...","core":30,"memoryMiB":4096,"slot":0,"key":7}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu.inventory import Device
from fairgpu.request import NORMAL_PRIORITY, CorePolicy, PodChoices
from nodeagent.containers.cdi_name import device_name
from nodeagent.containers.fitting import (
    Held,
    OverlapError,
    UnusableDeviceError,
    check_devices,
    check_overlap,
    free_slot,
    is_whole,
)
from nodeagent.containers.refusal import Cause, PlacementRefusedError
from nodeagent.containers.resolving import Claim, devices_of, is_live
from nodeagent.turns import Policy

VERSION = 1


class RecordError(ValueError):
    """Raised for a file that is not the record of a container; the message names the fault."""


@dataclass(frozen=True)
class GivenDevice:
    """A part of one GPU that was given to a container.

    Attributes:
        uuid: the GPU's uuid.
        core_percent: the container's share of GPU time, in percent.
        memory_mib: the container's limit of GPU memory, in MiB.
        slot: the container's place on the GPU's schedule page, from 0 to 63.
        key: a random number that marks this start of the container in that place.
    """

    uuid: str
    core_percent: int
    memory_mib: int
    slot: int
    key: int


@dataclass(frozen=True)
class Record:
    """The agent's record of a container that is alive or starting, with the parts of GPUs that it was given.

    Attributes:
        namespace, pod, uid: the pod's namespace, name and uid.
        container: the container's name.
        slots: the ids of the device plugin's slots that it holds.
        start: the number of its start, from 1; each start has its own folder.
        whole: whether no other container may use its GPUs, so that no shim limits it.
        policy: how it may use GPU time beyond its share.
        task_priority: 0 if it goes before other containers on its GPUs, else 1.
        devices: its parts of GPUs, in the order in which it sees them.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    slots: frozenset[str]
    start: int
    whole: bool
    policy: Policy
    task_priority: int
    devices: tuple[GivenDevice, ...]

    @property
    def cdi_device(self) -> str:
        """The name of the container's CDI device."""
        return device_name(self.slots)


def given(
    claim: Claim,
    choices: PodChoices,
    records: Iterable[Record],
    offered: Mapping[str, Device],
    new_key: Callable[[], int],
) -> Record:
    """Checks that a container may start, and returns a new record of the parts of GPUs that it is given.

    No file is written. A container that starts again keeps its slot on each schedule page, and gets a new key, so that
    a process of an earlier start has no effect. If the kubelet has given the slots of an init container to a later
    container of the same pod, the init container counts as ended.

    Args:
        claim: the container and its part of its pod's allocation.
        choices: the policy and priority that its pod chose.
        records: the records of all containers that live or are starting on this node.
        offered: the node's GPUs, keyed by uuid.
        new_key: returns a random number that is not 0.

    Raises:
        PlacementRefusedError: a GPU cannot be used, or other containers hold a part of the allocation, or the slots.
    """
    known = tuple(records)
    before = next((each for each in known if (each.uid, each.container) == (claim.uid, claim.container)), None)
    others = [each for each in known if each is not before and not (each.uid == claim.uid and each.slots & claim.slots)]
    held = [piece for each in others for piece in pieces(each)]
    shares = claim.allocation.devices
    _check_slots(claim, others)
    try:
        check_devices(shares, offered)
        check_overlap(shares, held, offered)
        kept = {device.uuid: device.slot for device in before.devices} if before else {}
        devices = tuple(
            GivenDevice(
                share.uuid,
                share.core_percent,
                share.memory_mib,
                kept[share.uuid] if share.uuid in kept else free_slot(share.uuid, held),
                new_key(),
            )
            for share in shares
        )
    except UnusableDeviceError as error:
        raise PlacementRefusedError(Cause.UNUSABLE_DEVICE, str(error), claim.identity) from error
    except OverlapError as error:
        raise PlacementRefusedError(Cause.OVERLAP, str(error), claim.identity) from error
    return Record(
        *claim.identity,
        container=claim.container,
        slots=claim.slots,
        start=before.start + 1 if before else 1,
        whole=is_whole(shares, offered),
        policy=_policy(shares[0].core_percent, choices),
        task_priority=NORMAL_PRIORITY if choices.task_priority is None else choices.task_priority,
        devices=devices,
    )


def _check_slots(claim: Claim, others: Iterable[Record]) -> None:
    """Checks that none of some other containers has exactly the slots of a container that is about to start.

    The slots name the CDI device. A runtime keeps the specs that it has read, and reads a changed spec a moment later.
    So it could give the GPUs and files of the other container to the container that starts.

    Args:
        others: the records of the containers that have not ended yet, as far as the agent knows.

    Raises:
        PlacementRefusedError: another pod's container has the same slots.
    """
    for each in others:
        if each.slots == claim.slots:
            raise PlacementRefusedError(
                Cause.OVERLAP,
                f"the kubelet gives container {claim.container} the slots of container {each.container} of pod "
                f"{each.namespace}/{each.pod}, which has not ended yet as far as the node agent knows",
                claim.identity,
            )


def check_unread(claim: Claim, unread: Iterable[tuple[str, str]], pods: Iterable[Mapping[str, Any]]) -> None:
    """Checks that a container gets no GPU on which a container without a readable record may run.

    A later version of the agent may have written a record that this one cannot read. The allocation of that container's
    pod then names the GPUs that it may hold. Containers of one pod are not checked against each other, since the pod's
    allocation has room for all of them.

    Args:
        claim: the container that is about to start.
        unread: for each container whose record cannot be read, its pod's uid and its name.
        pods: the node's pods as JSON.

    Raises:
        PlacementRefusedError: such a container holds one of the GPUs, or its GPUs cannot be known.
    """
    by_uid = {str(pod["metadata"]["uid"]): pod for pod in pods}
    wanted = {device.uuid for device in claim.allocation.devices}
    for uid, container in sorted(unread):
        if uid == claim.uid:
            continue
        pod = by_uid.get(uid)
        held = None if pod is None else devices_of(pod, container)
        if held is None or held & wanted:
            shown = ", ".join(sorted(wanted if held is None else held & wanted))
            raise PlacementRefusedError(
                Cause.OVERLAP,
                f"container {container} of the pod with uid {uid} may hold GPU {shown}, and this agent cannot read its "
                "record: the GPU takes no new containers until that container has started again or its pod has ended",
                claim.identity,
            )


def superseded(record: Record, records: Iterable[Record]) -> list[Record]:
    """Returns the records that a container's new record replaces: those of its pod with its name or any of its slots.

    A record with its name is of an earlier start. A record with some of its slots is of an init container that ended.
    """
    return [
        each
        for each in records
        if each.uid == record.uid and (each.container == record.container or each.slots & record.slots)
    ]


def pieces(record: Record) -> list[Held]:
    """Returns the parts of GPUs that a container holds according to its record."""
    return [Held(each.uuid, each.core_percent, each.memory_mib, each.slot) for each in record.devices]


def ended(records: Iterable[Record], pods: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Returns the records of containers that cannot start again, since their pods are deleted or have ended."""
    live = {str(pod["metadata"]["uid"]) for pod in pods if is_live(pod)}
    return [record for record in records if record.uid not in live]


def encode(record: Record) -> str:
    """Returns a container's record as JSON."""
    document = {
        "v": VERSION,
        "namespace": record.namespace,
        "pod": record.pod,
        "uid": record.uid,
        "container": record.container,
        "slots": sorted(record.slots),
        "start": record.start,
        "whole": record.whole,
        "policy": record.policy.name.lower(),
        "taskPriority": record.task_priority,
        "devices": [
            {
                "uuid": device.uuid,
                "core": device.core_percent,
                "memoryMiB": device.memory_mib,
                "slot": device.slot,
                "key": device.key,
            }
            for device in record.devices
        ],
    }
    return json.dumps(document, separators=(",", ":"))


def decode(text: str | bytes) -> Record:
    """Returns the record of a container from its JSON; unknown fields are ignored.

    Raises:
        RecordError: the text is not a JSON object of version 1, a field is missing or of another kind, or the record
            has no slot or no device.
    """
    try:
        document = json.loads(text)
        if document["v"] != VERSION:
            raise RecordError(f"a record of version {document['v']!r}; this agent reads {VERSION}")
        if not document["slots"] or not document["devices"]:
            raise RecordError("a record without slots or devices")
        return Record(
            namespace=str(document["namespace"]),
            pod=str(document["pod"]),
            uid=str(document["uid"]),
            container=str(document["container"]),
            slots=frozenset(str(slot) for slot in document["slots"]),
            start=int(document["start"]),
            whole=bool(document["whole"]),
            policy=Policy[str(document["policy"]).upper()],
            task_priority=int(document["taskPriority"]),
            devices=tuple(
                GivenDevice(
                    str(device["uuid"]),
                    int(device["core"]),
                    int(device["memoryMiB"]),
                    int(device["slot"]),
                    int(device["key"]),
                )
                for device in document["devices"]
            ),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise error if isinstance(error, RecordError) else RecordError(f"no record: {error!r}") from error


def _policy(core_percent: int, choices: PodChoices) -> Policy:
    if core_percent == 0:
        return Policy.BEST_EFFORT
    return Policy.ELASTIC if choices.core_policy is CorePolicy.ELASTIC else Policy.HARD
