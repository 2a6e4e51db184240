"""Turns on a model of a GPU: contexts share it slice by slice, and kernels run on past the end of a turn.

Everybody always has work queued and launches it as the shim does: in its turn, one kernel or 2 ms of work ahead, the
last one when at least half of it fits.
"""

from collections import deque
from dataclasses import dataclass, field

import pytest

from nodeagent.rounds import Container, State, step
from nodeagent.schedule_page import Activity
from nodeagent.turns import PERIOD_NS, Plan, Policy

MS = 1_000_000
TICK = MS // 10
LOOK = 10 * MS
START = 1_000 * PERIOD_NS
HARD, ELASTIC, BEST_EFFORT = Policy


@dataclass
class Program:
    """A container's process with kernels of one length; what is left of each kernel that it has queued."""

    slot: int
    kernel: int
    queue: deque[int] = field(default_factory=deque)
    activity: Activity = field(default_factory=Activity)
    had: int = 0

    def launch(self, made: Plan, phase: int) -> None:
        """Queues what may be queued now."""
        ends = [turn.end_ns for turn in made.turns if turn.slot == self.slot and turn.start_ns <= phase < turn.end_ns]
        per_period = made.granted_ns(self.slot)
        while ends and (not self.queue or (len(self.queue) + 1) * self.kernel <= 2 * MS):
            fits = len(self.queue) * self.kernel + self.kernel // 2 <= ends[0] - phase
            if not fits and self.kernel < per_period < PERIOD_NS:
                break
            self.queue.append(self.kernel)

    def run(self, *, in_turn: bool) -> None:
        """One tick of the GPU is this program's."""
        self.had += TICK
        self.queue[0] -= TICK
        overrun = 0 if in_turn else TICK
        self.activity = self.activity._replace(
            busy_ns=self.activity.busy_ns + TICK, overrun_ns=self.activity.overrun_ns + overrun
        )
        if self.queue[0] <= 0:
            self.queue.popleft()


def shares(seconds: float, *containers: tuple[int, Policy, float]) -> list[float]:
    """Percent of the time that each (core, policy, kernel in ms) gets of one GPU."""
    listed = tuple(Container(i, i + 1, core, policy, "ledger") for i, (core, policy, _) in enumerate(containers))
    programs = [Program(i, int(kernel * MS)) for i, (_, _, kernel) in enumerate(containers)]
    state, current = State(START), 0
    made: Plan | None = None
    for now in range(START, START + int(seconds * 1_000 * MS), TICK):
        if made is None or (now - START) % LOOK == 0:
            activity = {each.slot: each.activity._replace(activity_ns=now, waiting_ns=now) for each in programs}
            state, made = step(state, listed, activity, now)
        phase = (now - state.period_start_ns) % PERIOD_NS
        for program in programs:
            program.launch(made, phase)
        ready = [each.slot for each in programs if each.queue]
        if ready:
            if current not in ready or (now - START) % MS == 0:
                current = min(ready, key=lambda slot: (slot - current - 1) % len(programs))
            in_turn = any(turn.slot == current and turn.start_ns <= phase < turn.end_ns for turn in made.turns)
            programs[current].run(in_turn=in_turn)
    return [each.had / (seconds * 1_000 * MS) * 100 for each in programs]


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([(30, HARD, 1), (70, HARD, 1)], [30, 70]),
        ([(50, HARD, 3), (50, HARD, 0.5)], [50, 50]),
        ([(10, HARD, 0.5), (20, HARD, 2), (70, HARD, 5)], [10, 20, 70]),
        ([(10, HARD, 5), (20, HARD, 5), (70, HARD, 5)], [10, 20, 70]),
        ([(30, HARD, 5)], [30]),
        ([(30, ELASTIC, 1)], [100]),
        ([(30, ELASTIC, 2), (50, HARD, 2)], [50, 50]),
    ],
)
def test_everybody_gets_their_share_to_two_points(
    containers: list[tuple[int, Policy, float]], expected: list[float]
) -> None:
    assert shares(1.5, *containers) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("kernel", [1, 5, 10])
def test_eight_best_effort_containers_leave_a_hard_one_its_share(kernel: float) -> None:
    assert shares(3, (70, HARD, 1), *[(0, BEST_EFFORT, kernel)] * 8)[0] >= 68


def test_kernels_longer_than_a_turn_are_paid_back() -> None:
    assert shares(4, (30, HARD, 20), (70, HARD, 20)) == pytest.approx([30, 70], abs=5)
