"""The filters stand in the address."""

from __future__ import annotations

import re
import signal
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from playwright.sync_api import expect

from tests.page.conftest import Visiting
from tests.support.servers.redis_server import RedisServer


def test_a_filter_changes_the_address_and_back_takes_it_back(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_label("Usage over", exact=True).select_option("30d")
    expect(page.get_by_role("heading", name="Usage by namespace, last 30 days")).to_be_visible()
    page.get_by_label("Grouped by").select_option("model")
    expect(page.get_by_role("heading", name="Usage by GPU model, last 30 days")).to_be_visible()
    assert page.url.endswith("/?window=30d&by=model")
    page.go_back()
    expect(page.get_by_label("Grouped by")).to_have_value("namespace")
    page.go_back()
    expect(page.get_by_label("Usage over", exact=True)).to_have_value("7d")
    page.go_forward()
    expect(page.get_by_label("Usage over", exact=True)).to_have_value("30d")


def test_an_address_that_was_shared_shows_the_same(visit: Visiting) -> None:
    page = visit().enter(address="/?q=recom&sort=-rate&state=short&budget=recommendations&window=24h")
    expect(page.locator(".budgets tbody tr")).to_have_count(1)
    expect(page.get_by_label("Search budgets")).to_have_value("recom")
    expect(page.get_by_label("Status")).to_have_value("short")
    expect(page.get_by_label("Usage over", exact=True)).to_have_value("24h")
    expect(page.get_by_role("heading", name="recommendations: what is left")).to_be_visible()


def test_any_days_can_be_chosen_and_the_last_one_counts(visit: Visiting) -> None:
    page = visit().enter()
    page.locator("#usage").get_by_text("Show as a table").click()
    page.get_by_label("Usage over", exact=True).select_option("days")
    day = datetime.now(UTC).date()
    page.get_by_label("From", exact=True).fill(str(day - timedelta(days=3)))
    page.get_by_label("Until", exact=True).fill(str(day - timedelta(days=1)))
    start, end = day - timedelta(days=3), day
    expect(page).to_have_url(re.compile(re.escape(quote(f"{start}T00:00:00Z,{end}T00:00:00Z", safe="")) + "$"))
    expect(page.locator("#usage .as-table tbody tr")).to_have_count(3)  # the table stays open while its figures change
    page.get_by_label("From", exact=True).fill(str(day - timedelta(days=400)))
    page.get_by_label("Until", exact=True).fill(str(day - timedelta(days=390)))
    expect(page.locator("#usage")).to_contain_text("Nothing was used in this time.")
    page.get_by_label("Usage over", exact=True).select_option("7d")
    expect(page.get_by_label("From", exact=True)).to_be_hidden()
    expect(page.locator("#usage .as-table tbody")).to_be_visible()


def test_filters_that_change_faster_than_answers_come_show_the_last_ones_figures(
    visit: Visiting, store: RedisServer
) -> None:
    """The timekeeper still answers the questions that the page has given up, and refuses a third beside two."""
    page = visit().enter()
    page.locator("#usage").get_by_text("Show as a table").click()
    window = page.get_by_label("Usage over", exact=True)
    assert store.process is not None
    store.process.send_signal(signal.SIGSTOP)
    try:
        with page.expect_response(lambda response: response.status == 429):
            for name in ("24h", "yesterday", "30d", "7d"):
                with page.expect_request("**/v1/usage?**"):
                    window.select_option(name)
    finally:
        store.process.send_signal(signal.SIGCONT)
    expect(page.locator("#usage")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#usage .as-table thead th")).to_contain_text(["Step (UTC)"])


def test_typing_a_search_is_one_step_of_the_history(visit: Visiting) -> None:
    page = visit().enter()
    before = page.evaluate("history.length")
    page.get_by_label("Search budgets").press_sequentially("speech")
    expect(page).to_have_url(re.compile(r"/\?q=speech$"))
    assert page.evaluate("history.length") == before


def test_a_namespace_narrows_the_whole_board(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_label("Namespace", exact=True).fill("robotics")
    page.get_by_label("Namespace", exact=True).press("Enter")
    expect(page.locator(".budgets tbody tr")).to_have_count(1)
    expect(page.locator("#pods tbody tr")).to_have_count(2)
    expect(page.locator("#usage .legend .name")).to_have_count(2)
    assert page.url.endswith("/?ns=robotics")


def test_a_value_that_cannot_be_a_filter_counts_as_not_given(visit: Visiting) -> None:
    page = visit().enter(address="/?window=<script>&sort=nothing&page=-3&measure=gold&by=../..")
    expect(page.locator(".budgets tbody tr")).to_have_count(10)
    expect(page.get_by_label("Usage over", exact=True)).to_have_value("7d")


def test_a_name_that_looks_like_markup_stays_a_name(visit: Visiting) -> None:
    page = visit().enter(address="/?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.locator("#budgets")).to_contain_text("No budget fits these filters")
    expect(page.get_by_label("Search budgets")).to_have_value("<img src=x onerror=alert(1)>")
