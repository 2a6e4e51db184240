"""Reads requests of NVIDIA's KAI-Scheduler.

https://github.com/NVIDIA/KAI-Scheduler/blob/main/docs/gpu-sharing/README.md

These requests are annotations of the pod, for its first container or for a container that they name. Since KAI's
version 0.18, the key of an annotation can contain a container's name. The annotation then states the memory of that
container, as a quantity of bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from fairgpu.dialects.building import MAX_GPU_MEMORY_MIB, WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import AroundNames, Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, field_path, show
from fairgpu.quantity import MIB, QuantityError, in_memory_units, parse_quantity

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
CONTAINER_NAME = "gpu-fraction-container-name"
FRACTION_LIMIT = "gpu-fraction.limit"
MEMORY_LIMIT = "gpu-memory.limit"
REQUESTING = (FRACTION, MEMORY, DEVICES)
OTHERS = (CONTAINER_NAME, FRACTION_LIMIT, MEMORY_LIMIT)
ANNOTATIONS = REQUESTING + OTHERS
OF_CONTAINER = "nvidia.com/container."
"""The beginning of the annotations of KAI's mode NvFractions (v0.18); the name of a container follows."""
MEMORY_REQUEST = ".gpu-memory.request"
MEMORY_LIMITED = ".gpu-memory.limit"
"""The ends of the annotations for the memory that the container asks for and may have, as quantities of bytes.

Source: KAI-Scheduler v0.18, pkg/common/resources/gpu_sharing.go and docs/gpu-sharing/README.md.
"""

OWN_MEMORY: AroundNames = ((OF_CONTAINER, MEMORY_REQUEST), (OF_CONTAINER, MEMORY_LIMITED))

