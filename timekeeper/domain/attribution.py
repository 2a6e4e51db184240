"""Attributes a session's use to models, an owner, a user and labels, and computes its reserved rates without any price.

A session is attributed when it opens: a label of its pod that changes later changes nothing on the bill. If labels of a
new node decide soon after what the pod holds, the models and rates follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from fairgpu import names
from fairgpu.charging import ChargeRules, UnplacedShare
from fairgpu.demand import peak
from fairgpu.json_values import mapping
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.reservations import Held, Reservation
from timekeeper.domain.timestamps import MINUTE, instant_or_none

TEMPLATE_HASH = "pod-template-hash"
MINUTES_BETWEEN_SCHEDULE_AND_START = 10 * 24 * 60
"""The most minutes between a CronJob's schedule and its Job's creation for which the Job's name proves the CronJob."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The owner, user, labels and models that a session's use is attributed to, and the rates that it reserves.

    Attributes:
        model: the models of its devices and holdings, sorted and joined by commas, an unknown one as an empty name;
            empty if none is known.
        owner: Kind/name of the controller that created the pod, or Pod/name.
        user: the creator that admission recorded, a person or a controller; empty if it recorded none.
        labels: (key, value) pairs: the pod's labels that the settings keep, sorted by key.
        core_rate: GPU time that is reserved, in microGPU-seconds a second.
        memory_rate: device memory that is reserved, in the same unit: the whole memory of one device is one GPU.
    """

    model: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    core_rate: int = 0
    memory_rate: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The owner, user and labels of a pod, read from its metadata.

    Attributes:
        owner: Kind/name of the controller that created the pod, or Pod/name.
        user: the creator that admission recorded, a person or a controller; empty if it recorded none.
        labels: all labels of the pod.
    """

    owner: str = ""
    user: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)


UNKNOWN_ORIGIN = Origin(labels=MappingProxyType({}))
"""The origin of a pod whose metadata says nothing."""


def read_origin(metadata: Mapping[str, Any]) -> Origin:
    """Reads the owner, user and labels of a pod from its metadata; a mistyped field counts as absent.

    The pod's controller counts as its owner only if admission recorded that controller as the pod's creator, or
    recorded no creator. Otherwise a person wrote the owner reference, and the pod itself is the owner. The owner is the
    Deployment in place of its ReplicaSet, and the CronJob in place of its Job.
    """
    labels = mapping(metadata.get("labels"))
    user = mapping(metadata.get("annotations")).get(names.CREATED_BY)
    user = user if isinstance(user, str) else ""
    owner = _controller(metadata, labels)
    believed = owner and user in {"", owner}
    kind_and_name = _cron_job(owner, metadata) if believed else f"Pod/{metadata.get('name', '')}"
    return Origin(kind_and_name, user, labels)


def attribution(
    origin: Origin, reservation: Reservation, kept_labels: Sequence[str], rules: ChargeRules
) -> Attribution:
    """Returns the owner, user, labels and models of a pod's use, and the rates of GPU time and memory that it reserves.

    Args:
        origin: the owner, user and labels of the pod.
        kept_labels: the keys of the labels that are attributed; others are dropped, since some have a new value for
            every pod.
        rules: the admin's rules for charging; they state the memory of the device that a pod without an allocation is
            measured against.
    """
    labels = {key: origin.labels[key] for key in kept_labels if isinstance(origin.labels.get(key), str)}
    models = {device.model for device in reservation.devices.values()} | {item.model for item in reservation.holdings}
    return Attribution(
        model=",".join(sorted(models)),
        owner=origin.owner,
        user=origin.user,
        labels=tuple(sorted(labels.items())),
        core_rate=_peak(reservation, _core)
        + sum(int(GPU_SECOND * item.count * item.time) for item in reservation.holdings),
        memory_rate=_peak(reservation, lambda held: _memory(held, rules.unknown_device_mib))
        + sum(int(GPU_SECOND * item.count * item.memory) for item in reservation.holdings),
    )


def _peak(reservation: Reservation, share: Any) -> int:
    steps = [(share(held), keeps) for held, keeps in reservation.init_steps]
    return peak([share(held) for held in reservation.containers], steps)


def _core(held: Held) -> int:
    if held is None:
        return 0
    if isinstance(held, UnplacedShare):
        return held.core_percent * GPU_SECOND // 100
    return sum(device.core_percent * GPU_SECOND // 100 for device in held)


def _memory(held: Held, unknown_device_mib: int) -> int:
    if held is None:
        return 0
    if isinstance(held, UnplacedShare):
        of_request = Fraction(held.memory_mib, unknown_device_mib) + Fraction(held.memory_percentage, 100)
        return int(GPU_SECOND * min(of_request, Fraction(max(held.gpus, 1))))
    return sum(GPU_SECOND * device.memory_mib // device.total_mib for device in held)


def _controller(metadata: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Returns Kind/name of the controller that a pod's `metadata` names; empty for none.

    A ReplicaSet counts as its Deployment: its name ends with the template hash in the pod's `labels`.
    """
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else []:
        owner = mapping(reference)
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(kind, str) and isinstance(name, str):
            suffix = f"-{labels.get(TEMPLATE_HASH, '')}"
            if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
                return f"Deployment/{name.removesuffix(suffix)}"
            return f"{kind}/{name}"
    return ""


def _cron_job(owner: str, metadata: Mapping[str, Any]) -> str:
    """Returns CronJob/name if a pod's `owner` (Kind/name) is a Job that a CronJob made; any other owner as it is.

    The CronJob controller names a Job after the CronJob and the minute since 1970 of its schedule (getJobName in
    pkg/controller/cronjob of Kubernetes). A Job to which a person gave such a name stays itself: the
    pod's `metadata` shows that the pod was not created near that minute.
    """
    kind, _, name = owner.partition("/")
    stem, _, minute = name.rpartition("-")
    if kind != "Job" or not stem or not (minute.isascii() and minute.isdigit() and len(minute) <= 9):
        return owner
    created = instant_or_none(metadata.get("creationTimestamp"))
    late = None if created is None else created // MINUTE - int(minute)
    return f"CronJob/{stem}" if late is not None and 0 <= late <= MINUTES_BETWEEN_SCHEDULE_AND_START else owner
