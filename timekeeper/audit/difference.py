"""The difference that an audit reports: a figure that is not as expected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Figure(StrEnum):
    """The figures that an audit recomputes."""

    SPENT = "spent"
    """A period's total."""
    CHECKPOINT = "checkpoint"
    """The amount with which a period was opened."""
    GRANTED = "granted"
    """The amount that grants added to a period."""
    GONE = "gone"
    """The part of a period's total whose pods have left the API server."""
    BALANCE = "balance"
    """The closing balance of the period before, from which money was carried over."""
    FOLDED = "folded"
    """The sum of sessions whose amounts the store no longer keeps."""
    POSTED = "posted"
    """The part of a session's amount that the ledger holds."""
    AMOUNT = "amount"
    """A session's amount in a period."""
    SESSION = "session"
    """The record of a session: that it is there, and reads as one."""
    PERIOD = "period"
    """The bounds of a period."""
    LEDGER = "ledger"
    """An entry that belongs to nothing."""
    EXHAUSTED = "exhausted"
    """The instant at which spending first reached what was available."""
    AVAILABLE = "available"
    """The amount that may be spent."""
    REMAINING = "remaining"
    """The amount that is left of it."""
    RATE = "rate"
    """The rate of running reservations."""
    STATE = "state"
    """The state that the next pod meets."""
    STATUS = "status"
    """The status of a GPUBudget."""
    START = "start"
    """The start of a session's meter."""
    HOURS = "hours"
    """The hours and dimensions that spending is attributed to."""
    BURNED = "burned"
    """The amount that is left of grants that outlive periods."""


FOLLOWING = frozenset(
    {
        Figure.BALANCE,
        Figure.EXHAUSTED,
        Figure.AVAILABLE,
        Figure.REMAINING,
        Figure.RATE,
        Figure.STATE,
        Figure.STATUS,
        Figure.BURNED,
        Figure.START,
        Figure.SESSION,
        Figure.AMOUNT,
    }
)
"""Figures that are written after those that they derive from, so they may differ for a moment."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure as it is and as it is expected.

    Attributes:
        account: the budget, or `namespace:NAME` where none pays.
        period: its period's start, in nanoseconds since 1970; None for what belongs to no period.
        figure: what differs.
        subject: the session, grant or namespace that it is of; empty where it is the account's own.
        stored: what the store, or a status, says.
        expected: what it must be.
        reason: what it was recomputed from.
    """

    account: str
    period: int | None
    figure: Figure
    subject: str
    stored: str
    expected: str
    reason: str
