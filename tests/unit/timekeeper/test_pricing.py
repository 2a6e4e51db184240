from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairgpu.allocation import DeviceShare
from fairgpu.charging import ChargeRules, UnplacedShare, unplaced_rate
from timekeeper.audit import charges as audited
from timekeeper.domain.pricing import BY_WORDS, PricePoint, amended, device_rate, price_at, prices_in_force
from timekeeper.domain.reservations import rate_at, read_reservation, tariff
from timekeeper.ledger.codec import decode_prices, encode_prices

RULES = ChargeRules()


def device(core: int, memory: int, model: str = "A100", uuid: str = "GPU-1") -> dict[str, Any]:
    return {"uuid": uuid, "model": model, "totalMiB": 81920, "core": core, "memoryMiB": memory}


def container(name: str, core: int = 0, memory: int = 0, gpus: int = 0, **fields: Any) -> dict[str, Any]:
    limits = {"fairgpu.io/gpu": str(gpus), "fairgpu.io/gpu-core": str(core), "fairgpu.io/gpu-memory": str(memory)}
    return {"name": name, "resources": {"limits": limits if gpus else {}}} | fields


def pod(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], held: dict[str, list[dict[str, Any]]] | None
) -> Any:
    annotations = {}
    if held is not None:
        document = {"v": 1, "node": "n1", "containers": [{"name": n, "devices": d} for n, d in held.items()]}
        annotations["fairgpu.io/allocation"] = json.dumps(document)
    return {
        "metadata": {"annotations": annotations},
        "spec": {"nodeName": "n1", "containers": containers, "initContainers": init},
    }


@pytest.mark.parametrize(
    ("core", "memory", "price", "rate"),
    [
        (30, 4096, Fraction(1), 300_000),
        (30, 40960, Fraction(1), 500_000),
        (100, 0, Fraction(5, 2), 2_500_000),
        (0, 1, Fraction(1), 100_000),
        (1, 1, Fraction(1, 3), 3334),
    ],
)
def test_a_vgpu_costs_its_price_times_the_larger_share_rounded_up(
    core: int, memory: int, price: Fraction, rate: int
) -> None:
    assert device_rate(DeviceShare("u", "A100", 81920, core, memory), price, 10) == rate


@given(
    st.integers(0, 100),
    st.integers(0, 200_000),
    st.integers(1, 200_000),
    st.fractions(0, 1_000_000, max_denominator=10**12),
)
def test_it_costs_so_to_the_last_unit_whatever_the_price(core: int, memory: int, whole: int, price: Fraction) -> None:
    share = max(Fraction(core or 10, 100), Fraction(memory, whole))
    assert device_rate(DeviceShare("u", "A100", whole, core, memory), price, 10) == math.ceil(10**6 * price * share)


def test_an_allocation_is_charged_by_its_devices() -> None:
    held = {"main": [device(30, 4096), device(30, 4096, uuid="GPU-2")]}
    reservation = read_reservation(pod([container("main", 60, 8192, 2)], [], held))
    assert reservation is not None
    assert reservation.placed
    assert rate_at(reservation, {}, 0, RULES) == 600_000


def test_a_pod_is_charged_for_the_larger_of_what_runs_together_and_of_each_init_step() -> None:
    steps = [container("warm", 20, 1, 1, restartPolicy="Always"), container("load", 90, 1, 1)]
    held = {"main": [device(50, 1)], "warm": [device(20, 1)], "load": [device(90, 1)]}
    reservation = read_reservation(pod([container("main", 50, 1, 1)], steps, held))
    assert reservation is not None
    assert rate_at(reservation, {}, 0, RULES) == 1_100_000


@pytest.mark.parametrize(
    "held",
    [None, {}, {"other": [device(50, 1)]}, {"main": []}, {"main": [device(50, 1)], "main2": [device(1, 1)]}],
)
def test_without_a_valid_allocation_the_request_is_charged_at_the_dearest_price(held: Any) -> None:
    reservation = read_reservation(pod([container("main", 50, 1, 1)], [], held))
    assert reservation is not None
    assert not reservation.placed
    prices = {"A100": (PricePoint(0, Fraction(2)),), "H100": (PricePoint(0, Fraction(7)),)}
    assert rate_at(reservation, prices, 1, RULES) == 3_500_000


