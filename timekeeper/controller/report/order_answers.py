"""Answers orders: writes the statuses of GPUGrants and GPUCorrections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from timekeeper.controller.report.status_documents import Json, correction_status, grant_status, refused_order
from timekeeper.controller.state.books import Books
from timekeeper.domain.money import SECOND, display
from timekeeper.domain.orders import NAME_TAKEN, NO_BUDGET, REFUSED, OrderEntry, condition_reason
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.timestamps import format_instant
from timekeeper.sources.base import ChangedMeanwhileError, RefusedError, Source

PATIENCE = 10 * SECOND
"""The time that an order waits for its budget before its status says so: the two are often applied together."""

_log = structlog.get_logger()


@dataclass(slots=True)
class OrderAnswers:
    """Writes the statuses of orders (GPUGrants and GPUCorrections), each once in a term of the leader.

    Attributes:
        source: the cluster.
        books: the leader's state.
    """

    source: Source
    books: Books
    _answered: set[tuple[str, str]] = field(default_factory=set)
    _without_budget: dict[tuple[str, str], int] = field(default_factory=dict)

    def write(self, now: int) -> int:
        """Writes the statuses of orders that were applied or refused; returns the number of statuses written.

        Args:
            now: nanoseconds since 1970.

        Raises:
            SourceError: the API server does not answer; the next call writes the rest.
        """
        view = self.books.budgets
        present = {("grant", name) for name in view.grant_objects}
        present |= {("correction", name) for name in view.correction_objects}
        self._answered &= present
        self._without_budget = {order: due for order, due in self._without_budget.items() if order in present}
        count = 0
        for name, item in view.grant_objects.items():
            count += self._write("grant", name, item, self._grant, self.source.write_grant_status, now)
        for name, item in view.correction_objects.items():
            count += self._write("correction", name, item, self._correction, self.source.write_correction_status, now)
        return count

    def _write(
        self,
        kind: str,
        name: str,
        item: Json,
        answer: Callable[[str, Json, int, int], Json | None],
        write: Callable[[str, Json], None],
        now: int,
    ) -> bool:
        before = item.get("status") or {}
        if before.get("applied") is True or (kind, name) in self._answered:
            return False
        generation = int((item.get("metadata") or {}).get("generation") or 0)
        status = answer(name, before, generation, now)
        if status is None:
            return False
        try:
            write(name, status)
        except RefusedError as error:
            _log.warning("status refused", kind=kind, name=name, error=str(error))
        except ChangedMeanwhileError as error:
            _log.info("object deleted before its status was written", kind=kind, name=name, error=str(error))
        if (kind, name) in self._without_budget:
            self._without_budget[(kind, name)] = FOREVER
        else:
            self._answered.add((kind, name))
        return True

    def _waiting(self, kind: str, name: str, budget: str, generation: int, now: int, before: Json) -> Json | None:
        """Returns the status of an order whose budget does not exist; None until the order has waited for PATIENCE."""
        due = self._without_budget.setdefault((kind, name), now + PATIENCE)
        if budget in self.books.budgets.objects:
            return None  # the budget's own status says what is wrong with it
        if now < due or condition_reason(before) == NO_BUDGET:
            return None
        message = (
            f"There is no GPUBudget {budget}: this {kind} is applied once there is one. If the name is wrong, delete "
            "it and make another under a name of its own."
        )
        return refused_order(NO_BUDGET, message, generation, now, before)

    def _grant(self, name: str, before: Json, generation: int, now: int) -> Json | None:
        books = self.books
        fault = books.budgets.grant_faults.get(name)
        if fault is not None:
            return refused_order("Invalid", str(fault), generation, now, before)
        grant = books.budgets.grants[name]
        account = books.accounts.get(grant.budget)
        if account is None:
            return self._waiting("grant", name, grant.budget, generation, now, before)
        self._without_budget.pop(("grant", name), None)
        if name not in account.grants:
            return None
        stored = account.grants[name]
        made_in = account.period_at(min(grant.created or now, now))
        if stored is not None and is_another(stored, grant.amount, made_in):
            return refused_order(NAME_TAKEN, name_taken(stored, "grant"), generation, now, before)
        return grant_status(grant, None if stored is None else stored.period, generation, now, before)

    def _correction(self, name: str, before: Json, generation: int, now: int) -> Json | None:
        books = self.books
        fault = books.budgets.correction_faults.get(name)
        if fault is not None:
            return refused_order("Invalid", str(fault), generation, now, before)
        correction = books.budgets.corrections[name]
        account = books.accounts.get(correction.budget)
        if account is None:
            return self._waiting("correction", name, correction.budget, generation, now, before)
        self._without_budget.pop(("correction", name), None)
        if name in account.refused:
            return refused_order(REFUSED, account.refused[name], generation, now, before)
        period = account.period_at(correction.effective)
        stored = account.corrections.get(name)
        if period is None or stored is None:
            return None
        if is_another(stored, correction.amount, period):
            return refused_order(NAME_TAKEN, name_taken(stored, "correction"), generation, now, before)
        return correction_status(correction, period, generation, now, before)


def is_another(stored: OrderEntry, amount: int, period: Period | None) -> bool:
    """Returns whether the ledger holds a different order under the name of this one.

    An order that was created again unchanged, for example from a backup of the cluster, is the same order if it falls
    into the same period.

    Args:
        amount: the amount of this order, in microGPU-seconds.
        period: the period of this order; None where it is not known.
    """
    return stored.amount != amount or (period is not None and stored.period != period.start)


def name_taken(stored: OrderEntry, kind: str) -> str:
    """Returns the message for an order whose name the ledger already holds for a different order.

    Args:
        kind: the noun for the order: grant or correction.
    """
    return (
        f"Nothing was done: the ledger holds a {kind} of this name, of {display(stored.amount)} GPU-hours in the "
        f"period from {format_instant(stored.period)}, and each name counts once, also where its object was deleted. "
        "Make this one under another name."
    )
