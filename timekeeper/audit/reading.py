"""Reads snapshots of accounts from the store, each as of one moment, while the leader goes on settling.

Every function may raise redis.RedisError. The client of the store returns bytes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import redis
from redis.client import Pipeline

from timekeeper.audit.charges import Changes
from timekeeper.audit.snapshot import Entry, SessionRecord, Snapshot, present_start, read_session, unreadable, whole
from timekeeper.audit.sums import hours_around
from timekeeper.domain.timestamps import Instant
from timekeeper.domain.usage_folding import parse_part
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import (
    Call,
    Store,
    StoreError,
    concerns_all,
    described,
    of_another_type,
    readable_answers,
    run,
    run_one,
)
from timekeeper.ledger.codec import UNREADABLE
from timekeeper.ledger.entries import SegmentError, entry_order
from timekeeper.ledger.usage import ATTEMPTS, Bounds, Rest, Unread, read_rest

ENTRIES_PER_PAGE = 1000
FIELDS_AT_ONCE = 1000
"""The number of fields that one step of reading a large hash asks for."""
HOUR_MS = 3_600_000
"""The assumed largest difference between the leader's clock and Redis's, in milliseconds; Redis orders the entries."""


def present_periods(client: Store, accounts: Sequence[str], now: Instant) -> dict[str, int]:
    """Returns the start of each account's present period, in nanoseconds since 1970, keyed by account.

    Accounts without a period are left out. If the account's `head` does not name one of its periods, its latest one
    counts. An account of which neither `head` nor the list of periods can be read has the start 0.

    Args:
        now: the instant that decides which period is present.
    """
    pipeline = client.pipeline(transaction=False)
    for name in accounts:
        pipeline.hget(keys.AccountKeys(name).head, "period")
        pipeline.hkeys(keys.AccountKeys(name).periods)
    answers = _answers(pipeline)
    present = dict[str, int]()
    for name, head, listed in zip(accounts, answers[::2], answers[1::2], strict=True):
        texts = [] if isinstance(listed, Exception) else [_text(start) for start in listed]
        starts = [start for start in map(whole, texts) if start is not None]
        latest = whole(_text(head))
        if starts and latest not in starts:
            latest = max(starts)
        if latest is not None:
            present[name] = present_start(latest, texts, now)
        elif isinstance(head, Exception) or isinstance(listed, Exception):
            present[name] = 0
    return present


def _answers(pipeline: Pipeline) -> list[Any]:
    """Returns a pipeline's answers, among them the errors of keys that hold another type than their command expects.

    Raises:
        redis.RedisError: the store refused a command for another reason.
    """
    answers = pipeline.execute(raise_on_error=False)
    readable_answers(answers)
    return answers


def read_snapshots(client: Store, wanted: Mapping[str, int], *, whole_ledger: bool = False) -> Iterator[Snapshot]:
    """Yields a snapshot of each wanted period, each as of one moment; only sessions' reports are read a moment later.

    If the store does not have a wanted period, the snapshot's `exists` is False.

    One script reads the hashes of a snapshot. If the account has more sessions or more rows of hours than one run of
    the script reads, the others are read afterwards, so that no command delays the leader. If their revisions show that
    they have changed meanwhile, the script is run again and reads more. The ledger, whose entries never change, is read
    up to the entry that was the last one when the script ran.

    Args:
        wanted: keyed by account, the start of the period in nanoseconds since 1970.
        whole_ledger: whether to look for the periods' entries in the whole ledger. If not, entries that were written
            before the period began are missed; only a wrong clock writes such entries.

    Raises:
        StoreError: the store does not answer.
    """
    answers = run(client, [_call(name, start, ATTEMPTS[0]) for name, start in wanted.items()])
    for (name, start), answer in zip(wanted.items(), answers, strict=True):
        try:
            if isinstance(answer, StoreError):
                raise answer
            whole_answer, rest = _with_rest(client, name, start, answer)
            yield _snapshot(client, name, start, whole_answer, rest, whole_ledger=whole_ledger)
        except (StoreError, redis.RedisError) as error:
            if concerns_all(error):
                raise
            broken = ", ".join(_of_another_type(client, name, start))
            yield unreadable(name, start, f"{broken}: of another type" if broken else described(error))


def payers_of(client: Store, namespaces: Sequence[str]) -> dict[str, Changes]:
    """Returns the payers of each namespace in order of time, keyed by namespace.

    Namespaces without readable payers are left out. Callers must read the snapshots first: a change of payers that
    comes after the snapshots concerns only later use.
    """
    return {**reading.assignments_of(client, namespaces)}


def left_on_nodes(client: Store, payers: Mapping[str, Changes], nodes: Container[str]) -> list[SessionRecord]:
    """Returns the open sessions on the given nodes that the store keeps under any account that is a former payer.

    Args:
        payers: keyed by namespace, its payers in order of time; all but the last one are former payers.
        nodes: the names of the nodes.
    """
    former = sorted({account for known in payers.values() for _, account in known[:-1]})
    pipeline = client.pipeline(transaction=False)
    for account in former:
        pipeline.hvals(keys.AccountKeys(account).sessions)
    stored = readable_answers(pipeline.execute(raise_on_error=False))
    records = [read_session(_text(text)) for texts in stored for text in texts or ()]
    return [record for record in records if record is not None and record.node in nodes]


def states_of(client: Store, namespaces: Sequence[str]) -> dict[str, str]:
    """Returns the published states of namespaces as JSON, keyed by namespace; a namespace without one is left out."""
    if not namespaces:
        return {}
    texts: Any = client.hmget(keys.STATES_VALUES, list(namespaces))
    return {name: _text(text) for name, text in zip(namespaces, texts, strict=True) if text is not None}


def prices(client: Store) -> bytes | None:
    """Returns the price list at which sessions were charged, as JSON; None if the store has none."""
    stored: Any = client.get(keys.PRICES)
    return stored if isinstance(stored, bytes) else None


def metered_uids(client: Store) -> set[str]:
    """Returns the uids of all open sessions in the store."""
    members: Any = client.zrange(keys.OPEN_SESSIONS, 0, -1)
    return {_text(member).partition(" ")[0] for member in members}


def _of_another_type(client: Store, name: str, start: int) -> list[str]:
    """Returns the keys of a snapshot that hold another Redis type than the timekeeper writes.

    Args:
        name: the account's name.
        start: the period's start.
    """
    account = keys.AccountKeys(name)
    *hashes, ledger, segments, _, folded = _touched(account, start)
    pipeline = client.pipeline(transaction=False)
    pipeline.xlen(ledger)
    pipeline.hkeys(account.hour_index)
    size, hours = pipeline.execute(raise_on_error=False)
    broken = of_another_type({ledger: size, account.hour_index: hours})
    for hour in [] if isinstance(hours, Exception) else map(_text, hours):
        hashes += [account.rows_of(hour), account.sums_of(hour)]
    hashes += [segments, folded]
    for key in hashes:
        pipeline.hlen(key)
    return [*broken, *of_another_type(dict(zip(hashes, pipeline.execute(raise_on_error=False), strict=True)))]


class _Rest(NamedTuple):
    """The parts of a snapshot that its script did not read, and that were read afterwards.

    Attributes:
        rows: the rows of hours, and all packed values.
        sums: the sums of these hours.
        sessions: the contents of the hashes amounts, sessions and ended; empty if the script read them.
    """

    rows: Rest
    sums: Rest
    sessions: Sequence[Mapping[bytes, bytes]]


def _touched(account: keys.AccountKeys, start: int) -> tuple[str, ...]:
    """Returns the keys of a snapshot in the order that its script expects; `start` is the period's start."""
    return (
        account.head,
        account.periods,
        account.period(start),
        account.amounts(start),
        account.sessions,
        account.ended,
        account.grants,
        account.corrections,
        account.credits(start),
        account.ledger,
        account.segments,
        account.hours,
        account.folded,
    )


