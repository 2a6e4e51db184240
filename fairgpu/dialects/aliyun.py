"""Reads requests of Alibaba's gpushare, and of its form in Alibaba's Kubernetes service ACK.

https://github.com/AliyunContainerService/gpushare-scheduler-extender

`gpu-mem` is a sum over as many GPUs as `gpu-count` names; in ACK, `gpu-count` is a label of the pod
(https://www.alibabacloud.com/help/en/ack/ack-managed-and-ack-dedicated/user-guide/multi-card-sharing-through-shared-gpu-scheduling).
Where nodes share cores as well, `gpu-core.percentage` is the share of one GPU.
"""

from __future__ import annotations

import re

from fairgpu.dialects.amounts import read_amounts
from fairgpu.dialects.building import Ask, build_request
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, show

MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
CORE = "aliyun.com/gpu-core.percentage"
RESOURCES = (MEMORY, COUNT, CORE)

_NOTE = "; where the nodes count in MiB, the admin sets aliyun_memory_unit_mib: 1"
_COUNT = re.compile(r"[0-9]{1,9}")


def read(container: Container, settings: DialectSettings) -> Reading | None:
    """Returns what a container requests of Alibaba's gpushare, as a reading; None without keys of this dialect.

    The container requests memory on one GPU, or memory that is divided evenly over several GPUs.
    """
    named = container.named(RESOURCES)
    if not named:
        return None
    amounts = read_amounts(container, named, {MEMORY: settings.aliyun_memory_unit_mib}, (CORE,))
    reading = Reading(strip_resources=named)
    if not amounts.faults and not any(amounts.values.values()):
        return reading
    gpus, faults = _count(container, amounts.values)
    faults = [*amounts.faults, *faults]
    memory = amounts.values.get(MEMORY)
    if MEMORY not in named:
        faults.append(_no_memory(container, named[0]))
    elif memory and gpus and memory % gpus:
        faults.append(_uneven(container, memory, gpus))
    if gpus > 1 and CORE in named:
        faults.append(_core_of_several(container, gpus))
    if faults or memory is None:
        return reading.but(faults=tuple(faults))
    ask = Ask(
        gpus=gpus,
        core_percent=amounts.values.get(CORE, 0),
        memory_mib=memory // max(gpus, 1) * settings.aliyun_memory_unit_mib,
        gpus_name=COUNT,
        core_name=CORE,
        memory_name=MEMORY,
        labels=() if COUNT in named else (COUNT,),
        memory_unit_mib=settings.aliyun_memory_unit_mib,
        memory_is_summed=True,
        memory_note=_NOTE if settings.aliyun_memory_unit_mib == 1024 else "",
    )
    return build_request(container, ask, settings, reading)


def _count(container: Container, amounts: dict[str, int]) -> tuple[int, list[Fault]]:
    """Returns the number of GPUs that a container requests, and the fault of the pod's label `aliyun.com/gpu-count`.

    The resource `aliyun.com/gpu-count` of the container counts, else the pod's label of this name, else 1. There is a
    fault only if the label counts and is invalid.

    Args:
        container: the container, with the labels of its pod.
        amounts: the container's valid amounts, keyed by resource.
    """
    if COUNT in amounts:
        return amounts[COUNT], []
    label = container.labels.get(COUNT)
    if not isinstance(label, str):
        return 1, []
    if _COUNT.fullmatch(label) and int(label) >= 1:
        return int(label), []
    return 1, [Fault(container.label_path(COUNT), show(label), "a whole number of GPUs from 1", '"1"')]


def _no_memory(container: Container, resource: str) -> Fault:
    return Fault(
        path=container.limit_path(resource),
        given=f"{resource} without {MEMORY}",
        allowed=f"{MEMORY}, which is what a container gets of a GPU",
        instead=f'{MEMORY}: "4" beside it',
    )


def _uneven(container: Container, memory: int, gpus: int) -> Fault:
    rounded = -(-memory // gpus) * gpus
    return Fault(
        path=container.limit_path(MEMORY),
        given=f"{memory} over {gpus} GPUs",
        allowed=f"a multiple of {gpus}, so that every GPU gives the same",
        instead=f'"{rounded}", which is {rounded // gpus} on each GPU',
    )


def _core_of_several(container: Container, gpus: int) -> Fault:
    return Fault(
        path=container.limit_path(CORE),
        given=f"a share of cores on {gpus} GPUs",
        allowed=f"{CORE} on one GPU only, as in ACK",
        instead="fairgpu.io/gpu-core, summed over the GPUs, or leave it out",
    )


DIALECT: Dialect = Dialect(name="aliyun", read=read, resources=frozenset(RESOURCES))
