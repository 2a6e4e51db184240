"""The figures that an audit recomputes, and the difference that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from timekeeper.domain.timestamps import Instant


class Figure(StrEnum):
    """The kinds of figures that an audit recomputes and compares."""

    SPENT = "spent"
    """The amount that a period has spent."""
    CHECKPOINT = "checkpoint"
    """The part of a period's total that was taken from checkpoints."""
    GRANTED = "granted"
    """The amount that grants and money carried over added to a period, less the money that expired."""
    FINALIZED = "gone"
    """The part of a period's total that finalized sessions spent, or that was taken from checkpoints."""
    BALANCE = "balance"
    """The closing balance of the preceding period, from which money was carried over."""
    FOLDED = "folded"
    """The sum of the amounts that the store no longer holds for single sessions."""
    POSTED = "posted"
    """The part of a session's amount that the ledger holds."""
    AMOUNT = "amount"
    """A session's amount in a period."""
    SESSION = "session"
    """The record of a session: it exists and is readable."""
    PERIOD = "period"
    """The bounds of a period."""
    LEDGER = "ledger"
    """The ledger entries of a session that the period does not know."""
    EXHAUSTED = "exhausted"
    """The instant at which spending first reached the available amount."""
    AVAILABLE = "available"
    """The amount that may be spent."""
    REMAINING = "remaining"
    """The amount that is left of the available amount."""
    RATE = "rate"
    """The rate of running reservations."""
    STATE = "state"
    """The state that the next pod meets."""
    STATUS = "status"
    """The status of a GPUBudget."""
    START = "start"
    """The start of a session's meter."""
    HOURS = "hours"
    """The usage by hour, which must add up to the spending."""
    BURNED = "burned"
    """The remainder of a grant that has an expiry of its own."""
    PAYERS = "payers"
    """The accounts that paid for a namespace, and from when."""


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
"""Figures that the leader writes later than those from which they follow, so that they may differ for a moment."""

SUMMARY = "summary"
"""The subject of a difference in an account's published summary, all of whose figures the leader writes later."""


def shown(value: object) -> str:
    """Returns a value as text for a difference; `nothing` for None."""
    return "nothing" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure whose stored value differs from the value that an audit recomputed.

    Attributes:
        account: the budget, or `namespace:NAME` for a namespace that no budget names.
        period: the period's start; None for a figure of no period.
        figure: the kind of figure.
        subject: the session, grant, namespace or field of the figure; empty for a figure of the account itself.
        stored: the value in the store or in a status, as text; its unit depends on the figure.
        expected: the value that was recomputed, as text in the same unit.
        reason: the data from which it was recomputed.
    """

    account: str
    period: Instant | None
    figure: Figure
    subject: str
    stored: str
    expected: str
    reason: str

    @property
    def follows(self) -> bool:
        """Whether the leader writes the figure later than its sources, so that it may differ for a moment."""
        return self.figure in FOLLOWING or self.subject == SUMMARY
