"""Questions that are asked at the same time share an answer, and never one that was sent before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from nodeagent.kubelet.pod_resources import Shared
from tests.support.waiting import LIMIT_S, wait_until


class Server:
    """It answers with the number of the question, once a test lets it."""

    def __init__(self) -> None:
        self.asked = 0
        self.lets: queue.Queue[None] = queue.Queue()
        self.shared = Shared(self.ask)
        self.answers: list[int] = []
        self.threads: list[threading.Thread] = []

    def ask(self) -> int:
        self.asked += 1
        number = self.asked
        self.lets.get(timeout=LIMIT_S)
        return number

    def call(self) -> None:
        """Has one more caller ask, and returns once it waits."""
        ready = threading.Event()

        def called() -> None:
            ready.set()
            self.answers.append(self.shared.answer())

        thread = threading.Thread(target=called)
        self.threads.append(thread)
        thread.start()
        ready.wait(LIMIT_S)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    for _ in server.threads:
        server.lets.put(None)
    for thread in server.threads:
        thread.join(LIMIT_S)


def test_all_who_come_while_a_question_is_on_its_way_share_the_next_answer(server: Server) -> None:
    server.call()
    wait_until(lambda: server.asked == 1, "the first question is on its way")
    for _ in range(20):
        server.call()
    wait_until(lambda: len(server.shared._changed._waiters) == 20, "all wait")  # type: ignore[attr-defined]
    server.lets.put(None)
    wait_until(lambda: server.asked == 2, "the question of the others is on its way")
    server.lets.put(None)
    wait_until(lambda: len(server.answers) == 21, "all have an answer")
    assert sorted(server.answers) == [1, *[2] * 20]


def test_one_who_comes_later_asks_anew(server: Server) -> None:
    for number in (1, 2):
        server.lets.put(None)
        assert server.shared.answer() == number


def test_a_question_that_fails_bars_no_other() -> None:
    def fails() -> int:
        raise ZeroDivisionError

    shared = Shared(fails)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shared.answer()
