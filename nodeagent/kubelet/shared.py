"""One answer for all who ask the same question while an earlier one is on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Asks one question at a time. An answer serves all callers that came before its question was sent."""

    def __init__(self, ask: Callable[[], T]) -> None:
        """Begins without an answer; `ask` sends the question and returns its answer.

        An exception of `ask` reaches the caller whose question it was; the others ask again.
        """
        self._ask = ask
        self._changed = threading.Condition()
        self._sent = 0
        """The number of questions that were sent; one that is on its way has this number."""
        self._answers: list[tuple[int, T]] = []
        """The number and the answer of the last question that was answered; empty before the first."""
        self._asking = False

    def answer(self) -> T:
        """Returns the answer to a question that was sent after this call began."""
        with self._changed:
            wanted = self._sent + 1
            while True:
                if self._answers and self._answers[0][0] >= wanted:
                    return self._answers[0][1]
                if not self._asking:
                    break
                self._changed.wait()
            self._asking = True
            self._sent = number = self._sent + 1
        try:
            answer = self._ask()
            with self._changed:
                self._answers = [(number, answer)]
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()
        return answer