def test_an_allocation_of_another_node_is_not_believed() -> None:
    item = pod([container("main", 50, 1, 1)], [], {"main": [device(10, 1)]})
    item["spec"]["nodeName"] = "n2"
    reservation = read_reservation(item)
    assert reservation is not None
    assert rate_at(reservation, {}, 0, RULES) == 500_000


def test_a_pod_without_a_gpu_holds_nothing() -> None:
    assert read_reservation(pod([container("main")], [], None)) is None
    assert read_reservation({}) is None


def test_a_request_of_memory_counts_against_an_assumed_device() -> None:
    assert unplaced_rate(UnplacedShare(2, 20, memory_mib=16384), Fraction(1), ChargeRules()) == 1_000_000
    assert unplaced_rate(UnplacedShare(1, 0, memory_percentage=5), Fraction(1), ChargeRules()) == 100_000
    assert unplaced_rate(UnplacedShare(1, 10, memory_mib=10**9), Fraction(1), ChargeRules()) == 1_000_000


points = st.lists(st.builds(PricePoint, st.integers(0, 100), st.fractions(0, 10, max_denominator=10)), max_size=4).map(
    lambda found: tuple(sorted({p.effective_from: p for p in found}.values(), key=lambda p: p.effective_from))
)
KEYS = ("A100", "A100 SXM4", "SXM4 80GB", "H100", "NVIDIA H100 NVL", "*")
MODELS = ("A100", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 NVL", "NVIDIA-H100-NVL", "other")
whole_names = st.dictionaries(st.sampled_from(KEYS), points, max_size=4)
price_lists = whole_names | whole_names.map(lambda prices: prices | {BY_WORDS: (PricePoint(0, Fraction(1)),)})


@given(price_lists, price_lists, st.integers(0, 100), st.integers(0, 200))
def test_a_changed_setting_never_prices_the_past_again(history: Any, configured: Any, now: int, instant: int) -> None:
    result = amended(history, configured, now)
    assume(BY_WORDS in configured or BY_WORDS not in history)
    for model in MODELS:
        expected = price_at(history, model, instant) if instant < now else price_at(configured, model, instant)
        assert price_at(result, model, instant) == expected
    assert amended(result, configured, now) == result


def test_a_price_change_opens_a_new_rate_from_its_instant() -> None:
    reservation = read_reservation(pod([container("main", 50, 1, 1)], [], {"main": [device(50, 1)]}))
    assert reservation is not None
    prices = {"A100": (PricePoint(0, Fraction(1)), PricePoint(50, Fraction(2)), PricePoint(90, Fraction(2)))}
    assert tariff(reservation, prices, 10, RULES) == ((10, 500_000), (50, 1_000_000))
    assert tariff(reservation, prices, 60, RULES) == ((60, 1_000_000),)


@given(price_lists, price_lists, st.integers(0, 100), st.integers(0, 200))
def test_the_auditor_finds_the_price_that_is_charged(history: Any, configured: Any, now: int, instant: int) -> None:
    charged = amended(history, configured, now)
    text = encode_prices(charged)
    assert decode_prices(text) == charged
    for model in MODELS:
        assert audited.price_at(audited.read_price_list(text), model, instant) == price_at(charged, model, instant)


def test_prices_of_before_the_upgrade_belong_to_whole_names_and_those_of_after_it_to_words() -> None:
    before = {"A100": (PricePoint(0, Fraction(3)),), "*": (PricePoint(0, Fraction(1, 2)),)}
    configured = before | {BY_WORDS: (PricePoint(0, Fraction(1)),)}
    charged = amended(before, configured, 50)
    held = {"main": [device(50, 1, "NVIDIA A100-SXM4-80GB")]}
    reservation = read_reservation(pod([container("main", 50, 1, 1)], [], held))
    assert reservation is not None
    assert tariff(reservation, charged, 10, RULES) == ((10, 250_000), (50, 1_500_000))
    assert amended(charged, configured, 90) == charged


def test_a_key_that_the_settings_name_no_more_keeps_no_model_from_another() -> None:
    words = {BY_WORDS: (PricePoint(0, Fraction(1)),)}
    history = words | {"A100 SXM4": (PricePoint(0, Fraction(3)),)}
    charged = amended(history, words | {"SXM4 80GB": (PricePoint(0, Fraction(2)),)}, 50)
    assert [price_at(charged, "NVIDIA A100-SXM4-80GB", at) for at in (49, 50)] == [3, 2]
    assert prices_in_force(charged, 50) == {"SXM4 80GB": 2, "*": 1}
