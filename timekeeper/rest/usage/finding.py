"""Finds the answer to a question about use in the store.

A page by namespace is found by reading no more accounts than it takes, since these come in the order of the keys. Any
other page needs all accounts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rest.usage.all_accounts import WholeUsage, payers
from timekeeper.rest.usage.closed_days import ClosedDays
from timekeeper.rest.usage.exported_months import ExportedMonths, held_before
from timekeeper.rest.usage.query import Query, cursor_of
from timekeeper.rules.timestamps import DAY
from timekeeper.store import reading
from timekeeper.store.conversion import check_format
from timekeeper.store.usage_reading import AccountUsage, View, accounts_usage, capacity, restored
from timekeeper.usage.capacity import capacity_of
from timekeeper.usage.dimensions import UNKNOWN, asks_for_details, asks_for_sums
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


def find(
    client: redis.Redis,
    query: Query,
    now: int,
    closed: ClosedDays | None = None,
    exported: ExportedMonths | None = None,
) -> Usage:
    """Answers a question, asked at an instant, with the help of what is remembered of closed days.

    What the store has forgotten is told from files, where there are any.

    Raises:
        MonthUnavailableError: such a file cannot be read.
        ProblemError: it would take too many of them.
        redis.RedisError: the store does not answer.
        StoreError: it refuses.
        FoldedHoursError: the steps cut what is kept as one.
    """
    check_format(client)
    cut = Steps(steps(query.window, query.step))
    if exported is not None and query.window.start < exported.kept_from(now):
        everything = partial(_everything_and_files, client, query, now, exported)
        found = None
    else:
        everything = partial(_everything, client, query, now, closed)
        found = _in_order(client, query, cut) if _comes_in_order(client, query) else None
    whole = found is None
    if found is None:
        found = everything(Sums(cut, query.aggregate))
    if query.idle:
        points = capacity(client)
        held = found if whole else everything(Sums(cut, ()))
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


def _everything_and_files(client: redis.Redis, query: Query, now: int, exported: ExportedMonths, sums: Sums) -> Sums:
    """All that the window holds and that files hold in place of what was forgotten, added to the sums."""
    only = None if query.namespace is None else frozenset({query.namespace})
    assignments = reading.assignments(client) if only is None else reading.assignments_of(client, sorted(only))
    before = exported.kept_from(now)
    held: set[tuple[str, str]] = set()
    for found in _read(client, payers(assignments), assignments, query.window, sums):
        sums.add(found.account, found.put_down, only)
        sums.add(found.account, found.running, only)
        held |= held_before(found.account, found.put_down, before)
    exported.add(sums, query.window, now, held, only)
    return sums


def _everything(client: redis.Redis, query: Query, now: int, closed: ClosedDays | None, sums: Sums) -> Sums:
    """All that the window holds, added to the sums."""
    if query.namespace is not None:
        assignments = reading.assignments_of(client, [query.namespace])
        _add(client, sums, payers(assignments), assignments, query.window, frozenset({query.namespace}))
        return sums
    assignments = reading.assignments(client)
    accounts = payers(assignments)
    if closed is None or _are_enough(sums) or any(step.start % DAY for step in sums.steps.windows):
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
    for found in _read(client, accounts, assignments, within, sums):
        sums.add(found.account, found.put_down, only)
        sums.add(found.account, found.running, only)


def _are_enough(sums: Sums) -> bool:
    """Whether sums over many hours are enough for what is asked."""
    return len(sums.steps.windows) == 1 and asks_for_sums(sums.aggregate)


def _read(
    client: redis.Redis, accounts: Sequence[str], assignments: Mapping[str, Assignments], within: Window, sums: Sums
) -> Iterator[AccountUsage]:
    """What accounts hold of a window, as the sums ask for it."""
    view = View(asks_for_details(sums.aggregate), _are_enough(sums))
    for start in range(0, len(accounts), READ_AT_ONCE):
        chunk = accounts[start : start + READ_AT_ONCE]
        yield from accounts_usage(client, chunk, assignments, within, view=view)
