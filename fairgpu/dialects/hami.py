"""Reads requests of HAMi for NVIDIA's GPUs.

https://github.com/Project-HAMi/website/blob/master/docs/userguide/configure.md

`nvidia.com/gpu` is a resource of HAMi, and of NVIDIA's own device plugin, too. Without HAMi's other resources, it
requests whole GPUs; the admin can leave it to NVIDIA's plugin.
"""

from __future__ import annotations

from fairgpu.choices import merge_choices
from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.dialects.selectors import (
    AVOID_TYPE,
    AVOID_UUID,
    GPU_POLICY,
    MODEL_ANNOTATION,
    USE_TYPE,
    USE_UUID,
    VGPU_MODE,
    select,
)
from fairgpu.dialects.vgpu import Keys, read_vgpus
from fairgpu.faults import Fault
from fairgpu.permissions import Permission, PermissionRequest
from fairgpu.request import HIGH_PRIORITY, NORMAL_PRIORITY, PodChoices

COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENTAGE = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
SHARING = (MEMORY, PERCENTAGE, CORES)
RESOURCES = (COUNT, *SHARING, PRIORITY)
SELECTORS = (USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, GPU_POLICY, VGPU_MODE, MODEL_ANNOTATION)

_KEYS = Keys(
    count=COUNT,
    memory=MEMORY,
    percentage=PERCENTAGE,
    cores=CORES,
    full_memory_is_exclusive=True,
    zero_percent_is_unsaid=True,
)


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests of HAMi, as a reading.

    The container requests shares of GPUs, or whole GPUs if it names no amount of memory or cores. The result is None
    for a container without keys of this dialect, for a container of the dialect `model`, and for a container that the
    settings leave to another device plugin.
    """
    named = container.named(RESOURCES)
    if not named:
        return None
    shares = any(resource in named for resource in SHARING)
    if not shares and COUNT in named and MODEL_ANNOTATION in container.annotations:
        return None
    if left_alone(container, settings):
        return None
    selection = select(container, SELECTORS)
    reading = with_priority(
        container,
        Reading(
            choices=selection.choices,
            faults=tuple(selection.faults),
            warnings=tuple(selection.warnings),
            strip_resources=named,
            strip_annotations=selection.keys,
        ),
    )
    if shares:
        return read_vgpus(container, _KEYS, settings, reading)
    return read_whole_gpus(container, settings, reading)


def left_alone(container: Container, settings: DialectSettings) -> bool:
    """Returns whether the settings leave a container's `nvidia.com/gpu` to another device plugin.

    They never do if the container also asks for memory or cores of HAMi, or if the pod names a GPU model.
    """
    return (
        settings.hami_plain_gpu == "leave"
        and container.names(COUNT)
        and not container.named(SHARING)
        and MODEL_ANNOTATION not in container.annotations
    )


def read_whole_gpus(container: Container, settings: DialectSettings, reading: Reading) -> Reading:
    """Returns the reading of a container with `nvidia.com/gpu` alone, which counts whole GPUs.

    The reading has no request if the resource is absent or 0.

    Args:
        container: the container, with its requests and limits.
        settings: the admin's settings, with the most GPUs of a node.
        reading: the dialect's reading so far, to which the request or the faults are added.
    """
    amounts = read_amounts(container, (COUNT,))
    known = reading.but(faults=reading.faults + amounts.faults)
    gpus = amounts.values.get(COUNT, 0)
    if amounts.faults or gpus == 0:
        return known
    ask = Ask(gpus=gpus, core_percent=WHOLE_GPU_PERCENT, memory_percentage=WHOLE_GPU_PERCENT, gpus_name=COUNT)
    return build_request(container, ask, settings, known)


def with_priority(container: Container, reading: Reading) -> Reading:
    """Returns a reading with the choice of `nvidia.com/priority` added, or with the fault of an invalid value.

    A pod with 0 goes before other pods on the same GPU, for which its namespace needs a permission. A pod with 1 does
    not.

    Args:
        container: the container, which may have the resource.
        reading: the dialect's reading so far.
    """
    if not container.names(PRIORITY):
        return reading
    amounts = read_amounts(container, (PRIORITY,))
    if amounts.faults:
        return reading.but(faults=reading.faults + amounts.faults)
    priority = amounts.values[PRIORITY]
    path = container.limit_path(PRIORITY)
    if priority not in (HIGH_PRIORITY, NORMAL_PRIORITY):
        fault = Fault(path, str(priority), "0 (high) or 1 (normal)", f'"{NORMAL_PRIORITY}"')
        return reading.but(faults=(*reading.faults, fault))
    request = PermissionRequest(Permission.HIGH_PRIORITY, path, f'"{priority}"', foreign=True)
    return reading.but(
        choices=merge_choices(reading.choices, PodChoices(task_priority=priority)),
        permission_requests=(request,) if priority == HIGH_PRIORITY else (),
    )


DIALECT: Dialect = Dialect(
    name="hami", read=read, resources=frozenset(RESOURCES), other_annotations=frozenset(SELECTORS)
)
