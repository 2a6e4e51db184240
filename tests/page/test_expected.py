"""The page adds up what the namespaces of a scope come to, each of which has a forecast of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.page.conftest import tabs
from tests.support.servers.rest_server import RestServer
from timekeeper.dashboard.serving import read_assets

TIMES = {"start": "2026-01-14T12:00:00Z", "end": "2026-01-15T12:00:00Z"}


@pytest.fixture(scope="module")
def page(browser: Browser, server: RestServer) -> Iterator[Page]:
    """One for all: functions are asked for their answers, and nothing comes of it."""
    with tabs(browser, server) as begin:
        yield begin().open()


def item(name: str, billed: float, day: float | None, hour: float | None) -> dict[str, Any]:
    def by(hours: float | None) -> dict[str, Any] | None:
        return None if hours is None else {"billed": {"gpuHours": hours}, "cost": 2 * hours}

    forecast = {"lastDay": by(day), "lastHour": by(hour)}
    return {"key": {"model": name}, "billed": {"gpuHours": billed}, "cost": 2 * billed, "forecast": forecast}


def call(page: Page, function: str, argument: Any) -> Any:
    module = f"/page/{read_assets().version}/lib/series.js"
    script = "async ([module, name, given]) => (await import(module))[name](given)"
    return page.evaluate(script, [module, function, argument])


def test_an_item_without_a_pace_comes_to_what_it_was_billed(page: Page) -> None:
    items = [item("A100", 1, 10, None), item("A100", 2, None, 7), item("H100", 3, None, None)]

    assert call(page, "expected", items) == [
        {"name": "A100", "billed": 3, "byDay": 12, "byHour": 8, "cost": 24},
        {"name": "H100", "billed": 3, "byDay": 3, "byHour": 3, "cost": 6},
    ]


@pytest.mark.parametrize("answers", [[TIMES, None], [None, TIMES]])
def test_the_whole_is_not_known_where_a_namespace_is_not(page: Page, answers: list[dict[str, str] | None]) -> None:
    given = [{"end": "2026-02-01T00:00:00Z", "lastDay": day, "lastHour": TIMES} for day in answers]

    assert call(page, "joined", given) == {
        "end": "2026-02-01T00:00:00Z",
        "lastDay": None,
        "lastHour": TIMES,
        "notSettled": [],
    }
    assert call(page, "joined", [{**each, "lastDay": TIMES} for each in given])["lastDay"] == TIMES


def test_accounts_whose_settlement_fails_are_named_once(page: Page) -> None:
    given = [{"end": "", "lastDay": TIMES, "lastHour": TIMES, "notSettled": names} for names in (["a", "b"], ["b"], [])]

    assert call(page, "joined", given)["notSettled"] == ["a", "b"]


def test_there_is_no_forecast_where_none_was_asked_for(page: Page) -> None:
    assert call(page, "joined", [None, None]) is None
    assert call(page, "joined", []) is None
