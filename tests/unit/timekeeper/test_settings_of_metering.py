from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from fairgpu.commands import CommandError
from timekeeper.controller.state.books import controller_rules
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.periods import Every
from timekeeper.domain.pricing import Bill, PricePoint, price_at
from timekeeper.domain.sessions import MeterFrom
from timekeeper.domain.timestamps import parse_instant
from timekeeper.settings import read_settings


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


def test_prices_are_numbers_or_lists_of_what_holds_from_when_on(tmp_path: Path) -> None:
    text = """
timekeeper:
  metering:
    bill: max
    meter_from: running
    prices:
      "*": 0.5
      A100:
        - {price: 1}
        - {effective_from: 2026-02-01T00:00:00Z, price: "1.1"}
"""
    rules = controller_rules(read_settings({}, written(tmp_path, text)))
    february = parse_instant("2026-02-01T00:00:00Z")
    assert rules.prices["A100"] == (PricePoint(0, Fraction(1)), PricePoint(february, Fraction(11, 10)))
    assert price_at(rules.prices, "T4", february) == Fraction(1, 2)
    assert (rules.bill, rules.meter_from) == (Bill.MAX, MeterFrom.RUNNING)


def test_a_default_budget_is_a_budgets_spec_without_namespaces(tmp_path: Path) -> None:
    text = "timekeeper: {metering: {default_budget: {allowance: {gpuHours: 5}, period: {every: week}}}}"
    template = controller_rules(read_settings({}, written(tmp_path, text))).template
    assert (template.allowance, template.period.every) == (5 * GPU_HOUR, Every.WEEK)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default_budget: {allowance: {gpuHours: -5}, period: {every: week}}", "spec.allowance.gpuHours"),
        ("default_budget: {allowance: {gpuHours: 5}}", "spec.period"),
        ("default_budget: {allowance: {gpuHours: 5}, period: {every: week}, enforcment: evict}", "write enforcement"),
        ("default_budget: {namespaces: [a], allowance: {gpuHours: 5}, period: {every: week}}", "write nothing there"),
        ("prices: {A100: -1}", "timekeeper.metering.prices.A100.0.price"),
        ("prices: {A100: many}", "timekeeper.metering.prices.A100.0.price"),
        ("prices: {A100: 1, a100: 2}", "'A100' and 'a100' name 'A100' by as many words; write more words in one"),
        ("prices: {A100: 1, 80GB: 2}", "'A100' and '80GB' name 'NVIDIA A100-SXM4-80GB' by as many words"),
        ("prices: {':by-words': 1}", "':by-words' is no part of a GPU's name"),
        ("prices: {A100: [{effective_from: 2026-02-01, price: 1}]}", "effective_from"),
        ("best_effort_floor_percent: 0", "FAIRGPU_TIMEKEEPER_METERING_BEST_EFFORT_FLOOR_PERCENT"),
        ("bill: everything", "allowed: reserved, used, max"),
        ("prices: {A100: [{effective_from: 2026, price: 1}]}", "given 2026; allowed: a time with its offset"),
        ("prices: {A100: [{effective_from: '2026', price: 1}]}", "given '2026'; allowed: a time with its offset"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_start_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, f"timekeeper: {{metering: {{{text}}}}}")
    with pytest.raises(CommandError, match=said.replace(".", r"\.")):
        controller_rules(read_settings({}, file))


def test_the_wait_for_a_replica_ends_before_the_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="replica_wait_seconds is 5, and must be less than timeout_seconds"):
        read_settings({}, written(tmp_path, "timekeeper: {redis: {replica_wait_seconds: 5}}"))
    text = "timekeeper: {redis: {replica_wait_seconds: 0.5}}"
    assert controller_rules(read_settings({}, written(tmp_path, text))).replica_wait_seconds == 0.5
