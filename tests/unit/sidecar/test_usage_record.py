from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.usage_record import MAX_COUNT, SIZE, DeviceUsage, TornRecordError, UsageError, UsageRecord, decode
from tests.support.usage_writer import Device, sealed, usage_record

UUID = "GPU-8f6d2c1e-0a53-4c27-9a3d-5d4f7b1e2c90"
DEVICE = Device(UUID, busy_ns=1, span_ns=2, throttled_ns=3, memory_peak_bytes=4, launches=5, oom=6)
COUNTERS = ("busy_ns", "span_ns", "throttled_ns", "memory_peak_bytes", "launches", "oom")


def over_limit(counter: str) -> Device:
    values: dict[str, Any] = {counter: 2**63}
    return replace(DEVICE, **values)


counts = st.integers(min_value=0, max_value=MAX_COUNT)
devices = st.builds(
    Device,
    uuid=st.uuids().map(lambda value: f"GPU-{value}"),
    **dict.fromkeys(COUNTERS, counts),
)


@given(st.lists(devices, max_size=16, unique_by=lambda device: device.uuid), counts, counts)
def test_a_record_that_the_shim_wrote_is_what_is_read(written: list[Device], sequence: int, epoch_ns: int) -> None:
    read = decode(usage_record(*written, sequence=sequence, epoch_ns=epoch_ns))
    assert read is not None
    assert (read.sequence, read.epoch_ns) == (sequence, epoch_ns)
    assert read.devices == tuple(
        DeviceUsage(device.uuid, *(getattr(device, name) for name in COUNTERS)) for device in written
    )


@pytest.mark.parametrize("flags", [0, 1, 3, 2**63])
def test_a_record_says_whether_the_node_measured_it_and_unknown_flags_mean_nothing(flags: int) -> None:
    read = decode(usage_record(DEVICE, flags=flags))
    assert read is not None
    assert read.measured_by_node == (flags in (1, 3))


@pytest.mark.parametrize("raw", [b"", bytes(SIZE)], ids=["empty", "zeros"])
def test_an_empty_file_and_one_of_zeros_mean_that_nothing_was_used(raw: bytes) -> None:
    assert decode(raw) is None


@given(st.binary(max_size=2 * SIZE))
def test_any_bytes_are_a_record_or_nothing_or_a_usage_error(raw: bytes) -> None:
    with contextlib.suppress(UsageError):
        decode(raw)


@given(st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_record_with_any_byte_changed_is_refused(position: int, change: int) -> None:
    raw = bytearray(usage_record(DEVICE))
    raw[position] ^= change
    with pytest.raises(UsageError):
        decode(bytes(raw))


@given(st.binary(min_size=SIZE - 4, max_size=SIZE - 4))
def test_a_sealed_record_of_any_content_never_passes_a_field_out_of_bounds(content: bytes) -> None:
    header = usage_record(DEVICE)[:16]
    raw = sealed(header + content[16:] + bytes(4))
    try:
        record = decode(raw)
    except UsageError:
        return
    assert isinstance(record, UsageRecord)
    assert len(record.devices) <= 16
    for device in record.devices:
        assert re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z-]{1,43}", device.uuid)
        assert all(0 <= getattr(device, name) <= MAX_COUNT for name in COUNTERS)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (usage_record(DEVICE)[:-1], "2111 bytes, a record has 2112"),
        (usage_record(DEVICE) + b"\0", "2113 bytes, a record has 2112"),
        (sealed(b"X" + usage_record(DEVICE)[1:]), "does not begin with FGUSAGE"),
        (sealed(usage_record(DEVICE)[:8] + b"\2" + usage_record(DEVICE)[9:]), "version 2 of 2112 bytes"),
        (usage_record(DEVICE, device_count=17), "device_count is 17, at most 16"),
        (usage_record(DEVICE, DEVICE), "a device stands in it twice"),
        (usage_record(DEVICE, device_count=2), r"devices\[1\].uuid is no GPU-... or MIG-"),
        (usage_record(replace(DEVICE, uuid="GPU-" + "a" * 44)), r"devices\[0\].uuid"),
        (usage_record(replace(DEVICE, uuid='GPU-","x":"')), r"devices\[0\].uuid"),
        (usage_record(replace(DEVICE, uuid="GPU-a\0b")), r"devices\[0\].uuid"),
        (usage_record(replace(DEVICE, uuid="TPU-1")), r"devices\[0\].uuid"),
        (usage_record(DEVICE, sequence=2**63), "sequence is 9223372036854775808"),
        (usage_record(DEVICE, epoch_ns=2**64 - 1), "epoch_ns is 18446744073709551615"),
        *((usage_record(over_limit(name)), rf"devices\[0\].{name}") for name in COUNTERS),
    ],
)
def test_a_record_out_of_bounds_is_refused_with_its_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        decode(raw)


def test_a_record_read_in_the_middle_of_a_write_is_known_as_torn() -> None:
    old, new = usage_record(DEVICE, sequence=1), usage_record(replace(DEVICE, busy_ns=99), sequence=2)
    with pytest.raises(TornRecordError):
        decode(new[:64] + old[64:])