_DECIMAL = re.compile(r"(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?")
_WHOLE = re.compile(r"[0-9]{1,18}")
_DEVICES = ("a whole number of GPUs from 1", '"1"')
_LIMIT_LEFT_OUT = "left out, as memory is held to what was requested"


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns the reading of a container for which the pod's annotations request shares of GPUs, as KAI reads them.

    Returns None if the annotations request no GPU, or request it for another container.
    """
    annotations = container.annotations
    own = container.annotated(OWN_MEMORY)
    if own:
        return _read_own(container, own, settings)
    if not any(key in annotations for key in REQUESTING) or not _is_meant(container) or _is_for_others(annotations):
        return None
    faults: list[Fault] = []
    warnings: list[str] = []
    gpus = _whole(container, DEVICES, _DEVICES, faults) if DEVICES in annotations else 1
    percent = _percent(container, faults, warnings) if FRACTION in annotations else None
    memory = (
        _whole(container, MEMORY, ("MiB as a whole number from 1", _in_mib(annotations[MEMORY])), faults)
        if MEMORY in annotations
        else None
    )
    if (FRACTION in annotations) == (MEMORY in annotations):
        faults.append(_not_one_amount(container, both=FRACTION in annotations))
    warnings.extend(
        f"{container.annotation_path(key)}: {_LIMIT_LEFT_OUT}"
        for key in (FRACTION_LIMIT, MEMORY_LIMIT)
        if key in annotations
    )
    present = tuple(key for key in ANNOTATIONS if key in annotations)
    reading = Reading(faults=tuple(faults), warnings=tuple(warnings), strip_annotations=present)
    if gpus is None or (percent is None and memory is None):
        return reading
    ask = Ask(
        gpus=gpus,
        core_percent=percent or 0,
        memory_mib=None if percent else memory,
        memory_percentage=percent,
        gpus_name=DEVICES,
        core_name=FRACTION,
        memory_name=MEMORY if percent is None else FRACTION,
        annotations=ANNOTATIONS,
    )
    return build_request(container, ask, settings, reading)


def _read_own(container: Container, own: tuple[str, ...], settings: DialectSettings) -> Reading:
    """Returns the reading of a container that has annotations of its own: their keys contain the container's name.

    Such annotations request or limit memory. A limit alone counts as a request of the same amount.

    Args:
        container: the container, with the annotations of its pod.
        own: the keys of the container's own annotations: the request's, the limit's, or both in this order.
        settings: the admin's settings, with the most GPUs of a node.
    """
    annotations, key = container.annotations, own[0]
    faults: list[Fault] = []
    memory = _own_memory(container, key, faults)
    gpus = _whole(container, DEVICES, _DEVICES, faults) if DEVICES in annotations else 1
    others = [other for other in (FRACTION, MEMORY) if other in annotations]
    if others:
        instead = f"{key} alone, or {others[0]} alone"
        faults.append(Fault(container.annotation_path(key), f"{key} beside {others[0]}", "one of the two", instead))
    present = (*own, *(each for each in ANNOTATIONS if each in annotations))
    reading = Reading(
        faults=tuple(faults),
        warnings=tuple(f"{container.annotation_path(limit)}: {_LIMIT_LEFT_OUT}" for limit in own[1:]),
        strip_annotations=present,
    )
    if gpus is None or memory is None:
        return reading
    ask = Ask(gpus=gpus, core_percent=0, memory_mib=memory, gpus_name=DEVICES, memory_name=key, annotations=present)
    return build_request(container, ask, settings, reading)


def _own_memory(container: Container, key: str, faults: list[Fault]) -> int | None:
    """Returns the memory that the annotation `key` states, in MiB, rounded up.

    If the annotation is invalid, adds a fault and returns None.
    """
    given = container.annotations[key]
    try:
        memory = math.ceil(parse_quantity(given.strip()) / MIB)
    except QuantityError:
        memory = 0
    if 1 <= memory <= MAX_GPU_MEMORY_MIB:
        return memory
    allowed = "an amount of memory above 0 and up to 1Ti, as Kubernetes writes it"
    faults.append(Fault(container.annotation_path(key), show(given), allowed, '"4Gi"'))
    return None


def _is_for_others(annotations: Mapping[str, str]) -> bool:
    """Returns whether `gpu-fraction-num-devices` counts only for the containers that keys of other annotations name.

    It does if the pod has such keys, and neither `gpu-fraction` nor `gpu-memory`.
    """
    if FRACTION in annotations or MEMORY in annotations:
        return False
    return any(key.startswith(begins) and key.endswith(ends) for key in annotations for begins, ends in OWN_MEMORY)


def _is_meant(container: Container) -> bool:
    name = container.annotations.get(CONTAINER_NAME)
    return container.first if name is None else container.name == name and "ephemeralContainers" not in container.path


def _whole(container: Container, key: str, wanted: tuple[str, str], faults: list[Fault]) -> int | None:
    """Returns the value of the annotation `key`, which must be a whole number from 1.

    For any other value, adds a fault and returns None.

    Args:
        container: the container, with the annotations of its pod.
        key: the annotation's key, which the pod has.
        wanted: the fault's texts: what is allowed, and what to write.
        faults: the list to which the fault is added.
    """
    text = container.annotations[key].strip()
    if _WHOLE.fullmatch(text) and int(text) > 0:
        return int(text)
    faults.append(Fault(container.annotation_path(key), show(container.annotations[key]), *wanted))
    return None


def _in_mib(text: str) -> str:
    """Returns what a fault advises to write for a text: the MiB of a memory such as `4Gi`, else an example."""
    mib = in_memory_units(text, 1)
    return '"4096"' if mib is None else f'"{mib}", as the annotation counts in MiB'


def _percent(container: Container, faults: list[Fault], warnings: list[str]) -> int | None:
    """Returns the share of a GPU that the annotation `gpu-fraction` states, in whole percent.

    If the annotation is invalid, adds a fault and returns None. A share between two whole percents is rounded down, so
    that three thirds fit on one GPU; a warning is then added.
    """
    path = container.annotation_path(FRACTION)
    given = container.annotations[FRACTION]
    text = given.strip()
    exact = Fraction(text) * WHOLE_GPU_PERCENT if _DECIMAL.fullmatch(text) else Fraction(0)
    if not 1 <= exact <= WHOLE_GPU_PERCENT:
        faults.append(Fault(path, show(given), "a decimal from 0.01 to 1, the share of a GPU", '"0.5"'))
        return None
    percent = int(exact)
    if percent != exact:
        warnings.append(f"{path}: {show(given)} is taken as {percent} percent, since shares are whole percent")
    return percent


def _not_one_amount(container: Container, *, both: bool) -> Fault:
    key = MEMORY if both else DEVICES
    return Fault(
        path=container.annotation_path(key),
        given=f"both {FRACTION} and {MEMORY}" if both else f"{DEVICES} without {FRACTION} or {MEMORY}",
        allowed=f"one of {FRACTION} and {MEMORY}",
        instead=f"{FRACTION} for a share of the GPU, or {MEMORY} for MiB of its memory",
    )


def _unclaimed(annotations: Mapping[str, str], root: tuple[str | int, ...]) -> Fault:
    name = annotations.get(CONTAINER_NAME)
    if name is None:
        path = field_path(*root, "spec", "containers")
        return Fault(path, "no container", "a container to give the GPU to", "a container")
    return Fault(
        path=field_path(*root, "metadata", "annotations", CONTAINER_NAME),
        given=show(name),
        allowed="the name of one of the pod's containers or init containers",
        instead="that container's name, or leave it out for the first container",
    )


DIALECT: Dialect = Dialect(
    name="kai",
    read=read,
    requesting_annotations=frozenset(REQUESTING),
    around_names=OWN_MEMORY,
    other_annotations=frozenset(OTHERS),
    unclaimed=_unclaimed,
)
