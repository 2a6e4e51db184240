"""Reads the usage of accounts, each as of one moment; a large account is read in pieces, by short commands.

Every function that takes a client may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import orjson
import redis

from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import Assignments, HourlyPoint, hourly_points, segments, with_used
from timekeeper.domain.periods import Period
from timekeeper.domain.reports import parts
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import HOUR, Instant
from timekeeper.domain.usage import Row, Use, dimension_values
from timekeeper.domain.usage_folding import FOREVER, read_folded
from timekeeper.domain.windows import Window
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, Store, StoreError, concerns_all, run
from timekeeper.ledger.codec import decode_session
from timekeeper.ledger.reading import StoredAmount, read_amount, used, whole
from timekeeper.ledger.redis_cluster import ClusterStore

READ_AT_ONCE = 500
"""The most accounts that are read in one round trip."""
READ_BY_ONE_CALL = 4
"""The most accounts that one call of the script reads; a large account takes it milliseconds."""
SESSIONS_AT_ONCE = 500


class Bounds(NamedTuple):
    """The limits of what one run of a script reads of one account's use.

    Attributes:
        rows: the most rows of hours; the last hour is read whole.
        packed: the most bytes of packed values; the last value is read whole.
        sessions: the most open sessions.
    """

    rows: int
    packed: int
    sessions: int


ATTEMPTS = (
    Bounds(2_000, 1 << 20, 500),
    Bounds(2_000, 1 << 20, 500),
    Bounds(10_000, 1 << 20, 2_000),
    Bounds(50_000, 1 << 22, 20_000),
    Bounds(1 << 40, 1 << 40, 1 << 40),
)
"""The bounds of each attempt to read an account. They grow: if pieces change while they are read one by one, one run of
the script must read more.
"""


@dataclass(frozen=True, slots=True)
class Unread:
    """The pieces of an account's use that a script did not read, with counters by which a later change is noticed.

    Attributes:
        version: the account's version.
        folds: the number of times that the account's hours were packed or folded.
        hours: pairs of an unread hour, counted from 1970, and the number of writes to it.
        parts: the names of unread packed values.
        sessions: whether the open sessions were not read.
    """

    version: bytes
    folds: bytes
    hours: Sequence[tuple[bytes, bytes]] = ()
    parts: Sequence[bytes] = ()
    sessions: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the script read everything."""
        return not (self.hours or self.parts or self.sessions)


@dataclass(frozen=True, slots=True)
class Rest:
    """The pieces of an account's use that `read_rest` read.

    Attributes:
        rows: each hour, counted from 1970, with its rows: dimensions and amounts as they are stored.
        packed: the packed values, as they are stored.
        open: a flat list with three values for each open session: its record, and its amounts in the account's two
            latest periods.
    """

    rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = ()
    packed: Sequence[bytes] = ()
    open: list[Any] = field(default_factory=list)


def read_rest(
    client: Store, account: str, unread: Unread, periods: Sequence[bytes | None], *, details: bool = True
) -> Rest | None:
    """Returns the pieces of an account's use that a script did not read; None if a piece has changed since.

    Args:
        unread: the names of the pieces, and the counters as the script read them.
        periods: the starts of the periods in which open sessions' amounts are read; None for a missing period.
        details: whether to read each row of an hour; if not, the sums of the hour's rows by namespace and model.
    """
    names = keys.AccountKeys(account)
    key_of = names.rows_of if details else names.sums_of
    rows = [(hour, _hash(client.hgetall(key_of(hour.decode())))) for hour, _ in unread.hours]
    packed: list[Any] = [client.hget(names.folded, name) for name in unread.parts]
    sessions = _sessions(client, names, periods) if unread.sessions else []
    pipeline = client.pipeline(transaction=False)
    pipeline.hmget(names.head, ["version", "folds"])
    pipeline.hmget(names.hour_index, [hour for hour, _ in unread.hours] or ["-"])
    (version, folds), revisions = pipeline.execute()
    same = (folds or b"0") == unread.folds and not any(blob is None for blob in packed)
    same = same and (not unread.sessions or (version or b"0") == unread.version)
    if not same or any(now != then for now, (_, then) in zip(revisions, unread.hours, strict=False)):
        return None
    return Rest(rows, packed, sessions)


