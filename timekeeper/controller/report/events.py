"""Writes an event for each budget whose state has changed, with the budget's figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fairgpu.cluster.api import Json
from fairgpu.states import BudgetState
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.figures import Figures, how_to_give_more
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import display
from timekeeper.domain.state import Enforcement, OnExhausted
from timekeeper.domain.timestamps import format_instant
from timekeeper.sources.base import ObjectEvent, Source, uid_of

TURN_SECONDS = 0.25
"""The longest that one run delays the other tasks: as a month ends, ten thousand budgets may open again."""

SPENT_UP = {
    BudgetState.GRACE: "BudgetInGrace",
    BudgetState.OVER: "BudgetExhausted",
    BudgetState.HELD: "BudgetHeld",
}


@dataclass(slots=True)
class EventRecorder:
    """Writes an event for each change of a budget's state, for one term of the leader.

    It remembers the last state of each budget that it announced. A new leader reads that state from the budget's
    status. An earlier leader may have announced a change and ended before it wrote the status. The change is then
    announced twice and stays one event, as its occasion is the same.

    Attributes:
        source: the cluster.
        books: the leader's state.
        clock: a monotonic clock, in seconds.
    """

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    _recorded: dict[str, BudgetState] = field(default_factory=dict)

    def record_changes(self) -> int:
        """Writes events for the budgets whose state changed, for TURN_SECONDS at most; returns their number.

        At least one is written, however busy the machine is; the next call continues with the rest.
        """
        until = self.clock() + TURN_SECONDS
        objects, budgets = self.books.budgets.objects, self.books.budgets.budgets
        before_by_uid, self._recorded = self._recorded, {}
        written = 0
        for name, item in objects.items():
            uid = uid_of(item)
            before = before_by_uid[uid] if uid in before_by_uid else state_written(item)
            figures, budget = self.books.figures.get(name), budgets.get(name)
            self._recorded[uid] = before
            if figures is None or budget is None or figures.state is before or (self.clock() >= until and written):
                continue
            self._recorded[uid] = figures.state
            notice = change_of_state(item, budget, figures, before)
            if notice is not None:
                self.source.record_event(notice)
                written += 1
        return written


def state_written(item: Json) -> BudgetState:
    """Returns the state in the status of a GPUBudget (JSON); open where the status has none."""
    try:
        return BudgetState(str((item.get("status") or {}).get("state")))
    except ValueError:
        return BudgetState.OPEN


def change_of_state(item: Json, budget: Budget, figures: Figures, before: BudgetState) -> ObjectEvent | None:
    """Returns the event of a budget's change of state; None where the change needs no event.

    Args:
        before: the state that was last announced.
    """
    if figures.state in SPENT_UP:
        seen_only = budget.enforcement is Enforcement.OBSERVE
        follows = "Nothing follows from it, as enforcement is observe." if seen_only else _follows(budget, figures)
        message = f"{_spent(figures)} {follows}"
        return ObjectEvent(
            item, SPENT_UP[figures.state], message, warning=True, occasion=f"{before} {figures.exhausted_at}"
        )
    if before not in SPENT_UP:
        return None
    spent_up = (item.get("status") or {}).get("exhaustedAt", "")
    occasion = f"{before} {spent_up} {figures.period.start}"
    if figures.limits.available is None:
        message = "Nothing limits this budget any more: new pods run as usual."
        return ObjectEvent(item, "BudgetReopened", message, occasion=occasion)
    left = f"{display(figures.remaining)} of {display(figures.limits.available)} GPU-hours are left"
    follows = "new pods run as usual, and held ones are released as far as it pays"
    message = f"{left} until {format_instant(figures.period.end)}: {follows}."
    return ObjectEvent(item, "BudgetReopened", message, occasion=occasion)


def _spent(figures: Figures) -> str:
    available = figures.limits.available or 0
    return f"{display(figures.spent)} of {display(available)} GPU-hours are spent."


def _follows(budget: Budget, figures: Figures) -> str:
    limits = figures.limits
    more = f"{how_to_give_more(budget)}; the next period begins at {format_instant(figures.period.end)}."
    running = "are given notice and evicted" if budget.enforcement is Enforcement.EVICT else "go on"
    if figures.state is BudgetState.HELD:
        return f"New pods wait; running ones {running}. {more}"
    if figures.state is BudgetState.OVER:
        return f"New pods run in what others leave, and yield first; running ones {running}. {more}"
    ends = []
    if limits.grace_amount is not None:
        ends.append(
            f"another {display((limits.available or 0) + limits.grace_amount - figures.spent)} GPU-hours are spent"
        )
    if limits.grace_duration is not None and figures.exhausted_at is not None:
        ends.append(f"{format_instant(figures.exhausted_at + limits.grace_duration)}")
    then = "wait" if limits.on_exhausted is OnExhausted.HOLD else "yield to those of teams within their budgets"
    return f"In grace all goes on until {' or '.join(ends)}; then new pods {then}. {more}"
