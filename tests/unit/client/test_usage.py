"""The output of `fairgpu usage`; the sums in its document are those of the lines above them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from fairgpu.client.usage import TOTAL, total, usage_table
from tests.unit.docs.pages import ROOT, blocks

HOUR = 3_600_000_000
TABLES = [block for block in blocks(ROOT / "docs" / "usage.md", "console") if "BILLED" in block]
EUROS = {"code": "EUR", "perGpuHour": 0.01}


def amount(value: int | None) -> dict[str, str] | None:
    return None if value is None else {"microGPUSeconds": str(value)}


def item(team: str, billed: int, used: int | None = None, cost: float | None = None) -> dict[str, Any]:
    held = amount(billed)
    figures = {"billed": held, "core": held, "memory": held, "used": amount(used), "cost": cost}
    return {"key": {"namespace": team}, **figures}


def answer(*items: dict[str, Any], money: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"step": None, "aggregate": ["namespace"], "currency": money, "items": items}


def test_the_last_line_is_the_exact_sum_of_the_others_however_small_they_are() -> None:
    shown = total([item(f"team-{number}", 9_007_199_254_740_993) for number in range(3)], None)
    assert shown["billed"] == {"microGPUSeconds": "27021597764222979"}


def test_what_nobody_reported_is_missing_in_the_sum_and_makes_it_none_where_nobody_did() -> None:
    assert total([item("a", HOUR, used=HOUR), item("b", HOUR)], None)["used"] == {"microGPUSeconds": str(HOUR)}
    assert total([item("a", HOUR), item("b", HOUR)], None)["used"] is None


def test_the_sums_cost_is_that_of_the_sum_and_not_the_sum_of_rounded_cents() -> None:
    lines = [item(team, HOUR * 2 // 5, cost=0.0) for team in "abc"]
    assert usage_table(answer(*lines, money=EUROS)).splitlines()[-1].split()[-1] == "0.01"


def test_a_single_line_needs_no_sum() -> None:
    assert TOTAL not in usage_table(answer(item("a", HOUR)))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.splitlines()[0])
def test_the_sums_in_the_document_are_those_of_the_lines_above_them(table: str) -> None:
    heading, *lines = (re.split(r"\s{2,}", line) for line in table.splitlines() if not line.startswith("$"))
    last = lines.pop()
    assert last[0] == TOTAL
    for column in range(heading.index("BILLED") - len(heading), 0):
        if heading[column] != "USED %" and last[column] != "-":
            cells = [Decimal(line[column].replace(",", "")) for line in lines if line[column] != "-"]
            assert sum(cells) == Decimal(last[column].replace(",", "")), heading[column]
