"""Cycles are collected between rounds, and what lives for long is not walked through again and again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from timekeeper.controller.leader_tasks import THOROUGH_SECONDS, Collector


class RoundBrokeOffError(Exception):
    """Whatever ends a round."""


class Node:
    """May be part of a cycle."""

    itself: Node


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def cycle() -> weakref.ref[Node]:
    """A cycle that nothing else refers to."""
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_nothing_is_collected_during_a_round_and_something_after_it_even_where_it_fails() -> None:
    seen = []

    def fails() -> None:
        with Collector(lambda: 0.0).paused():
            seen.append(gc.isenabled())
            raise RoundBrokeOffError

    with pytest.raises(RoundBrokeOffError):
        fails()
    assert [*seen, gc.isenabled()] == [False, True]


def test_objects_that_live_after_a_round_are_not_walked_through_by_the_next_collection() -> None:
    kept: list[object] = []
    with Collector(lambda: 0.0).paused():
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= len(kept)


def test_a_cycle_that_was_alive_after_a_round_is_freed_within_the_hour() -> None:
    clock = [0.0]
    collector = Collector(lambda: clock[0])
    with collector.paused():
        there = cycle()
    gc.collect()
    assert there() is not None
    clock[0] = THOROUGH_SECONDS
    with collector.paused():
        pass
    assert there() is None