def _sessions(client: Store, names: keys.AccountKeys, periods: Sequence[bytes | None]) -> list[Any]:
    records: dict[bytes, bytes] = dict(client.hscan_iter(names.sessions, count=SESSIONS_AT_ONCE))
    uids, parts_of = list(records), list[Any]()
    for start in range(0, len(uids), SESSIONS_AT_ONCE):
        chunk: list[Any] = uids[start : start + SESSIONS_AT_ONCE]
        columns = [
            client.hmget(names.amounts(int(period)), chunk) if period else [None] * len(chunk) for period in periods
        ]
        for uid, *amounts in zip(chunk, *columns, strict=True):
            parts_of += [records[uid], *amounts]
    return parts_of


def _hash(answer: Any) -> Mapping[bytes, bytes]:
    result: Mapping[bytes, bytes] = answer
    return result


Added = tuple[int, tuple[int, int, int, int | None]]
"""An hour, and the amounts to add in it: billed, reserved core, reserved memory, and used (None if not reported)."""


class Running(NamedTuple):
    """An open session of an account, as the store holds it.

    Attributes:
        account: the name of the account, which pays.
        record: the session's record.
        amounts: pairs of a period and the session's stored amount in it, the latest first; from the account's two
            latest periods, without those in which the session has no amount.
    """

    account: str
    record: bytes
    amounts: tuple[tuple[Period, bytes], ...]

    @property
    def session(self) -> Session:
        """The session that the record describes."""
        return _decoded(self.record)


SESSIONS_CACHED = 8192
"""The most open sessions for which a worker caches the parsed record and the added usage."""
_decoded = lru_cache(SESSIONS_CACHED)(decode_session)
"""Decodes a session's record, with a cache: a session keeps its record for hours, and each query reads it again."""


def read_running(account: str, periods: Sequence[Period], stored: Sequence[Any]) -> list[Running]:
    """Parses the open sessions of an account, from the flat list that a script returns.

    Args:
        periods: the account's two latest periods, the latest first.
        stored: each session's record, followed by its amounts in these periods; None for no amount.
    """
    running = []
    for record, *texts in zip(stored[::3], stored[1::3], stored[2::3], strict=True):
        amounts = zip(periods, texts, strict=False)
        running.append(Running(account, record, tuple([each for each in amounts if each[1] is not None])))
    return running


def reported(client: Store, sessions: Sequence[Running]) -> dict[str, int | None]:
    """Returns the GPU time in the reports of each session, in microGPU-seconds, keyed by uid.

    A session has None if it has no reports, or if their stored total cannot be read.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
        RecordError: the record of a session cannot be read.
    """
    uids = [running.session.uid for running in sessions]
    return dict(zip(uids, used(client, uids), strict=True))


class AddedUsage(NamedTuple):
    """The usage of an open session that is not posted to hours yet.

    Attributes:
        dimensions: the values of the dimensions that the usage is attributed to, in the order in which the store holds
            them.
        hours: pairs of an hour, counted from 1970, and its amounts in microGPU-seconds: billed, reserved core,
            reserved memory, and used (None if not reported).
    """

    dimensions: tuple[Any, ...]
    hours: tuple[Added, ...]


@lru_cache(SESSIONS_CACHED)
def added(running: Running, assigned: Assignments, until: Instant, count: int | None) -> AddedUsage:
    """Returns, by hour, the usage of an open session that is not posted to the stored hours yet.

    The result is cached, since it depends on the arguments alone. A session's arguments stay the same until its account
    is settled or its pod reports.

    Args:
        running: the open session.
        assigned: (from, account) pairs: the payers of the session's namespace over time.
        until: the instant of the account's last settlement.
        count: the GPU time in the session's reports, in microGPU-seconds; None without reports.
    """
    session = running.session
    amounts = [(period, read_amount(text)) for period, text in running.amounts]
    used_now = _used_now(running, amounts[0], count) if count is not None and amounts else None
    hours = list[Added]()
    for index, (period, amount) in enumerate(amounts):
        hours += _added_in(running, period, amount, assigned, until, used_now if index == 0 else None)
    dimensions = dimension_values(session.namespace, session.node, session.attribution)
    return AddedUsage(tuple(dimensions), tuple(hours))


