from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairgpu.allocation import DeviceShare
from timekeeper.metering.bill import MAX_COUNTERS, Bill, DeviceUse, UseTally, billed, tallied, use_cost
from timekeeper.rules.money import SECOND

DEVICES = {"GPU-1": DeviceShare("GPU-1", "A100", 1000, 50, 100)}
PRICES = {"A100": Fraction(2)}
amounts = st.integers(0, 10**17)


def test_use_is_gpu_time_or_memory_over_time_whichever_is_more_at_the_models_price() -> None:
    assert use_cost({("main", "GPU-1"): DeviceUse(3 * SECOND, 10 * SECOND, 100)}, DEVICES, PRICES) == 6_000_000
    assert use_cost({("main", "GPU-1"): DeviceUse(SECOND, 10 * SECOND, 900)}, DEVICES, PRICES) == 18_000_000


def test_use_of_a_device_that_the_pod_does_not_hold_is_not_believed() -> None:
    assert use_cost({("main", "GPU-9"): DeviceUse(SECOND, SECOND, 1)}, DEVICES, PRICES) == 0


def test_a_tally_does_not_grow_with_what_somebody_makes_up() -> None:
    tally = UseTally()
    for number in range(2 * MAX_COUNTERS):
        made_up = {
            ("main", f"GPU-9{number}"): DeviceUse(SECOND, SECOND, 1),
            (f"c{number}", "GPU-1"): DeviceUse(SECOND, SECOND, 1),
        }
        tally = tallied(tally, made_up, DEVICES, PRICES)
    assert len(tally.counters) == MAX_COUNTERS
    assert {uuid for _, uuid in tally.use} == {"GPU-1"}
    risen = tallied(tally, {("c0", "GPU-1"): DeviceUse(5 * SECOND, SECOND, 1)}, DEVICES, PRICES)
    assert risen.use["c0", "GPU-1"].busy_ns == 5 * SECOND


@given(amounts, st.integers(-(10**17), 10**30), amounts)
def test_a_bill_stays_between_nothing_and_what_could_have_been_used(reserved: int, used: int, ceiling: int) -> None:
    most = max(reserved, ceiling)
    assert billed(Bill.RESERVED, reserved, used, ceiling) == reserved
    assert 0 <= billed(Bill.USED, reserved, used, ceiling) <= most
    assert reserved <= billed(Bill.MAX, reserved, used, ceiling) <= most


counters = st.integers(0, 10**12)


@given(st.lists(st.tuples(st.sampled_from(["main", "side"]), counters), max_size=20))
def test_a_tally_adds_up_what_counters_rise_by_over_every_new_beginning(reports: list[tuple[str, int]]) -> None:
    devices = {"GPU-1": DeviceShare("GPU-1", "A100", 81920, 50, 1024)}
    price = {"A100": Fraction(1)}
    tally, last, expected = UseTally(), dict.fromkeys(("main", "side"), 0), 0
    for container, reported in reports:
        busy = reported - reported % 1000
        expected += busy - last[container] if busy >= last[container] else busy
        last[container] = busy
        tally = tallied(tally, {(container, "GPU-1"): DeviceUse(busy, 0, 0)}, devices, price)
        assert tally.before + use_cost(tally.use, devices, price) == expected // 1000
