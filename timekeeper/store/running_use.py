"""What open sessions have added since they were last put down to hours, told as the next entry will put it down.

What is billed and reserved is as of the last settlement, what was used as of the latest report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import Cut, cuts, with_used
from timekeeper.metering.segments import Assignments, spans
from timekeeper.metering.sessions import Session
from timekeeper.metering.totals import parts
from timekeeper.rules.periods import Period
from timekeeper.store.reading import StoredAmount, read_amount, used
from timekeeper.store.records import decode_session

Added = tuple[int, tuple[int, int, int, int | None]]
"""An hour, and what was billed, reserved of core and memory, and used in it; None where nothing was reported."""


class Running(NamedTuple):
    """An open session of an account.

    Attributes:
        account: who pays.
        session: the session.
        amounts: what stands of it in the latest periods that it was in, the latest first.
    """

    account: str
    session: Session
    amounts: Sequence[tuple[Period, StoredAmount]]


def read_running(account: str, periods: Sequence[Period], stored: Sequence[Any]) -> list[Running]:
    """Open sessions from their records, each followed by its amount in each of two periods, the latest first."""
    found = []
    for record, *texts in zip(stored[::3], stored[1::3], stored[2::3], strict=True):
        amounts = zip(periods, texts, strict=False)
        known = [(period, read_amount(text)) for period, text in amounts if text is not None]
        found.append(Running(account, decode_session(record), known))
    return found


def reported(client: redis.Redis, sessions: Sequence[Running]) -> dict[str, int | None]:
    """The GPU time that each session's reports tell of, by its uid, in microGPU-seconds.

    Raises:
        redis.RedisError: the store does not answer.
    """
    uids = [running.session.uid for running in sessions]
    return dict(zip(uids, used(client, uids), strict=True))


def added(running: Running, assignments: Mapping[str, Assignments], until: int, count: int | None) -> Iterator[Added]:
    """What a session has added.

    Args:
        running: the session.
        assignments: who pays for namespaces from when on.
        until: when it was last settled, in nanoseconds since 1970.
        count: what its reports tell of; None where there are none.
    """
    known = assignments.get(running.session.namespace, ((0, running.account),))
    used_now = _used_now(running, count) if count is not None and running.amounts else None
    for index, (period, amount) in enumerate(running.amounts):
        yield from _added_in(running, period, amount, known, until, used_now if index == 0 else None)


def _used_now(running: Running, count: int) -> int:
    """What was used in the period that a session is in, by its reports."""
    period, amount = running.amounts[0]
    bases = running.session.report_bases
    found = parts(bases, count).get((running.account, period.start), 0) if bases else count
    return max(found, amount.used)


def _added_in(
    running: Running, period: Period, amount: StoredAmount, known: Assignments, until: int, used_now: int | None
) -> Iterator[Added]:
    """What is not posted of an amount, and of what was used where that is told, in the hours since the last cut."""
    account, session, _ = running
    stretches = [
        span
        for span in spans(known, lambda payer: [period] if payer == account else (), session.start, until)
        if span.account == account
    ]
    if amount.amount == amount.posted and not stretches:
        return
    taken = amount.cut or Cut(0, amount.posted, 0, 0)
    if stretches:
        found = cuts(stretches, session.tariff, session.attribution or Attribution(), amount.cut, amount.amount)
    else:
        found = [Cut(taken.until + 1, amount.amount, taken.core, taken.memory)]
    if used_now is not None:
        found = with_used(found, amount.cut, max(session.start, period.start), used_now)
    yield from _differences(taken, found)


def _differences(taken: Cut, found: Sequence[Cut]) -> Iterator[Added]:
    for cut in found:
        reserved = cut.billed - taken.billed, cut.core - taken.core, cut.memory - taken.memory
        newly_used = None if cut.used is None else cut.used - (taken.used or 0)
        if any(reserved) or newly_used:
            yield cut.hour, (*reserved, newly_used)
        taken = cut