def _used_now(running: Running, present: tuple[Period, StoredAmount], count: int) -> int:
    """Returns the GPU time that a session has used in the present period, in microGPU-seconds, by its reports.

    Args:
        present: the present period, and the session's stored amount in it.
        count: the GPU time in all reports of the session, in microGPU-seconds.
    """
    period, amount = present
    bases = running.session.report_bases
    used_here = parts(bases, count).get((running.account, period.start), 0) if bases else count
    return max(used_here, amount.used)


def _added_in(
    running: Running, period: Period, amount: StoredAmount, assignments: Assignments, until: int, used_now: int | None
) -> Iterator[Added]:
    """Yields, hour by hour since the last hourly point, the part of a session's amount that is not posted to hours yet.

    Args:
        running: the open session.
        period: the period whose part is wanted.
        amount: the session's stored amount in the period.
        assignments: (from, account) pairs: the payers of the session's namespace over time.
        until: the instant of the account's last settlement, in nanoseconds since 1970.
        used_now: the GPU time in the period by the session's reports, in microGPU-seconds; None without reports.
    """
    account, session = running.account, running.session
    stretches = segments(assignments, lambda payer: [period] if payer == account else (), session.start, until)
    if amount.amount == amount.posted and not stretches:
        return
    posted_point = amount.last_point or HourlyPoint(0, amount.posted, 0, 0)
    if stretches:
        points = hourly_points(
            stretches, session.tariff, session.attribution or Attribution(), amount.last_point, amount.amount
        )
    else:
        points = [HourlyPoint(posted_point.until + 1, amount.amount, posted_point.core, posted_point.memory)]
    if used_now is not None:
        points = with_used(points, amount.last_point, max(session.start, period.start), used_now)
    yield from _differences(posted_point, points)


def _differences(before: HourlyPoint, points: Sequence[HourlyPoint]) -> Iterator[Added]:
    for point in points:
        reserved = point.billed - before.billed, point.core - before.core, point.memory - before.memory
        newly_used = None if point.used is None else point.used - (before.used or 0)
        if any(reserved) or newly_used:
            yield point.hour, (*reserved, newly_used)
        before = point


ALWAYS = Window(0, FOREVER)
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_WIDE = b"0" * 19
"""A number of 19 digits, which may exceed 64 bits, once each digit is replaced by 0. To search for this text takes a
sixth of the time of a pattern.
"""


@dataclass(frozen=True, slots=True)
class UsageReadBefore:
    """The usage of accounts that a caller has read before, and that need not be read again.

    Attributes:
        past: keyed by account name, the `AccountUsage.past` that the caller received with the account's usage.
        since: the hour, counted from 1970, from which on everything is read again.
    """

    past: Mapping[str, bytes]
    since: int


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """An account's usage by hours and dimensions, as of its last settlement.

    Attributes:
        account: the account's name.
        settled: the instant of the account's last settlement.
        past: a value that changes whenever hourly use that is more than a day old changes.
        past_unchanged: whether `past` has not changed since the caller read it; `posted` then begins at
            `UsageReadBefore.since`.
        posted: the use that is posted to hours.
        running: the use of open sessions that is not posted to hours yet.
    """

    account: str
    settled: Instant
    past: bytes
    past_unchanged: bool
    posted: Use
    running: Use

    @property
    def has_open_sessions(self) -> bool:
        """Whether the account has open sessions that may have added usage to the hours that were asked for."""
        return bool(self.running.dimensions)

    def rows(self) -> list[Row]:
        """Returns the rows of the account's use, both posted and of open sessions."""
        return [*self.posted.rows(), *self.running.rows()]


NOTHING_READ = UsageReadBefore({}, 0)


class View(NamedTuple):
    """The level of detail in which a query reads the use of accounts.

    Attributes:
        details: whether every row is read, with all its dimensions, since the query groups by node, owner, user or
            labels. Otherwise rows that are summed by namespace and model are read.
        sums: whether a packed value is read as its sums by namespace, model and user, if it has sums and all its hours
            lie in the window. This takes precedence over `details`.
    """

    details: bool
    sums: bool


