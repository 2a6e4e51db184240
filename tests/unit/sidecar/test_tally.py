from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.tally import MAX_DEVICES_PER_CONTAINER, Tally, advance
from sidecar.usage_record import MAX_COUNT, DeviceUsage, UsageRecord


def device(uuid: str = "GPU-a", busy_ns: int = 0, memory: int = 0) -> DeviceUsage:
    return DeviceUsage(uuid, busy_ns, busy_ns, 0, memory, 0, 0)


def record(epoch: int, sequence: int, *devices: DeviceUsage) -> UsageRecord:
    return UsageRecord(epoch, sequence, devices)


def after(*records: UsageRecord | None) -> tuple[DeviceUsage, ...]:
    tally = Tally()
    for item in records:
        tally = advance(tally, item)
    return tally.devices()


def test_a_container_that_used_nothing_has_no_devices() -> None:
    assert after(None) == ()


def test_within_an_epoch_the_last_record_is_the_total() -> None:
    assert after(record(1, 1, device(busy_ns=5)), record(1, 2, device(busy_ns=9))) == (device(busy_ns=9),)


def test_a_new_epoch_adds_to_the_ones_before_it() -> None:
    records = record(1, 7, device(busy_ns=5)), record(2, 1, device(busy_ns=2)), record(3, 1, device(busy_ns=1))
    assert after(*records) == (device(busy_ns=8),)


def test_the_memory_peak_is_the_highest_of_all_epochs() -> None:
    (total,) = after(record(1, 1, device(memory=7)), record(2, 1, device(memory=4)))
    assert total.memory_peak_bytes == 7


def test_a_file_emptied_after_use_takes_nothing_away() -> None:
    assert after(record(1, 1, device(busy_ns=5)), None) == (device(busy_ns=5),)


def test_an_old_record_of_the_epoch_changes_nothing() -> None:
    assert after(record(1, 2, device(busy_ns=5)), record(1, 1, device(busy_ns=9))) == (device(busy_ns=5),)


def test_a_device_stays_in_the_total_when_later_records_miss_it() -> None:
    used = after(record(1, 1, device("GPU-a", 5), device("GPU-b", 6)), record(1, 2, device("GPU-b", 7)))
    assert used == (device("GPU-a", 5), device("GPU-b", 7))


records = st.builds(
    UsageRecord,
    epoch_ns=st.integers(1, 3),
    sequence=st.integers(1, 50),
    devices=st.lists(
        st.builds(device, st.sampled_from(["GPU-a", "GPU-b"]), st.integers(0, MAX_COUNT)),
        unique_by=lambda item: item.uuid,
    ).map(tuple),
)


@given(st.lists(records | st.none(), max_size=30))
def test_totals_never_go_back_and_never_pass_their_bound(history: list[UsageRecord | None]) -> None:
    tally = Tally()
    for item in history:
        before = {used.uuid: used.busy_ns for used in tally.devices()}
        tally = advance(tally, item)
        now = {used.uuid: used.busy_ns for used in tally.devices()}
        assert all(before[uuid] <= now[uuid] <= MAX_COUNT for uuid in before)


def test_a_container_that_names_new_devices_for_ever_fills_no_memory() -> None:
    history = [record(epoch, 1, device(f"GPU-{epoch}", 1)) for epoch in range(1, 200)]
    assert len(after(*history)) == MAX_DEVICES_PER_CONTAINER
