"""The output of `fairgpu usage`; the sums in its document are those of the lines above them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from fairgpu.client.usage import TOTAL, forecast_note, total, usage_table
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


def test_use_without_a_report_is_missing_in_the_sum_and_makes_it_none_where_no_pod_reported() -> None:
    assert total([item("a", HOUR, used=HOUR), item("b", HOUR)], None)["used"] == {"microGPUSeconds": str(HOUR)}
    assert total([item("a", HOUR), item("b", HOUR)], None)["used"] is None


def test_the_sums_cost_is_that_of_the_sum_and_not_the_sum_of_rounded_cents() -> None:
    lines = [item(team, HOUR * 2 // 5, cost=0.0) for team in "abc"]
    assert usage_table(answer(*lines, money=EUROS)).splitlines()[-1].split()[-1] == "0.01"


def test_a_single_line_needs_no_sum() -> None:
    assert TOTAL not in usage_table(answer(item("a", HOUR)))


def forecast(billed: int | None, cost: float | None = None) -> dict[str, Any]:
    return {"forecast": {"lastDay": None if billed is None else {"billed": amount(billed), "cost": cost}}}


FORECAST = {"end": "2026-12-01T00:00:00Z", "lastDay": {"start": "2026-11-25T20:00:00Z", "end": "2026-11-26T20:59:00Z"}}
WINDOW = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-26T21:00:00Z"}


def test_the_expected_amount_stands_beside_what_was_billed_and_its_sum_is_exact() -> None:
    lines = [item("a", HOUR, cost=0.01) | forecast(2 * HOUR // 5, 0.0), item("b", 0, cost=0.0) | forecast(HOUR, 0.01)]
    shown = answer(*lines, money=EUROS) | {"forecast": FORECAST, "window": WINDOW}
    rows = [re.split(r"\s{2,}", line) for line in usage_table(shown).splitlines()]

    assert rows[0][-3:] == ["EUR", "EXPECTED", "EXPECTED EUR"]
    assert [row[-2:] for row in rows[1:]] == [["0.4", "0.00"], ["1.00", "0.01"], ["1.40", "0.01"]]
    (note,) = forecast_note(shown)
    assert note.startswith("EXPECTED is what is billed from 2026-11-01 00:00 to 2026-12-01 00:00 UTC, at the pace of ")
    assert note.endswith("pods since 2026-11-25 20:00.")


def test_the_sum_is_not_known_where_a_line_is_not_and_a_note_says_why() -> None:
    shown = answer(item("a", HOUR) | forecast(HOUR), item("b", HOUR) | forecast(None))
    shown |= {"forecast": {**FORECAST, "notSettled": ["team-b", "team-c"]}, "window": WINDOW}

    assert [line.split()[-1] for line in usage_table(shown).splitlines()[1:]] == ["1.00", "-", "-"]
    _, failing, _ = forecast_note(shown)
    assert failing == "EXPECTED is not known for what is billed to team-b, team-c: the settlement fails."


def test_an_amount_that_is_not_expected_yet_is_no_figure() -> None:
    shown = answer(item("a", HOUR) | forecast(None), item("b", HOUR) | forecast(None))
    shown |= {"forecast": {**FORECAST, "lastDay": None}, "window": WINDOW}

    assert [line.split()[-1] for line in usage_table(shown).splitlines()[1:]] == ["-", "-", "-"]
    note = "EXPECTED is not known now: it takes ten minutes of metering, and a timekeeper that leads."
    assert forecast_note(shown) == [note]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.splitlines()[0])
def test_the_sums_in_the_document_are_those_of_the_lines_above_them(table: str) -> None:
    shown = table.partition("\n\n")[0].splitlines()
    heading, *lines = (re.split(r"\s{2,}", line) for line in shown if not line.startswith("$"))
    last = lines.pop()
    assert last[0] == TOTAL
    for column in range(heading.index("BILLED") - len(heading), 0):
        if heading[column] != "USED %" and last[column] != "-":
            cells = [Decimal(line[column].replace(",", "")) for line in lines if line[column] != "-"]
            rounding = Decimal("0.005") * len(cells) if heading[column] == "EXPECTED" else 0
            assert abs(sum(cells) - Decimal(last[column].replace(",", ""))) <= rounding, heading[column]
