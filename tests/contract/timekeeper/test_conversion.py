"""A store of format 1 is converted by the first leader that knows the present one, whenever that one is killed."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.keeper_stage import Stage
from timekeeper.audit.auditing import Question, Surroundings, audit
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.jobs.round.keeper import Keeper
from timekeeper.rest.usage.finding import find
from timekeeper.rest.usage.query import Query
from timekeeper.store import keys, reading
from timekeeper.store.calls import StoreError
from timekeeper.store.ledger import take_epoch
from timekeeper.store.usage_reading import accounts_usage
from timekeeper.usage.parts import parse_part
from timekeeper.usage.windows import Window

STORE: dict[str, Any] = json.loads((Path(__file__).parent / "stores" / "format_1.json").read_text())
"""A store as the code of format 1 left it after twelve days: its keys, what it told of use, and the world around it."""


class KilledError(BaseException):
    """The leader ends here."""


@pytest.fixture
def old_store(stage: Stage) -> Stage:
    fill(stage.client)
    for name, text in STORE["world"].items():
        (stage.folder / name).parent.mkdir(exist_ok=True)
        (stage.folder / name).write_text(text)
    stage.now = STORE["now"]
    return stage


def fill(client: redis.Redis) -> None:
    """Writes the old store's keys."""
    for key, (kind, content) in STORE["keys"].items():
        name = stored(key)
        if kind == "string":
            client.set(name, stored(content))
        elif kind == "hash":
            client.hset(name, mapping={stored(field): stored(value) for field, value in content.items()})
        elif kind == "set":
            client.sadd(name, *map(stored, content))
        elif kind == "zset":
            client.zadd(name, {stored(member): score for member, score in content})
        else:
            for entry, fields in content:
                client.xadd(name, {stored(field): stored(value) for field, value in fields.items()}, id=entry)


def stored(text: str) -> bytes:
    return text.encode("latin-1")


def usage(client: redis.Redis) -> dict[str, list[Any]]:
    """What is told of each account's use, as the old store's code told it."""
    found = accounts_usage(client, reading.account_names(client), reading.assignments(client))
    return {
        each.account: sorted([row.hour, row.hours, list(row.dimensions[:5]), list(row.figures)] for row in each.rows())
        for each in found
    }


def check_converted(stage: Stage) -> None:
    """Nothing is left in the old format, everything is told as before, and the books are right."""
    assert usage(stage.client) == STORE["usage"]
    assert stage.client.get(keys.BOOK_FORMAT) == b"2"
    assert not stage.client.exists(keys.BOOK_CONVERTING)
    for name in reading.account_names(stage.client):
        account = keys.AccountKeys(name)
        assert not stage.client.exists(account.hours)
        assert all(parse_part(part) is not None for part in stage.client.hkeys(account.folded))
    around = Surroundings(stage.client, lambda: None, lambda: stage.now, lambda _: False)
    assert audit(around, Question(patience_seconds=0)).differences == ()


def test_an_old_store_tells_the_same_once_a_leader_has_taken_it_over(old_store: Stage) -> None:
    old_store.lead()
    old_store.round()
    check_converted(old_store)
    old_store.round(3600)
    assert (
        audit(
            Surroundings(old_store.client, lambda: None, lambda: old_store.now, lambda _: False),
            Question(patience_seconds=0),
        ).differences
        == ()
    )


def test_a_leader_that_is_killed_at_any_step_leaves_the_rest_to_the_next_one(old_store: Stage) -> None:
    for survived in count():
        old_store.client.flushall()
        fill(old_store.client)
        left = iter(range(survived))

        def step(name: str, left: Any = left) -> None:
            if name.startswith("convert") and next(left, None) is None:
                raise KilledError

        old_store.lead(step=step)
        try:
            old_store.round()
        except KilledError:
            assert old_store.client.get(keys.BOOK_FORMAT) == b"2"
            old_store.lead()
            old_store.round()
            check_converted(old_store)
        else:
            assert survived > len(STORE["usage"])
            return


def test_a_question_that_comes_before_its_account_is_converted_is_refused_and_never_answered_in_part(
    old_store: Stage,
) -> None:
    take_epoch(old_store.client, 0)
    with pytest.raises(StoreError, match="being converted: ask again"):
        usage(old_store.client)


def test_a_store_that_went_back_to_its_old_format_is_converted_again(old_store: Stage) -> None:
    old_store.lead()
    old_store.round()
    keeper = old_store.keeper
    assert keeper is not None
    old_store.client.flushall()
    fill(old_store.client)
    Keeper(old_store.client, old_store.source, KeeperRules(), keeper.epoch).round(old_store.now)
    check_converted(old_store)


def test_a_store_of_a_later_format_is_left_to_later_timekeepers(old_store: Stage) -> None:
    old_store.client.set(keys.BOOK_FORMAT, "3")
    with pytest.raises(StoreError, match="is of format 3, and this timekeeper knows formats up to 2"):
        take_epoch(old_store.client, 0)
    with pytest.raises(StoreError, match="is of format 3, and this timekeeper knows formats up to 2"):
        find(old_store.client, Query(Window(0, old_store.now), None, ("namespace",), 10), old_store.now)
