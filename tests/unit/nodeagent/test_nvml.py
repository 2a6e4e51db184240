"""Processes that use a GPU past the shim, from what NVML names and what ledgers list."""

import pytest

from nodeagent.nvml import living_pids, unregistered
from nodeagent.processes import own_pid_of


@pytest.mark.parametrize(
    ("status", "pid"),
    [
        (b"Name:\tpython\nNSpid:\t4711\t7\n", 7),
        (b"Name:\tNSpid: 3\nNSpid:\t4711\n", 4711),
        (b"Name:\tpython\n", None),
        (b"NSpid:\n", None),
    ],
)
def test_the_pid_in_a_processs_own_namespace_is_the_last_that_the_kernel_names(status: bytes, pid: int | None) -> None:
    if pid is None:
        with pytest.raises(ValueError, match="NSpid"):
            own_pid_of(status)
    else:
        assert own_pid_of(status) == pid


def test_processes_of_a_container_that_its_ledger_does_not_list_are_unregistered() -> None:
    slots = {100: 0, 101: 0, 102: 1, 103: None, 104: 0, 105: 2}
    own = {100: 1, 101: 2, 102: 1, 103: 9, 105: 5}
    registered = {0: frozenset({1}), 1: frozenset({1})}
    assert unregistered(slots, own, registered) == {101}, "103 is in no container, 104 has ended, 2 has no ledger"


def test_processes_are_living_that_their_own_containers_ledger_lists_as_living() -> None:
    slots = {100: 0, 101: 0, 102: 1, 103: None, 104: 0}
    own = {100: 1, 101: 2, 102: 1, 103: 1}
    assert living_pids(slots, own, {0: frozenset({1, 5})}) == {100}, "1 has no ledger, 104 has ended"
