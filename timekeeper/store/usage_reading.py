"""Reads what use is put down to: hours as they were written, and what running sessions have added since.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import Cut, cuts
from timekeeper.metering.segments import Assignments, spans
from timekeeper.metering.sessions import Session
from timekeeper.rules.periods import Period
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run
from timekeeper.store.reading import StoredAmount, read_amount
from timekeeper.store.records import decode_session
from timekeeper.usage.dimensions import Dimensions, dimensions, read_dimensions
from timekeeper.usage.folding import months_of, unfold
from timekeeper.usage.rows import Figures, Row
from timekeeper.usage.windows import Window

FOREVER = 1 << 62
ALWAYS = Window(0, FOREVER)


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """What an account's use is put down to, as of `settled` (nanoseconds since 1970)."""

    account: str
    settled: int
    rows: tuple[Row, ...]


def accounts_usage(
    client: redis.Redis, accounts: Sequence[str], assignments: Mapping[str, Assignments], within: Window = ALWAYS
) -> list[AccountUsage]:
    """The hours of accounts that touch a window, each as of one moment; accounts not in the store are left out.

    Raises:
        StoreError: the store refused to read.
    """
    heads = client.pipeline(transaction=False)
    for name in accounts:
        heads.hmget(keys.AccountKeys(name).head, ["period", "previous"])
    known = [(name, *found) for name, found in zip(accounts, heads.execute(), strict=True) if found[0]]
    months = months_of(within)
    calls = [_read_call(name, int(latest), int(previous or 0), months) for name, latest, previous in known]
    answers = run(client, calls)
    result = []
    for (name, latest, previous), answer in zip(known, answers, strict=True):
        if isinstance(answer, StoreError):
            raise answer
        periods = [int(latest), *([int(previous)] if previous else [])]
        result.append(_account_usage(name, periods, answer, assignments, within))
    return result


def restored(client: redis.Redis) -> list[str]:
    """The accounts some of whose spending nobody can be named for."""
    found: Any = client.smembers(keys.RESTORED)
    return sorted(name.decode() for name in found)


def capacity(client: redis.Redis) -> dict[int, int]:
    """What all nodes have, in microGPU-seconds a second, from each instant on at which it changed."""
    found: Any = client.hgetall(keys.CAPACITY)
    return {int(instant): int(rate) for instant, rate in found.items()}


def _read_call(name: str, latest: int, previous: int, months: Sequence[str]) -> Call:
    account = keys.AccountKeys(name)
    touched = (
        account.head,
        account.hours,
        account.folded,
        account.sessions,
        account.amounts(latest),
        account.amounts(previous),
    )
    return Call("read_usage", touched, tuple(months))


def _account_usage(
    name: str, periods: Sequence[int], answer: Any, assignments: Mapping[str, Assignments], within: Window
) -> AccountUsage:
    settled, stored, folded, running = answer
    first, end_hour = within.start // HOUR, within.end // HOUR
    rows = [
        read_row(field, value)
        for field, value in zip(stored[::2], stored[1::2], strict=True)
        if first <= int(field[: field.index(b" ")]) < end_hour
    ]
    for blob in folded:
        if blob is not None:
            rows.extend(unfold(blob, first, end_hour))
    until = int(settled or 0)
    if until <= within.start:
        running = []
    for record, *amounts in zip(running[::3], running[1::3], running[2::3], strict=True):
        session = decode_session(record)
        known = assignments.get(session.namespace, ((0, name),))
        for index, (start, text) in enumerate(zip(periods, amounts, strict=False)):
            end = FOREVER if index == 0 else periods[0]
            if text is not None:
                added = _running(name, session, known, Period(start, end), read_amount(text), until)
                rows.extend(row for row in added if first <= row.hour < end_hour)
    return AccountUsage(name, until, tuple(rows))


def read_row(field: bytes, value: bytes) -> Row:
    """A row as it stands in an account's hours."""
    hour, _, text = field.decode().partition(" ")
    billed, core, memory, used = value.decode().split(" ")
    figures = Figures(int(billed), int(core), int(memory), None if used == "-" else int(used))
    return Row(int(hour), 1, read_dimensions(text), figures)


def _running(
    name: str, session: Session, known: Assignments, period: Period, amount: StoredAmount, until: int
) -> Iterator[Row]:
    """What a session has added since its last cut: what is not posted of its amount, in the hours since then."""
    stretches = [
        span
        for span in spans(known, lambda account: [period] if account == name else (), session.start, until)
        if span.account == name
    ]
    if amount.amount == amount.posted and not stretches:
        return
    taken = amount.cut or Cut(0, amount.posted, 0, 0)
    shown = session.attribution or Attribution()
    to = read_dimensions(dimensions(session.namespace, session.node, session.attribution))
    if stretches:
        found = cuts(stretches, session.tariff, shown, amount.cut, amount.amount)
    else:
        found = [Cut(taken.until + 1, amount.amount, taken.core, taken.memory)]
    yield from _differences(to, taken, found)


def _differences(to: Dimensions, taken: Cut, found: Sequence[Cut]) -> Iterator[Row]:
    for cut in found:
        added = Figures(cut.billed - taken.billed, cut.core - taken.core, cut.memory - taken.memory, None)
        if added != Figures():
            yield Row(cut.hour, 1, to, added)
        taken = cut
