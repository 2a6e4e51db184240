"""The shim's processes as the agent reads them out of a ledger, against the C that writes it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from nodeagent.ledger_slots import (
    FREE,
    LIVE,
    MOST_SLOTS,
    SLOT_BYTES,
    SLOTS_AT,
    SLOTS_USED_AT,
    living,
    read_slots,
    registered,
)

VCUDA = Path(__file__).parents[3] / "vcuda"

LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include "ledger.h"
int main(void)
{
    printf("%zu %zu %zu %d %d", offsetof(struct ledger, slots_used), offsetof(struct ledger, slots),
           sizeof(struct ledger_slot), LEDGER_SLOTS, (int)SLOT_LIVE);
    return 0;
}
"""
WRITER = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "ledger.h"
static struct ledger ledger;
int main(int count, char **arguments)
{
    (void)count;
    ledger.public.magic = VCUDA_LEDGER_MAGIC;
    ledger.public.version = VCUDA_LEDGER_VERSION;
    ledger.slots_used = 3;
    ledger.slots[0] = (struct ledger_slot){.state = SLOT_LIVE, .pid = 7, .start_time = 50};
    ledger.slots[1] = (struct ledger_slot){.state = SLOT_DEAD, .pid = 8, .start_time = 51};
    ledger.slots[2] = (struct ledger_slot){.state = SLOT_LIVE, .pid = 9, .start_time = 52};
    ledger.slots[3] = (struct ledger_slot){.state = SLOT_LIVE, .pid = 10, .start_time = 53};
    int file = open(arguments[1], O_WRONLY | O_CREAT, 0644);
    return write(file, &ledger, sizeof ledger) == sizeof ledger ? 0 : 1;
}
"""


def run(folder: Path, text: str, *arguments: str) -> str:
    (folder / "program.c").write_text(text)
    flags = ["-D_GNU_SOURCE", f"-I{VCUDA / 'include'}", f"-I{VCUDA / 'src' / 'ledger'}"]
    subprocess.run(["cc", *flags, folder / "program.c", "-o", folder / "program"], check=True)
    return subprocess.run([folder / "program", *arguments], check=True, capture_output=True, text=True).stdout


def test_the_layout_is_the_compilers(tmp_path: Path) -> None:
    known = SLOTS_USED_AT, SLOTS_AT, SLOT_BYTES, MOST_SLOTS, LIVE
    assert tuple(map(int, run(tmp_path, LAYOUT).split())) == known


def test_processes_that_live_have_slots_and_those_beyond_the_used_have_none(tmp_path: Path) -> None:
    run(tmp_path, WRITER, str(tmp_path / "ledger"))
    assert living(tmp_path / "ledger") == {(7, 50), (9, 52)}


def test_a_slot_is_listed_until_its_processs_end_is_settled(tmp_path: Path) -> None:
    run(tmp_path, WRITER, str(tmp_path / "ledger"))
    assert [slot.own_pid for slot in read_slots(tmp_path / "ledger")] == [7, 8, 9]


def test_no_number_of_used_slots_is_too_strange_to_be_read(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    run(tmp_path, WRITER, str(ledger))
    content = bytearray(ledger.read_bytes())
    for used in (0, 1, MOST_SLOTS, MOST_SLOTS + 1, 2**63, 2**64 - 1):
        struct.pack_into("<Q", content, SLOTS_USED_AT, used)
        ledger.write_bytes(content)
        assert [slot.own_pid for slot in read_slots(ledger)] == [7, 8, 9, 10][:used]


def test_a_file_that_is_no_ledger_lists_no_process(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert living(ledger) == frozenset()
    for content in (b"", bytes(4 << 20), b"\xff" * (4 << 20)):
        ledger.write_bytes(content)
        assert living(ledger) == frozenset()
    run(tmp_path, WRITER, str(tmp_path / "whole"))
    ledger.write_bytes((tmp_path / "whole").read_bytes()[: SLOTS_AT + SLOT_BYTES + 5])
    assert living(ledger) == {(7, 50)}
    ledger.unlink()
    ledger.symlink_to(tmp_path / "whole")
    assert living(ledger) == frozenset()


def test_a_ledger_is_full_when_each_of_its_slots_is_taken(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    run(tmp_path, WRITER, str(ledger))
    assert not registered(ledger).is_full
    with ledger.open("r+b") as file:
        file.seek(SLOTS_USED_AT)
        file.write(struct.pack("<Q", MOST_SLOTS))
        for slot in range(MOST_SLOTS):
            file.seek(SLOTS_AT + slot * SLOT_BYTES)
            file.write(struct.pack("<QQQ", LIVE, slot + 1, 50))
    assert registered(ledger).is_full
    assert len(registered(ledger).processes) == MOST_SLOTS
    with ledger.open("r+b") as file:
        file.seek(SLOTS_AT)
        file.write(struct.pack("<Q", FREE))
    assert not registered(ledger).is_full
