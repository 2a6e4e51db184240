"""The simulated GPU is honest enough to fail a pacer that is wrong: one that trusts the spans of its own work."""

import subprocess
import sys

import pytest
from node import BUILD, Node, ended, give_line, until

sys.path.append(str(BUILD.parent / "bench"))
import virtual_shares
from shares import work_done

SECONDS = 2
PROMISED = {"thirty": 30, "seventy": 70}


def percent_by(pacer: str, node: Node) -> dict[str, float]:
    """Returns the shares of two processes that pace themselves, without the shim, on a clock that only they move."""
    clock = node.folder / "clock"
    node.driver, node.settings = BUILD / "simgpu" / "12", {"SIMGPU_CALL_COSTS": "1"}
    started: list[subprocess.Popen[str]] = []
    for name in PROMISED:
        container = node.container(name)
        container.settings = {"VIRTUAL_TIME": str(clock), "LD_PRELOAD": str(virtual_shares.LIBRARY)}
        started.append(container.start("../simgpu/tests/pacers", pacer, str(SECONDS), name))
    first, second = started
    with ended(first), ended(second):
        # A program that waits for its line stops the clock.
        until(lambda: len(virtual_shares.on_the_clock(clock)) == len(PROMISED))
        for program in started:
            give_line(program)
        answers = [program.communicate(timeout=240) for program in started]
    assert answers == [("", "")] * len(PROMISED)
    return {name: done / SECONDS / 1e7 for name, done in work_done(node).items()}


@pytest.mark.parametrize("library", ["libvcuda.so.1", "testing/libvcuda.so.1"])
def test_the_shim_knows_nothing_of_the_simulated_gpu_nor_of_its_truth(library: str) -> None:
    text = (BUILD / library).read_bytes().lower()
    assert b"simgpu" not in text
    assert b"truth" not in text


def test_a_pacer_that_trusts_the_spans_of_its_work_gets_a_tenth_too_little(node: Node) -> None:
    got = percent_by("spans", node)
    assert 15 < got["thirty"] < 24, got
    assert 50 < got["seventy"] < 64, got


def test_a_pacer_that_keeps_to_turns_by_the_clock_gets_what_was_promised(node: Node) -> None:
    assert percent_by("turns", node) == pytest.approx(PROMISED, abs=3)
