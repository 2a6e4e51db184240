from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import BudgetState, NamespaceState, decode_document, encode_state
from tests.support.waiting import LIMIT_S
from timekeeper.api.states_feed import CursorError, StatesFeed, parse_cursor
from timekeeper.ledger.reading import Changes, Cursor


def state(namespace: str, remaining: int = 5, budget: str = "b") -> NamespaceState:
    return NamespaceState(namespace, budget, BudgetState.OPEN, 10**18 - 1, remaining, 1_000_000)


def changes(version: int, *states: NamespaceState, full: bool = False, store_id: str = "e1") -> Changes:
    encoded = tuple((item.namespace, json.dumps(encode_state(item)).encode()) for item in states)
    return Changes(Cursor(store_id, version), full, encoded, {"*": 1.0, "A100": 2.5}, "unlimited")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


async def document_after(feed: StatesFeed, since: str | None, wait: float = 0.0) -> Any:
    body = await feed.answer(parse_cursor(since) if since else None, wait)
    assert body is not None
    return json.loads(body)


def test_without_a_cursor_everything_is_shown_at_once() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), state("b"), full=True))
        document = await document_after(feed, None, 60)
        assert (document["cursor"], document["full"]) == ("e1.3", True)
        assert document["prices"] == {"*": 1.0, "A100": 2.5}
        decoded = decode_document(document)
        assert {item.namespace: item.available for item in decoded.states} == {"a": 10**18 - 1, "b": 10**18 - 1}

    run(work())


def test_the_state_of_an_unused_default_budget_is_shown_where_there_is_one() -> None:
    async def work() -> None:
        feed = StatesFeed()
        unused = state("", budget="")
        feed.apply(replace(changes(3, full=True), unused=json.dumps(encode_state(unused)).encode()))
        assert decode_document(await document_after(feed, None)).unused == unused
        feed.apply(changes(4, full=True))
        assert "unused" not in await document_after(feed, None)

    run(work())


def test_with_a_cursor_only_what_changed_since_is_shown() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), state("b"), full=True))
        feed.apply(changes(4, state("b", 4)))
        feed.apply(changes(5, state("c")))
        document = await document_after(feed, "e1.3")
        assert not document["full"]
        assert {item["namespace"]: item["remaining"] for item in document["states"]} == {"b": "4", "c": "5"}

    run(work())


@pytest.mark.parametrize("since", ["e0.3", "e1.9"], ids=["of another epoch", "of a version that was lost"])
def test_everything_is_asked_to_a_cursor(since: str) -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), full=True))
        document = await document_after(feed, since)
        assert (document["full"], document["cursor"]) == (True, "e1.3")

    run(work())


def test_a_client_that_waits_is_shown_as_soon_as_something_changes() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), full=True))
        waiting = [asyncio.create_task(feed.answer(Cursor("e1", 3), 60)) for _ in range(50)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        feed.apply(changes(4, state("a", 1)))
        bodies = await asyncio.gather(*waiting)
        assert len({id(body) for body in bodies}) == 1, "serialised once for all"

    run(work())


def test_a_client_that_waits_in_vain_is_shown_that_nothing_changed() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), full=True))
        document = await document_after(feed, "e1.3", 0.01)
        assert (document["cursor"], document["full"], document["states"]) == ("e1.3", False, [])

    run(work())


def test_a_cursor_from_a_worker_that_knows_more_waits_for_this_one_to_catch_up() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), full=True))
        waiting = asyncio.create_task(document_after(feed, "e1.4", 60))
        await asyncio.sleep(0)
        feed.apply(changes(4, state("a", 1)))
        await asyncio.sleep(0)
        feed.apply(changes(5, state("b")))
        document = await waiting
        assert [item["namespace"] for item in document["states"]] == ["b"]

    run(work())


def test_everybody_is_answered_when_the_worker_is_to_end() -> None:
    async def work() -> None:
        feed = StatesFeed()
        feed.apply(changes(3, state("a"), full=True))
        waiting = asyncio.create_task(document_after(feed, "e1.3", 60))
        await asyncio.sleep(0)
        feed.end()
        assert (await waiting)["states"] == []

    run(work())


def test_before_any_state_is_known_there_is_no_answer() -> None:
    async def work() -> None:
        assert await StatesFeed().answer(None, 0.01) is None

    run(work())


@pytest.mark.parametrize("text", ["", "e1", "e1.", ".3", "e1.-1", "e1.1e3", "e1.٣", "x" * 90 + ".1"])
def test_a_text_is_no_cursor(text: str) -> None:
    with pytest.raises(CursorError):
        parse_cursor(text)


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=4), max_size=12), st.data())
def test_a_client_that_follows_at_any_pace_ends_with_the_same_states(
    batches: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    async def work() -> None:
        feed, truth, seen = StatesFeed(), dict[str, str](), dict[str, str]()
        feed.apply(changes(0, full=True))
        since = "e1.0"
        for version, batch in enumerate([*batches, []], start=1):
            latest = dict(batch)
            truth |= {name: str(value) for name, value in latest.items()}
            feed.apply(changes(version, *(state(name, value) for name, value in latest.items())))
            if version > len(batches) or data.draw(st.booleans()):
                document = await document_after(feed, since)
                seen |= {item["namespace"]: item["remaining"] for item in document["states"]}
                since = document["cursor"]
        assert seen == truth

    run(work())
