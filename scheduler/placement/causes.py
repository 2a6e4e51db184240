"""The reasons why a request fits on no node: one text for each cause, equal for all nodes with that cause.

kube-scheduler groups nodes by equal texts, as `0/9 nodes are available: 4 TEXT, 5 TEXT.`
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/framework/types.go), and cuts the note of a pod's
event at 1,024 bytes (https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/schedule_one.go). So there are
few texts, and they are short: a note has room for one text of each cause. Each text, except that of TOGETHER, says
what was asked and the most that a node has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from scheduler.placement.request import Request

MAX_NAMED = 4
"""The most models or uuids of a list that a text names."""
CHOICE_BYTES = 128
"""The most bytes of the part of a text that names models or uuids. Two uuids of 40 characters fit."""
SHORTENED = "..."
"""The text that stands for the rest of a name, where only the name's beginning fits."""


class Cause(IntEnum):
    """The causes that keep a request from a node. If several apply, the one with the lowest number is reported."""

    DEVICES = 0
    """The node offers too few GPUs in all."""
    MODEL = 1
    """Too few of the node's GPUs are of a model that may be used."""
    UUID = 2
    """Too few of these GPUs have a uuid that may be used."""
    SIZE = 3
    """Too few of the GPUs that may be used offer the memory, even if they were empty."""
    MEMORY = 4
    """Too few of these GPUs have the memory free."""
    CORE = 5
    """Too few of these GPUs have the GPU time free."""
    SLOTS = 6
    """Too few of these GPUs take another container."""
    TOGETHER = 7
    """Memory, GPU time and containers are free, but not on the same GPUs."""


LASTING = frozenset({Cause.DEVICES, Cause.MODEL, Cause.UUID, Cause.SIZE})
"""The causes that remain even if all other pods end."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """One cause that keeps a request from some nodes, and the amounts that these nodes lack.

    Attributes:
        cause: the cause.
        gpus: the number of GPUs that the container needs; 0 for TOGETHER.
        asked: the amount that the container needs. It is the memory of each GPU for SIZE and MEMORY, the percent of
            GPU time of each GPU for CORE, and a number of GPUs for the other causes.
        most: the largest amount that any of these nodes has, to compare with `asked`. Of memory and GPU time, it is the
            amount that each of `gpus` GPUs of the node has.
        unit: the unit of amounts of memory: `MiB` or `percent`.
        in_sum: the number of these nodes with enough free in sum, but in parts on several GPUs.
        cut: the number of these nodes on which the search for devices of several containers reached its limit.
    """

    cause: Cause
    gpus: int
    asked: int
    most: int
    unit: str = "MiB"
    in_sum: int = 0
    cut: int = 0


def explain(shortage: Shortage, request: Request) -> str:
    """Returns the text that says why a request does not fit on some nodes.

    Args:
        shortage: the cause that these nodes share, with the amounts.
        request: the request, whose choice of models and uuids the text names.
    """
    wanted, asked, most = request.wanted, shortage.asked, max(shortage.most, 0)
    each = "one GPU" if shortage.gpus == 1 else f"each of {shortage.gpus} GPUs"
    models = _choice(wanted.use_models, wanted.avoid_models)
    uuids = _choice(wanted.use_uuids, wanted.avoid_uuids)
    texts = {
        Cause.DEVICES: f"gpu: {_gpus(asked)} asked, a node offers at most {most}",
        Cause.MODEL: f"gpu-model: {_gpus(asked)}{models} asked, at most {most} there",
        Cause.UUID: f"gpu-uuid: {_gpus(asked)}{uuids} asked, at most {most} there",
        Cause.SIZE: f"gpu-size: {asked} {shortage.unit} on {each} asked, the largest has {most}",
        Cause.MEMORY: f"gpu-memory: {asked} {shortage.unit} on {each} asked, at most {most} free",
        Cause.CORE: f"gpu-core: {asked} percent of {each} asked, at most {most} free",
        Cause.SLOTS: f"gpu-containers: room for one more on {each} asked, {_gpus(most)} have it",
        Cause.TOGETHER: "gpu: enough is free of each resource, but not on the same GPUs",
    }
    in_sum = {0: "", 1: "; 1 node has it in sum"}.get(shortage.in_sum, f"; {shortage.in_sum} nodes have it in sum")
    cut = {0: "", 1: "; 1 node was not searched to the end"}
    unsearched = cut.get(shortage.cut, f"; {shortage.cut} nodes were not searched to the end")
    return texts[shortage.cause] + in_sum + unsearched


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _choice(use: tuple[str, ...], avoid: tuple[str, ...]) -> str:
    lists = [(word, names) for word, names in ((" of ", use), (" not of ", avoid)) if names]
    return "".join(word + _list(names, CHOICE_BYTES // len(lists) - len(word)) for word, names in lists)


def _list(names: tuple[str, ...], limit: int) -> str:
    """Returns a text of at most `limit` bytes with the first names of a list and the number of the other names."""
    for count in range(min(len(names), MAX_NAMED), 0, -1):
        text = " or ".join(names[:count]) + _others(names, count)
        if len(text) <= limit:
            return text
    others = _others(names, 1)
    return names[0][: limit - len(SHORTENED) - len(others)] + SHORTENED + others


def _others(names: tuple[str, ...], count: int) -> str:
    return f" or {len(names) - count} more" if len(names) > count else ""
