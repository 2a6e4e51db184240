"""Usage queries: their parameters and cursors, the answers as JSON and CSV, and the limit of concurrent queries.

Answers come from the store and from exported months. A query over all accounts would add up a million rows each time.
Therefore accounts are divided into groups. The sums of a group by closed day are cached, for each list of dimensions
that a query groups by. The store has a version of each account's older usage, and the cache holds this version beside
the sums. Once the version of one account changes, the sums of its group are computed again. Days that close later, and
new accounts, are added to the cached sums.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from timekeeper.api.exported_months import ExportedMonths, held_before
from timekeeper.api.models import currency_answer
from timekeeper.api.paging import cursor_after, decoded_cursor, parse_limit
from timekeeper.api.problems import invalid
from timekeeper.auth.access_control import TooManyRequestsError
from timekeeper.domain.charges import Assignments, payers_since
from timekeeper.domain.forecast import LONGEST_LAG, UsageForecast, edges_at, usage_forecast
from timekeeper.domain.money import GPU_HOUR, Currency, amount_cells
from timekeeper.domain.timestamps import DAY, HOUR, Instant, format_instant
from timekeeper.domain.usage import (
    LABEL,
    PLAIN,
    UNKNOWN,
    Cells,
    Group,
    Key,
    Place,
    Steps,
    UsageSums,
    asks_for_details,
    asks_for_sums,
    capacity_of,
    keys_of,
    order,
)
from timekeeper.domain.usage_folding import HOURS_OF_A_DAY
from timekeeper.domain.windows import (
    FORECAST_ENDS,
    Window,
    WindowError,
    are_bounds,
    parse_forecast_end,
    parse_step,
    parse_window,
    steps,
)
from timekeeper.ledger import reading
from timekeeper.ledger.client import Store
from timekeeper.ledger.conversion import check_format
from timekeeper.ledger.usage import (
    NOTHING_READ,
    AccountUsage,
    UsageReadBefore,
    View,
    accounts_usage,
    capacity,
    capacity_of_models,
    restored,
)

DEFAULT_LIMIT = 1000
MAX_LIMIT = 10_000
MAX_DIMENSIONS = 6
MAX_CURSOR = 8192
PARAMETERS = ("window", "step", "aggregate", "limit", "cursor", "format", "forecast")


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a usage query.

    Attributes:
        window: the window of time whose usage is asked for.
        step: the length of the steps into which the window is divided, such as `1h`, as `parse_step` returns it; None
            for one step.
        aggregate: the dimensions by which usage is added up, such as namespace.
        limit: the most items of an answer.
        after: the number of the step and the key after which the page begins; None for the first page.
        namespace: the only namespace to count; None for all.
        idle: whether to add the capacity that no pod held, as one item.
        idle_models: whether to add the capacity that no pod held, as one item for each model.
        forecast: the instant up to which to forecast what is billed; None for no forecast.
    """

    window: Window
    step: str | None
    aggregate: tuple[str, ...]
    limit: int
    after: Place | None = None
    namespace: str | None = None
    idle: bool = False
    idle_models: bool = False
    forecast: Instant | None = None


def read_query(
    arguments: Mapping[str, str], labels: Sequence[str], now: Instant, namespace: str | None = None
) -> Query:
    """Parses a usage query from the parameters of an HTTP request.

    Args:
        arguments: the parameters' values, keyed by name.
        labels: the labels of pods by which usage can be queried.
        now: the present instant, at which a window such as `7d` ends; a later page has the window of the first one.
        namespace: the only namespace to count; None for all.

    Raises:
        ProblemError: a parameter is invalid.
    """
    text = arguments.get("window", "")
    step = arguments.get("step") or None
    try:
        window = parse_window(text, now)
    except WindowError as error:
        raise invalid("window", text, str(error)) from error
    aggregate = _aggregate(arguments.get("aggregate") or "namespace", labels)
    continuation = continuation_of(arguments.get("cursor", ""), len(aggregate))
    window, after = (window, None) if continuation is None else continuation
    try:
        step = None if step is None else parse_step(step)
        list(steps(window, step))
    except WindowError as error:
        raise invalid("step", step, str(error)) from error
    idle = arguments.get("idle", "false")
    if idle not in {"true", "false", "model"} or (idle == "model" and "model" not in aggregate):
        raise invalid("idle", idle, "true, false; model, too, if aggregate has it")
    return Query(
        window,
        step,
        aggregate,
        parse_limit(arguments.get("limit"), DEFAULT_LIMIT, MAX_LIMIT),
        after,
        namespace,
        idle=idle == "true",
        idle_models=idle == "model",
        forecast=_forecast_end(arguments.get("forecast", ""), window, step, now),
    )


