"""The Python side of the schedule page against the C header, as the compiler lays it out."""

import subprocess
from pathlib import Path

import pytest

from nodeagent import schedule_page as page
from nodeagent import turns

HEADERS = Path(__file__).parents[3] / "vcuda" / "include"

PROGRAM = """
#include <stdio.h>
#include "config.h"
#include "schedule.h"
#define SAY(name, value) printf("%s %llu\\n", name, (unsigned long long)(value))
int main(void)
{
    SAY("size", sizeof(struct vcuda_schedule));
    SAY("version", VCUDA_SCHEDULE_VERSION);
    SAY("slots", VCUDA_SCHEDULE_SLOTS);
    SAY("turns", VCUDA_SCHEDULE_TURNS);
    SAY("generation_at", offsetof(struct vcuda_schedule, generation));
    SAY("checked_from", offsetof(struct vcuda_schedule, heartbeat_ns));
    SAY("epoch_at", offsetof(struct vcuda_schedule, epoch_ns));
    SAY("uuid_at", offsetof(struct vcuda_schedule, uuid));
    SAY("slots_at", offsetof(struct vcuda_schedule, slots));
    SAY("turns_at", offsetof(struct vcuda_schedule, turns));
    SAY("slot_size", sizeof(struct vcuda_slot));
    SAY("core_at", offsetof(struct vcuda_slot, core_percent));
    SAY("trim_at", offsetof(struct vcuda_slot, trim_permille));
    SAY("gone_at", offsetof(struct vcuda_slot, dead_gone_ns));
    SAY("turn_size", sizeof(struct vcuda_turn));
    SAY("active", VCUDA_SLOT_ACTIVE);
    SAY("notice", VCUDA_SLOT_NOTICE);
    SAY("stale_after", VCUDA_STALE_NS);
    SAY("period", VCUDA_PERIOD_NS);
    SAY("ledger_magic", VCUDA_LEDGER_MAGIC);
    SAY("ledger_version", VCUDA_LEDGER_VERSION);
    SAY("ledger_devices_at", offsetof(struct vcuda_ledger_public, devices));
    SAY("ledger_devices", VCUDA_MAX_DEVICES);
    SAY("activity_size", sizeof(struct vcuda_activity));
    SAY("overrun_at", offsetof(struct vcuda_activity, overrun_ns));
    SAY("wanted_at", offsetof(struct vcuda_activity, sample_wanted_ns));
    SAY("hard", VCUDA_POLICY_HARD);
    SAY("elastic", VCUDA_POLICY_ELASTIC);
    SAY("best_effort", VCUDA_POLICY_BEST_EFFORT);
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(PROGRAM)
    build = ["cc", "-std=c11", f"-I{HEADERS}", str(folder / "layout.c"), "-o", str(folder / "layout")]
    subprocess.run(build, check=True)
    lines = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def test_python_and_c_agree_on_the_layout(compiled: dict[str, int]) -> None:
    assert compiled == {
        "size": page.SIZE,
        "version": page.VERSION,
        "slots": page.SLOTS,
        "turns": page.TURNS,
        "generation_at": page.GENERATION_AT,
        "checked_from": page.CHECKED_FROM,
        "epoch_at": page.HEAD.size + 16,
        "uuid_at": page.HEAD.size + page.BODY.size - page.UUID_SIZE,
        "slots_at": page.HEAD.size + page.BODY.size,
        "turns_at": page.HEAD.size + page.BODY.size + page.SLOTS * page.SLOT.size,
        "slot_size": page.SLOT.size,
        "core_at": 40,
        "trim_at": 56,
        "gone_at": 64,
        "turn_size": page.TURN.size,
        "active": page.SLOT_ACTIVE,
        "notice": page.SLOT_NOTICE,
        "stale_after": page.STALE_AFTER_NS,
        "period": turns.PERIOD_NS,
        "ledger_magic": page.LEDGER_MAGIC,
        "ledger_version": page.LEDGER_VERSION,
        "ledger_devices_at": page.LEDGER_DEVICES_AT,
        "ledger_devices": page.LEDGER_DEVICES,
        "activity_size": page.ACTIVITY.size,
        "overrun_at": 24,
        "wanted_at": 48,
        "hard": turns.Policy.HARD,
        "elastic": turns.Policy.ELASTIC,
        "best_effort": turns.Policy.BEST_EFFORT,
    }
