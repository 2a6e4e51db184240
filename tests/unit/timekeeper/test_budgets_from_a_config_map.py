"""Budgets of the mode look: a ConfigMap shown as GPUBudgets, with the statuses that were written of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from fairgpu.commands import CommandError
from timekeeper.domain.budgets import BudgetError, parse_budget
from timekeeper.sources.base import Mirror
from timekeeper.sources.looking import BudgetsView, StatusesView, as_gpubudgets, budgets_of

SPEC = "namespaces: [vision-train]\nallowance: {gpuHours: 400}\nperiod: {every: month}\n"


def config_map(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "fairgpu-budgets", "creationTimestamp": "2026-01-01T00:00:00Z"}, "data": data}


def shown(view_of: Mirror) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in view_of.items()}


@pytest.fixture
def mirror() -> Mirror:
    return Mirror("budgets", lambda: 1)


def test_each_key_is_a_budget_with_its_value_as_spec() -> None:
    (item,) = budgets_of(config_map(vision=SPEC))

    assert parse_budget(item).namespaces == {"vision-train"}


def test_names_that_kubectl_would_read_as_numbers_are_in_quotes() -> None:
    shown = as_gpubudgets(config_map(**{"1e3": SPEC.replace("vision-train", "'089', '5e10', a1")}))

    assert "name: '1e3'" in shown
    assert [line.strip() for line in shown.splitlines() if "- " in line] == ["- '089'", "- '5e10'", "- a1"]


NO_YAML = ("[", "{a: [}", "since: 2026-02-30", "since: !!timestamp today", "since: !!bool maybe", "[" * 500)


@pytest.mark.parametrize("text", ["just text", "", "- 1", *NO_YAML])
def test_a_value_that_is_no_mapping_is_a_budget_that_is_refused_by_name(text: str) -> None:
    (item,) = budgets_of(config_map(broken=text))

    with pytest.raises(BudgetError, match=r"^spec: given .*; allowed: the fields of a GPUBudget's spec, in YAML"):
        parse_budget(item)
    assert item["metadata"]["name"] == "broken"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPEC + "grase: {duration: 2d}\n", "spec.grase: given {.*}; allowed: no field of this name; write grace"),
        (SPEC.replace("every", "evry"), "spec.period.evry: given .*; allowed: no field of this name; write every"),
        (SPEC + "team: vision\n", "spec.team: given .*; write one of admission, allowance, default"),
        (SPEC + "enforcement: observe\nenforcement: evict\n", "; write .*enforcement stands twice, first on line 4"),
        ("apiVersion: v1\nkind: GPUBudget\nspec:\n  {}", "spec: given a whole manifest; .*; write what stands"),
        ("- 1", r"spec: given \[1\]; allowed"),
    ],
)
def test_a_field_of_a_line_that_no_budget_has_is_named_with_what_may_be_meant(text: str, said: str) -> None:
    (item,) = budgets_of(config_map(vision=text))

    with pytest.raises(BudgetError, match=said):
        parse_budget(item)
    with pytest.raises(CommandError, match=f"vision: (?s:.*){said}"):
        as_gpubudgets(config_map(vision=text))


def test_a_changed_line_has_another_generation() -> None:
    (before,), (after,) = (budgets_of(config_map(vision=text)) for text in (SPEC, SPEC.replace("400", "500")))

    assert before["metadata"]["generation"] != after["metadata"]["generation"]


def test_the_lines_become_gpubudgets_of_the_same_names_and_specs_in_the_order_in_which_they_pay() -> None:
    vision, speech = (
        yaml.safe_load(SPEC),
        {**yaml.safe_load(SPEC), "period": {"every": "day", "start": {"time": "10:00"}}},
    )
    found = list(yaml.safe_load_all(as_gpubudgets(config_map(vision=SPEC, speech=yaml.safe_dump(speech)))))

    assert found == [
        {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
        for name, spec in (("speech", speech), ("vision", vision))
    ]


@pytest.mark.parametrize("text", NO_YAML)
def test_lines_of_which_one_is_no_budget_become_no_gpubudgets_at_all(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        as_gpubudgets(config_map(broken=text, vision=SPEC, wrong=SPEC.replace("month", "year")))

    assert str(refused.value).startswith("the ConfigMap fairgpu-system/fairgpu-budgets: broken: ")
    assert "wrong: spec.period.every" in str(refused.value)


def test_a_budget_has_the_status_that_was_kept_of_it(mirror: Mirror) -> None:
    view = BudgetsView(mirror, lambda: {"vision": {"state": "open"}, "gone": {"state": "held"}})
    view.replaced([config_map(vision=SPEC)])

    assert shown(mirror)["vision"]["status"] == {"state": "open"}
    assert view.without_budget() == ["gone"]


def test_a_written_status_and_a_changed_line_are_both_shown(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    view.replaced([config_map(vision=SPEC)])
    view.stated("vision", {"state": "open"})
    view.changed("MODIFIED", config_map(vision=SPEC, speech=SPEC))

    assert shown(mirror)["vision"]["status"] == {"state": "open"}
    assert shown(mirror).keys() == {"vision", "speech"}


def test_a_status_that_another_process_wrote_is_shown(mirror: Mirror) -> None:
    view = BudgetsView(mirror, lambda: {"vision": {"state": "open"}})
    view.replaced([config_map(vision=SPEC)])
    StatusesView(view).changed("MODIFIED", config_map(vision='{"state": "held"}', speech="{"))

    assert shown(mirror)["vision"]["status"] == {"state": "held"}


def test_statuses_that_are_read_before_the_budgets_show_no_budget(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    StatusesView(view).replaced([config_map(vision='{"state": "held"}')])
    assert mirror.items() == []

    view.replaced([config_map(vision=SPEC)])
    assert shown(mirror)["vision"]["status"] == {"state": "held"}


def test_a_deleted_config_map_of_statuses_takes_the_statuses_away(mirror: Mirror) -> None:
    view = BudgetsView(mirror, lambda: {"vision": {"state": "open"}})
    view.replaced([config_map(vision=SPEC)])
    StatusesView(view).changed("DELETED", config_map(vision='{"state": "open"}'))

    assert "status" not in shown(mirror)["vision"]


def test_the_lines_are_read_once_however_many_statuses_are_written(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    with capture_logs() as logs:
        view.replaced([config_map(vision=SPEC, broken="[")])
        view.stated("vision", {"state": "open"})
        StatusesView(view).changed("MODIFIED", config_map(vision='{"state": "held"}'))

    assert [(line["event"], line["name"]) for line in logs] == [("budget cannot be read", "broken")]
    assert shown(mirror)["vision"]["status"] == {"state": "held"}


def test_a_budget_stays_the_same_object_until_its_line_or_its_status_changes(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    view.replaced([config_map(vision=SPEC, speech=SPEC)])
    view.stated("vision", {"state": "open"})
    before = shown(mirror)
    view.stated("speech", {"state": "open"})
    StatusesView(view).changed("MODIFIED", config_map(vision='{"state": "open"}', speech='{"state": "held"}'))

    assert shown(mirror)["vision"] is before["vision"]
    assert shown(mirror)["speech"]["status"] == {"state": "held"}


def test_without_the_config_map_there_are_no_budgets(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    view.replaced([])
    view.confirmed()

    assert (mirror.items(), mirror.confirmed_at) == ([], 1)


def test_a_deleted_config_map_takes_its_budgets_away(mirror: Mirror) -> None:
    view = BudgetsView(mirror, dict)
    view.replaced([config_map(vision=SPEC)])
    view.changed("DELETED", config_map(vision=SPEC))

    assert mirror.items() == []