def _forecast_end(text: str, window: Window, step: str | None, now: Instant) -> int | None:
    if not text:
        return None
    if step is not None or not window.start <= now < window.end:
        raise invalid("forecast", text, FORECAST_ENDS)
    try:
        return parse_forecast_end(text, now)
    except WindowError as error:
        raise invalid("forecast", text, str(error)) from error


def _aggregate(text: str, labels: Sequence[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    choices = [*PLAIN, *(f"{LABEL}{key}" for key in labels)]
    allowed = f"a comma list without repetition of {', '.join(choices)}"
    if len(names) > MAX_DIMENSIONS:
        raise invalid("aggregate", text, f"{allowed}; at most {MAX_DIMENSIONS} of them")
    unknown = next((name for name in names if name not in choices), None)
    if unknown is not None and unknown.startswith(LABEL):
        raise invalid("aggregate", unknown, f"{allowed}; an admin adds labels in timekeeper.usage.labels")
    if unknown is not None or len(set(names)) != len(names):
        raise invalid("aggregate", text, allowed)
    return names


class Continuation(NamedTuple):
    """The content of a cursor of a usage query.

    Attributes:
        window: the window of the first page, which all pages share. A window such as `7d` would otherwise move with the
            clock, and rows would be lost or counted twice between two pages.
        after: the step and the key after which the page begins.
    """

    window: Window
    after: Place


def cursor_of(window: Window, after: Place) -> str:
    """Returns the cursor of the page of usage that begins after an item of the answer.

    Args:
        window: the window of the query.
        after: the place of the item: the number of its step, and the values of its dimensions.
    """
    hours = window.start // HOUR, window.end // HOUR
    return cursor_after(json.dumps([*hours, after[0], *after[1]], separators=(",", ":")))


def continuation_of(text: str, width: int) -> Continuation | None:
    """Returns the content of the cursor of a page of usage; None for an empty text.

    Args:
        text: the cursor.
        width: the number of dimensions by which the query adds up.

    Raises:
        ProblemError: no earlier answer can have contained the cursor.
    """
    if not text:
        return None
    try:
        first, end, index, *key = json.loads(decoded_cursor(text, MAX_CURSOR) or "")
    except (ValueError, TypeError, RecursionError):
        first, end, index, key = None, None, None, []
    is_window = type(first) is int and type(end) is int and are_bounds(first * HOUR, end * HOUR)
    is_place = type(index) is int and index >= 0 and len(key) == width and all(isinstance(value, str) for value in key)
    if not (is_window and is_place):
        raise invalid("cursor", text, "nothing, or the cursor of an earlier answer to the same question as it was")
    return Continuation(Window(first * HOUR, end * HOUR), (index, tuple(key)))


PARTS = 8
MOST_CELLS = 150_000
"""The most entries in the cache, some 50 MB: each sum of a day and a key is one, and so is each account's version."""
OPEN_HOURS = 48
"""A day counts as closed once it ended this many hours ago.

Use that is less than a day old changes without a new version of the account; the other day is for clocks that differ.
"""
LAGGING_DAYS = 3
"""The most closed days that cached sums may lack; sums that lack more are computed again."""

PartKey = tuple[int, tuple[str, ...]]
"""The number of a group of accounts, and the dimensions by which its usage is added up."""


@dataclass(frozen=True, slots=True)
class Part:
    """The usage of a fixed group of accounts, added up by day for the cache.

    Attributes:
        first: the first hour of the sums, counted from 1970; it begins a day.
        end: the hour after the last hour of the sums; it begins a day, too.
        past: keyed by account, the store's version of the account's older usage when it was read. The sums are invalid
            once the store has another version.
        days: for each day from `first` on, its sums, keyed by the values of the dimensions.
    """

    first: int
    end: int
    past: Mapping[str, bytes]
    days: Sequence[Cells]

    @property
    def cells(self) -> int:
        """The number of entries that the sums take in the cache."""
        return len(self.past) + sum(map(len, self.days))

    def answers(self, first: int, closed: int) -> bool:
        """Returns whether the sums can answer a query: they include its first hour, and few closed days are missing.

        At most LAGGING_DAYS of the days that are closed now may be missing.

        Args:
            first: the first hour of the query, counted from 1970.
            closed: the hour before which all days are closed now, counted from 1970.
        """
        return self.first <= first < self.end and closed - self.end <= LAGGING_DAYS * HOURS_OF_A_DAY

    def add_days_to(self, sums: UsageSums, first: int, end: int) -> None:
        """Adds the group's usage on some of the cached days to the sums that a query computes.

        Args:
            sums: the sums of the query.
            first: days that begin before this hour, counted from 1970, are left out.
            end: days that begin at this hour or later are left out.

        Raises:
            FoldedHoursError, TooManySumsError: the sums cannot take the usage (see `UsageSums.add_sums`).
        """
        for number, cells in enumerate(self.days):
            hour = self.first + number * HOURS_OF_A_DAY
            if first <= hour < end:
                sums.add_sums(hour, HOURS_OF_A_DAY, cells)


class ClosedDays:
    """Caches the usage of closed days, added up for groups of accounts. Thread-safe.

    A day is closed once it ended OPEN_HOURS ago. The cache is bounded in size; the least recently used sums are dropped
    first.
    """

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._parts: OrderedDict[PartKey, Part] = OrderedDict()
        self._cells = 0
        self._lock = threading.Lock()

    def find(self, key: PartKey) -> Part | None:
        """Returns the cached sums of a group of accounts; None if they are not cached.

        Args:
            key: the number of the group, and the dimensions by which usage is added up.
        """
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
            return self._parts.get(key)

    def remember(self, key: PartKey, part: Part) -> None:
        """Caches the sums of a group of accounts; drops the least recently used sums if the cache is full.

        Sums that would take more than one PARTS-th of the cache are not cached.

        Args:
            key: the number of the group, and the dimensions by which usage is added up.
            part: the sums to cache.
        """
        if part.cells > self._most_cells // PARTS:
            return
        with self._lock:
            old = self._parts.pop(key, None)
            self._cells -= old.cells if old is not None else 0
            self._parts[key] = part
            self._cells += part.cells
            while self._cells > self._most_cells:
                _, forgotten = self._parts.popitem(last=False)
                self._cells -= forgotten.cells


def divided(accounts: Iterable[str]) -> dict[int, list[str]]:
    """Divides accounts into groups, keyed by the group's number. An account belongs to the same group in every call."""
    parts: dict[int, list[str]] = {}
    for name in accounts:
        parts.setdefault(crc32(name.encode()) % PARTS, []).append(name)
    return parts


def closed_before(now: Instant) -> int:
    """Returns the start of the first day that is not closed at an instant, in hours since 1970."""
    return (now - OPEN_HOURS * HOUR) // DAY * HOURS_OF_A_DAY


def whole_days(first: int, end: int) -> list[Window]:
    """Splits whole days (UTC) into one window for each day.

    Args:
        first: the start of the first day, in hours since 1970.
        end: the end of the last day, in hours since 1970.
    """
    return [Window(hour * HOUR, (hour + HOURS_OF_A_DAY) * HOUR) for hour in range(first, end, HOURS_OF_A_DAY)]


@dataclass(frozen=True, slots=True)
class WholeUsage:
    """A query about the usage of all accounts, as of one instant.

    Attributes:
        client: the store.
        assignments: keyed by namespace, its payers in order of time.
        within: the window of time, whose start is the start of a day.
        closed: the cache of closed days.
        now: the instant as of which the query is answered.
    """

    client: Store
    assignments: Mapping[str, Assignments]
    within: Window
    closed: ClosedDays
    now: Instant

    def add_to(self, sums: UsageSums) -> None:
        """Adds the usage of all accounts to the sums of a query.

        Args:
            sums: the sums; each of their time steps starts at the start of a day.

        Raises:
            redis.RedisError: the store does not answer.
            StoreError: the store refuses.
            FoldedHoursError, TooManySumsError: the sums cannot take the usage (see `UsageSums.add`).
        """
        for number, accounts in divided(payers(self.assignments)).items():
            key = (number, sums.aggregate)
            if not self._add_from_cache(sums, key, accounts):
                self._add_from_store(sums, key, accounts)

    def _add_from_cache(self, sums: UsageSums, key: PartKey, accounts: Sequence[str]) -> bool:
        """Adds a group's usage to the sums: closed days from the cache, and only the later days from the store.

        Returns False, and adds nothing, if the cache has no sums that can answer the query, or if an account's older
        usage has changed since they were cached.

        Args:
            sums: the sums of the query.
            key: the number of the group, and the dimensions of the query; the group's sums are cached under it.
            accounts: the accounts of the group.
        """
        part = self.closed.find(key)
        if part is None or not part.answers(self._first, self._limit):
            return False
        since = min(part.end, self._end)
        # New accounts are read from the part's first day on, so that the cached part includes them from now on.
        within = Window(part.first * HOUR, self.within.end)
        usages = list(self._read(sums, accounts, within, UsageReadBefore(part.past, since)))
        if {usage.account for usage in usages if usage.past_unchanged} != part.past.keys():
            return False
        part.add_days_to(sums, self._first, since)
        for usage in usages:
            sums.add(usage.account, usage.posted)
            sums.add(usage.account, usage.running)
        self._remember_more(key, part, usages)
        return True

    def _remember_more(self, key: PartKey, part: Part, usages: Sequence[AccountUsage]) -> None:
        """Caches a group's sums again: those of `part`, with the days that have closed since and the new accounts.

        Nothing is cached if there is neither such a day nor such an account.

        Args:
            key: the number of the group, and the dimensions of the query; the group's sums are cached under it.
            part: the sums that are cached until now.
            usages: the usage of the group's accounts since the end of `part`; of new accounts, since the first day of
                `part`.
        """
        come = {usage.account: usage.past for usage in usages if usage.account not in part.past}
        if self._limit < part.end or (self._limit == part.end and not come):
            return
        closed = UsageSums(Steps(whole_days(part.first, self._limit)), key[1])
        part.add_days_to(closed, part.first, part.end)
        for usage in usages:
            closed.add(usage.account, usage.posted)
        self.closed.remember(key, Part(part.first, self._limit, {**part.past, **come}, closed.cells))

    def _add_from_store(self, sums: UsageSums, key: PartKey, accounts: Sequence[str]) -> None:
        """Adds a group's usage to the sums from the store alone, and caches the group's sums of closed days.

        Closed days are the days of the query's window that ended OPEN_HOURS ago or earlier. Without such days nothing
        is cached.

        Args:
            sums: the sums of the query.
            key: the number of the group, and the dimensions of the query; the group's sums are cached under it.
            accounts: the accounts of the group.
        """
        limit = max(self._limit, self._first)
        days = whole_days(self._first, limit)
        closed = UsageSums(Steps(days), sums.aggregate) if days else None
        past: dict[str, bytes] = {}
        for usage in self._read(sums, accounts, self.within, NOTHING_READ):
            past[usage.account] = usage.past
            if closed is not None:
                closed.add(usage.account, usage.posted)
            if limit < self._end:
                sums.add(usage.account, usage.posted.between(limit, self._end))
            sums.add(usage.account, usage.running)
        if closed is not None:
            part = Part(self._first, limit, past, closed.cells)
            part.add_days_to(sums, self._first, limit)
            self.closed.remember(key, part)

    def _read(
        self, sums: UsageSums, accounts: Sequence[str], within: Window, read_before: UsageReadBefore
    ) -> Iterator[AccountUsage]:
        view = View(asks_for_details(sums.aggregate), sums=False)
        return accounts_usage(self.client, accounts, self.assignments, within, view=view, read_before=read_before)

    @property
    def _first(self) -> int:
        return self.within.start // HOUR

    @property
    def _end(self) -> int:
        return self.within.end // HOUR

    @property
    def _limit(self) -> int:
        """The start of the first day that is not closed, or not wholly in the window, in hours since 1970."""
        return min(closed_before(self.now), self._end - self._end % HOURS_OF_A_DAY)


def payers(assignments: Mapping[str, Assignments]) -> list[str]:
    """Returns every account that pays, or once paid, for any of these namespaces, sorted by name.

    Args:
        assignments: keyed by namespace, its payers in order of time.
    """
    return sorted({account for changes in assignments.values() for _, account in changes})


LEAST_AT_ONCE = 50
MOST_AT_ONCE = 1000
STEPS_IN_ORDER = 3
"""The number of time steps that are read one by one; if they do not fill the page, all steps are read at once."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A page of the answer to a usage query.

    Attributes:
        query: the query that the page answers.
        items: the figures of the page, one item for each time step and key.
        following: the cursor of the next page; None on the last page.
        forecast: the forecast; None if the query asks for none.
    """

    query: Query
    items: list[Group]
    following: str | None
    forecast: UsageForecast | None = None


def find(
    client: Store,
    query: Query,
    now: Instant,
    closed: ClosedDays | None = None,
    exported: ExportedMonths | None = None,
) -> Usage:
    """Answers a usage query as of an instant, with the cached sums of closed days.

    Usage that the store no longer holds is read from exported files, if there are any.

    Args:
        query: the parameters of the query.
        now: the instant as of which the query is answered.
        closed: the cache of closed days; None for no cache.
        exported: the exported months; None if months are not exported.

    Raises:
        MonthUnavailableError: an exported file cannot be used (see `ExportedMonths.add`).
        ProblemError: the query needs more exported files than `exported_months.MOST_MONTHS`.
        redis.RedisError: the store does not answer.
        StoreError: the store refuses.
        FoldedHoursError: the start or the end of a time step would divide hours that were folded into days.
        TooManySumsError: the answer needs more sums than a query may have.
    """
    check_format(client)
    divided_window = Steps(steps(query.window, query.step))
    if exported is not None and query.window.start < exported.kept_from(now):
        everything = partial(_everything_and_files, client, query, now, exported)
        answer_sums = None
    else:
        everything = partial(_everything, client, query, now, closed)
        answer_sums = _in_order(client, query, divided_window, now) if _comes_in_order(client, query) else None
    whole = answer_sums is None
    if answer_sums is None:
        answer_sums = everything(UsageSums(divided_window, query.aggregate))
    if query.idle:
        points = capacity(client)
        held = answer_sums if whole else everything(UsageSums(divided_window, ()))
        answer_sums.add_idle(capacity_of(points, divided_window.windows, now), held)
    if query.idle_models:
        held = answer_sums if query.aggregate == ("model",) else everything(UsageSums(divided_window, ("model",)))
        windows = divided_window.windows
        of_models = {model: capacity_of(points, windows, now) for model, points in capacity_of_models(client).items()}
        answer_sums.add_idle_of_models(of_models, held)
    forecast = None if query.forecast is None else _forecast(client, query, now, query.forecast)
    if forecast is not None:
        answer_sums.name(forecast.spent)
    items, last = answer_sums.page(query.after, query.limit)
    return Usage(query, items, None if last is None else cursor_of(query.window, last), forecast)


def _comes_in_order(client: Store, query: Query) -> bool:
    """Returns whether a page of a query is to be read a few namespaces at a time; else all accounts are read at once.

    The query must be about all namespaces and order its items by namespace. It must ask for no forecast, since a
    forecast may add keys without usage in the window, and for no idle capacity of models. The result is also False if
    the query asks for idle capacity and all namespaces fit on the page: idle capacity needs the usage of all accounts
    anyway.
    """
    if query.aggregate[0] != "namespace" or query.namespace is not None:
        return False
    if query.idle_models or query.forecast is not None:
        return False
    return not query.idle or reading.count_namespaces(client) > query.limit


def _forecast(client: Store, query: Query, now: Instant, end: int) -> UsageForecast:
    """Returns the forecast of each key's use up to the instant `end`, at the pace of the last hour and the last day."""
    edges = edges_at(now)
    within = Window(edges.day, now // HOUR * HOUR + HOUR)
    sums = UsageSums(Steps([Window(edges.day, edges.hour), Window(edges.hour, within.end)]), query.aggregate)
    only = None if query.namespace is None else frozenset({query.namespace})
    assignments = reading.assignments(client) if only is None else reading.assignments_of(client, sorted(only))
    earliest, settled = list[int](), list[int]()
    failing = reading.not_settled(client)
    late = dict[str, int]()
    for usage in accounts_usage(client, payers(assignments), assignments, within):
        if usage.has_open_sessions:
            if usage.account in failing and now - usage.settled > LONGEST_LAG:
                late[usage.account] = usage.settled
            else:
                settled.append(usage.settled)
        for use in (usage.posted.of_pods(), usage.running.of_pods()):
            sums.add(usage.account, use, only)
            earliest += [min(row[0] for row in use.raw_rows) * HOUR] if use.raw_rows else []
    before, latest = ({key: cell[0] for key, cell in cells.items()} for cells in sums.cells)
    spent = {
        key: (latest.get(key, 0), before.get(key, 0) + latest.get(key, 0)) for key in before.keys() | latest.keys()
    }
    began = min(capacity(client), default=None)
    # The last reconciliation settled no account without open sessions, and none whose sessions are all on silent nodes.
    watched = reading.watched(client)
    known_until = min((max(instant, watched or 0) for instant in settled), default=watched)
    forecast = usage_forecast(spent, now, end, settled=known_until, began=began, earliest=min(earliest, default=None))
    if not late:
        return forecast
    span = Window(min(query.window.start, within.start), max(query.window.end, within.end))
    named, unknown = _not_known(client, query.aggregate, late, assignments, span)
    return replace(forecast, not_settled=named, unknown=unknown)


def _not_known(
    client: Store,
    aggregate: Sequence[str],
    late: Mapping[str, int],
    assignments: Mapping[str, Assignments],
    span: Window,
) -> tuple[tuple[str, ...], frozenset[Key]]:
    """Returns the late accounts that the query concerns, sorted by name, and the keys whose sums may lack use.

    The settlement of a late account has been failing, so its use since its last settlement is not known. The query
    concerns a late account in two cases:

    - The account has paid for one of the query's namespaces since its last settlement. The keys of all use of that
      namespace in `span` then count as lacking use.
    - It has open sessions in one of the query's namespaces. The keys of these sessions then count as lacking use.

    Args:
        aggregate: the dimensions of the keys.
        late: the last settlement of each late account, keyed by account, in nanoseconds since 1970.
        assignments: keyed by namespace, the payers of the namespaces that the query asks about.
        span: the window of time in which keys with use are looked for.
    """
    hidden = {
        name: {account for account, settled in late.items() if account in payers_since(payers_of, settled)}
        for name, payers_of in assignments.items()
    }
    of_late = {name: assignments[name] for name, accounts in hidden.items() if accounts}
    only, asked = frozenset(of_late), frozenset(assignments)
    named = set[str]().union(*hidden.values())
    unknown = set[Key]()
    for usage in accounts_usage(client, sorted({*payers(of_late), *late}), assignments, span):
        found = keys_of(aggregate, usage.account, [*usage.posted.dimensions, *usage.running.dimensions], only)
        if usage.account in late:
            running = [
                key for key in keys_of(aggregate, usage.account, usage.running.dimensions, asked) if key is not None
            ]
            named |= {usage.account} if running else set()
            found += running
        unknown.update(key for key in found if key is not None)
    return tuple(sorted(named)), frozenset(unknown)


def _everything_and_files(
    client: Store, query: Query, now: Instant, exported: ExportedMonths, sums: UsageSums
) -> UsageSums:
    """Adds all usage of a query's window to the sums, from the store and from exported files; returns the sums."""
    only = None if query.namespace is None else frozenset({query.namespace})
    assignments = reading.assignments(client) if only is None else reading.assignments_of(client, sorted(only))
    before = exported.kept_from(now)
    held: set[tuple[str, str]] = set()
    for usage in _read(client, payers(assignments), assignments, query.window, sums):
        sums.add(usage.account, usage.posted, only)
        sums.add(usage.account, usage.running, only)
        held |= held_before(usage.account, usage.posted, before)
    exported.add(sums, query.window, now, held, only)
    return sums


def _everything(client: Store, query: Query, now: Instant, closed: ClosedDays | None, sums: UsageSums) -> UsageSums:
    """Adds to the sums all usage that the store has in a query's window; returns the sums.

    `closed` is the cache of closed days; None for no cache.
    """
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


def _in_order(client: Store, query: Query, divided_window: Steps, now: Instant) -> UsageSums | None:
    """Reads the usage of a few namespaces at a time, in the order of the answer, until the query's page is full.

    The answer is sorted by time step, then by namespace. Time steps that begin more than a day after `now` have no
    usage, as no clock is that far ahead: they are not read.

    Args:
        query: the query, whose first dimension is the namespace.
        divided_window: the query's window, divided into time steps.
        now: the instant as of which the query is answered.

    Returns:
        Sums that contain all items of the page and, if another page follows, at least one item of that page. None if
        STEPS_IN_ORDER time steps do not fill the page and more time steps follow: the caller then reads all accounts at
        once.
    """
    after = query.after
    first = 0 if after is None else after[0]
    names = sorted([*reading.assigned_namespaces(client), UNKNOWN], key=order)
    sums = UsageSums(divided_window, query.aggregate)
    begun = sum(step.start <= now + DAY for step in divided_window.windows)
    for index in range(first, min(first + STEPS_IN_ORDER, begun)):
        begin = 0 if after is None or index > first else bisect_left(names, order(after[1][0]), key=order)
        while begin < len(names):
            missing = query.limit + 1 - sums.count(after)
            if missing <= 0:
                return sums
            chunk = names[begin : begin + max(min(missing, MOST_AT_ONCE), LEAST_AT_ONCE)]
            begin += len(chunk)
            assignments = reading.assignments_of(client, chunk)
            accounts = payers(assignments)
            if UNKNOWN in chunk:
                accounts = sorted({*accounts, *restored(client)})
            _add(client, sums, accounts, assignments, divided_window.windows[index], frozenset(chunk))
    return sums if first + STEPS_IN_ORDER >= begun else None


def _add(
    client: Store,
    sums: UsageSums,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window,
    only: frozenset[str] | None,
) -> None:
    """Adds the usage of accounts in a window to the sums of a query.

    Args:
        assignments: keyed by namespace, its payers in order of time.
        only: the namespaces whose usage is added; None for all.
    """
    for usage in _read(client, accounts, assignments, within, sums):
        sums.add(usage.account, usage.posted, only)
        sums.add(usage.account, usage.running, only)


def _are_enough(sums: UsageSums) -> bool:
    """Returns whether the sums that a packed value has over all its hours are enough to answer a query.

    They are enough if the query has one time step, and groups by no dimensions but namespace, budget, model and user.

    Args:
        sums: the sums of the query; only their time steps and dimensions count.
    """
    return len(sums.steps.windows) == 1 and asks_for_sums(sums.aggregate)


def _read(
    client: Store,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window,
    sums: UsageSums,
) -> Iterator[AccountUsage]:
    """Yields each account's use in a window, read from the store in no more detail than the sums of a query need.

    Args:
        assignments: keyed by namespace, its payers in order of time.
    """
    view = View(asks_for_details(sums.aggregate), _are_enough(sums))
    return accounts_usage(client, accounts, assignments, within, view=view)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""The characters with which a spreadsheet lets a formula begin (OWASP, CSV injection)."""


FIGURES = ("billed", "core", "memory", "used")


def as_json(usage: Usage, currency: Currency | None) -> bytes:
    """Returns a page of usage as the JSON of a UsageAnswer.

    For speed, the JSON is made without the pydantic model.

    Args:
        currency: the currency of costs; None for none.
    """
    names = usage.query.aggregate
    shown = currency_answer(currency)
    steps = {step: _window(step) for step in {item.step for item in usage.items}}
    return orjson.dumps(
        {
            "window": _window(usage.query.window),
            "step": usage.query.step,
            "aggregate": names,
            "currency": None if shown is None else shown.model_dump(),
            "items": [
                {
                    **steps[item.step],
                    "key": dict(zip(names, item.key, strict=True)),
                    **{name: _money(amount) for name, amount in zip(FIGURES, item.figures, strict=True)},
                    "cost": _cost(item.figures.billed, currency),
                    **_forecast_of(item, usage.forecast, currency),
                }
                for item in usage.items
            ],
            "next": usage.following,
            **({} if usage.forecast is None else {"forecast": _measured(usage.forecast)}),
        }
    )


def as_csv(usage: Usage, currency: Currency | None) -> bytes:
    """Returns a page of usage as CSV; amounts are in GPU-hours and in exact microGPU-seconds.

    Args:
        currency: the currency of costs; None for none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    amounts = [f"{name}_{unit}" for name in FIGURES for unit in ("gpu_hours", "micro_gpu_seconds")]
    forecast = usage.forecast
    paces = [] if forecast is None else [f"expected_by_last_{measure}" for measure in ("hour", "day")]
    expected = [f"{pace}_{unit}" for pace in paces for unit in ("gpu_hours", "micro_gpu_seconds", "cost")]
    writer.writerow(["start", "end", *usage.query.aggregate, *amounts, "cost", "currency", *expected])
    for item in usage.items:
        cells = [part for amount in item.figures for part in amount_cells(amount)]
        cost = ("", "") if currency is None else (currency.worth(item.figures.billed), currency.code)
        row = [*_window(item.step).values(), *map(harmless, item.key), *cells, *cost]
        for amount in () if forecast is None else forecast.expected(item.key, item.figures.billed):
            worth = _cost(amount, currency)
            row += [*amount_cells(amount), "" if worth is None else worth]
        writer.writerow(row)
    return text.getvalue().encode()


def harmless(text: str) -> str:
    """Returns a text as a cell of CSV that no spreadsheet takes for a formula.

    A text that begins like a formula gets an apostrophe in front: users choose the names of objects.
    """
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _window(window: Window) -> dict[str, str]:
    return {"start": format_instant(window.start), "end": format_instant(window.end)}


def _cost(amount: int | None, currency: Currency | None) -> float | None:
    return None if amount is None or currency is None else currency.worth(amount)


PACES = ("lastHour", "lastDay")


def _measured(forecast: UsageForecast) -> dict[str, Any]:
    """Returns the JSON of a UsageForecastAnswer: a forecast's end, windows, and accounts that are not settled."""
    until = format_instant(forecast.until)
    since = zip(PACES, forecast.since, strict=True)
    times = {pace: None if at is None else {"start": format_instant(at), "end": until} for pace, at in since}
    return {"end": format_instant(forecast.end), **times, "notSettled": forecast.not_settled}


def _forecast_of(item: Group, forecast: UsageForecast | None, currency: Currency | None) -> dict[str, Any]:
    """Returns a map with the JSON field `forecast` of an item of usage; empty if the query asks for no forecast.

    Args:
        item: the item, which the forecast knows by its key.
        forecast: the forecast of the answer; None if the query asks for none.
        currency: the currency of costs; None for none.
    """
    if forecast is None:
        return {}
    amounts = zip(PACES, forecast.expected(item.key, item.figures.billed), strict=True)
    expected = {
        pace: None if amount is None else {"billed": _money(amount), "cost": _cost(amount, currency)}
        for pace, amount in amounts
    }
    return {"forecast": expected}


def _money(amount: int | None) -> dict[str, Any] | None:
    return None if amount is None else {"microGPUSeconds": str(amount), "gpuHours": amount / GPU_HOUR}


MOST_OF_A_CALLER = 2
"""The most queries about all namespaces that a worker answers for one caller at a time."""
RETRY_AFTER_SECONDS = 2


class Asking:
    """Limits the concurrent usage queries of one caller about all namespaces to `most_at_once`. Thread-safe."""

    def __init__(self, most_at_once: int = MOST_OF_A_CALLER) -> None:
        self._most_at_once = most_at_once
        self._of_callers: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self, caller: str) -> Iterator[None]:
        """Counts a query of a caller as being answered until the `with` block ends.

        Raises:
            TooManyRequestsError: `most_at_once` queries of the caller are being answered already.
        """
        with self._lock:
            if self._of_callers[caller] >= self._most_at_once:
                detail = (
                    f"{self._most_at_once} questions of {caller!r} about the usage of all namespaces are being "
                    "answered: ask again once one of them is, or ask about one namespace, GET /v1/namespaces/NAME/usage"
                )
                raise TooManyRequestsError(detail, RETRY_AFTER_SECONDS)
            self._of_callers[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_callers[caller] -= 1
                if not self._of_callers[caller]:
                    del self._of_callers[caller]
