from __future__ import annotations

import redis

from timekeeper.api.application import follow
from timekeeper.ledger.reading import Changes, Cursor


def test_the_states_are_asked_for_again_whatever_the_store_answers() -> None:
    found = Changes(Cursor("e", 1), full=True, states=(), prices={}, default="open")
    answers: list[Changes | Exception] = [redis.ConnectionError("away"), TypeError("half a document"), found]
    delivered: list[Changes] = []

    def read(_since: Cursor | None) -> Changes | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    follow(read, delivered.append, lambda _seconds: not answers)
    assert delivered == [found]
