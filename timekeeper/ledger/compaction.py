"""Removes and compacts old data of accounts: periods, months, sessions' amounts, hours of use, and empty accounts.

Each change of an account's keys is one script call. Every function may raise StoreError or redis.RedisError: the store
refuses, or does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from timekeeper.domain.charges import Assignments
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import DAY, HOUR, Instant
from timekeeper.domain.usage import Row
from timekeeper.domain.usage_folding import PackedPart, added_up, fold, month_of, pack, parse_part, unfold
from timekeeper.domain.windows import month_start, parse_month
from timekeeper.ledger import keys, shared
from timekeeper.ledger.client import Call, FencingToken, Store, put, run_one
from timekeeper.ledger.entries import is_before, read_entry
from timekeeper.ledger.exports import note_late_changes
from timekeeper.ledger.usage import read_rows


def prune(
    client: Store, fencing_token: FencingToken, account: str, before: Instant, periods: Sequence[int], earliest: Instant
) -> None:
    """Removes an account's folded use of the months before `before`, and old periods with orders and ledger entries.

    The month in which the earliest remaining period began also stays: a correction of that period may still change its
    use. Packed hours stay until they are folded, since one value may hold hours of two months. Ledger entries of
    periods before `earliest` are removed. Such an entry stays if an entry of a remaining period precedes it, or is
    packed into the same value.

    Args:
        before: the start of a month, in nanoseconds since 1970.
        periods: the starts of the periods to remove, in nanoseconds since 1970. The grants and corrections that were
            applied in these periods are removed with them.
        earliest: the start of the earliest period that stays, in nanoseconds since 1970.
    """
    names = keys.AccountKeys(account)
    folded: Any = client.hkeys(names.folded)
    kept_from = month_of(min(before, earliest) // HOUR)
    parts = [
        name for name in folded if (part := parse_part(name)) is not None and not part.hourly and part.month < kept_from
    ]
    ledger = (names.ledger, names.segments, names.segment_order)
    kept = (names.head, names.periods, names.folded, *ledger, names.grants, names.corrections)
    touched = (*kept, *_of_periods(names, periods))
    arguments: tuple[Any, ...] = (fencing_token, earliest, len(periods), *periods, *parts)
    run_one(client, Call("prune", touched, arguments))


def drop_account(client: Store, fencing_token: FencingToken, account: str, periods: Sequence[int]) -> bool:
    """Removes an account if it holds no sessions, no usage and no ledger entries; returns whether it was removed.

    An account that holds any of these stays unchanged.

    Args:
        periods: the starts of the account's periods, in nanoseconds since 1970. The keys of these periods are removed
            with the account.

    Raises:
        StoreError: the store refused a change, or did not answer. The account may still exist, or may be removed while
            the lists of accounts still have its name.
    """
    names = keys.AccountKeys(account)
    holding = (names.head, names.sessions, names.ended, names.hour_index, names.folded, names.segments, names.ledger)
    further = (names.segment_order, names.periods, names.grants, names.corrections, *_of_periods(names, periods))
    if not run_one(client, Call("drop_account", (*holding, *further), (fencing_token,))):
        return False
    put(client, fencing_token, "SREM", keys.ACCOUNTS, [account])
    put(client, fencing_token, "SREM", keys.RESTORED, [account])
    put(client, fencing_token, "HDEL", keys.BUDGETS, [account])
    return True


def forget_payer(
    client: Store, fencing_token: FencingToken, changed: dict[str, Assignments], removed: Sequence[str]
) -> None:
    """Writes the remaining payers of namespaces after an account was removed.

    Args:
        changed: keyed by namespace, the remaining payers.
        removed: the namespaces without a remaining payer; the store forgets them.

    Raises:
        StoreError: the store refused the write, or Redis does not answer.
    """
    shared.write_assignments(client, fencing_token, changed)
    put(client, fencing_token, "HDEL", keys.NAMESPACES, removed)


def _of_periods(names: keys.AccountKeys, periods: Sequence[int]) -> Iterator[str]:
    for start in periods:
        yield from (names.period(start), names.amounts(start), names.credits(start))


AT_ONCE = 500
"""The most amounts in one script call, and the number that one step of a scan asks for."""
_AMOUNT = re.compile(rb"\d+ \d+ (?P<amount>\d+) (?P=amount) (?P<flag>[ocg])( [0-9 -]+)?( @(?P<noted>\d+))?")
"""Matches the stored amount of a session whose whole amount is in the ledger."""
FOLDED_AFTER = DAY
"""The time, in nanoseconds, from the first call that finds a session unknown to the leader until its amount is folded.

