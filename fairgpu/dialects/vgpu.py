"""Reads what requests of HAMi and Volcano have in common: the number of vGPUs, and the memory and cores of each.

Both have the same defaults: without a count the container gets one GPU, without memory all memory of the GPU, and
without cores no guaranteed time. A count of 0 requests no GPU. An amount of memory of 0 counts as not given. If both an
amount of memory and a percentage of memory are given, the amount counts.

HAMi differs in two things (https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/nvidia/device.go): since its
version 2.7, 100 percent of the memory without cores is an exclusive GPU, and 0 percent counts as not given.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import WHOLE_GPU_PERCENT, Ask, build_request
from fairgpu.dialects.reading import Container, DialectSettings, Reading


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the four resources of HAMi or of Volcano, and the ways in which the two differ.

    Attributes:
        count: the resource that counts vGPUs.
        memory: the resource for an amount of memory on each vGPU.
        percentage: the resource for percent of each GPU's memory.
        cores: the resource for percent of each GPU's time.
        memory_unit_mib: the size of one unit of memory, in MiB.
        full_memory_is_exclusive: whether a request for 100 percent of the memory and no cores also gets 100 percent of
            the cores.
        zero_percent_is_unsaid: whether 0 percent of the memory counts as not given; else it is a fault.
    """

    count: str
    memory: str
    percentage: str
    cores: str
    memory_unit_mib: int = 1
    full_memory_is_exclusive: bool = False
    zero_percent_is_unsaid: bool = False


def read_vgpus(container: Container, keys: Keys, settings: DialectSettings, reading: Reading) -> Reading:
    """Returns a reading with the GPU request that a container's resources of HAMi or Volcano state, or with its faults.

    Args:
        container: the container, with its requests and limits.
        keys: the names of the dialect's resources, and the ways in which the two dialects differ.
        settings: the admin's settings, with the most GPUs of a node.
        reading: the reading so far, with the dialect's choices and the keys to remove.
    """
    resources = (keys.count, keys.memory, keys.percentage, keys.cores)
    amounts = read_amounts(container, resources, {keys.memory: keys.memory_unit_mib}, (keys.percentage, keys.cores))
    if amounts.values.get(keys.count) == 0:
        return reading.but(faults=reading.faults + amounts.faults)
    memory, percentage, warnings = _memory(container, keys, amounts.values)
    ask = Ask(
        gpus=amounts.values.get(keys.count, 1),
        core_percent=_core(container, keys, amounts.values),
        memory_mib=None if memory is None else memory * keys.memory_unit_mib,
        memory_percentage=percentage,
        gpus_name=keys.count,
        core_name=keys.cores,
        memory_name=keys.percentage if memory is None else keys.memory,
        memory_unit_mib=keys.memory_unit_mib,
    )
    known = reading.but(faults=reading.faults + amounts.faults, warnings=reading.warnings + warnings)
    return build_request(container, ask, settings, known)


def _core(container: Container, keys: Keys, amounts: dict[str, int]) -> int:
    exclusive = keys.full_memory_is_exclusive and amounts.get(keys.percentage) == WHOLE_GPU_PERCENT
    unsaid = WHOLE_GPU_PERCENT if exclusive and not container.names(keys.cores) else 0
    return amounts.get(keys.cores, unsaid)


def _memory(
    container: Container, keys: Keys, amounts: dict[str, int]
) -> tuple[int | None, int | None, tuple[str, ...]]:
    memory = amounts.get(keys.memory)
    percentage = amounts.get(keys.percentage)
    warnings: list[str] = []
    if percentage == 0 and not memory and keys.zero_percent_is_unsaid:
        path = container.limit_path(keys.percentage)
        warnings.append(f'{path}: "0" is taken as not given, and so means all of the memory')
        percentage = None
    if memory == 0:
        path = container.limit_path(keys.memory)
        meaning = "what the percentage says" if percentage is not None else "all of the memory"
        warnings.append(f'{path}: "0" is taken as not given, and so means {meaning}')
        memory = None
    elif memory is not None and percentage is not None:
        path = container.limit_path(keys.percentage)
        warnings.append(f"{path}: left out, since {keys.memory} says how much memory it is")
        percentage = None
    if memory is None and percentage is None:
        percentage = WHOLE_GPU_PERCENT
    return memory, percentage, tuple(warnings)
