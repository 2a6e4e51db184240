"""Reads what use is put down to: hours as they were written, and what running sessions have added since.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson
import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run
from timekeeper.store.running_use import Added, Running, added, read_running, reported
from timekeeper.usage.dimensions import dimension_values
from timekeeper.usage.folding import FOREVER, months_of, read_folded
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


def accounts_usage(
    client: redis.Redis,
    accounts: Sequence[str],
    assignments: Mapping[str, Assignments],
    within: Window = ALWAYS,
    *,
    details: bool = True,
    known: Known = NOTHING_KNOWN,
) -> Iterator[AccountUsage]:
    """The hours of accounts that touch a window, each as of one moment; accounts not in the store are left out.

    Args:
        client: the store; its answers are bytes.
        accounts: whose.
        assignments: who pays for namespaces from when on.
        within: the window.
        details: whether nodes, owners, users or labels are asked for.
        known: what the caller remembers.

    Raises:
        StoreError: the store refused to read.
    """
    months = months_of(within)
    calls = [_read_call(name, months, known) for name in accounts]
    found = []
    for name, answer in zip(accounts, run(client, calls), strict=True):
        if isinstance(answer, StoreError):
            raise answer
        if answer is not None:
            found.append((name, answer, _open_sessions(name, answer, within)))
    counts = reported(client, [running for _, _, sessions in found for running in sessions])
    for name, answer, sessions in found:
        until = int(answer[0] or 0)
        adding = [(each, added(each, assignments, until, counts[each.session.uid])) for each in sessions]
        yield _account_usage(name, answer, within, adding, details=details)


def restored(client: redis.Redis) -> list[str]:
    """The accounts some of whose spending nobody can be named for."""
    found: Any = client.smembers(keys.RESTORED)
    return sorted(name.decode() for name in found)


def capacity(client: redis.Redis) -> dict[int, int]:
    """What all nodes have, in microGPU-seconds a second, from each instant on at which it changed."""
    found: Any = client.hgetall(keys.CAPACITY)
    return {int(instant): int(rate) for instant, rate in found.items()}


def _read_call(name: str, months: Sequence[str], known: Known) -> Call:
    account = keys.AccountKeys(name)
    touched = (account.head, account.hours, account.folded, account.sessions, account.amounts_of_periods)
    return Call("read_usage", touched, (known.past.get(name, b""), known.since, *months))


def _open_sessions(name: str, answer: Any, within: Window) -> list[Running]:
    """Those that may have added something to a window."""
    settled, periods, *_, stored = answer
    if int(settled or 0) <= within.start:
        return []
    starts = [int(period) for period in periods if period]
    ends = [FOREVER, *starts]
    return read_running(name, [Period(*each) for each in zip(starts, ends, strict=False)], stored)


def _account_usage(
    name: str, answer: Any, within: Window, sessions: Iterable[tuple[Running, Iterator[Added]]], *, details: bool
) -> AccountUsage:
    settled, _, past, known, stored, folded, _ = answer
    first, end = within.start // HOUR, within.end // HOUR
    put_down, running = Use(), Use()
    for blob in folded:
        if blob is not None:
            read_folded(blob, put_down, first, end, details=details)
    _read_hours(put_down, stored[::2], stored[1::2], first, end)
    for (_, session, _), added_since in sessions:
        place = len(running.dimensions)
        running.dimensions.append(dimension_values(session.namespace, session.node, session.attribution))
        running.stretches += [(hour, 1, place, *figures) for hour, figures in added_since if first <= hour < end]
    return AccountUsage(name, int(settled or 0), past, bool(known), put_down, running)


def _read_hours(use: Use, fields: Sequence[bytes], values: Sequence[bytes], first: int, end: int) -> None:
    """Adds those rows of an account's hours, fields and values, that lie between two hours."""
    if not fields:
        return
    places: defaultdict[bytes, int] = defaultdict(count(len(use.dimensions)).__next__)
    for field, (billed, core, memory, used) in zip(fields, _figures(values), strict=True):
        text_of_hour, text = field.split(b" ", 1)
        hour = int(text_of_hour)
        if first <= hour < end:
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


def read_rows(fields: Sequence[bytes], values: Sequence[bytes]) -> list[Row]:
    """Rows as they stand in an account's hours, fields and values."""
    use = Use()
    _read_hours(use, fields, values, 0, FOREVER)
    return use.rows()