DETAILED = View(details=True, sums=False)


def accounts_usage(
    client: Store,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window = ALWAYS,
    *,
    view: View = DETAILED,
    read_before: UsageReadBefore = NOTHING_READ,
) -> Iterator[AccountUsage]:
    """Yields the usage of accounts in the hours that overlap a window; each account's usage is as of one moment.

    Accounts that are not in the store are left out. A thread reads the next READ_AT_ONCE accounts while the caller uses
    the accounts before them.

    Args:
        assignments: (from, account) pairs for each namespace: its payers over time.
        within: the window; ALWAYS for all hours.
        view: the level of detail; DETAILED for each row with all its dimensions.
        read_before: the use that the caller has read before, which is not read again if it has not changed.

    Raises:
        StoreError: the store refused to read.
        ValueError: a stored value cannot be read; a RecordError for the record of an open session, a FoldedError for a
            packed value.
    """
    chunks = [accounts[start : start + READ_AT_ONCE] for start in range(0, len(accounts), READ_AT_ONCE)]
    for answers, counts in _one_ahead([partial(_read, client, chunk, within, read_before, view) for chunk in chunks]):
        for name, answer, sessions in answers:
            running = _running(sessions, assignments, answer.settled, counts, within)
            posted = _posted_usage(answer, within, read_before, view)
            yield AccountUsage(name, answer.settled, answer.past, answer.past_unchanged, posted, running)


_Result = TypeVar("_Result")


def _one_ahead(calls: Sequence[Callable[[], _Result]]) -> Iterator[_Result]:
    """Yields the result of each call in order; a thread makes the next call while the caller uses a result."""
    if len(calls) <= 1:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(calls[0])
        for call in calls[1:]:
            result = following.result()
            following = pool.submit(call)
            yield result
        yield following.result()


def restored(client: Store) -> list[str]:
    """Returns the names, sorted, of the accounts with spending that cannot be attributed to a pod.

    Such spending was restored from a checkpoint, or is a correction of the account as a whole.
    """
    names: Any = client.smembers(keys.RESTORED)
    return sorted(name.decode() for name in names)


def capacity(client: Store) -> dict[int, int]:
    """Returns the total capacity of all nodes, in microGPU-seconds a second, keyed by the instant from which it holds.

    Instants are nanoseconds since 1970. Entries that cannot be read are left out.
    """
    points = ((whole(instant), whole(rate)) for instant, rate in _hash_or_nothing(client, keys.CAPACITY).items())
    return {instant: rate for instant, rate in points if instant is not None and rate is not None}


def capacity_of_models(client: Store) -> dict[str, dict[int, int]]:
    """Returns the capacity of each model over time, keyed by model and then by the instant from which it holds.

    Capacity is in microGPU-seconds a second, instants are nanoseconds since 1970. An empty name stands for GPUs whose
    model is not known. Entries that cannot be read are left out.
    """
    changes = changes_by_model(client)
    points: dict[str, dict[int, int]] = {}
    before: Mapping[str, int] = {}
    for instant in sorted(changes):
        rates = changes[instant]
        for model in before.keys() | rates.keys():
            if rates.get(model, 0) != before.get(model, 0):
                points.setdefault(model, {})[instant] = rates.get(model, 0)
        before = rates
    return {model: points[model] for model in sorted(points)}


def changes_by_model(client: Store) -> dict[int, Mapping[str, int]]:
    """Returns the capacity of all models from each change on, keyed by the instant of the change and then by model.

    Capacity is in microGPU-seconds a second, instants are nanoseconds since 1970. Entries that cannot be read are left
    out.
    """
    changes: dict[int, Mapping[str, int]] = {}
    for text, document in _hash_or_nothing(client, keys.CAPACITY_OF_MODELS).items():
        instant, rates = whole(text), _rates(document)
        if instant is not None and rates is not None:
            changes[instant] = rates
    return changes


def _rates(document: bytes) -> Mapping[str, int] | None:
    try:
        rates = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    readable = isinstance(rates, dict) and all(type(rate) is int and rate >= 0 for rate in rates.values())
    return rates if readable else None


