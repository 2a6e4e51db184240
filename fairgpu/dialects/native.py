"""FairGPU's own resources, written by hand or by an earlier pass of admission."""

from __future__ import annotations

from collections.abc import Mapping

from fairgpu import names
from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault


def read(container: Container, _annotations: Mapping[str, str], settings: DialectSettings) -> Reading | None:
    """The request as written: amounts are sums over the vGPUs and must divide evenly by their count."""
    if not any(container.names(resource) for resource in names.CANONICAL_RESOURCES):
        return None
    amounts = read_amounts(container, names.CANONICAL_RESOURCES)
    faults = list(amounts.faults)
    gpus = amounts.values.get(names.GPU, 1)
    per_gpu: dict[str, int] = {}
    for resource in (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENTAGE):
        total = amounts.values.get(resource)
        if total is None:
            continue
        if gpus > 0 and total % gpus:
            faults.append(_uneven(container, resource, total, gpus))
        per_gpu[resource] = total // gpus if gpus else total
    if faults:
        return Reading(faults=tuple(faults))
    ask = Ask(
        gpus=gpus,
        core_percent=per_gpu.get(names.GPU_CORE, WHOLE_GPU_PERCENT),
        memory_mib=per_gpu.get(names.GPU_MEMORY),
        memory_percentage=per_gpu.get(names.GPU_MEMORY_PERCENTAGE),
        gpus_name=names.GPU,
        core_name=names.GPU_CORE,
        memory_name=names.GPU_MEMORY,
    )
    request, built_faults = build_request(container, ask, settings)
    return Reading(request=request, faults=tuple(built_faults))


def _uneven(container: Container, resource: str, total: int, gpus: int) -> Fault:
    rounded = -(-total // gpus) * gpus
    return Fault(
        path=container.limit_path(resource),
        given=f"{total} over {gpus} GPUs",
        allowed=f"a multiple of {gpus}, so that every GPU gives the same",
        instead=str(rounded),
    )


DIALECT = Dialect(name="native", resources=names.CANONICAL_RESOURCES, annotations=(), read=read)
