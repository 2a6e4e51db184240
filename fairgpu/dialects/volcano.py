"""Reads requests of Volcano: for vGPUs, or in the older way for memory of one GPU or for whole GPUs.

vGPUs: https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_volcano_vgpu.md. The older way is
deprecated since version 1.9, and still documented: `gpu-memory` is MiB on one GPU
(https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_gpu_sharing.md), `gpu-number` whole GPUs
(https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_gpu_number.md).
"""

from __future__ import annotations

from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.dialects.selectors import (
    AVOID_TYPE,
    POD_GROUP_POLICY,
    USE_TYPE,
    VOLCANO_AVOID_UUID,
    VOLCANO_MODE,
    VOLCANO_USE_UUID,
    select,
)
from fairgpu.dialects.vgpu import Keys, read_vgpus
from fairgpu.faults import Fault, field_path

COUNT = "volcano.sh/vgpu-number"
MEMORY = "volcano.sh/vgpu-memory"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
CORES = "volcano.sh/vgpu-cores"
VGPU_RESOURCES = (COUNT, MEMORY, PERCENTAGE, CORES)
SHARED_MEMORY = "volcano.sh/gpu-memory"
WHOLE_GPUS = "volcano.sh/gpu-number"
OLDER_RESOURCES = (SHARED_MEMORY, WHOLE_GPUS)
RESOURCES = VGPU_RESOURCES + OLDER_RESOURCES
SELECTORS = (USE_TYPE, AVOID_TYPE, VOLCANO_USE_UUID, VOLCANO_AVOID_UUID, VOLCANO_MODE, POD_GROUP_POLICY)


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests of Volcano, as a reading; None without keys of this dialect.

    The container requests shares of GPUs or whole GPUs. As for HAMi, the annotations `nvidia.com/use-gputype` and
    `nvidia.com/nouse-gputype` of the pod choose GPU models.
    """
    named = container.named(RESOURCES)
    if not named:
        return None
    selection = select(container, SELECTORS)
    reading = Reading(
        choices=selection.choices,
        faults=tuple(selection.faults),
        warnings=tuple(selection.warnings),
        strip_resources=named,
        strip_annotations=selection.keys,
    )
    older = any(resource in named for resource in OLDER_RESOURCES)
    vgpus = any(resource in named for resource in VGPU_RESOURCES)
    if older and vgpus:
        instead = f"the keys volcano.sh/vgpu-*, or one of {', '.join(OLDER_RESOURCES)}"
        return reading.but(faults=(*reading.faults, _two_ways(container, instead)))
    if older:
        return _read_older(container, settings, reading)
    if COUNT not in named and MEMORY not in named:
        return reading.but(faults=(*reading.faults, _no_vgpu(container, named[0])))
    keys = Keys(COUNT, MEMORY, PERCENTAGE, CORES, memory_unit_mib=settings.volcano_memory_unit_mib)
    return read_vgpus(container, keys, settings, reading)


def _read_older(container: Container, settings: DialectSettings, reading: Reading) -> Reading:
    amounts = read_amounts(container, OLDER_RESOURCES, {SHARED_MEMORY: 1})
    known = reading.but(faults=reading.faults + amounts.faults)
    memory, gpus = amounts.values.get(SHARED_MEMORY, 0), amounts.values.get(WHOLE_GPUS, 0)
    if amounts.faults or not (memory or gpus):
        return known
    if memory and gpus:
        instead = f"one of {', '.join(OLDER_RESOURCES)}"
        return known.but(faults=(*known.faults, _two_ways(container, instead)))
    ask = Ask(
        gpus=gpus or 1,
        core_percent=WHOLE_GPU_PERCENT if gpus else 0,
        memory_mib=memory or None,
        memory_percentage=WHOLE_GPU_PERCENT if gpus else None,
        gpus_name=WHOLE_GPUS,
        memory_name=SHARED_MEMORY,
    )
    return build_request(container, ask, settings, known)


def _two_ways(container: Container, instead: str) -> Fault:
    return Fault(
        path=field_path(*container.path, "resources"),
        given="several of Volcano's ways to ask for a GPU in one container",
        allowed="one of them: no scheduler of Volcano's counts two together",
        instead=instead,
    )


def _no_vgpu(container: Container, resource: str) -> Fault:
    return Fault(
        path=container.limit_path(resource),
        given=f"{resource} without {COUNT} or {MEMORY}",
        allowed=f"{resource} beside one of them: Volcano reads no vGPU without",
        instead=f'{COUNT}: "1" beside it',
    )


DIALECT: Dialect = Dialect(
    name="volcano", read=read, resources=frozenset(RESOURCES), other_annotations=frozenset(SELECTORS)
)
