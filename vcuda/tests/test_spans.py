"""What a container tells of its GPU time is what the GPU did."""

import sys
from contextlib import ExitStack
from pathlib import Path

from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, Container, Node, Share, ended, give_line, until

sys.path.append(str(BUILD.parent / "bench"))
sys.path.append(str(BUILD.parent.parent))
import virtual_shares
from shares import work_done

from nodeagent.schedule_page import LEDGER_PAGE_SIZE, Activity, unpack_activity

NEIGHBOURS = 6
"""Each has the GPU for 0.5 to 2 ms before the next; without them it goes to whoever launches at once."""


def told(container: Container) -> Activity:
    """What its ledger says of its first GPU."""
    with container.ledger.open("rb") as ledger:
        return unpack_activity(ledger.read(LEDGER_PAGE_SIZE))[0]


def asleep(clock: Path, count: int) -> bool:
    """True once so many of the threads on the clock wait for it."""
    return virtual_shares.on_the_clock(clock).count(virtual_shares.SLEEPING) >= count


def test_work_in_its_turn_is_no_overrun_though_others_had_the_gpu_when_the_container_first_launched(node: Node) -> None:
    page, clock = node.folder / "page", node.folder / "clock"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 5),), core=20))
    container = node.container("a", Share(core=20, schedule=str(page)))
    neighbours = [node.container(f"neighbour-{i}") for i in range(NEIGHBOURS)]
    for each in (container, *neighbours):
        libraries = [virtual_shares.LIBRARY] if each in neighbours else [virtual_shares.LIBRARY, each.library]
        each.settings |= {"VIRTUAL_TIME": str(clock), "LD_PRELOAD": ":".join(map(str, libraries))}
    with ExitStack() as ends:
        first = [ends.enter_context(ended(one.start("spin", "0.02", "5000", "1", "completed"))) for one in neighbours]
        program = ends.enter_context(ended(container.start("spin", "1", "100")))
        until(lambda: len(virtual_shares.on_the_clock(clock)) > NEIGHBOURS)  # whoever waits for its line stops it
        for one in first:
            give_line(one)
        until(lambda: asleep(clock, NEIGHBOURS))
        give_line(program)
        assert program.communicate(timeout=240)[1] == ""
    done_ns = work_done(node)["a"]
    activity = told(container)
    assert abs(activity.busy_ns - done_ns) < done_ns / 20
    assert activity.overrun_ns < done_ns / 50, "what it began before its turn ended, it ended soon after"
