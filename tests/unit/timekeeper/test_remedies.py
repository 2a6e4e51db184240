"""The advice to people whose money is spent."""

from __future__ import annotations

from timekeeper.controller.state.accounts import default_budget
from timekeeper.controller.state.figures import how_to_give_more
from timekeeper.domain.budgets import Budget


def test_a_budget_gets_more_by_a_command_that_is_whole() -> None:
    assert how_to_give_more(Budget("vision")) == (
        "An admin of GPU budgets can give more: `fairgpu grant vision HOURS --reason WHY`"
    )


def test_a_namespace_that_has_the_default_budget_gets_more_by_a_budget_of_its_own_as_no_grant_can_name_it() -> None:
    found = default_budget("team-a", Budget("template", allowance=1))
    assert how_to_give_more(found) == (
        "An admin of GPU budgets can give more: a GPUBudget that names the namespace team-a"
    )