def _call(name: str, start: int, bounds: Bounds) -> Call:
    touched = _touched(keys.AccountKeys(name), start)
    return Call("snapshot", touched, (*hours_around(start), bounds.rows, bounds.sessions))


def _with_rest(client: Store, name: str, start: int, answer: Any) -> tuple[Any, _Rest]:
    """Returns the answer of the script that reads a snapshot, and the parts that it did not read.

    The script reads a limited number of rows and of sessions. If the parts that it did not read have changed since, the
    script is run again with higher limits (see ATTEMPTS).

    Args:
        name: the account's name.
        start: the period's start.
        answer: the script's first answer.
    """
    for bounds in ATTEMPTS[1:]:
        rest = _rest(client, name, start, answer, at_once=bounds is ATTEMPTS[-1])
        if rest is not None:
            return answer, rest
        answer = run_one(client, _call(name, start, bounds))
    return answer, _rest(client, name, start, answer, at_once=True) or _Rest(Rest(), Rest(), ())


def _rest(client: Store, name: str, start: int, answer: Any, *, at_once: bool) -> _Rest | None:
    """Reads the parts of a snapshot that its script did not read; None if some of them have changed since it ran.

    Args:
        name: the account's name.
        start: the period's start.
        answer: the script's answer.
        at_once: whether each hash of sessions is read by one command: of 100,000 sessions it takes a tenth of a second,
            so little changes meanwhile. Otherwise many short commands read it.
    """
    unread = _unread(start, answer)
    sessions = _sessions(client, name, start, answer, at_once=at_once)
    rows = read_rest(client, name, unread, ())
    sums = read_rest(client, name, replace(unread, parts=()), (), details=False) if unread.hours else Rest()
    return None if rows is None or sums is None or sessions is None else _Rest(rows, sums, sessions)


