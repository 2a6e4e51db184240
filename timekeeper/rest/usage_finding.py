"""Finds the answer to a question about use in the store.

A page by namespace is found by reading no more accounts than it takes, since these come in the order of the keys. Any
other page needs all accounts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rest.usage_query import Query, cursor_of
from timekeeper.store import reading
from timekeeper.store.usage_reading import accounts_usage, capacity, restored
from timekeeper.usage.capacity import capacity_of
from timekeeper.usage.dimensions import UNKNOWN
from timekeeper.usage.grouping import Item, Place, Steps, add_idle, add_rows, is_after, order, page
from timekeeper.usage.rows import Figures
from timekeeper.usage.windows import Window, steps

READ_AT_ONCE = 1000
"""Accounts that are read in one round trip at most."""
LEAST_AT_ONCE = 50
STEPS_IN_ORDER = 3
"""Steps that are looked through one by one; where even these do not fill a page, all the rest is read at once."""


@dataclass(frozen=True, slots=True)
class Usage:
    """An answer; `following` is the cursor of the next page, None on the last one."""

    query: Query
    items: list[Item]
    following: str | None


def find(client: redis.Redis, query: Query, now: int) -> Usage:
    """Answers a question, asked at an instant.

    Raises:
        redis.RedisError: the store does not answer.
        StoreError: it refuses.
        FoldedHoursError: the steps cut what is kept as one.
    """
    cut = Steps(steps(query.window, query.step))
    found = None
    if query.aggregate[0] == "namespace" and query.namespace is None and not query.idle:
        found = _in_order(client, query, cut)
    if found is None:
        found = _everything(client, query, cut)
    if query.idle:
        points = capacity(client)
        add_idle(found, [capacity_of(points, step, now) for step in cut.windows], len(query.aggregate))
    items, last = page(found, cut, query.after, query.limit)
    return Usage(query, items, None if last is None else cursor_of(last))


def _everything(client: redis.Redis, query: Query, cut: Steps) -> dict[Place, Figures]:
    """All that the window holds."""
    if query.namespace is None:
        assignments = reading.assignments(client)
        only = None
    else:
        assignments = reading.assignments_of(client, [query.namespace])
        only = frozenset({query.namespace})
    reader = _Reader(client, query, cut)
    reader.add(_payers(assignments), assignments, query.window, only)
    return reader.sums


def _in_order(client: redis.Redis, query: Query, cut: Steps) -> dict[Place, Figures] | None:
    """What fills a page and at least one place more; None where that is not to be had by looking in order."""
    after = query.after
    first = 0 if after is None else after[0]
    names = sorted([*reading.assigned_namespaces(client), UNKNOWN], key=order)
    reader = _Reader(client, query, cut)
    for index in range(first, min(first + STEPS_IN_ORDER, len(cut.windows))):
        begin = 0 if after is None or index > first else bisect_left(names, order(after[1][0]), key=order)
        while begin < len(names):
            missing = query.limit + 1 - sum(is_after(place, after) for place in reader.sums)
            if missing <= 0:
                return reader.sums
            chunk = names[begin : begin + max(min(missing, READ_AT_ONCE), LEAST_AT_ONCE)]
            begin += len(chunk)
            assignments = reading.assignments_of(client, chunk)
            accounts = _payers(assignments)
            if UNKNOWN in chunk:
                accounts = sorted({*accounts, *restored(client)})
            reader.add(accounts, assignments, cut.windows[index], frozenset(chunk))
    return reader.sums if first + STEPS_IN_ORDER >= len(cut.windows) else None


class _Reader:
    """Reads accounts and adds up what they hold."""

    def __init__(self, client: redis.Redis, query: Query, cut: Steps) -> None:
        self._client = client
        self._query = query
        self._cut = cut
        self.sums: dict[Place, Figures] = {}

    def add(
        self,
        accounts: Sequence[str],
        assignments: Mapping[str, Assignments],
        within: Window,
        only: frozenset[str] | None,
    ) -> None:
        """Adds what accounts hold of a window; of these namespaces alone where some are named."""
        for start in range(0, len(accounts), READ_AT_ONCE):
            chunk = accounts[start : start + READ_AT_ONCE]
            for found in accounts_usage(self._client, chunk, assignments, within):
                add_rows(self.sums, found.rows, found.account, self._cut, self._query.aggregate, only)


def _payers(assignments: Mapping[str, Assignments]) -> list[str]:
    return sorted({account for known in assignments.values() for _, account in known})
