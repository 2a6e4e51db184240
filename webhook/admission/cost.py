"""Estimates a pod's cost before the scheduler chooses its devices."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fairgpu.charging import GPU_SECOND, ChargeRules, UnplacedShare, unplaced_rate
from fairgpu.demand import peak
from fairgpu.models import DRIVER_NAMES, best_key, takes
from fairgpu.pod import PodReading
from fairgpu.request import GPURequest
from webhook.admission.knowledge import DEFAULT_PRICES

ANY_MODEL = "*"
"""The key of the price of every model without a price of its own."""


def hourly_cost(reading: PodReading, prices: Mapping[str, float], charge: ChargeRules) -> tuple[float, float]:
    """Returns a pod's lowest and highest hourly cost before its devices are chosen, both in GPU-hours.

    The lowest cost has the lowest price among the models that the pod may get, and leaves out memory in MiB. The
    highest cost has the highest price, and counts this memory as a share of a device of the size that the rules assume.
    The timekeeper charges the highest cost until the devices are chosen.

    Args:
        reading: the GPU requests of the pod's containers.
        prices: GPU-hours charged for an hour of a whole GPU, keyed by model; `*` is any other model.
        charge: the admin's rules for charging.
    """
    least = _rate(reading, min(_prices(reading, prices)), charge, memory=False)
    return least / GPU_SECOND, highest_rate(reading, prices, charge) / GPU_SECOND


def highest_rate(reading: PodReading, prices: Mapping[str, float], charge: ChargeRules) -> int:
    """Returns a pod's highest rate, in microGPU-seconds a second; the timekeeper charges it while no device is chosen.

    Args:
        reading: the GPU requests of the pod's containers.
        prices: GPU-hours charged for an hour of a whole GPU, keyed by model; `*` is any other model.
        charge: the admin's rules for charging.
    """
    return _rate(reading, max(_prices(reading, prices)), charge, memory=True)


def deadline_seconds(spec: Mapping[str, Any]) -> int | None:
    """Returns the pod's activeDeadlineSeconds, after which the kubelet ends it; None if the pod sets no valid one."""
    value = spec.get("activeDeadlineSeconds")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _prices(reading: PodReading, prices: Mapping[str, float]) -> list[Fraction]:
    choices = reading.choices.use_models
    default = prices.get(ANY_MODEL, DEFAULT_PRICES[ANY_MODEL])
    candidates = [default, *prices.values()]
    if choices:
        # The known models that a choice matches, the choice itself as a model, and the keys that contain it.
        models = {*choices, *(name for name in DRIVER_NAMES if any(takes(choice, name) for choice in choices))}
        keys = {best_key(prices, model) or ANY_MODEL for model in models}
        keys |= {key for key in prices if key != ANY_MODEL and any(takes(choice, key) for choice in choices)}
        candidates = [prices.get(key, default) for key in sorted(keys)]
    # Parsed from text: a price of 0.1 is a tenth, and not the nearest double.
    return [Fraction(str(price)) for price in candidates]


def _rate(reading: PodReading, price: Fraction, charge: ChargeRules, *, memory: bool) -> int:
    def rate(request: GPURequest | None) -> int:
        if request is None:
            return 0
        mib = (request.memory_mib or 0) if memory else 0
        share = UnplacedShare(request.gpus, request.core_percent, mib, request.memory_percentage or 0)
        return unplaced_rate(share, price, charge)

    return peak(
        [rate(container.request) for container in reading.containers],
        [(rate(container.request), container.native_sidecar) for container in reading.init],
    )
