"""Reads requests in FairGPU's own resources, which an author or an earlier admission wrote."""

from __future__ import annotations

from fairgpu import names
from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, guess, show

MAX_UNKNOWN_NAMED = 16
"""The most unknown resources of fairgpu.io that are named as faults in one container."""


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests in FairGPU's own resources, as a reading with the request or its faults.

    Returns None for a container that names no resource of the domain fairgpu.io. A container that does not state the
    number of its vGPUs has one. Each other amount is the total for all vGPUs of the container, and must be a multiple
    of their number. Without `fairgpu.io/gpu-core`, each vGPU has 100 percent of its GPU's time. If the container names
    `fairgpu.io/gpu` and all its amounts are 0, the reading has no request.
    """
    ours = container.prefixed(names.ANNOTATION_PREFIX)
    if not ours:
        return None
    named = container.named(names.CANONICAL_RESOURCES)
    amounts = read_amounts(container, named, {names.GPU_MEMORY: 1}, (names.GPU_CORE, names.GPU_MEMORY_PERCENTAGE))
    unknown = [resource for resource in ours if resource not in named]
    faults = [*amounts.faults, *(_unknown(container, resource) for resource in unknown[:MAX_UNKNOWN_NAMED])]
    if not named:
        return Reading(faults=tuple(faults))
    if not faults and names.GPU in named and not any(amounts.values.values()):
        return Reading(strip_resources=named)
    if names.GPU in named and names.GPU not in amounts.values:
        return Reading(faults=tuple(faults))
    gpus = amounts.values.get(names.GPU, 1)
    per_gpu: dict[str, int] = {}
    for resource in (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENTAGE):
        total = amounts.values.get(resource)
        if total is None:
            continue
        if gpus > 0 and total % gpus:
            faults.append(_uneven(container, resource, total, gpus))
        per_gpu[resource] = total // gpus if gpus else total
    ask = Ask(
        gpus=gpus,
        core_percent=per_gpu.get(names.GPU_CORE, WHOLE_GPU_PERCENT),
        memory_mib=per_gpu.get(names.GPU_MEMORY),
        memory_percentage=per_gpu.get(names.GPU_MEMORY_PERCENTAGE),
        gpus_name=names.GPU,
        core_name=names.GPU_CORE,
        memory_name=names.GPU_MEMORY if names.GPU_MEMORY in named else names.GPU_MEMORY_PERCENTAGE,
        memory_is_summed=True,
    )
    return build_request(container, ask, settings, Reading(faults=tuple(faults)))


def _unknown(container: Container, resource: str) -> Fault:
    """Returns the fault of a resource of the domain fairgpu.io that does not exist: no node would ever fit the pod."""
    return Fault(
        path=container.limit_path(resource) if resource in container.limits else container.request_path(resource),
        given=f"a resource that FairGPU does not have, {show(resource)}",
        allowed=", ".join(names.CANONICAL_RESOURCES),
        instead=guess(resource, names.CANONICAL_RESOURCES, cutoff=0) or names.GPU,
    )


def _uneven(container: Container, resource: str, total: int, gpus: int) -> Fault:
    rounded = -(-total // gpus) * gpus
    return Fault(
        path=container.limit_path(resource),
        given=f"{total} over {gpus} GPUs",
        allowed=f"a multiple of {gpus}, so that every GPU gives the same",
        instead=f'"{rounded}", which is {rounded // gpus} on each GPU',
    )


DIALECT: Dialect = Dialect(
    name="native", read=read, resources=frozenset(names.CANONICAL_RESOURCES), prefix=names.ANNOTATION_PREFIX
)
