"""Finds the answer to a question about use in the store.

A page by namespace or budget is found by reading no more accounts than it takes, since these come in the order of the
keys. Any other page needs all accounts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

READ_AT_ONCE = 500
"""Accounts that are read in one round trip."""
STEPS_IN_ORDER = 3
"""Steps that are looked through one by one; where even these do not fill a page, all the rest is read at once."""

Groups = Sequence[tuple[str, Sequence[str]]]
"""In order, each first value that a key may have, and the accounts that may have it."""


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
    assignments = reading.assignments(client)
    if query.namespace is not None:
        assignments = {query.namespace: assignments.get(query.namespace, ())}
    reader = _Reader(client, query, cut, assignments)
    groups = _groups(client, query, assignments)
    found = reader.in_order(groups) if groups is not None else None
    if found is None:
        found = reader.everything()
        if query.idle:
            points = capacity(client)
            add_idle(found, [capacity_of(points, step, now) for step in cut.windows], len(query.aggregate))
    items, last = page(found, cut, query.after, query.limit)
    return Usage(query, items, None if last is None else cursor_of(last))


class _Reader:
    """Reads accounts and adds up what they hold."""

    def __init__(self, client: redis.Redis, query: Query, cut: Steps, assignments: Mapping[str, Assignments]) -> None:
        self._client = client
        self._query = query
        self._steps = cut
        self._assignments = assignments
        self._only = None if query.namespace is None else frozenset({query.namespace})

    def everything(self) -> dict[Place, Figures]:
        """All that the window holds."""
        sums: dict[Place, Figures] = {}
        accounts = {account for known in self._assignments.values() for _, account in known}
        self._add(sums, sorted(accounts), self._query.window, self._only)
        return sums

    def in_order(self, groups: Groups) -> dict[Place, Figures] | None:
        """What fills a page and at least one place more; None where that is not to be had by looking in order."""
        after, limit = self._query.after, self._query.limit
        first = 0 if after is None else after[0]
        sums: dict[Place, Figures] = {}
        for index in range(first, min(first + STEPS_IN_ORDER, len(self._steps.windows))):
            begin = 0 if after is None or index > first else bisect_left(groups, order(after[1][0]), key=_group_order)
            for names, accounts in _batches(groups[begin:]):
                self._add(sums, accounts, self._steps.windows[index], names)
                if sum(is_after(place, after) for place in sums) > limit:
                    return sums
        return sums if first + STEPS_IN_ORDER >= len(self._steps.windows) else None

    def _add(
        self, sums: dict[Place, Figures], accounts: Sequence[str], within: Window, values: frozenset[str] | None
    ) -> None:
        by_budget = self._query.aggregate[0] == "budget"
        for start in range(0, len(accounts), READ_AT_ONCE):
            chunk = accounts[start : start + READ_AT_ONCE]
            for found in accounts_usage(self._client, chunk, self._assignments, within):
                only = self._only if by_budget else values
                add_rows(sums, found.rows, found.account, self._steps, self._query.aggregate, only)


def _groups(client: redis.Redis, query: Query, assignments: Mapping[str, Assignments]) -> Groups | None:
    if query.idle or query.aggregate[0] not in {"namespace", "budget"}:
        return None
    if query.aggregate[0] == "budget":
        names = {account for known in assignments.values() for _, account in known}
        return [(name, (name,)) for name in sorted(names, key=order)]
    groups = {name: [account for _, account in known] for name, known in assignments.items()}
    if query.namespace is None:
        groups[UNKNOWN] = restored(client)
    return [(name, groups[name]) for name in sorted(groups, key=order)]


def _group_order(group: tuple[str, Sequence[str]]) -> tuple[bool, str]:
    return order(group[0])


def _batches(groups: Groups) -> Iterator[tuple[frozenset[str], list[str]]]:
    """Groups that are read together: their values, and all their accounts once each."""
    for start in range(0, len(groups), READ_AT_ONCE):
        chunk = groups[start : start + READ_AT_ONCE]
        yield frozenset(name for name, _ in chunk), _distinct(account for _, names in chunk for account in names)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