No leader's books remember a finalized session for as long.
"""


def fold_amounts(
    client: Store,
    fencing_token: FencingToken,
    now: Instant,
    place: tuple[str, int],
    is_known: Callable[[str], bool],
    *,
    long_ended: bool,
) -> int:
    """Folds the sessions' amounts that are due into the sums of a period; returns the number of folded amounts.

    An amount is due FOLDED_AFTER after a first call found that the leader no longer knows the session. That call notes
    its time in the amount. An amount that the ledger does not hold whole, or that cannot be read, is never due.

    Args:
        now: nanoseconds since 1970.
        place: the account's name, and the period's start in nanoseconds since 1970.
        is_known: returns whether the leader still knows the session of a uid.
        long_ended: whether the period ended so long ago that no open session is settled in it any more; otherwise only
            amounts of finalized sessions are due.
    """
    account, start = place
    names = keys.AccountKeys(account)
    touched = (names.period(start), names.amounts(start), names.head)
    folded, cursor, begun = 0, 0, False
    while cursor or not begun:
        answer: Any = client.hscan(names.amounts(start), cursor, count=AT_ONCE)
        (cursor, rows), begun = answer, True
        changes = list(_changes(rows.items(), now, is_known, long_ended=long_ended))
        for first in range(0, len(changes), AT_ONCE):
            arguments = [part for change in changes[first : first + AT_ONCE] for part in change]
            folded += int(run_one(client, Call("fold_amounts", touched, (fencing_token, now // SECOND, *arguments))))
    return folded


def with_amounts(client: Store, account: str, starts: Sequence[int]) -> set[int]:
    """Returns the starts of the account's periods in which the store holds an amount of at least one session.

    Args:
        starts: the starts of the periods, in nanoseconds since 1970.
    """
    names = keys.AccountKeys(account)
    pipeline = client.pipeline(transaction=False)
    for start in starts:
        pipeline.exists(names.amounts(start))
    return {start for start, exists in zip(starts, pipeline.execute(), strict=True) if exists}


def _changes(
    rows: Iterable[tuple[bytes, bytes]], now: Instant, is_known: Callable[[str], bool], *, long_ended: bool
) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the due changes to amounts of sessions that the leader no longer knows: kind, uid and stored text of each.

    The kind is `note` when the session is first found unknown, and `fold` FOLDED_AFTER later. The script makes a change
    only if the stored text is still the yielded one.

    Args:
        rows: each session's uid and stored amount.
        now: nanoseconds since 1970.
        is_known: returns whether the leader still knows the session of a uid.
        long_ended: whether amounts of sessions that are not finalized are due as well.
    """
    for uid, text in rows:
        amount = _AMOUNT.fullmatch(text)  # an unreadable amount stays, and the auditor reports it
        if amount is None or not (long_ended or amount["flag"] == b"g") or is_known(uid.decode()):
            continue
        if amount["noted"] is None:
            yield "note", uid, text
        elif now - int(amount["noted"]) * SECOND >= FOLDED_AFTER:
            yield "fold", uid, text


MOST_ROWS = 4_000
"""The number of rows of use after which one call takes no further hour."""
LARGE_PART = 4 * 1024
"""The size in bytes from which on no rows are added to a packed value.

Adding a day's rows packs the whole value again: with 100 pods a day, a limit of 16 KiB costs the leader four times as
much and saves a sixteenth of the memory. A lower limit makes more values, which a query has to read.
"""


class Cutoffs(NamedTuple):
    """The instants before which data of an account is compacted, in nanoseconds since 1970.

    Attributes:
        folded: hours of use that end by this instant are folded into days.
        packed: hours of use that end by this instant are packed, still as hours.
        ledger: ledger entries that were written before this instant are packed.
    """

    folded: int
    packed: int
    ledger: int


def due_for_compaction(client: Store, accounts: Sequence[str], cutoffs: Cutoffs) -> set[str]:
    """Returns the accounts that hold hours of use or ledger entries from before the cutoffs.

    An account whose data cannot be read is returned, too, so that its compaction raises the error. One round trip reads
    all accounts.

    Args:
        cutoffs: the instants before which data is compacted.
    """
    pipeline = client.pipeline(transaction=False)
    for account in accounts:
        names = keys.AccountKeys(account)
        pipeline.hkeys(names.hour_index)
        pipeline.hkeys(names.folded)
        pipeline.xrange(names.ledger, "-", "+", 1)
    answers = pipeline.execute(raise_on_error=False)
    read = zip(accounts, answers[::3], answers[1::3], answers[2::3], strict=True)
    return {account for account, hours, parts, entries in read if _is_due(hours, parts, entries, cutoffs)}


