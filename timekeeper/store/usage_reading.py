"""Reads what use is put down to: hours as they were written, and what running sessions have added since.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import orjson
import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run, run_one
from timekeeper.store.running_use import Added, Running, added, read_running, reported
from timekeeper.store.unread_use import ATTEMPTS, Bounds, Unread, read_rest
from timekeeper.usage.dimensions import dimension_values
from timekeeper.usage.folding import FOREVER, read_folded
from timekeeper.usage.rows import Row, Use
from timekeeper.usage.windows import Window

ALWAYS = Window(0, FOREVER)
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_WIDE = b"0" * 19
"""As many digits as may be too many, each as a zero: a text is found in a sixth of the time that a pattern takes."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a caller remembers of accounts, and needs not read again.

    Attributes:
        past: by account, the `past` that it was read under.
        since: the hour from which on everything is read all the same.
    """

    past: Mapping[str, bytes]
    since: int


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """What an account's use is put down to, as of `settled` (nanoseconds since 1970).

    Attributes:
        past: stays the same until something changes that was put down to an hour more than a day before.
        known: whether it is what the caller knew, and `put_down` begins where that ends.
        put_down: what is put down to hours.
        running: what open sessions have added since.
    """

    account: str
    settled: int
    past: bytes
    known: bool
    put_down: Use
    running: Use

    def rows(self) -> list[Row]:
        """All of it."""
        return [*self.put_down.rows(), *self.running.rows()]


NOTHING_KNOWN = Known({}, 0)


class View(NamedTuple):
    """How closely a question looks.

    Attributes:
        details: whether nodes, owners, users or labels are asked for.
        sums: whether one sum of the window will do, by namespace, model and user at most.
    """

    details: bool
    sums: bool


DETAILED = View(details=True, sums=False)


def accounts_usage(
    client: redis.Redis,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window = ALWAYS,
    *,
    view: View = DETAILED,
    known: Known = NOTHING_KNOWN,
) -> Iterator[AccountUsage]:
    """The hours of accounts that touch a window, each as of one moment; accounts not in the store are left out.

    Args:
        client: the store; its answers are bytes.
        accounts: whose.
        assignments: who pays for namespaces from when on.
        within: the window.
        view: how closely to look.
        known: what the caller remembers.

    Raises:
        StoreError: the store refused to read.
    """
    found = []
    for name, answer in _answers(client, accounts, within, known):
        found.append((name, answer, _open_sessions(name, answer, within)))
    counts = reported(client, [running for _, _, sessions in found for running in sessions])
    for name, answer, sessions in found:
        adding = [(each, added(each, assignments, answer.settled, counts[each.session.uid])) for each in sessions]
        put_down = _put_down(answer, within, known, view)
        yield AccountUsage(name, answer.settled, answer.past, answer.known, put_down, _running(adding, within))


def restored(client: redis.Redis) -> list[str]:
    """The accounts some of whose spending nobody can be named for."""
    found: Any = client.smembers(keys.RESTORED)
    return sorted(name.decode() for name in found)


def capacity(client: redis.Redis) -> dict[int, int]:
    """What all nodes have, in microGPU-seconds a second, from each instant on at which it changed."""
    found: Any = client.hgetall(keys.CAPACITY)
    return {int(instant): int(rate) for instant, rate in found.items()}


class _Answer(NamedTuple):
    """An account's use as the store holds it at one moment."""

    settled: int
    periods: Sequence[bytes | None]
    past: bytes
    known: bool
    rows: Sequence[tuple[bytes, Any]]
    packed: Sequence[bytes]
    open: Sequence[Any]
    unread: Unread


def _answers(
    client: redis.Redis, accounts: Sequence[str], within: Window, known: Known
) -> Iterator[tuple[str, _Answer]]:
    answers = run(client, [_read_call(name, within, known, ATTEMPTS[0]) for name in accounts])
    for name, answer in zip(accounts, answers, strict=True):
        if isinstance(answer, StoreError):
            raise answer
        if answer is not None:
            found = _complete(client, name, _read_answer(answer), within, known)
            if found is not None:
                yield name, found


