"""The configuration that the node writes for a container, as the C compiler reads it."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import pytest

from nodeagent.containers import config_file
from nodeagent.containers.config_file import ConfigDevice, pack
from nodeagent.turns import Policy

HEADERS = Path(__file__).parents[3] / "vcuda" / "include"

PROGRAM = r"""
#include <stdio.h>
#include "config.h"
#include "schedule.h"
int main(int count, char **arguments)
{
    struct vcuda_config c;
    FILE *file = fopen(arguments[1], "rb");
    if (count != 2 || file == NULL || fread(&c, 1, sizeof c, file) != sizeof c || fgetc(file) != EOF) {
        return 1;
    }
    printf("%s %u %u %u %s %s %s %s\n", c.magic, c.version, c.size, c.flags, c.container, c.pod_uid,
           c.ledger_path, c.usage_path);
    for (unsigned i = 0; i < c.device_count; i++) {
        const struct vcuda_config_device *d = &c.devices[i];
        printf("%s %s %llu %llu %llu %llu %u %u %u %u\n", d->uuid, d->schedule_path,
               (unsigned long long)d->memory_limit_bytes, (unsigned long long)d->memory_soft_limit_bytes,
               (unsigned long long)d->context_bytes, (unsigned long long)d->slot_key, d->slot, d->core_percent,
               d->policy, d->task_priority);
    }
    printf("%u %u %u\n", c.checksum, VCUDA_MAX_DEVICES, VCUDA_LEDGER_SIZE);
    return 0;
}
"""
SHARES = [
    ConfigDevice("GPU-a", 100, 30, Policy.HARD, 1, 0, 2**64 - 1),
    ConfigDevice("GPU-b", 80000, 0, Policy.BEST_EFFORT, 0, 63, 7),
]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    (folder / "read.c").write_text(PROGRAM)
    build = ["cc", "-std=c11", f"-I{HEADERS}", str(folder / "read.c"), "-o", str(folder / "read")]
    subprocess.run(build, check=True)
    return folder / "read"


def test_the_compiler_reads_what_was_packed(reader: Path, tmp_path: Path) -> None:
    packed = pack("main", "uid-1", SHARES)
    (tmp_path / "config").write_bytes(packed)
    shown = subprocess.run([reader, tmp_path / "config"], check=True, capture_output=True, text=True).stdout
    assert shown.splitlines() == [
        "FGCONFG 1 4048 0 main uid-1 /run/vcuda/ledger /run/fairgpu/usage",
        f"GPU-a /etc/vcuda/schedule {100 << 20} 0 0 {2**64 - 1} 0 30 0 1",
        f"GPU-b /etc/vcuda/schedule.1 {80000 << 20} 0 0 7 63 0 2 0",
        f"{zlib.crc32(packed[:-4])} {config_file.DEVICES} {4 << 20}",
    ]


@pytest.mark.parametrize(
    ("container", "devices", "text"),
    [
        ("c" * 64, SHARES, "the container's name has 64 bytes; at most 63"),
        ("main", [], "1 to 16 devices, not 0"),
        ("main", SHARES * 9, "1 to 16 devices, not 18"),
        ("main", [ConfigDevice("u" * 48, 1, 1, Policy.HARD, 1, 0, 1)], "a uuid has 48 bytes"),
        ("main", [ConfigDevice("GPU-a", 1 << 60, 1, Policy.HARD, 1, 0, 1)], "does not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(container: str, devices: list[ConfigDevice], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pack(container, "uid-1", devices)
