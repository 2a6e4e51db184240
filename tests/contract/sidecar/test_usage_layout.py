"""The tables in sidecar/usage_record.py against what the compiler makes of vcuda/include/usage.h."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from sidecar.usage_record import (
    DEVICE,
    DEVICE_FIELDS,
    HEADER,
    HEADER_FIELDS,
    MAGIC,
    MAX_DEVICES,
    SIZE,
    TRAILER_FIELDS,
    VERSION,
    DeviceUsage,
    UsageRecord,
    decode,
)

INCLUDE = Path(__file__).parents[3] / "vcuda" / "include"
PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "usage.h"

static uint32_t crc32(const unsigned char *bytes, size_t count) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "layout") == 0) {
        printf("{\\"size\\":%zu,\\"device_size\\":%zu,\\"version\\":%u,\\"max_devices\\":%d,\\"magic\\":\\"%s\\"",
               sizeof(struct vcuda_usage), sizeof(struct vcuda_usage_device), VCUDA_USAGE_VERSION, VCUDA_MAX_DEVICES,
               VCUDA_USAGE_MAGIC);
#define FIELD(type, name) printf(",\\"" #type "." #name "\\":[%zu,%zu]", offsetof(struct type, name), \\
                                 sizeof(((struct type *)0)->name));
        FIELDS
        printf("}\\n");
        return 0;
    }
    struct vcuda_usage usage = {.magic = VCUDA_USAGE_MAGIC, .version = VCUDA_USAGE_VERSION, .size = VCUDA_USAGE_SIZE,
        .sequence = 7, .epoch_ns = 1234567890123456789u, .written_ns = 3, .device_count = 1, .processes = 2,
        .flags = VCUDA_USAGE_MEASURED_BY_NODE};
    struct vcuda_usage_device device = {.uuid = "GPU-abc", .busy_ns = 11, .span_ns = 12, .throttled_ns = 13,
        .memory_peak_bytes = 14, .memory_now_bytes = 15, .memory_limit_bytes = 16, .launches = 17, .oom = 18};
    usage.devices[0] = device;
    usage.checksum = crc32((const unsigned char *)&usage, offsetof(struct vcuda_usage, checksum));
    return fwrite(&usage, sizeof usage, 1, stdout) == 1 ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    fields = [
        *(f"FIELD(vcuda_usage, {name})" for name, _ in (*HEADER_FIELDS, *TRAILER_FIELDS)),
        *(f"FIELD(vcuda_usage_device, {name})" for name, _ in DEVICE_FIELDS),
    ]
    source = folder / "layout.c"
    source.write_text(PROGRAM.replace("FIELDS", "\n".join(fields)))
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", str(source), "-o"]
    subprocess.run([*compiler, str(folder / "layout")], check=True)
    return folder / "layout"


def spans(prefix: str, fields: Iterable[tuple[str, str]], start: int = 0) -> dict[str, list[int]]:
    places = {}
    for name, code in fields:
        size = struct.calcsize("<" + code)
        places[f"{prefix}.{name}"] = [start, size]
        start += size
    return places


def test_every_field_stands_where_the_compiler_puts_it(program: Path) -> None:
    layout = json.loads(subprocess.run([program, "layout"], check=True, capture_output=True).stdout)
    assert layout == {
        "size": SIZE,
        "device_size": DEVICE.size,
        "version": VERSION,
        "max_devices": MAX_DEVICES,
        "magic": MAGIC.rstrip(b"\0").decode(),
        **spans("vcuda_usage", HEADER_FIELDS),
        **spans("vcuda_usage", TRAILER_FIELDS, start=HEADER.size + MAX_DEVICES * DEVICE.size),
        **spans("vcuda_usage_device", DEVICE_FIELDS),
    }


def test_a_record_that_c_wrote_is_read_field_by_field(program: Path) -> None:
    raw = subprocess.run([program, "record"], check=True, capture_output=True).stdout
    used = DeviceUsage("GPU-abc", busy_ns=11, span_ns=12, throttled_ns=13, memory_peak_bytes=14, launches=17, oom=18)
    assert decode(raw) == UsageRecord(1234567890123456789, 7, (used,), measured_by_node=True)
