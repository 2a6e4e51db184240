"""What a pod will cost, as far as it can be told before anybody chooses its devices."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fairgpu.charging import GPU_SECOND, ChargeRules, UnplacedShare, unplaced_rate
from fairgpu.demand import peak
from fairgpu.pod import PodReading
from fairgpu.request import GPURequest
from webhook.admission.knowledge import DEFAULT_PRICES


def hourly_cost(reading: PodReading, prices: Mapping[str, float], charge: ChargeRules) -> tuple[float, float]:
    """What a pod costs an hour in GPU-hours: at least, and as the timekeeper counts it while no device is chosen.

    A share of memory given in MiB becomes a share of a device only once a device is chosen: the least leaves it out, at
    the cheapest price that the pod may meet; the most holds it against a device of unknown memory, at the dearest.
    """
    least = _rate(reading, min(_prices(reading, prices)), charge, memory=False)
    return least / GPU_SECOND, highest_rate(reading, prices, charge) / GPU_SECOND


def highest_rate(reading: PodReading, prices: Mapping[str, float], charge: ChargeRules) -> int:
    """What a pod may cost a second in microGPU-seconds, as the timekeeper charges a pod without an allocation."""
    return _rate(reading, max(_prices(reading, prices)), charge, memory=True)


def deadline_seconds(spec: Mapping[str, Any]) -> int | None:
    """After how long the kubelet ends the pod; None where nobody said."""
    value = spec.get("activeDeadlineSeconds")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _prices(reading: PodReading, prices: Mapping[str, float]) -> list[Fraction]:
    models = reading.choices.use_models
    default = prices.get("*", DEFAULT_PRICES["*"])
    found = [prices.get(model, default) for model in models] if models else [default, *prices.values()]
    # As its text reads: a price of 0.1 is a tenth, and not the double next to it.
    return [Fraction(str(price)) for price in found]


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