def _hash_or_nothing(client: Store, key: str) -> Mapping[bytes, bytes]:
    """Returns the fields of the hash under a key; none if the key holds another Redis type."""
    try:
        return _hash(client.hgetall(key))
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        return {}


class _Answer(NamedTuple):
    """A script's answer with an account's usage as of one moment; `unread` names the pieces that it lacks."""

    settled: int
    periods: Sequence[bytes | None]
    past: bytes
    past_unchanged: bool
    rows: Sequence[tuple[bytes, Any]]
    packed: Sequence[bytes]
    open: Sequence[Any]
    unread: Unread


def _read(
    client: Store, accounts: Sequence[str], within: Window, read_before: UsageReadBefore, view: View
) -> tuple[list[tuple[str, _Answer, list[Running]]], dict[str, int | None]]:
    """Reads the usage of accounts from the store.

    Returns the name, the stored usage and the open sessions of each account; and, keyed by uid, the microGPU-seconds
    in the reports of each of these sessions, None without reports.
    """
    answers = _answers(client, accounts, within, read_before, view)
    read_accounts = [(name, answer, _open_sessions(name, answer, within)) for name, answer in answers]
    return read_accounts, reported(client, [running for _, _, sessions in read_accounts for running in sessions])


def _answers(
    client: Store, accounts: Sequence[str], within: Window, read_before: UsageReadBefore, view: View
) -> Iterator[tuple[str, _Answer]]:
    for name, answer in zip(accounts, _run_script(client, accounts, within, read_before, view), strict=True):
        if answer is not None:
            whole_answer = _complete(client, name, _read_answer(answer), within, read_before, view)
            if whole_answer is not None:
                yield name, whole_answer


def _run_script(
    client: Store,
    accounts: Sequence[str],
    within: Window,
    read_before: UsageReadBefore,
    view: View,
    bounds: Bounds | None = None,
) -> list[Any]:
    """Returns, for each account in order, the answer of the script that reads usage.

    The answer is None for an account that the store lacks.

    Raises:
        StoreError: the store refused to read.
    """
    store: Any = client
    # Two accounts lie in two slots of a cluster, and a script takes keys of one.
    at_once = 1 if isinstance(store, ClusterStore) else READ_BY_ONE_CALL
    parts = [accounts[start : start + at_once] for start in range(0, len(accounts), at_once)]
    answers = list[Any]()
    for answer in run(client, [_read_call(part, within, read_before, view, bounds or ATTEMPTS[0]) for part in parts]):
        if isinstance(answer, StoreError):
            raise answer
        answers += answer
    return answers


def _complete(
    client: Store, name: str, answer: _Answer | None, within: Window, read_before: UsageReadBefore, view: View
) -> _Answer | None:
    """Returns an account's usage with the pieces that the script did not read; None if the store lacks the account.

    If a piece has changed meanwhile, the script is run again, with larger bounds.
    """
    for bounds in ATTEMPTS[1:]:
        if answer is None or answer.unread.nothing:
            return answer
        rest = read_rest(client, name, answer.unread, answer.periods, details=view.details)
        if rest is not None:
            rows, packed = [*answer.rows, *rest.rows], [*answer.packed, *rest.packed]
            return answer._replace(rows=rows, packed=packed, open=rest.open or answer.open)
        (again,) = _run_script(client, [name], within, read_before, view, bounds)
        answer = None if again is None else _read_answer(again)
    return answer


