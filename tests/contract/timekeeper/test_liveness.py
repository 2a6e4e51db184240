"""The leader's loop counts as alive while the store is slow, and not once it hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fairgpu.leadership import Term
from fairgpu.serving.process_probe import Progress
from tests.support.waiting import wait_until
from timekeeper.controller.leader_tasks import STUCK_SECONDS, LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.state.books import ControllerRules
from timekeeper.ledger.connection import connect
from timekeeper.settings import RedisSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.support.ledger.harness import LedgerHarness
    from tests.support.servers.redis_server import RedisServer

ANSWER_SECONDS = STUCK_SECONDS / 2


class Seconds:
    """A clock of the test's own."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def tasks_of(harness: LedgerHarness, client: redis.Redis, progress: Progress) -> LeaderTasks:
    """The tasks of a leader whose term lasts."""
    term = Term(lambda: 0.0)
    term.hold(1, 1000.0)
    environment = TaskEnvironment(client, harness.source, term, lambda: harness.now, progress=progress)
    return LeaderTasks(environment, ControllerRules(), JobMeasures())


def connected(server: RedisServer, answered: Callable[[], None]) -> redis.Redis:
    return connect(RedisSettings(url=server.url), answered)


def test_a_store_that_takes_long_for_each_of_many_answers_ends_no_leader(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.source.refresh()
    clock = Seconds()
    progress = Progress(STUCK_SECONDS, clock)
    found: list[bool] = []

    def answer_late() -> None:
        clock.now += ANSWER_SECONDS
        found.append(progress.lasts())
        progress.answered()

    with connected(redis_server, answer_late) as client:
        tasks = tasks_of(harness, client, progress)
        tasks.settle()
    assert tasks.books() is not None, "it has settled"
    assert clock.now > 3 * STUCK_SECONDS, "the task took longer than the bound"
    assert all(found)


def test_a_leader_that_hangs_in_a_task_counts_as_stuck(harness: LedgerHarness, redis_server: RedisServer) -> None:
    harness.source.refresh()
    clock = Seconds()
    progress = Progress(STUCK_SECONDS, clock)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait()

    with connected(redis_server, hang) as client:
        thread = threading.Thread(target=tasks_of(harness, client, progress).settle)
        thread.start()
        try:
            wait_until(hangs.is_set, "the task hangs")
            clock.now += STUCK_SECONDS
            assert not progress.lasts()
        finally:
            goes_on.set()
            thread.join()
    assert progress.lasts(), "the task has ended"
