"""Reads requests of nvidia-gpu-scheduler, which are for whole GPUs of one model.

https://github.com/caden2016/nvidia-gpu-scheduler

An annotation of that project names the model of the GPUs that `nvidia.com/gpu` counts. In a container with HAMi's
shares, the annotation names the model of the shares.
"""

from __future__ import annotations

from fairgpu.dialects import hami
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.dialects.selectors import MODEL_ANNOTATION, select
from fairgpu.faults import Fault, show


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests of nvidia-gpu-scheduler, as a reading: whole GPUs of one model.

    Such a container has `nvidia.com/gpu` without HAMi's shares, in a pod that names a GPU model. The result is None for
    any other container.
    """
    if MODEL_ANNOTATION not in container.annotations or not container.names(hami.COUNT):
        return None
    if container.named(hami.SHARING):
        return None
    selection = select(container, hami.SELECTORS)
    faults = list(selection.faults)
    if not faults and not selection.choices.use_models:
        value = show(container.annotations[MODEL_ANNOTATION])
        path = container.annotation_path(MODEL_ANNOTATION)
        faults.append(Fault(path, value, "the name of a GPU model", '"A100", or leave the annotation out'))
    reading = Reading(
        choices=selection.choices,
        faults=tuple(faults),
        warnings=tuple(selection.warnings),
        strip_resources=container.named(hami.RESOURCES),
        strip_annotations=selection.keys,
    )
    return hami.read_whole_gpus(container, settings, hami.with_priority(container, reading))


DIALECT: Dialect = Dialect(
    name="model", read=read, resources=frozenset({hami.COUNT}), other_annotations=frozenset({MODEL_ANNOTATION})
)
