"""Volcano's vGPUs: https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_volcano_vgpu.md."""

from __future__ import annotations

from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.dialects.selectors import AVOID_TYPE, USE_TYPE, select
from fairgpu.dialects.vgpu import Keys, read_vgpus

COUNT = "volcano.sh/vgpu-number"
MEMORY = "volcano.sh/vgpu-memory"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
CORES = "volcano.sh/vgpu-cores"
RESOURCES = (COUNT, MEMORY, PERCENTAGE, CORES)
SELECTORS = (USE_TYPE, AVOID_TYPE)


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Shares of GPUs; the type annotations are the ones that HAMi has."""
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
    keys = Keys(COUNT, MEMORY, PERCENTAGE, CORES, memory_unit_mib=settings.volcano_memory_unit_mib)
    return read_vgpus(container, keys, settings, reading)


DIALECT: Dialect = Dialect(
    name="volcano", read=read, resources=frozenset(RESOURCES), other_annotations=frozenset(SELECTORS)
)