def _read_call(
    accounts: Sequence[str], within: Window, read_before: UsageReadBefore, view: View, bounds: Bounds
) -> Call:
    touched = list[str]()
    for name in accounts:
        account = keys.AccountKeys(name)
        touched += (account.head, account.hours, account.folded, account.sessions, account.amounts_of_periods)
    window = (within.start // HOUR, within.end // HOUR)
    past = [read_before.past.get(name, b"") for name in accounts]
    return Call("read_usage", tuple(touched), (read_before.since, *window, *map(int, view), *bounds, *past))


def _read_answer(answer: Sequence[Any]) -> _Answer:
    settled, periods, past, known, rows, packed, sessions, stamp, hours, parts, too_many = answer
    version, folds = stamp
    unread = Unread(version, folds, list(zip(hours[::2], hours[1::2], strict=True)), parts, bool(too_many))
    by_hour = [(hour, pairs) for hour, pairs in zip(rows[::2], rows[1::2], strict=True)]
    return _Answer(int(settled or 0), periods, past, bool(known), by_hour, packed, sessions, unread)


def _open_sessions(name: str, answer: _Answer, within: Window) -> list[Running]:
    """Returns the account's open sessions; none if the account was last settled before the window.

    The use of open sessions is known only up to the account's last settlement.
    """
    if answer.settled <= within.start:
        return []
    starts = [int(period) for period in answer.periods if period]
    ends = [FOREVER, *starts]
    return read_running(name, [Period(*each) for each in zip(starts, ends, strict=False)], answer.open)


def _posted_usage(answer: _Answer, within: Window, read_before: UsageReadBefore, view: View) -> Use:
    """Returns the use that is posted to the hours of a window, from an account's answer.

    Hours before `read_before.since` are left out if the account's older use has not changed since it was read.
    """
    first = max(within.start // HOUR, read_before.since) if answer.past_unchanged else within.start // HOUR
    use = Use()
    for blob in answer.packed:
        read_folded(blob, use, first, within.end // HOUR, details=view.details, sums=view.sums)
    _read_hours(use, answer.rows)
    return use


def _running(
    sessions: Iterable[Running],
    assignments: Mapping[str, Assignments],
    settled: int,
    counts: Mapping[str, int | None],
    within: Window,
) -> Use:
    """Returns the usage of open sessions, within a window, that is not posted to hours yet.

    This usage may lie in old hours: no usage is posted while no leader settles.

    Args:
        assignments: keyed by namespace, its payers over time as (from, account) pairs.
        settled: the instant of the account's last settlement, in nanoseconds since 1970.
        counts: keyed by uid, the microGPU-seconds in each session's reports; None without reports.
    """
    first, end = within.start // HOUR, within.end // HOUR
    use = Use()
    for running in sessions:
        session, place = running.session, len(use.dimensions)
        assigned = assignments.get(session.namespace, ((0, running.account),))
        dimensions, hours = added(running, assigned, settled, counts[session.uid])
        use.dimensions.append(dimensions)
        use.raw_rows += [(hour, 1, place, *figures) for hour, figures in hours if first <= hour < end]
    return use


def _read_hours(use: Use, rows: Sequence[tuple[bytes, Any]]) -> None:
    """Adds stored rows to `use`: pairs of an hour since 1970 and its rows, as a hash or as a flat list of its items."""
    hours, fields, values = list[int](), list[bytes](), list[bytes]()
    for text_of_hour, pairs in rows:
        flat = [part for pair in pairs.items() for part in pair] if isinstance(pairs, dict) else pairs
        fields += flat[::2]
        values += flat[1::2]
        hours += [int(text_of_hour)] * (len(flat) // 2)
    if not fields:
        return
    places: defaultdict[bytes, int] = defaultdict(count(len(use.dimensions)).__next__)
    for hour, text, (billed, core, memory, busy) in zip(hours, fields, _figures(values), strict=True):
        use.raw_rows.append((hour, 1, places[text], billed, core, memory, busy))
    use.dimensions += orjson.loads(b"[" + b",".join(places) + b"]")


def _figures(values: Sequence[bytes]) -> list[list[Any]]:
    """Returns the billed, core, memory and used amount of each row, from stored texts; an unknown used amount is None.

    All rows are parsed at once, since a query about all accounts reads some hundred thousand.
    """
    text = b"[[" + b"],[".join(values) + b"]]"
    document = text.replace(b" -]", b" null]").replace(b" ", b",")
    # orjson makes floats of what takes more than 64 bits.
    wide = _WIDE in document.translate(_ZEROS)
    figures: list[list[Any]] = (json.loads if wide else orjson.loads)(document)
    return figures


def read_rows(rows: Sequence[tuple[int, bytes, bytes]]) -> list[Row]:
    """Parses rows of hourly use as the store holds them.

    Args:
        rows: for each row its hour, counted from 1970, and the field and value in the hour's hash: the dimensions and
            the amounts.
    """
    use = Use()
    _read_hours(use, [(str(hour).encode(), (field, value)) for hour, field, value in rows])
    return use.rows()
