"""What the REST API tells of the book, as plain values: who reads them from the store is no concern of the routes.

Amounts are microGPU-seconds, rates microGPU-seconds a second, instants nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairgpu.states import BudgetState


@dataclass(frozen=True, slots=True)
class BudgetFigures:
    """A budget in its present period.

    Attributes:
        name: the budget's name; for a namespace that only the default budget pays for, that of its account.
        namespaces: who spends from it.
        state: what the next pod meets.
        enforcement: observe, enforce or evict.
        period_start: start of the period, inclusive; None where there is none yet.
        period_end: its end, exclusive.
        granted: what grants added to the period.
        available: allowance and grants; None for no limit.
        spent: spent in the period.
        rate: what running reservations spend.
        exhausted_at: when spending first reached what was available; None while it has not.
    """

    name: str
    namespaces: tuple[str, ...]
    state: BudgetState
    enforcement: str
    period_start: int | None
    period_end: int | None
    granted: int
    available: int | None
    spent: int
    rate: int
    exhausted_at: int | None


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One entry of a budget's ledger; `amount` is what it added to the spend, or for a grant to what is available."""

    id: str
    at: int
    kind: str
    period: int
    amount: int
    session: str
    namespace: str
    pod: str
    note: str


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """A pod's reservation on the meter; `end` is None while it runs."""

    uid: str
    namespace: str
    pod: str
    node: str
    budget: str
    start: int
    end: int | None
    rate: int
    amount: int
    reported_at: int | None


class Book(Protocol):
    """Who answers questions about the book. Every method may raise redis.RedisError."""

    def budgets(self) -> list[BudgetFigures]:
        """All budgets, by name."""

    def budget(self, name: str) -> BudgetFigures | None:
        """One budget."""

    def namespace(self, namespace: str) -> BudgetFigures | None:
        """What pays for a namespace; None where nothing limits it and nothing was spent."""

    def ledger(self, budget: str, after: str, limit: int) -> list[LedgerLine]:
        """Entries of a budget's ledger after the one of that id (all where it is empty), oldest first."""

    def sessions(self, namespace: str, after: str, limit: int) -> list[SessionFigures]:
        """Open sessions after the pod uid `after`, by uid; of one namespace, or of all where it is empty."""

    def ping(self) -> None:
        """Returns where the store answers."""
