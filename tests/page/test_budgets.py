"""The board shows budgets."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.conftest import Visiting


def row(page: Page, name: str):  # noqa: ANN201 - playwright's Locator
    return page.get_by_role("table", name="Budgets").get_by_role("row").filter(has=page.get_by_role("link", name=name))


def names(page: Page) -> list[str]:
    return page.locator(".budgets tbody .name a").all_inner_texts()


def test_a_budget_shows_what_is_spent_what_is_left_and_when_it_runs_out(board: Page) -> None:
    models = row(board, "language-models")
    expect(models).to_contain_text("Running out")
    expect(models).to_contain_text("9,650")
    expect(models).to_contain_text("2,350")
    expect(models).to_contain_text(re.compile(r"Runs out in \d"))
    expect(models.get_by_role("img", name=re.compile(r"^80 % spent, \d+ % forecast"))).to_be_visible()


def test_a_state_is_shown_in_words_and_not_by_colour_alone(board: Page) -> None:
    expect(row(board, "students")).to_contain_text("Held")
    expect(row(board, "speech")).to_contain_text("Over")
    expect(row(board, "weather")).to_contain_text("observed only")
    expect(row(board, "platform")).to_contain_text("No limit")


def test_the_most_urgent_budgets_come_first(board: Page) -> None:
    assert names(board)[:4] == ["students", "speech", "recommendations", "language-models"]


def test_a_heading_sorts_by_its_column_and_says_so(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_role("button", name="Spent", exact=True).click()
    assert names(page)[0] == "language-models"
    expect(page.get_by_role("columnheader", name="Spent", exact=True)).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Spent", exact=True).click()
    assert names(page)[0] == "platform"


def test_searching_leaves_the_budgets_whose_names_have_the_words(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_label("Search budgets").fill("re vis")
    expect(page.locator(".budgets tbody tr")).to_have_count(1)
    expect(page.locator("#announcement")).to_have_text("1 of 10 budgets")
    page.get_by_label("Search budgets").fill("nobody has this name")
    expect(page.locator("#budgets")).to_contain_text("No budget fits these filters")
    page.get_by_role("link", name="Show all budgets").click()
    expect(page.locator(".budgets tbody tr")).to_have_count(10)


def test_a_tile_leads_to_the_budgets_that_it_counts(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_role("link", name="Show budgets that are exhausted").click()
    assert names(page) == ["students", "speech"]


def test_an_opened_budget_shows_its_burn_down_and_its_cost(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_role("link", name="language-models").click()
    detail = page.locator("#burn-down")
    expect(detail.get_by_role("heading", name="language-models: what is left")).to_be_visible()
    expect(detail.locator("canvas")).to_be_visible()
    expect(detail).to_contain_text("€5,875.00")
    detail.get_by_role("link", name="Close").click()
    expect(detail).to_be_hidden()


def test_the_burn_down_begins_with_what_was_available_and_comes_to_what_is_left(visit: Visiting) -> None:
    page = visit().enter(address="/?budget=language-models")
    page.locator("#burn-down").get_by_text("Show as a table").click()
    table = page.locator("#burn-down .as-table tbody tr")
    table.nth(3).wait_for()  # it is made once it is opened
    rows = table.all_inner_texts()
    left = [float(found[1].replace(",", "")) for found in (line.split("\t") for line in rows) if found[1]]
    assert (left[0], left[-1]) == (12_000, 2_350)
    assert left == sorted(left, reverse=True)
    assert len(left) > 3
