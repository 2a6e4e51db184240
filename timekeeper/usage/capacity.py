"""How much GPU time the nodes had over time: what is not reserved of it is idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from fairgpu import names
from fairgpu.quantity import QuantityError, parse_count
from timekeeper.rules.money import GPU_SECOND, cost
from timekeeper.usage.windows import Window

Points = Mapping[int, int]
"""From each instant (nanoseconds since 1970) on, what the nodes have: microGPU-seconds a second."""


def capacity_rate(nodes: Iterable[Mapping[str, Any]]) -> int:
    """What nodes have, in microGPU-seconds a second: their whole GPUs, as FairGPU's extended resource tells them."""
    return sum(_percent(node) * GPU_SECOND // 100 for node in nodes)


def capacity_of(points: Points, window: Window, now: int) -> int:
    """What the nodes had in a window, in microGPU-seconds, as far as it has passed and they were known."""
    ordered = sorted(points)
    total = 0
    for since, following in pairwise([*ordered, now]):
        start, end = max(since, window.start), min(following, window.end, now)
        total += cost(points[since], max(end - start, 0))
    return total


def _percent(node: Mapping[str, Any]) -> int:
    status = node.get("status")
    capacity = status.get("capacity") if isinstance(status, dict) else None
    value = capacity.get(names.GPU_CORE) if isinstance(capacity, dict) else None
    try:
        return 0 if value is None else parse_count(value)
    except QuantityError:
        return 0