def _complete(client: redis.Redis, name: str, answer: _Answer | None, within: Window, known: Known) -> _Answer | None:
    """The answer with what was too large to be read with it; asked for anew where that changes meanwhile."""
    for bounds in ATTEMPTS[1:]:
        if answer is None or answer.unread.nothing:
            return answer
        rest = read_rest(client, name, answer.unread, answer.periods)
        if rest is not None:
            rows, packed = [*answer.rows, *rest.rows], [*answer.packed, *rest.packed]
            return answer._replace(rows=rows, packed=packed, open=rest.open or answer.open)
        again = run_one(client, _read_call(name, within, known, bounds))
        answer = None if again is None else _read_answer(again)
    return answer


def _read_call(name: str, within: Window, known: Known, bounds: Bounds) -> Call:
    account = keys.AccountKeys(name)
    touched = (account.head, account.hours, account.folded, account.sessions, account.amounts_of_periods)
    window = (within.start // HOUR, within.end // HOUR)
    return Call("read_usage", touched, (known.past.get(name, b""), known.since, *window, *bounds))


def _read_answer(answer: Sequence[Any]) -> _Answer:
    settled, periods, past, known, rows, packed, sessions, stamp, hours, parts, too_many = answer
    version, folds = stamp
    unread = Unread(version, folds, list(zip(hours[::2], hours[1::2], strict=True)), parts, bool(too_many))
    by_hour = [(hour, found) for hour, found in zip(rows[::2], rows[1::2], strict=True)]
    return _Answer(int(settled or 0), periods, past, bool(known), by_hour, packed, sessions, unread)


def _open_sessions(name: str, answer: _Answer, within: Window) -> list[Running]:
    """Those that may have added something to a window."""
    if answer.settled <= within.start:
        return []
    starts = [int(period) for period in answer.periods if period]
    ends = [FOREVER, *starts]
    return read_running(name, [Period(*each) for each in zip(starts, ends, strict=False)], answer.open)


def _put_down(answer: _Answer, within: Window, known: Known, view: View) -> Use:
    """What is put down to the hours of a window, without those that the caller knows."""
    first = max(within.start // HOUR, known.since) if answer.known else within.start // HOUR
    found = Use()
    for blob in answer.packed:
        read_folded(blob, found, first, within.end // HOUR, details=view.details, sums=view.sums)
    _read_hours(found, answer.rows)
    return found


def _running(sessions: Iterable[tuple[Running, Iterator[Added]]], within: Window) -> Use:
    """What open sessions have added in a window: to hours long past, too, where nobody settled since."""
    first, end = within.start // HOUR, within.end // HOUR
    found = Use()
    for (_, session, _), added_since in sessions:
        place = len(found.dimensions)
        found.dimensions.append(dimension_values(session.namespace, session.node, session.attribution))
        found.stretches += [(hour, 1, place, *figures) for hour, figures in added_since if first <= hour < end]
    return found


def _read_hours(use: Use, rows: Sequence[tuple[bytes, Any]]) -> None:
    """Adds hours: each with its dimensions and figures, by turns or as a mapping."""
    hours, fields, values = list[int](), list[bytes](), list[bytes]()
    for text_of_hour, found in rows:
        flat = [part for pair in found.items() for part in pair] if isinstance(found, dict) else found
        fields += flat[::2]
        values += flat[1::2]
        hours += [int(text_of_hour)] * (len(flat) // 2)
    if not fields:
        return
    places: defaultdict[bytes, int] = defaultdict(count(len(use.dimensions)).__next__)
    for hour, text, (billed, core, memory, used) in zip(hours, fields, _figures(values), strict=True):
        use.stretches.append((hour, 1, places[text], billed, core, memory, used))
    use.dimensions += orjson.loads(b"[" + b",".join(places) + b"]")


def _figures(values: Sequence[bytes]) -> list[list[Any]]:
    """The figures of rows, read in one go: a question across all accounts reads some hundred thousand of them."""
    text = b"[[" + b"],[".join(values) + b"]]"
    document = text.replace(b" -]", b" null]").replace(b" ", b",")
    # orjson makes floats of what takes more than 64 bits.
    wide = _WIDE in document.translate(_ZEROS)
    figures: list[list[Any]] = (json.loads if wide else orjson.loads)(document)
    return figures


def read_rows(rows: Sequence[tuple[int, bytes, bytes]]) -> list[Row]:
    """Rows as they stand in hours: the hour, and field and value there."""
    use = Use()
    _read_hours(use, [(str(hour).encode(), (field, value)) for hour, field, value in rows])
    return use.rows()
