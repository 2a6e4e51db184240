"""Recomputes the rate of a pod's allocation and the cost of a session, independently of the ledger's code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from fairgpu import names
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import list_of, mapping
from fairgpu.models import best_key
from timekeeper.audit.snapshot import SessionRecord
from timekeeper.domain.timestamps import Instant

GPU_SECOND = 1_000_000
ANY_MODEL = "*"
BY_WORDS = ":by-words"
"""The key in a price list whose instant is the first from which each other key stands for all models with its words.

Before that instant, a key is a whole model name. A price below 0 means that the settings no longer have the key.
"""

Json = Mapping[str, Any]
PriceList = Mapping[str, list[tuple[int, Fraction]]]
"""Pairs of an instant (nanoseconds since 1970) and the price from then on, in order of time; keyed by model.

A price is the GPU-seconds that are charged for a second of a whole GPU.
"""


def read_price_list(text: str | bytes | None) -> PriceList:
    """Parses the store's price list; returns an empty mapping if the list is missing or unreadable.

    Args:
        text: the JSON text; None if the store has none.
    """
    try:
        document = json.loads(text) if text else {}
        return {model: [(int(since), Fraction(price)) for since, price in points] for model, points in document.items()}
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return {}


def pod_rate(pod: Json, prices: PriceList, instant: Instant) -> int | None:
    """Returns the rate that follows from a pod's allocation, in microGPU-seconds a second; None if none follows.

    No rate follows from an allocation that is of another node, or that lacks the devices of a container that requests
    GPUs. The result is also None for best effort: that rate follows from a setting, which may have changed since the
    session opened.

    Args:
        prices: the price of each model over time.
        instant: the instant of the prices.
    """
    spec = mapping(pod.get("spec"))
    annotation = mapping(mapping(pod.get("metadata")).get("annotations")).get(names.ALLOCATION)
    try:
        allocation = json.loads(annotation) if isinstance(annotation, str) else {}
        if allocation.get("node") != spec.get("nodeName"):
            return None
        held = {item["name"]: item["devices"] for item in allocation["containers"]}
        asks = {
            item["name"]
            for item in (*list_of(spec.get("containers")), *list_of(spec.get("initContainers")))
            if _asks(item)
        }
        if not asks <= held.keys():
            return None
        rates = {
            name: sum(_device_rate(device, prices, instant) for device in devices) for name, devices in held.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    steps = [(rates.get(item["name"], 0), is_native_sidecar(item)) for item in list_of(spec.get("initContainers"))]
    return peak([rates.get(item["name"], 0) for item in list_of(spec.get("containers"))], steps)


def _device_rate(device: Json, prices: PriceList, instant: int) -> int:
    if not device["core"]:
        raise ValueError("best effort")
    share = max(Fraction(device["core"], 100), Fraction(device["memoryMiB"], device["totalMiB"]))
    return math.ceil(GPU_SECOND * price_at(prices, device["model"], instant) * share)


def held_rate(record: SessionRecord, prices: PriceList, instant: Instant) -> int | None:
    """Returns the rate of the parts of GPUs that a session holds by another stack, in microGPU-seconds a second.

    The result is None if the stack does not bound the time of a part: the rate follows from a setting then.

    Args:
        prices: the price of each model over time.
        instant: the instant of the prices.
    """
    if not all(share for _, _, share in record.held):
        return None
    return sum(
        count * math.ceil(GPU_SECOND * price_at(prices, model, instant) * share) for model, count, share in record.held
    )


def price_at(prices: PriceList, model: str, instant: Instant) -> Fraction:
    """Returns the price of a model at an instant: the price for its name or words of it, else for ANY_MODEL, else 1.

    A price is the GPU-hours that are charged for an hour of a whole GPU.
    """
    current = {key: price for key, points in prices.items() for since, price in points if since <= instant}
    named = [key for key, price in current.items() if price >= 0 and key not in {ANY_MODEL, BY_WORDS}]
    key = best_key(named, model) if BY_WORDS in current else model
    return current[key] if key in named else current.get(ANY_MODEL, Fraction(1))


def _asks(container: Json) -> bool:
    limits = mapping(mapping(container.get("resources")).get("limits"))
    return any(name in limits for name in names.CANONICAL_RESOURCES)


NANOSECONDS = 1_000_000_000

Changes = Sequence[tuple[int, str]]
"""(from, account): the payer of a namespace from an instant on; the first one also pays for all time before."""


def charge(record: SessionRecord, payers: Changes, account: str, period: tuple[int, int], until: Instant) -> int:
    """Returns the cost of a session to an account in a period, in microGPU-seconds.

    Between two changes of payer or rate, the cost is rate x time, rounded down.

    Args:
        record: the session, with its rates over time.
        payers: the payers of the session's namespace, in order of time.
        period: the start and the end of the period, in nanoseconds since 1970.
        until: the instant up to which the session is charged.
    """
    low, high = max(record.start, period[0]), min(until, period[1])
    if low >= high:
        return 0
    changes = {moment for moment, _ in (*payers, *record.tariff) if low < moment < high}
    moments = [low, *sorted(changes), high]
    return sum(
        _at(record.tariff, begin) * (end - begin) // NANOSECONDS
        for begin, end in pairwise(moments)
        if _at(payers, begin) == account
    )


def rate_at(record: SessionRecord, instant: Instant) -> int:
    """Returns the rate of a session at an instant, in microGPU-seconds a second."""
    rate: int = _at(record.tariff, instant)
    return rate


def payer_at(payers: Changes, instant: Instant) -> str:
    """Returns the account that pays for a namespace at an instant, by the namespace's payers in order of time."""
    account: str = _at(payers, instant)
    return account


def _at(changes: Sequence[tuple[int, Any]], instant: int) -> Any:
    """Returns the value of the last change by an instant; the value of the first change for an earlier instant."""
    value_then = changes[0][1]
    for since, value in changes:
        if since > instant:
            break
        value_then = value
    return value_then