def _sessions(
    client: Store, name: str, start: int, answer: Any, *, at_once: bool
) -> list[Mapping[bytes, bytes]] | None:
    """Reads the hashes amounts, sessions and ended if the script did not; None if one has changed since it ran.

    All that adds a field to one of them, or changes what an audit reads of one, raises the account's version, and all
    that only removes fields lowers their number.
    """
    sizes, account = answer[15], keys.AccountKeys(name)
    if not sizes:
        return []
    hashes = (account.amounts(start), account.sessions, account.ended)
    found: list[Any] = [] if at_once else [dict(client.hscan_iter(key, count=FIELDS_AT_ONCE)) for key in hashes]
    pipeline = client.pipeline(transaction=False)
    for key in hashes if at_once else ():
        pipeline.hgetall(key)
    pipeline.hget(account.head, "version")
    for key in hashes:
        pipeline.hlen(key)
    *read_now, version, _, _, _ = answers = pipeline.execute()
    same = (version or b"0") == _unread(start, answer).version and answers[-len(hashes) :] == sizes
    return (found or read_now) if same else None


def _unread(start: int, answer: Any) -> Unread:
    head = dict(zip(answer[0][::2], answer[0][1::2], strict=True))
    first, end = hours_around(start)
    packed = [(each, parse_part(each)) for each in answer[12]]
    parts = [each for each, part in packed if part is not None and part.end > first and part.first < end]
    hours = list(zip(answer[11][::2], answer[11][1::2], strict=True))
    return Unread(head.get(b"version", b"0"), head.get(b"folds", b"0"), hours, parts)


def _snapshot(
    client: Store, name: str, start: int, answer: Sequence[Any], rest: _Rest, *, whole_ledger: bool
) -> Snapshot:
    head, periods, sums, amounts, sessions, ended, *orders = (_by_key(found) for found in answer[:9])
    grants, corrections, stored_credits = orders
    if rest.sessions:
        amounts, sessions, ended = ({_text(uid): _text(text) for uid, text in each.items()} for each in rest.sessions)
    after = "" if whole_ledger else f"{max(start // 1_000_000 - HOUR_MS, 0)}-0"
    entries: tuple[Entry, ...] = ()
    fault = ""
    try:
        entries = tuple(_entries(client, name, start, after, _text(answer[9])))
    except (SegmentError, *UNREADABLE) as error:
        fault = str(error) or repr(error)
    parts = map(_text, _unread(start, answer).parts)
    return Snapshot(
        name,
        start,
        head,
        periods,
        sums,
        amounts,
        sessions,
        ended,
        grants,
        corrections,
        stored_credits,
        entries,
        _by_field(answer[10], rest.rows),
        _by_field(answer[14], rest.sums),
        dict(zip(parts, rest.rows.packed, strict=False)),  # nothing is read of hours that change all the time
        _text(answer[13]),
        _reports(client, [uid for uid, record in sessions.items() if '"tally"' in record]),
        fault,
    )


def _reports(client: Store, uids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns pairs of a session's report limits and its reports so far, as JSON texts, keyed by uid.

    A session that lacks one of the two, or whose key holds another type, is left out.
    """
    pipeline = client.pipeline(transaction=False)
    for uid in uids:
        pipeline.hmget(keys.report(uid), ["terms", "state"])
    answers = zip(uids, readable_answers(pipeline.execute(raise_on_error=False)), strict=True)
    return {uid: (_text(found[0]), _text(found[1])) for uid, found in answers if found and all(found)}


def _by_field(read: Sequence[Any], rest: Rest) -> dict[str, str]:
    """Returns all rows of a snapshot's hours, keyed by `HOUR DIMENSIONS`.

    Args:
        read: the rows in the answer of the snapshot's script: an hour and its rows in turn.
        rest: the rows that the script did not read, and that were read after it.
    """
    by_hour = [*zip(read[::2], read[1::2], strict=True)]
    by_hour += [(hour, [part for pair in rows.items() for part in pair]) for hour, rows in rest.rows]
    return {f"{_text(hour)} {to}": row for hour, rows in by_hour for to, row in _by_key(rows).items()}


def _entries(client: Store, account: str, start: int, after: str, last: str) -> Iterator[Entry]:
    """Yields the ledger entries of one period of an account.

    Args:
        start: the period's start, in nanoseconds since 1970.
        after: the id of the entry after which to read; empty to read from the first entry on.
        last: the id of the last entry to read; empty to read none.
    """
    while last:
        page = reading.ledger_page(client, account, after, ENTRIES_PER_PAGE)
        for entry in page:
            if entry_order(entry.id) > entry_order(last):
                return
            if entry.period == start:
                yield Entry(entry.kind, entry.amount, entry.at, entry.session, entry.pod, entry.note, entry.namespace)
        if len(page) < ENTRIES_PER_PAGE:
            return
        after = page[-1].id


def _by_key(pairs: Sequence[Any]) -> dict[str, str]:
    texts = [_text(part) for part in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
