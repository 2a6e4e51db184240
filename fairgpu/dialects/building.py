"""Turns a dialect's amounts into the canonical request, by the rules that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from fairgpu.dialects.reading import Container, DialectSettings
from fairgpu.faults import Fault, field_path
from fairgpu.request import GPURequest

WHOLE_GPU_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Ask:
    """A request per vGPU, as most dialects state it, with the resource names to blame for a fault.

    Core and percentage are percent of one GPU, memory is MiB; `None` means not given.
    """

    gpus: int
    core_percent: int
    memory_mib: int | None = None
    memory_percentage: int | None = None
    gpus_name: str = ""
    core_name: str = ""
    memory_name: str = ""


def build_request(container: Container, ask: Ask, settings: DialectSettings) -> tuple[GPURequest | None, list[Fault]]:
    """The canonical request, summed over the vGPUs, or all faults in it.

    A container with neither memory nor percentage gets the same percent of memory as of core; best effort (core 0)
    has nothing to take it from and must state its memory.
    """
    faults = (
        _faults_of_count(container, ask, settings) + _faults_of_core(container, ask) + _faults_of_memory(container, ask)
    )
    if faults:
        return None, faults
    percentage = ask.memory_percentage
    if ask.memory_mib is None and percentage is None:
        percentage = ask.core_percent
    return (
        GPURequest(
            gpus=ask.gpus,
            core_percent=ask.core_percent * ask.gpus,
            memory_mib=None if ask.memory_mib is None else ask.memory_mib * ask.gpus,
            memory_percentage=None if percentage is None else percentage * ask.gpus,
        ),
        [],
    )


def _path(container: Container, resource: str) -> str:
    return container.limit_path(resource) if resource else field_path(*container.path, "resources", "limits")


def _faults_of_count(container: Container, ask: Ask, settings: DialectSettings) -> list[Fault]:
    if 1 <= ask.gpus <= settings.max_gpus_per_node:
        return []
    return [
        Fault(
            path=_path(container, ask.gpus_name),
            given=f"{ask.gpus} GPUs",
            allowed=f"1 to {settings.max_gpus_per_node}, the most that one node has",
            instead=f"at most {settings.max_gpus_per_node}, or split the work over several pods",
        )
    ]


def _faults_of_core(container: Container, ask: Ask) -> list[Fault]:
    if 0 <= ask.core_percent <= WHOLE_GPU_PERCENT:
        return []
    whole = -(-ask.core_percent // WHOLE_GPU_PERCENT)
    return [
        Fault(
            path=_path(container, ask.core_name),
            given=f"{ask.core_percent} percent of each GPU",
            allowed="1 to 100 percent of each GPU, or 0 for best effort",
            instead=f"100 for a whole GPU, or ask for {whole} GPUs",
        )
    ]


def _faults_of_memory(container: Container, ask: Ask) -> list[Fault]:
    path = _path(container, ask.memory_name)
    if ask.memory_mib is not None and ask.memory_percentage is not None:
        return [
            Fault(
                path, "memory both as an amount and as a percentage", "one of the two", "the amount or the percentage"
            )
        ]
    if ask.memory_mib == 0 or ask.memory_percentage == 0:
        return [Fault(path, "memory 0", "more than 0", "what the program needs; a GPU without memory runs nothing")]
    if ask.memory_percentage is not None and ask.memory_percentage > WHOLE_GPU_PERCENT:
        return [Fault(path, f"{ask.memory_percentage} percent of each GPU", "1 to 100 percent", "100 for all of it")]
    if ask.core_percent == 0 and ask.memory_mib is None and ask.memory_percentage is None:
        return [
            Fault(
                path,
                "no memory, with core 0 (best effort)",
                "best effort states its memory, since there is no core to take the percentage from",
                "an amount or a percentage of memory",
            )
        ]
    return []
