"""A session as the store has acknowledged it: one value, which the next leader reads from the store again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from timekeeper.metering.cuts import Cut
from timekeeper.metering.sessions import Session
from timekeeper.metering.totals import Bases

Key = tuple[str, int]
"""An account and the start of one of its periods."""


class Posted(NamedTuple):
    """A session's posting in one period of one account, as the store holds it.

    Attributes:
        amount: the session's cumulative amount in the period, in microGPU-seconds.
        cut: the last cut that was put down to hours; None before the first.
        finalized: whether the period's sum of sessions whose pods are gone holds the amount.
    """

    amount: int
    cut: Cut | None = None
    finalized: bool = False


class RecordedUse(NamedTuple):
    """The part of a session's record that its reports fill.

    Attributes:
        billed: what the reports amounted to when each stretch of the session began, where use is billed.
        reported: the GPU time that they told of when each stretch began.
        total: what they come to, where use is billed; None before the first.
        missing: what the devices are reserved at that they have not named, and what all are.
    """

    billed: Bases = ()
    reported: Bases = ()
    total: int | None = None
    missing: tuple[int, int] = (0, 0)


class Acknowledged(NamedTuple):
    """A session as the store holds it.

    Attributes:
        periods: what it holds in each period that may still change.
        settled_until: periods that end by then are final: what they hold is not computed again, unless the session
            turns out to have ended before.
        session: the session as it was when its record was written; None where there is no record.
        use: what the record says of its reports.
        open_under: the account under which the session stands as open; empty for none.
        posted_at: when the ledger last got an entry of it, in nanoseconds since 1970.
        posted_rate: its rate then, in microGPU-seconds a second.
        closed: whether the store, and a replica where there is one, holds its end.
    """

    periods: Mapping[Key, Posted] = MappingProxyType({})
    settled_until: int = 0
    session: Session | None = None
    use: RecordedUse = RecordedUse()
    open_under: str = ""
    posted_at: int = 0
    posted_rate: int = 0
    closed: bool = False

    def amount(self, key: Key) -> int:
        """The amount in a period; 0 where nothing of it is known."""
        known = self.periods.get(key)
        return 0 if known is None else known.amount


NOTHING = Acknowledged()
"""The value of a session that the store does not hold."""


def forgotten(acknowledged: Acknowledged) -> Acknowledged:
    """The value after the store was emptied: it keeps only the totals of reports at which periods began."""
    use = acknowledged.use
    return Acknowledged(settled_until=first_known(use), use=use)


def first_known(use: RecordedUse) -> int:
    """Periods that end by then cannot be computed again: nobody knows what had been used when they began."""
    return min((period for _, period, _ in use.billed), default=0)


def with_use(session: Session, use: RecordedUse) -> Session:
    """A session as its record tells it."""
    if use == RecordedUse():
        return session
    return replace(
        session, use_bases=use.billed, report_bases=use.reported, use_total=use.total, use_missing=use.missing
    )


def use_of(record: Session) -> RecordedUse:
    """Reads the totals of reports from a session's record."""
    return RecordedUse(record.use_bases, record.report_bases, record.use_total, record.use_missing)


def without_use(record: Session) -> Session:
    """The session of a record, as far as it is known from its pod."""
    if use_of(record) == RecordedUse():
        return record
    return replace(record, use_bases=(), report_bases=(), use_total=None, use_missing=(0, 0))
