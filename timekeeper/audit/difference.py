"""What an audit finds: a figure that is not what it must be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Figure(StrEnum):
    """What is recomputed."""

    SPENT = "spent"
    """A period's total."""
    CHECKPOINT = "checkpoint"
    """What a period was opened with."""
    GRANTED = "granted"
    """What grants added to a period."""
    GONE = "gone"
    """The part of a period's total whose pods have left the API server."""
    BALANCE = "balance"
    """The closing balance of the period before, from which money was carried over."""
    FOLDED = "folded"
    """The sum of sessions whose amounts the store no longer keeps."""
    POSTED = "posted"
    """How much of a session's amount the ledger holds."""
    AMOUNT = "amount"
    """A session's amount in a period."""
    SESSION = "session"
    """The record of a session: that it is there, and reads as one."""
    PERIOD = "period"
    """When a period begins and ends."""
    LEDGER = "ledger"
    """An entry that belongs to nothing."""
    EXHAUSTED = "exhausted"
    """When spending first reached what was available."""
    AVAILABLE = "available"
    """What may be spent."""
    REMAINING = "remaining"
    """What is left of it."""
    RATE = "rate"
    """What running reservations spend."""
    STATE = "state"
    """What the next pod meets."""
    STATUS = "status"
    """What a GPUBudget's status says."""
    START = "start"
    """When a session's meter started."""
    HOURS = "hours"
    """The hours and names that what was spent is put down to."""
    BURNED = "burned"
    """What spending has left of grants that outlive periods."""


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
"""Figures that are written after those that they follow from: they may differ for a moment, and rightly so."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure as it is and as it must be.

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
