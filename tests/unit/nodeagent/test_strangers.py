"""Processes that use a GPU past the shim, from what NVML names and what ledgers know."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.strangers import (
    LEDGER_BYTES,
    MOST_SLOTS,
    SLOT_BYTES,
    SLOTS_AT,
    SLOTS_USED_AT,
    innermost_pid,
    pids_with_slots,
    strangers,
)

FREE, LIVE, DEAD = 0, 1, 2


def ledger(*slots: tuple[int, int], used: int | None = None) -> bytes:
    """A ledger with these slots: state and pid."""
    data = bytearray(LEDGER_BYTES)
    struct.pack_into("<Q", data, SLOTS_USED_AT, len(slots) if used is None else used)
    for number, slot in enumerate(slots):
        struct.pack_into("<QQ", data, SLOTS_AT + number * SLOT_BYTES, *slot)
    return bytes(data)


def test_processes_with_slots_are_the_living_and_those_just_ended() -> None:
    assert pids_with_slots(ledger((LIVE, 7), (FREE, 8), (DEAD, 9))) == {7, 9}


@given(st.binary(max_size=8000), st.integers(0, 2**64 - 1))
def test_no_ledger_is_too_strange_to_be_read(data: bytes, used: int) -> None:
    assert len(pids_with_slots(data)) <= MOST_SLOTS
    assert pids_with_slots(ledger((LIVE, 7), used=used)) <= {0, 7}


@pytest.mark.parametrize(
    ("status", "pid"),
    [
        ("Name:\tpython\nNSpid:\t4711\t7\n", 7),
        ("Name:\tNSpid: 3\nNSpid:\t4711\n", 4711),
        ("Name:\tpython\n", None),
        ("NSpid:\n", None),
    ],
)
def test_the_pid_in_a_processs_own_namespace_is_the_last_that_the_kernel_names(status: str, pid: int | None) -> None:
    assert innermost_pid(status) == pid


def test_strangers_are_the_containers_processes_that_its_ledger_does_not_know() -> None:
    slots = {100: 0, 101: 0, 102: 1, 103: None, 104: 0, 105: 2}
    innermost = {100: 1, 101: 2, 102: 1, 103: 9, 105: 5}
    known = {0: frozenset({1}), 1: frozenset({1})}
    assert strangers(slots, innermost, known) == {101}, "103 is in no container, 104 has ended, 2 has no ledger"
