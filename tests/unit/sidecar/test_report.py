from __future__ import annotations

import json

from sidecar.delivery import encode
from sidecar.tally import Tally, advance, begin
from sidecar.usage_record import MAX_COUNT, DeviceUsage, UsageRecord


def test_a_report_is_the_json_that_the_timekeeper_reads() -> None:
    used = DeviceUsage("GPU-a", busy_ns=5, span_ns=7, throttled_ns=2, memory_peak_bytes=2**20 + 1, launches=3, oom=1)
    tally = advance(Tally(), UsageRecord(1, 1, (used,)))
    assert json.loads(encode("b00t", 4, {"main": tally, "helper": Tally()})) == {
        "v": 1,
        "boot": "b00t",
        "seq": 4,
        "containers": [
            {"name": "helper", "devices": []},
            {
                "name": "main",
                "devices": [
                    {
                        "uuid": "GPU-a",
                        "busyNs": 5,
                        "spanNs": 7,
                        "throttledNs": 2,
                        "memoryPeakMiB": 2,
                        "launches": 3,
                        "oom": 1,
                    }
                ],
            },
        ],
    }


def test_the_totals_have_beside_them_what_the_sidecar_found_at_its_start() -> None:
    found = DeviceUsage("GPU-a", 5, 7, 2, 2**20, 3, 1)
    tally = advance(begin(UsageRecord(1, 1, (found,))), UsageRecord(1, 2, (found._replace(busy_ns=9, span_ns=11),)))
    ((device,),) = [each["devices"] for each in json.loads(encode("b00t", 4, {"main": tally}))["containers"]]
    assert (device["busyNs"], device["spanNs"]) == (9, 11)
    assert (device["earlierBusyNs"], device["earlierSpanNs"]) == (5, 7)


def test_the_fullest_report_stays_under_128_kib() -> None:
    devices = tuple(
        DeviceUsage(f"GPU-{index:043}", MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT)
        for index in range(16)
    )
    tally = begin(UsageRecord(1, 1, devices))
    body = encode("f" * 32, MAX_COUNT, {f"{index:063}": tally for index in range(64)})
    assert len(body) < 128 * 1024
    assert len(json.loads(body)["containers"]) == 64
