"""What a pod's allocation costs a second, read anew from its object and the prices that were charged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fairgpu import names
from fairgpu.demand import is_native_sidecar, peak

GPU_SECOND = 1_000_000
ANY_MODEL = "*"

Json = Mapping[str, Any]
PriceList = Mapping[str, list[tuple[int, Fraction]]]
"""By model, (from, price) in order of time."""


def read_price_list(text: str | bytes | None) -> PriceList:
    """The prices as the store holds them; none where it has none that can be read."""
    try:
        document = json.loads(text) if text else {}
        return {model: [(int(since), Fraction(price)) for since, price in points] for model, points in document.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def pod_rate(pod: Json, prices: PriceList, instant: int) -> int | None:
    """The rate of a pod in microGPU-seconds a second; None where more than its allocation decides.

    That is the case without an allocation that names the devices of every container that asks for some, and for best
    effort, whose floor is a setting of the time at which the pod was first seen.
    """
    spec = _mapping(pod.get("spec"))
    annotation = _mapping(_mapping(pod.get("metadata")).get("annotations")).get(names.ALLOCATION)
    try:
        allocation = json.loads(annotation) if isinstance(annotation, str) else {}
        if allocation.get("node") != spec.get("nodeName"):
            return None
        held = {item["name"]: item["devices"] for item in allocation["containers"]}
        asks = {item["name"] for item in (*_list(spec, "containers"), *_list(spec, "initContainers")) if _asks(item)}
        if not asks <= held.keys():
            return None
        rates = {
            name: sum(_device_rate(device, prices, instant) for device in devices) for name, devices in held.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    steps = [(rates.get(item["name"], 0), is_native_sidecar(item)) for item in _list(spec, "initContainers")]
    return peak([rates.get(item["name"], 0) for item in _list(spec, "containers")], steps)


def _device_rate(device: Json, prices: PriceList, instant: int) -> int:
    if not device["core"]:
        raise ValueError("best effort")
    share = max(Fraction(device["core"], 100), Fraction(device["memoryMiB"], device["totalMiB"]))
    return math.ceil(GPU_SECOND * price_at(prices, device["model"], instant) * share)


def price_at(prices: PriceList, model: str, instant: int) -> Fraction:
    """The price of a model at an instant; 1 where none is named."""
    for name in (model, ANY_MODEL):
        points = [price for since, price in prices.get(name, ()) if since <= instant]
        if points:
            return points[-1]
    return Fraction(1)


def _asks(container: Json) -> bool:
    limits = _mapping(_mapping(container.get("resources")).get("limits"))
    return any(name in limits for name in names.CANONICAL_RESOURCES)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(spec: Json, key: str) -> list[Any]:
    value = spec.get(key)
    return value if isinstance(value, list) else []