def _is_due(hours: Any, parts: Any, entries: Any, cutoffs: Cutoffs) -> bool:
    if any(isinstance(answer, Exception) for answer in (hours, parts, entries)):
        return True
    try:
        if any(int(hour) < cutoffs.packed // HOUR for hour in hours):
            return True
        if any(is_before(read_entry(name, fields), cutoffs.ledger) for name, fields in entries):
            return True
    except (ValueError, KeyError):
        return True
    readable = [part for name in parts if (part := parse_part(name)) is not None]
    return any(part.hourly and part.first < cutoffs.folded // HOUR for part in readable)


@dataclass(frozen=True, slots=True)
class _StoredHours:
    """The hours of use that an account had at one moment, with counters by which a later change is noticed.

    Attributes:
        folds: the number of times that hours were packed or folded.
        revisions: the number of writes to each hour, keyed by the hour, counted from 1970.
        parts: the names of the packed values.
    """

    folds: bytes
    revisions: Mapping[int, bytes]
    parts: Sequence[PackedPart]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of an account's hours of use in the store.

    Attributes:
        hours: the hours to remove, counted from 1970.
        replaced: the packed values to remove.
        new: the packed values to write in place of both, keyed by name.
    """

    hours: Sequence[int]
    replaced: Sequence[PackedPart]
    new: Mapping[str, bytes]


class _Packing(NamedTuple):
    """Rows of use to pack into one value, and the stored packed values that this value replaces.

    Attributes:
        rows: the rows to pack.
        target: the stored values, whose rows are packed together with the new rows.
        combine: returns rows in the order of their hours; rows of the same hours and dimensions are added up to one.
        hourly: whether a row of the new value covers one hour; otherwise a row covers hours of one day.
    """

    rows: Sequence[Row]
    target: Sequence[PackedPart]
    combine: Callable[[list[Row]], list[Row]]
    hourly: bool


def fold_hours(client: Store, fencing_token: FencingToken, account: str, before: Instant, edges: Sequence[int]) -> bool:
    """Folds an account's hours of use that end by an instant into days; returns True once all are folded.

    One call folds at most one packed value, and other hours that have about MOST_ROWS rows together. The caller repeats
    the call after False: more hours are due, or the hours changed while they were read and none was folded.

    Args:
        before: nanoseconds since 1970. A month that ended a day or longer before this instant is closed: folding hours
            of that month counts as a late change.
        edges: the starts and ends of the account's periods, in order, in nanoseconds since 1970.

    Raises:
        ValueError: rows of an hour cannot be read; a FoldedError for a packed value.
    """
    names = keys.AccountKeys(account)
    stored = _stored_hours(client, names)
    limit = before // HOUR
    hours, all_hours = _next_hours(client, names, stored, limit)
    due = sorted(part for part in stored.parts if part.hourly and part.first < limit)
    if not hours and not due:
        return True
    rows = _rows(client, names, hours)
    replaced, new = due[:1], dict[str, bytes]()
    for blob in _blobs(client, names, replaced):
        rows += unfold(blob)
    packings = [_Packing([row for row in rows if row.hour >= limit], [], added_up, hourly=True)]
    months = _by_month(row for row in rows if row.hour < limit)
    for month, rows_of_month in months.items():
        target = _with_room(client, names, [part for part in stored.parts if not part.hourly and part.month == month])
        packings.append(_Packing(rows_of_month, target, lambda rows: fold(rows, edges), hourly=False))
    for packing in packings:
        merged, packed = _packed(client, names, stored, packing)
        replaced, new = [*replaced, *merged], new | packed
    note_late_changes(client, [month for month in months if month_start(parse_month(month), 1) + DAY <= before])
    return _replace(client, fencing_token, names, stored, _Change(hours, replaced, new)) and all_hours and len(due) <= 1


def pack_hours(client: Store, fencing_token: FencingToken, account: str, before: Instant) -> bool:
    """Packs an account's hours of use that end by an instant, still as hours; returns True once all are packed.

    One call packs hours that have about MOST_ROWS rows together. The caller repeats the call after False: more hours
    are due, or the hours changed while they were read and none was packed.

    Raises:
        ValueError: rows of an hour cannot be read; a FoldedError for a packed value.
    """
    names = keys.AccountKeys(account)
    stored = _stored_hours(client, names)
    hours, all_hours = _next_hours(client, names, stored, before // HOUR)
    if not hours:
        return True
    target = _with_room(client, names, [part for part in stored.parts if part.hourly])
    packing = _Packing(_rows(client, names, hours), target, added_up, hourly=True)
    change = _Change(hours, *_packed(client, names, stored, packing))
    return _replace(client, fencing_token, names, stored, change) and all_hours


def _stored_hours(client: Store, names: keys.AccountKeys) -> _StoredHours:
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(names.head, "folds")
    pipeline.hgetall(names.hour_index)
    pipeline.hkeys(names.folded)
    folds, index, parts = pipeline.execute()
    parsed = [part for name in parts if (part := parse_part(name)) is not None]
    return _StoredHours(folds or b"0", {int(hour): revision for hour, revision in index.items()}, parsed)


def _next_hours(client: Store, names: keys.AccountKeys, stored: _StoredHours, limit: int) -> tuple[list[int], bool]:
    """Returns the earliest hours of use before an hour, and whether these are all the hours before it.

    Hours are counted from 1970. The returned hours have about MOST_ROWS rows together.

    Args:
        names: the account's keys.
        stored: all hours of use of the account.
        limit: the hour before which hours are returned.
    """
    due = sorted(hour for hour in stored.revisions if hour < limit)
    pipeline = client.pipeline(transaction=False)
    for hour in due:
        pipeline.hlen(names.rows_of(hour))
    taken, count = list[int](), 0
    for hour, size in zip(due, pipeline.execute(), strict=True):
        if count >= MOST_ROWS:
            break
        taken.append(hour)
        count += size
    return taken, len(taken) == len(due)


def _rows(client: Store, names: keys.AccountKeys, hours: Sequence[int]) -> list[Row]:
    pipeline = client.pipeline(transaction=False)
    for hour in hours:
        pipeline.hgetall(names.rows_of(hour))
    answers = zip(hours, pipeline.execute(), strict=True)
    return read_rows([(hour, field, value) for hour, fields in answers for field, value in fields.items()])


def _blobs(client: Store, names: keys.AccountKeys, parts: Sequence[PackedPart]) -> list[bytes]:
    blobs: Any = client.hmget(names.folded, [part.name for part in parts]) if parts else []
    return [blob for blob in blobs if blob is not None]


def _with_room(client: Store, names: keys.AccountKeys, parts: Sequence[PackedPart]) -> list[PackedPart]:
    """Returns the one packed value of `parts` to which new rows are added; an empty list if they begin a new value.

    Two values are considered: the one that ends last, since most new rows follow it, and the one with the fewest hours,
    such as a value that a late change began. The smaller of the two is returned if it is below LARGE_PART bytes.
    """
    if not parts:
        return []
    likely = [max(parts, key=lambda part: part.end), min(parts, key=lambda part: part.end - part.first)]
    blobs: Any = client.hmget(names.folded, [part.name for part in likely])
    sizes = [(len(blob), part) for blob, part in zip(blobs, likely, strict=True) if blob is not None]
    return [part for size, part in sorted(sizes)[:1] if size < LARGE_PART]


def _packed(
    client: Store, names: keys.AccountKeys, stored: _StoredHours, packing: _Packing
) -> tuple[list[PackedPart], dict[str, bytes]]:
    """Returns the stored values to replace, and the new packed value that replaces them, keyed by its name.

    The new value has the rows of `packing` and the rows of the stored values that it replaces. It replaces
    `packing.target`. It also replaces a stored value of the same name, which covers the same hours, such as the half of
    a day that an earlier call folded. Without rows nothing is replaced.
    """
    rows, merged, to_merge = list(packing.rows), list[PackedPart](), list(packing.target)
    while rows:
        for blob in _blobs(client, names, to_merge):
            rows += unfold(blob)
        merged += to_merge
        rows = packing.combine(rows)
        part = PackedPart(packing.hourly, min(row.hour for row in rows), max(row.hour + row.hours for row in rows))
        if part in merged or part not in stored.parts:
            return merged, {part.name: pack(rows)}
        to_merge = [part]
    return [], {}


def _replace(
    client: Store, fencing_token: FencingToken, names: keys.AccountKeys, stored: _StoredHours, change: _Change
) -> bool:
    """Replaces hours and packed values in the store in one step; returns whether they were replaced.

    Nothing is changed if one of the hours, or any packed value, has changed since `stored` was read.
    """
    expected = [part for hour in change.hours for part in (hour, stored.revisions[hour])]
    old = [part.name for part in change.replaced]
    new = [part for packed in change.new.items() for part in packed]
    arguments: tuple[Any, ...] = (fencing_token, stored.folds, len(change.hours), *expected, len(old), *old, *new)
    return bool(run_one(client, Call("pack_hours", (names.head, names.hours, names.folded), arguments)))


def _by_month(rows: Iterable[Row]) -> dict[str, list[Row]]:
    ordered = sorted(rows, key=lambda row: row.hour)
    return {month: list(group) for month, group in groupby(ordered, key=lambda row: month_of(row.hour))}
