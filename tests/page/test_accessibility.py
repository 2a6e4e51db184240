"""For everybody: by keyboard alone, by screen reader, on a phone, in the dark."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.conftest import Visiting

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
WITH_A_BURN_DOWN = "/?budget=language-models"
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],  # what passes is not listed in full: that takes as long as all the rules
}
FOCUS = """() => {
    const element = document.activeElement;
    const shown = element.closest(".theme label") ?? element;
    const text = element === document.body ? "BODY" : element.textContent.trim().slice(0, 30) || element.tagName;
    return [element.id || element.dataset.key || text, getComputedStyle(shown).outlineStyle];
}"""


def violations(page: Page) -> list[str]:
    found: list[Any] = Axe().run(page, options=RULES).response["violations"]
    return [f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]


def whole_board(visit: Visiting, **options: Any) -> Page:
    return drawn(visit(**options).enter(address=WITH_A_BURN_DOWN))


def drawn(page: Page) -> Page:
    """The page with all its charts. `expect` would describe the whole of it each time that it has to look again."""
    page.locator("#usage canvas").wait_for()
    page.locator("#burn-down canvas").wait_for()
    page.locator("#pods tbody tr").first.wait_for()
    return page


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", DESKTOP), ("dark", DESKTOP), ("dark", PHONE)], ids=["light", "dark", "phone"]
)
def test_the_board_passes_the_rules_of_wcag_contrast_included(
    visit: Visiting, scheme: str, viewport: dict[str, int]
) -> None:
    page = whole_board(visit, color_scheme=scheme, viewport=viewport)
    if scheme == "light":
        for summary in page.get_by_text("Show as a table").all():
            summary.click()
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sign_in_passes_the_rules_of_wcag_with_an_error_too(visit: Visiting, scheme: str) -> None:
    visiting = visit(color_scheme=scheme)
    page = visiting.open()
    assert violations(page) == []
    visiting.sign_in("wrong")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")
    assert violations(page) == []


def test_everything_can_be_done_by_keyboard_alone(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    page.keyboard.insert_text(visiting.server.signer.person("finance"))
    page.keyboard.press("Enter")
    expect(page.locator(".budgets tbody tr")).to_have_count(10)
    tab_to(page, "sort-name")
    page.keyboard.press("Enter")
    expect(page.locator("[data-key=sort-name]")).to_be_focused()
    expect(page.locator(".budgets tbody a").first).to_have_text("drug-discovery")
    tab_to(page, "budget-fraud")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="fraud: what is left")).to_be_visible()
    expect(page.locator("[data-key=budget-fraud]")).to_be_focused()


def tab_to(page: Page, wanted: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(FOCUS)
        assert outline != "none", f"nothing shows that {name} is focused"
        if name == wanted:
            return
    raise AssertionError(f"{wanted} is not reached with the Tab key")


def test_focus_is_seen_on_every_stop_and_goes_through_the_whole_page(visit: Visiting) -> None:
    page = whole_board(visit)
    page.reload()
    page.locator("#usage canvas").wait_for()
    stops = []
    for _ in range(90):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(FOCUS)
        if name == "BODY" or (stops and name == stops[0]):
            break
        assert outline != "none", f"nothing shows that {name} is focused"
        stops.append(name)
    assert stops[0] == "Skip to the figures"
    assert {"sign-out", "ns", "window", "by", "measure", "budget-speech", "idle"} <= set(stops)


@pytest.mark.parametrize("width", [360, 412, 768, 1024])
def test_nothing_is_wider_than_the_screen(visit: Visiting, width: int) -> None:
    visiting = visit(viewport={"width": width, "height": 740})
    page = visiting.open(WITH_A_BURN_DOWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    visiting.sign_in(visiting.server.signer.person("finance"))
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_phone_shows_every_figure_of_a_budget(visit: Visiting) -> None:
    page = visit(viewport=PHONE).enter()
    row = page.locator(".budgets tbody tr").filter(has_text="language-models")
    for text in ("Running out", "9,650", "2,350", "24.0", "Runs out in"):
        expect(row.get_by_text(text).first).to_be_visible()


def test_colours_follow_the_system_until_somebody_chooses(visit: Visiting) -> None:
    page = visit(color_scheme="dark").open()
    dark = ground(page)
    assert sum(dark) < 150
    page.get_by_label("Light").check(force=True)
    assert sum(ground(page)) > 600
    page.reload()
    assert sum(ground(page)) > 600
    page.get_by_label("Auto").check(force=True)
    assert ground(page) == dark


def ground(page: Page) -> list[int]:
    colour: list[int] = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    return colour


@pytest.mark.parametrize(("wanted", "moves"), [("reduce", False), ("no-preference", True)])
def test_a_person_who_wants_no_motion_is_shown_none(visit: Visiting, wanted: str, *, moves: bool) -> None:
    page = visit(reduced_motion=wanted).open()
    moving = page.evaluate(
        """() => {
            const bar = document.createElement("div");
            bar.className = "skeleton";
            bar.append(document.createElement("i"));
            document.body.append(bar);
            return getComputedStyle(bar.firstChild).animationName;
        }"""
    )
    assert (moving != "none") is moves
