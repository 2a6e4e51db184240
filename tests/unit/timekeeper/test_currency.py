from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from fairgpu.client.commands import describe
from fairgpu.commands import CommandError
from fairgpu.states import BudgetState
from timekeeper.api.models import budget_answer
from timekeeper.api.service import currency_of
from timekeeper.domain.money import GPU_HOUR, Currency
from timekeeper.ledger.totals import Summary
from timekeeper.settings import read_settings

EUROS = Currency("EUR", Decimal("2.5"))
FIGURES = Summary(
    "a", ("team-a",), BudgetState.OVER, "enforce", 0, 1, GPU_HOUR, 100 * GPU_HOUR, 101 * GPU_HOUR, 0, None
)


@pytest.mark.parametrize(
    ("amount", "worth"),
    [(0, 0.0), (GPU_HOUR, 2.5), (-GPU_HOUR, -2.5), (GPU_HOUR // 100, 0.02), (3 * GPU_HOUR // 100, 0.08), (1, 0.0)],
)
def test_an_amount_is_worth_its_gpu_hours_times_the_price_to_a_hundredth(amount: int, worth: float) -> None:
    assert EUROS.worth(amount) == worth


def test_a_budget_shows_its_amounts_in_the_currency_that_is_set() -> None:
    shown = budget_answer(FIGURES, 0, EUROS).model_dump(mode="json")
    assert shown["currency"] == {"code": "EUR", "perGpuHour": 2.5}
    assert shown["costs"] == {"granted": 2.5, "available": 250.0, "spent": 252.5, "remaining": -2.5}
    assert "101.00 GPU-hours 101% (252.50 EUR)" in describe(shown)


def test_a_budget_without_limit_has_no_costs_of_what_is_left() -> None:
    unlimited = Summary("a", (), BudgetState.UNLIMITED, "", 0, 1, 0, None, GPU_HOUR, 0, None)
    shown = budget_answer(unlimited, 0, EUROS).model_dump(mode="json")
    assert shown["costs"] == {"granted": 0.0, "available": None, "spent": 2.5, "remaining": None}


def test_without_a_currency_amounts_are_gpu_hours_alone() -> None:
    shown = budget_answer(FIGURES, 0).model_dump(mode="json")
    assert shown["currency"] is None
    assert shown["costs"] is None
    assert "EUR" not in describe(shown)


def test_the_setting_names_a_code_and_what_a_gpu_hour_costs(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("timekeeper: {metering: {currency: {code: EUR, per_gpu_hour: 2.5}}}")
    assert currency_of(read_settings({}, file)) == EUROS
    in_the_environment = {"FAIRGPU_TIMEKEEPER_METERING_CURRENCY": '{code: USD, per_gpu_hour: "1.10"}'}
    assert currency_of(read_settings(in_the_environment, None)) == Currency("USD", Decimal("1.10"))
    assert currency_of(read_settings({}, None)) is None


@pytest.mark.parametrize(
    ("text", "field"), [("{code: euro, per_gpu_hour: 1}", "code"), ("{code: EUR}", "per_gpu_hour")]
)
def test_a_currency_that_is_none_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"timekeeper: {{metering: {{currency: {text}}}}}")
    with pytest.raises(CommandError, match=f"timekeeper.metering.currency.{field}"):
        read_settings({}, file)
