"""Turns: work for pods is done for a moment at a time, and for each account as much as for any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeVar

TURN_SECONDS: Final = 0.25
"""How long the other jobs are kept waiting: each pod takes a request or two, and there may be thousands."""

Item = TypeVar("Item")


def in_turns(queues: Mapping[str, Sequence[Item]]) -> Iterator[tuple[str, Item]]:
    """The first of each account, then the next of each: the thousands of one keep nobody waiting."""
    named = ([(name, item) for item in queue] for name, queue in queues.items())
    for row in zip_longest(*named):
        yield from (found for found in row if found is not None)
