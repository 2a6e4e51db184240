"""Builds the canonical request from a dialect's amounts, by the rules that all dialects share."""

from __future__ import annotations

from typing import Final

from fairgpu.dialects.reading import Container, DialectSettings, Reading
from fairgpu.faults import Fault, field_path
from fairgpu.quantity import MIB, memory_unit_name
from fairgpu.request import GPURequest

WHOLE_GPU_PERCENT: Final = 100
MAX_GPU_MEMORY_MIB: Final = 1024 * 1024
"""The largest accepted memory of one GPU: 1 TiB, several times what a GPU has. A larger number is in another unit."""


class Ask:
    """A GPU request as most dialects state it, with figures for each vGPU, and the keys that faults name.

    Attributes:
        gpus: the number of vGPUs.
        core_percent: the time on each GPU, in percent; 0 is best effort.
        memory_mib: the memory on each GPU, in MiB; None if it is not given.
        memory_percentage: the memory on each GPU, in percent; None if it is not given.
        gpus_name: the key that states `gpus`. If a key is empty, faults name the container's limits as a whole.
        core_name: the key that states the time.
        memory_name: the key that states the memory.
        annotations: the keys among these three that are annotations of the pod.
        labels: the keys among these three that are labels of the pod. The others are limits of the container.
        memory_unit_mib: the unit in which the author wrote the memory, in MiB.
        memory_is_summed: whether the author wrote the sum of the memory over all GPUs.
        memory_note: a remark on the unit of memory, which ends a fault's advice; empty for none.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        *,
        gpus: int,
        core_percent: int,
        memory_mib: int | None = None,
        memory_percentage: int | None = None,
        gpus_name: str = "",
        core_name: str = "",
        memory_name: str = "",
        annotations: tuple[str, ...] = (),
        labels: tuple[str, ...] = (),
        memory_unit_mib: int = 1,
        memory_is_summed: bool = False,
        memory_note: str = "",
    ) -> None:
        self.gpus: Final = gpus
        self.core_percent: Final = core_percent
        self.memory_mib: Final = memory_mib
        self.memory_percentage: Final = memory_percentage
        self.gpus_name: Final = gpus_name
        self.core_name: Final = core_name
        self.memory_name: Final = memory_name
        self.annotations: Final = annotations
        self.labels: Final = labels
        self.memory_unit_mib: Final = memory_unit_mib
        self.memory_is_summed: Final = memory_is_summed
        self.memory_note: Final = memory_note


def build_request(container: Container, ask: Ask, settings: DialectSettings, reading: Reading) -> Reading:
    """Returns a reading with the canonical request, summed over the vGPUs, or with all faults of the request.

    A container that states no memory gets the same percent of memory as of core. Best effort (core 0) has no such
    percentage, so that its memory must be stated.

    Args:
        container: the container that makes the request, for the field paths of faults.
        ask: the request as the dialect states it.
        settings: the admin's settings, with the most GPUs of a node.
        reading: the dialect's reading so far, with choices, faults and the keys to remove.
    """
    faults = [
        *reading.faults,
        *_faults_of_count(container, ask, settings),
        *_faults_of_core(container, ask),
        *_faults_of_memory(container, ask),
    ]
    if faults:
        return reading.but(faults=tuple(dict.fromkeys(faults)))
    percentage = ask.memory_percentage
    if ask.memory_mib is None and percentage is None:
        percentage = ask.core_percent
    mib = None if ask.memory_mib is None else ask.memory_mib * ask.gpus
    percentage = None if percentage is None else percentage * ask.gpus
    return reading.but(request=GPURequest(ask.gpus, ask.core_percent * ask.gpus, mib, percentage))


def _path(container: Container, ask: Ask, key: str) -> str:
    if not key:
        return field_path(*container.path, "resources", "limits")
    if key in ask.labels:
        return container.label_path(key)
    return container.annotation_path(key) if key in ask.annotations else container.limit_path(key)


def _faults_of_count(container: Container, ask: Ask, settings: DialectSettings) -> list[Fault]:
    if 1 <= ask.gpus <= settings.max_gpus_per_node:
        return []
    return [
        Fault(
            path=_path(container, ask, ask.gpus_name),
            given=f"{ask.gpus} GPUs",
            allowed=f"1 to {settings.max_gpus_per_node}, the most that one node has",
            instead=f'"{settings.max_gpus_per_node}" or less, and more pods if one does not suffice'
            if ask.gpus
            else '"1", or no GPU resources at all',
        )
    ]


def _faults_of_core(container: Container, ask: Ask) -> list[Fault]:
    if 0 <= ask.core_percent <= WHOLE_GPU_PERCENT:
        return []
    whole = -(-ask.core_percent // WHOLE_GPU_PERCENT) * max(ask.gpus, 1)
    return [
        Fault(
            path=_path(container, ask, ask.core_name),
            given=f"{ask.core_percent} percent of each GPU",
            allowed="1 to 100 percent of each GPU, or 0 for best effort",
            instead=f"100 percent of each GPU, or ask for {whole} GPUs",
        )
    ]


def _faults_of_memory(container: Container, ask: Ask) -> list[Fault]:
    def fault(given: str, allowed: str, instead: str) -> list[Fault]:
        return [Fault(_path(container, ask, ask.memory_name), given, allowed, instead)]

    if ask.memory_mib is not None and ask.memory_percentage is not None:
        return fault("memory both as an amount and as a percentage", "one of the two", "the amount or the percentage")
    if ask.memory_mib == 0 or ask.memory_percentage == 0:
        return fault("memory 0", "more than 0", "what the program needs; a GPU without memory runs nothing")
    if ask.memory_mib is not None and ask.memory_mib > MAX_GPU_MEMORY_MIB:
        return fault(
            f"{ask.memory_mib} MiB on each GPU",
            f"at most {MAX_GPU_MEMORY_MIB} MiB (1 TiB)",
            _in_unit(ask, ask.memory_mib),
        )
    if ask.memory_percentage is not None and ask.memory_percentage > WHOLE_GPU_PERCENT:
        return fault(f"{ask.memory_percentage} percent of each GPU", "1 to 100 percent", "100 for all of it")
    if ask.core_percent == 0 and ask.memory_mib is None and ask.memory_percentage is None:
        return fault(
            "no memory, with core 0 (best effort)",
            "best effort states its memory, since there is no core to take the percentage from",
            "an amount or a percentage of memory",
        )
    return []


def _in_unit(ask: Ask, memory_mib: int) -> str:
    """Returns advice for the author of a request for too much memory: the amount to write if another unit was meant.

    Args:
        ask: the request as the dialect states it.
        memory_mib: the memory on each GPU that the request states, in MiB; no GPU has this much.
    """
    counted = memory_unit_name(ask.memory_unit_mib)
    given = memory_mib // ask.memory_unit_mib
    gpus = ask.gpus if ask.memory_is_summed else 1
    for unit, size in (("MiB", MIB), ("KiB", 1024), ("bytes", 1)):
        if given * size > MAX_GPU_MEMORY_MIB * MIB:
            continue
        units = max(-(-given * size // (ask.memory_unit_mib * MIB)), 1)
        return f'"{units * gpus}" if {given * gpus} is {unit}, as the resource counts in {counted}{ask.memory_note}'
    return f"the amount in {counted}, in which the resource counts{ask.memory_note}"
