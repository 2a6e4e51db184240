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
from timekeeper.rest.closed_days import ClosedDays
from timekeeper.rest.usage_query import Query, cursor_of
from timekeeper.rest.whole_usage import WholeUsage, payers
from timekeeper.rules.timestamps import DAY
from timekeeper.store import reading
from timekeeper.store.usage_reading import accounts_usage, capacity, restored
from timekeeper.usage.capacity import capacity_of
from timekeeper.usage.dimensions import UNKNOWN, asks_for_details
from timekeeper.usage.grouping import Item, Steps, Sums, order
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


def find(client: redis.Redis, query: Query, now: int, closed: ClosedDays | None = None) -> Usage:
    """Answers a question, asked at an instant, with the help of what is remembered of closed days.

    Raises:
        redis.RedisError: the store does not answer.
        StoreError: it refuses.
        FoldedHoursError: the steps cut what is kept as one.
    """
    cut = Steps(steps(query.window, query.step))
    found = _in_order(client, query, cut) if _comes_in_order(client, query) else None
    whole = found is None
    if found is None:
        found = _everything(client, query, Sums(cut, query.aggregate), now, closed)
    if query.idle:
        points = capacity(client)
        held = found if whole else _everything(client, query, Sums(cut, ()), now, closed)
        found.add_idle([capacity_of(points, step, now) for step in cut.windows], held)
    items, last = found.page(query.after, query.limit)
    return Usage(query, items, None if last is None else cursor_of(last))


def _comes_in_order(client: redis.Redis, query: Query) -> bool:
    """Whether a page can be found without reading all accounts.

    What nobody held is told of the same moment as all else where all of it is one page.
    """
    if query.aggregate[0] != "namespace" or query.namespace is not None:
        return False
    return not query.idle or reading.count_namespaces(client) > query.limit


def _everything(client: redis.Redis, query: Query, sums: Sums, now: int, closed: ClosedDays | None) -> Sums:
    """All that the window holds, added to the sums."""
    if query.namespace is not None:
        assignments = reading.assignments_of(client, [query.namespace])
        _add(client, sums, payers(assignments), assignments, query.window, frozenset({query.namespace}))
        return sums
    assignments = reading.assignments(client)
    accounts = payers(assignments)
    if closed is None or any(step.start % DAY for step in sums.steps.windows):
        _add(client, sums, accounts, assignments, query.window, None)
    else:
        WholeUsage(client, assignments, query.window, closed, now).add_to(sums)
    return sums


def _in_order(client: redis.Redis, query: Query, cut: Steps) -> Sums | None:
    """What fills a page and at least one place more; None where that is not to be had by looking in order."""
    after = query.after
    first = 0 if after is None else after[0]
    names = sorted([*reading.assigned_namespaces(client), UNKNOWN], key=order)
    sums = Sums(cut, query.aggregate)
    for index in range(first, min(first + STEPS_IN_ORDER, len(cut.windows))):
        begin = 0 if after is None or index > first else bisect_left(names, order(after[1][0]), key=order)
        while begin < len(names):
            missing = query.limit + 1 - sums.count(after)
            if missing <= 0:
                return sums
            chunk = names[begin : begin + max(min(missing, READ_AT_ONCE), LEAST_AT_ONCE)]
            begin += len(chunk)
            assignments = reading.assignments_of(client, chunk)
            accounts = payers(assignments)
            if UNKNOWN in chunk:
                accounts = sorted({*accounts, *restored(client)})
            _add(client, sums, accounts, assignments, cut.windows[index], frozenset(chunk))
    return sums if first + STEPS_IN_ORDER >= len(cut.windows) else None


def _add(
    client: redis.Redis,
    sums: Sums,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window,
    only: frozenset[str] | None,
) -> None:
    """Adds what accounts hold of a window; of these namespaces alone where some are named."""
    details = asks_for_details(sums.aggregate)
    for start in range(0, len(accounts), READ_AT_ONCE):
        chunk = accounts[start : start + READ_AT_ONCE]
        for found in accounts_usage(client, chunk, assignments, within, details=details):
            sums.add(found.account, found.put_down, only)
            sums.add(found.account, found.running, only)
