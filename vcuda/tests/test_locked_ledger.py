"""A process stopped under the ledger's lock delays the container's other processes, and loses nothing of theirs."""

import subprocess

from node import BUILD, MIB, Container, Node, Share

LATE = {
    "freed": (64, 0, 0),
    "grown": (0, 56, 0),
    "asked": (64, 128, 0),
    "shared": (64, 0, 64),
}
"""MiB by case: charged while the ledger is locked, afterwards, and then unsettled; of what others may have open, this
process's charge before and afterwards, and the container's."""


def late_charges(container: Container) -> dict[str, tuple[int, ...]]:
    """Runs the cases in a program that has the shim's functions linked in."""
    given = {name: value for name, value in container.environment().items() if name != "LD_PRELOAD"}
    program = str(BUILD / "tests" / "unit" / "late_charges")
    done = subprocess.run([program], env=given, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name: tuple(int(figure) for figure in figures) for name, *figures in rows}


def test_figures_that_a_process_could_not_write_while_the_ledger_was_locked_are_written_afterwards(node: Node) -> None:
    container = node.container("a", Share(memory=128 * MIB))
    assert late_charges(container) == LATE
    assert container.charged() == 64 * MIB, "what others may have open; its last discharge was written as it ended"
    assert container.living() == 0
