"""The page computes the forecast of a budget from its figures alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.page.conftest import tabs
from tests.support.servers.rest_server import RestServer
from timekeeper.dashboard.serving import read_assets

DAY = 86_400_000
START = 1_767_225_600_000  # 2026-01-01
END = START + 30 * DAY


@pytest.fixture(scope="module")
def page(browser: Browser, server: RestServer) -> Iterator[Page]:
    """One for all: functions are asked for their answers, and nothing comes of it."""
    with tabs(browser, server) as begin:
        yield begin().open()


def budget(spent: float, available: float | None, gpus: float, **changes: Any) -> dict[str, Any]:
    money = {"gpuHours": spent}
    return {
        "state": "open",
        "period": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-31T00:00:00Z"},
        "spent": money,
        "available": None if available is None else {"gpuHours": available},
        "rate": {"gpus": gpus},
        "forecast": {"lastHour": None, "lastDay": None},
        **changes,
    }


def call(page: Page, function: str, *arguments: Any) -> Any:
    module = f"/page/{read_assets().version}/lib/forecast.js"
    script = "async ([module, name, given]) => (await import(module))[name](...given)"
    return page.evaluate(script, [module, function, list(arguments)])


def test_a_budget_lasts_where_its_pace_leaves_something_at_the_end(page: Page) -> None:
    found = call(page, "outlook", budget(100, 1000, 1), START + 10 * DAY)
    assert (found["status"], found["runsOutAt"], found["forecast"]) == ("open", None, 100 + 20 * 24)
    assert (found["share"], found["elapsed"]) == (0.1, pytest.approx(1 / 3))


def test_a_budget_runs_out_when_what_remains_is_spent_at_its_pace(page: Page) -> None:
    found = call(page, "outlook", budget(760, 1000, 2), START + 10 * DAY)
    assert (found["status"], found["runsOutAt"]) == ("short", START + 15 * DAY)


@pytest.mark.parametrize(
    ("last_hour", "last_day", "pace"), [(None, None, 8), ({"gpus": 4}, None, 4), ({"gpus": 4}, {"gpus": 2}, 2)]
)
def test_the_pace_is_the_last_days_else_the_last_hours_else_this_moments(
    page: Page, last_hour: Any, last_day: Any, pace: float
) -> None:
    stretches = [None if rate is None else {"rate": rate} for rate in (last_hour, last_day)]
    forecast = dict(zip(("lastHour", "lastDay"), stretches, strict=True))
    assert call(page, "pace", budget(0, 1, 8, forecast=forecast)) == pace


def test_a_budget_without_a_limit_or_with_nothing_left_runs_out_at_no_time_to_come(page: Page) -> None:
    for given in (budget(10, None, 5), budget(10, 10, 5, state="over"), budget(0, 10, 0)):
        assert call(page, "outlook", given, START + DAY)["runsOutAt"] is None


def test_a_budget_of_nothing_is_all_spent_by_the_first_unit(page: Page) -> None:
    assert call(page, "outlook", budget(0, 0, 0), START)["share"] == 0
    assert call(page, "outlook", budget(1, 0, 0), START)["share"] == float("inf")


def test_remaining_time_is_counted_back_from_now(page: Page) -> None:
    steps = [(START + day * DAY, START + (day + 1) * DAY, 100) for day in range(3)]
    items = [{"start": iso(a), "end": iso(b), "billed": {"gpuHours": hours}} for a, b, hours in steps]
    now = START + 2 * DAY + DAY // 2
    found = call(page, "left", budget(300, 1000, 0), items, now)
    assert found["times"] == [START, START + DAY, START + 2 * DAY, now, END]
    assert found["left"] == [1000, 900, 800, 700, None]
    assert found["ahead"] == [None, None, None, 700, 700]
    assert found["pace"][0] == 1000
    assert found["pace"][-1] == 0


def iso(milliseconds: int) -> str:
    return f"2026-01-{1 + (milliseconds - START) // DAY:02d}T00:00:00Z"
