"""Memory that its maker freed and others may have open stays charged for a while, and takes little of the ledger.

On a clock that only the program moves, which a sanitizer's allocator would read under its own locks: not under those.
"""

from pathlib import Path

from node import MIB, OUT_OF_MEMORY, Node, Share

CONTEXT = 256 * MIB


def freed_after_sharing(folder: Path, times: int) -> list[str]:
    """The lines by which an actor frees so many allocations of 2 MiB that others may have open."""
    return [f"alloc m {2 * MIB}", f"ipcget m {folder / 'handle'}", "free m"] * times


def test_freed_shared_memory_stays_charged_for_five_seconds_where_no_node_says_more(node: Node) -> None:
    container = node.container("a")
    container.put_on_a_virtual_clock()
    fit = (1024 * MIB - CONTEXT) // (2 * MIB)
    again = ["sleep 4900", f"alloc n {2 * MIB}", "sleep 200", f"alloc n {2 * MIB}"]
    answers = container.run("init", "ctx", *freed_after_sharing(node.folder, fit), *again)
    results = [answer[0] for answer in answers]
    assert results == [0] * (2 + 3 * fit) + [0, OUT_OF_MEMORY, 0, 0]


def test_freed_shared_memory_takes_one_slot_of_the_ledger_for_all_of_a_moment(node: Node) -> None:
    container = node.container("a", Share(memory=8192 * MIB))
    container.put_on_a_virtual_clock()
    moment = ["sleep 150", *freed_after_sharing(node.folder, 100)]
    answers = container.run("init", "ctx", *freed_after_sharing(node.folder, 100), *moment, "sleep 150", *moment)
    assert {answer[0] for answer in answers} == {0}
    assert container.slots_used() == 1 + 2


def test_memory_that_others_may_have_leaves_a_slot_for_the_next_program(node: Node) -> None:
    container = node.container("a", Share(memory=8192 * MIB))
    lines = freed_after_sharing(node.folder, 1500)
    assert {answer[0] for answer in container.run("init", "ctx", *lines)} == {0}
    assert container.run("init", "ctx") == [[0, 0, 0], [0, 0, 0]]
