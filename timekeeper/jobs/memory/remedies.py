"""What people who are told that money is spent can do about it, in words."""

from __future__ import annotations

from timekeeper.jobs.memory.accounts import DEFAULT_PREFIX
from timekeeper.rules.budgets import Budget


def how_to_give_more(budget: Budget) -> str:
    """Who can give a budget more money and how: a sentence without its full stop.

    A grant names a GPUBudget; the default budget of a namespace has none.
    """
    if budget.name.startswith(DEFAULT_PREFIX):
        namespace = budget.name.removeprefix(DEFAULT_PREFIX)
        return f"Whoever hands out GPU budgets can give more: a GPUBudget that names the namespace {namespace}"
    return f"Whoever hands out GPU budgets can give more: `fairgpu grant {budget.name} HOURS --reason WHY`"
