"""Reads other projects' annotations for choosing devices, and converts them to FairGPU's own choices.

HAMi and Volcano match a GPU's type by substring, whatever its case, as `fairgpu.io/use-gpu-model` does
(https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/nvidia/device.go,
https://github.com/volcano-sh/volcano/blob/master/pkg/scheduler/api/devices/nvidia/vgpu/utils.go).
"""

from __future__ import annotations

import re
from typing import Final

from fairgpu import names
from fairgpu.choices import LIST_ALLOWED, MODEL, UUID, parse_list
from fairgpu.dialects.known_models import other_models
from fairgpu.dialects.reading import Container
from fairgpu.faults import Fault, show
from fairgpu.request import NO_CHOICES, Placement, PodChoices

USE_TYPE = "nvidia.com/use-gputype"
AVOID_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
AVOID_UUID = "nvidia.com/nouse-gpuuuid"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
VGPU_MODE = "nvidia.com/vgpu-mode"
VOLCANO_USE_UUID = "volcano.sh/vgpu-use-gpuuuid"
VOLCANO_AVOID_UUID = "volcano.sh/vgpu-nouse-gpuuuid"
VOLCANO_MODE = "volcano.sh/vgpu-mode"
POD_GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"
MODEL_ANNOTATION = "nvidia-gpu-scheduler/gpu.model"

_PLACEMENTS = {
    "binpack": Placement.PACK,
    "spread": Placement.SPREAD,
    "topology-aware": Placement.TOPOLOGY,
}
_SHARED_IN_SOFTWARE = "hami-core"
"""The value of the mode annotations by which a library in the container enforces shares, as FairGPU's shim does."""


MAX_POLICIES = 8
"""The most policies that are read from one list."""


class Selection:
    """The choices that a pod's author states in annotations of other projects.

    Attributes:
        choices: the choices, converted to FairGPU's own.
        faults: the faults of invalid annotations.
        warnings: lines about annotations whose effect here differs from that in their own project.
        keys: the annotations, among those that `select` was to read, that the pod has.
    """

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self.choices: PodChoices = NO_CHOICES
        self.faults: Final[list[Fault]] = []
        self.warnings: Final[list[str]] = []
        self.keys: Final = keys


def select(container: Container, keys: tuple[str, ...]) -> Selection:
    """Returns the choices that a pod's author states in annotations of other projects.

    Args:
        container: a container of the pod, which has the pod's annotations.
        keys: the annotations to read; those that the pod lacks have no effect.
    """
    present = tuple(key for key in keys if key in container.annotations)
    if not present:
        return Selection()
    selection = Selection(present)
    use_models = _list(container, USE_TYPE, MODEL, present, selection)
    wanted = _list(container, MODEL_ANNOTATION, MODEL, present, selection)
    if wanted and use_models:
        selection.warnings.append(
            f"{container.annotation_path(USE_TYPE)}: {show(container.annotations[USE_TYPE])} is left out, "
            f"since {MODEL_ANNOTATION} chooses the model"
        )
    selection.warnings.extend(_taken_as_well(container, wanted))
    selection.warnings.extend(_left_out(container, present))
    selection.choices = PodChoices(
        use_models=wanted or use_models,
        avoid_models=_list(container, AVOID_TYPE, MODEL, present, selection),
        use_uuids=_list(container, USE_UUID, UUID, present, selection)
        or _list(container, VOLCANO_USE_UUID, UUID, present, selection),
        avoid_uuids=_list(container, AVOID_UUID, UUID, present, selection)
        or _list(container, VOLCANO_AVOID_UUID, UUID, present, selection),
        placement=_placement(container, present, selection),
    )
    return selection


def _list(
    container: Container, key: str, item: re.Pattern[str], present: tuple[str, ...], selection: Selection
) -> tuple[str, ...]:
    if key not in present or not container.annotations[key].strip(" ,"):
        return ()
    try:
        return parse_list(container.annotations[key], item)
    except ValueError:
        path = container.annotation_path(key)
        example = '"A100,H100"' if item is MODEL else '"GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"'
        selection.faults.append(Fault(path, show(container.annotations[key]), LIST_ALLOWED, example))
        return ()


def _placement(container: Container, present: tuple[str, ...], selection: Selection) -> Placement | None:
    if GPU_POLICY not in present:
        return None
    chain = [part.strip() for part in container.annotations[GPU_POLICY].split(",", MAX_POLICIES) if part.strip()]
    known = [policy for policy in chain if policy in _PLACEMENTS]
    left_out = [policy for policy in chain if policy not in known[:1]]
    if left_out:
        instead = known[0] if known else "the cluster's default"
        selection.warnings.append(
            f"{container.annotation_path(GPU_POLICY)}: {show(','.join(left_out))} is left out, and {instead} decides; "
            f"FairGPU knows one of {', '.join(_PLACEMENTS)}"
        )
    return _PLACEMENTS[known[0]] if known else None


def _taken_as_well(container: Container, wanted: tuple[str, ...]) -> list[str]:
    """Returns a warning about each wanted model whose name is a part of the names of other models.

    nvidia-gpu-scheduler compares whole names. FairGPU gives the pod devices of each model whose name contains the
    wanted name.

    Args:
        container: a container of the pod, which has the pod's annotations.
        wanted: the names of models in the annotation of nvidia-gpu-scheduler.
    """
    return [
        f"{container.annotation_path(MODEL_ANNOTATION)}: {show(name)} takes {', '.join(others)} as well, of whose "
        f"names it is a part; to leave them out, add {names.AVOID_GPU_MODEL}: {','.join(others)}"
        for name in wanted
        if (others := other_models(name))
    ]


def _left_out(container: Container, present: tuple[str, ...]) -> list[str]:
    """Returns a warning about each annotation that has no effect in FairGPU and is removed.

    Args:
        container: a container of the pod, which has the pod's annotations.
        present: the annotations that the pod has, of those that `select` reads.
    """
    warnings = [
        f"{container.annotation_path(key)}: {show(container.annotations[key])} is left out, as FairGPU shares GPUs in "
        f"software; for isolation in hardware ask for nvidia.com/mig-* on nodes that offer it"
        for key in (VGPU_MODE, VOLCANO_MODE)
        if key in present and container.annotations[key].strip() not in ("", _SHARED_IN_SOFTWARE)
    ]
    if POD_GROUP_POLICY in present:
        warnings.append(
            f"{container.annotation_path(POD_GROUP_POLICY)}: {show(container.annotations[POD_GROUP_POLICY])} is left "
            f"out; FairGPU does not keep the pods of a PodGroup on different devices"
        )
    return warnings
