"""Reads requests of Tencent's gpu-manager (https://github.com/tkestack/gpu-manager#pod-template-example).

100 `vcuda-core` are one GPU and one `vcuda-memory` is 256 MiB. A container with less than 100 `vcuda-core` gets a share
and must state both resources. A container with 100 or more gets whole GPUs with all of their memory, whatever memory it
names: gpu-manager does not limit such a container (pkg/services/virtual-manager/manager.go). The annotation
`vcuda-core-limit` lets shares use idle time beyond their core.
"""

from __future__ import annotations

import re

from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, show
from fairgpu.permissions import Permission, PermissionRequest
from fairgpu.request import CorePolicy, PodChoices

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
MEMORY_BLOCK_MIB = 256

_LIMIT = re.compile(r"[0-9]{1,9}")


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests of Tencent's gpu-manager, as a reading; None without keys of this dialect.

    The container requests a share of one GPU, or whole GPUs.
    """
    named = container.named((CORE, MEMORY))
    if not named:
        return None
    amounts = read_amounts(container, named, {MEMORY: MEMORY_BLOCK_MIB}, (CORE,))
    core = amounts.values.get(CORE)
    memory = amounts.values.get(MEMORY)
    annotation = (CORE_LIMIT,) if CORE_LIMIT in container.annotations else ()
    reading = Reading(faults=amounts.faults, strip_resources=named, strip_annotations=annotation)
    if not amounts.faults and not core and not memory:
        return reading
    reading = _with_limit(container, core or 0, reading)
    if amounts.faults:
        return reading
    faults = _faults(container, core, memory)
    if faults or core is None:
        return reading.but(faults=(*faults, *reading.faults))
    whole = core >= WHOLE_GPU_PERCENT
    ask = Ask(
        gpus=core // WHOLE_GPU_PERCENT if whole else 1,
        core_percent=WHOLE_GPU_PERCENT if whole else core,
        memory_mib=None if whole or memory is None else memory * MEMORY_BLOCK_MIB,
        gpus_name=CORE,
        core_name=CORE,
        memory_name=MEMORY,
        memory_unit_mib=MEMORY_BLOCK_MIB,
    )
    return build_request(container, ask, settings, reading)


def _faults(container: Container, core: int | None, memory: int | None) -> list[Fault]:
    if not core:
        return [
            Fault(
                path=container.limit_path(CORE) if core == 0 else container.limit_path(MEMORY),
                given=f"{MEMORY} without {CORE}",
                allowed="both, as a share has a core and a memory",
                instead=f'{CORE}: "1" to "99" for a share, or "100" for a whole GPU',
            )
        ]
    if core < WHOLE_GPU_PERCENT and not memory:
        return [
            Fault(
                path=container.limit_path(CORE),
                given=f"{core} percent of a GPU without {MEMORY}",
                allowed=f"a share with its memory, in blocks of {MEMORY_BLOCK_MIB} MiB",
                instead=f'{MEMORY}: "16" beside it, which is 4096 MiB',
            )
        ]
    if core > WHOLE_GPU_PERCENT and core % WHOLE_GPU_PERCENT:
        below = core // WHOLE_GPU_PERCENT * WHOLE_GPU_PERCENT
        return [
            Fault(
                path=container.limit_path(CORE),
                given=str(core),
                allowed="less than 100 for a share of one GPU, or a multiple of 100 for whole GPUs",
                instead=f'"{below}" or "{below + WHOLE_GPU_PERCENT}"',
            )
        ]
    return []


def _with_limit(container: Container, core: int, reading: Reading) -> Reading:
    """Returns a reading with the choice or the fault that the pod's annotation `vcuda-core-limit` adds.

    A limit above the container's `vcuda-core` makes all containers of the pod elastic.

    Args:
        container: the container, with the annotations of its pod.
        core: the container's `vcuda-core`, in percent of a GPU.
        reading: the reading of the container without the annotation.
    """
    text = container.annotations.get(CORE_LIMIT)
    if text is None:
        return reading
    path = container.annotation_path(CORE_LIMIT)
    if _LIMIT.fullmatch(text.strip()) is None or int(text) == 0:
        fault = Fault(path, show(text), "percent of a GPU as a whole number, 1 to 100", f'"{min(core, 100) or 100}"')
        return reading.but(faults=(*reading.faults, fault))
    limit = min(int(text), WHOLE_GPU_PERCENT)
    if limit <= core:
        return reading
    warnings = reading.warnings
    if limit < WHOLE_GPU_PERCENT:
        lent = f"{path}: idle GPU time is lent without an upper limit, and so also beyond {limit} percent"
        warnings = (*warnings, lent)
    return reading.but(
        choices=PodChoices(core_policy=CorePolicy.ELASTIC),
        permission_requests=(PermissionRequest(Permission.ELASTIC, path, show(text), foreign=True),),
        warnings=warnings,
    )


DIALECT: Dialect = Dialect(
    name="tencent", read=read, resources=frozenset({CORE, MEMORY}), other_annotations=frozenset({CORE_LIMIT})
)
