"""What a session's use is put down to in showback: model, owner, user, labels; and what it holds, apart from any price.

Read once, when the session opens: whoever changes a label later starts nothing new on the bill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fairgpu import names
from fairgpu.charging import ChargeRules, UnplacedShare
from fairgpu.demand import peak
from timekeeper.metering.reservations import Held, Reservation
from timekeeper.rules.money import GPU_SECOND
from timekeeper.rules.timestamps import MINUTE, TimeError, parse_instant

TEMPLATE_HASH = "pod-template-hash"
MINUTES_BETWEEN_SCHEDULE_AND_START = 10 * 24 * 60
"""How late a CronJob's Job may start and still be told by its name."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What use is put down to.

    Attributes:
        model: the models of its devices, sorted and joined by commas; empty where no allocation names them.
        owner: Kind/name of what made the pod, or Pod/name.
        user: as admission noted it: a person, or the controller that made the pod; empty where it noted nothing.
        labels: (key, value) of the labels that the admin keeps, sorted.
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
    """What a pod's metadata says of where it comes from; labels are all that it carries."""

    owner: str = ""
    user: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)


def read_origin(metadata: Mapping[str, Any]) -> Origin:
    """Reads a pod's metadata; what is missing or of another type counts as not said.

    An owner that a person wrote into their pod is not believed: only where admission noted that very controller as the
    maker, or noted nothing, does it count.
    """
    labels = _mapping(metadata.get("labels"))
    user = _mapping(metadata.get("annotations")).get(names.CREATED_BY)
    user = user if isinstance(user, str) else ""
    owner = _controller(metadata, labels)
    believed = owner and user in {"", owner}
    kind_and_name = _cron_job(owner, metadata) if believed else f"Pod/{metadata.get('name', '')}"
    return Origin(kind_and_name, user, labels)


def attribution(
    origin: Origin, reservation: Reservation, kept_labels: Sequence[str], rules: ChargeRules
) -> Attribution:
    """What a reservation's use is put down to.

    Args:
        origin: where its pod comes from.
        reservation: what it holds.
        kept_labels: the keys of labels that are kept; others are dropped, since some are new for every pod.
        rules: how a request without an allocation counts.
    """
    labels = {key: origin.labels[key] for key in kept_labels if isinstance(origin.labels.get(key), str)}
    return Attribution(
        model=",".join(sorted({device.model for device in reservation.devices.values()})),
        owner=origin.owner,
        user=origin.user,
        labels=tuple(sorted(labels.items())),
        core_rate=_peak(reservation, _core),
        memory_rate=_peak(reservation, lambda held: _memory(held, rules.unknown_device_mib)),
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
    """Kind/name of the controller; a ReplicaSet counts as its Deployment, after which it is named."""
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else []:
        owner = _mapping(reference)
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(kind, str) and isinstance(name, str):
            suffix = f"-{labels.get(TEMPLATE_HASH, '')}"
            if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
                return f"Deployment/{name.removesuffix(suffix)}"
            return f"{kind}/{name}"
    return ""


def _cron_job(owner: str, metadata: Mapping[str, Any]) -> str:
    """The CronJob of a Job that is named after one: its name and the minute since 1970 for which it was scheduled.

    So named by the CronJob controller (getJobName in pkg/controller/cronjob of Kubernetes). A Job that a person called
    something like it is told by its pod, which was not made near that minute.
    """
    kind, _, name = owner.partition("/")
    stem, _, minute = name.rpartition("-")
    if kind != "Job" or not stem or not (minute.isascii() and minute.isdigit() and len(minute) <= 9):
        return owner
    created = _instant(metadata.get("creationTimestamp"))
    late = None if created is None else created // MINUTE - int(minute)
    return f"CronJob/{stem}" if late is not None and 0 <= late <= MINUTES_BETWEEN_SCHEDULE_AND_START else owner


def _instant(value: Any) -> int | None:
    try:
        return parse_instant(value)
    except TimeError:
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
