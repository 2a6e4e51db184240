"""Signing in with a Kubernetes token, and what becomes of the token."""

from __future__ import annotations

import time

from playwright.sync_api import Page, expect

from tests.page.conftest import Visiting


def test_a_stranger_is_asked_for_a_token_and_shown_how_to_get_one(visit: Visiting) -> None:
    page = visit().open()
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.get_by_text("kubectl create token").first).to_be_visible()
    expect(page.locator("#board")).to_be_hidden()


def test_a_person_who_may_read_all_sees_every_budget(visit: Visiting) -> None:
    page = visit().enter("finance")
    expect(page.get_by_role("table", name="Budgets").get_by_role("row")).to_have_count(11)
    expect(page.locator("#who")).to_contain_text("finance")


def test_a_token_without_a_valid_signature_is_refused_with_the_reason(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    visiting.sign_in("wrong.token.here")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.locator("#board")).to_be_hidden()


def test_a_text_that_is_no_token_at_all_is_not_even_sent(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    visiting.sign_in("not a token, löl")
    expect(page.get_by_role("alert")).to_contain_text("no token")
    assert not [request for request in visiting.requests if "/v1/" in request.url]


def test_an_expired_token_asks_for_a_new_one_and_keeps_the_address(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open("/?window=30d&q=speech")
    now = int(time.time())
    visiting.sign_in(visiting.server.signer.person("finance", iat=now - 7200, nbf=now - 7200, exp=now - 3600))
    expect(page.get_by_role("alert")).to_contain_text("expired")
    visiting.sign_in(visiting.server.signer.person("finance"))
    expect(page.get_by_role("table", name="Budgets").get_by_role("row")).to_have_count(2)
    assert page.url.endswith("/?window=30d&q=speech")


def test_a_token_is_taken_with_the_words_and_line_breaks_that_were_copied_along(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    visiting.sign_in(f"  Authorization: Bearer {visiting.server.signer.person('finance')} ")
    expect(page.get_by_role("table", name="Budgets")).to_be_visible()


def test_loading_anew_does_not_ask_again_and_signing_out_forgets(visit: Visiting) -> None:
    page = visit().enter()
    page.reload()
    expect(page.get_by_role("table", name="Budgets")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])") == "[{},{}]"
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


FIGURES = ("speech", "robotics", "GPU-hours left")


def figures_in(page: Page) -> list[str]:
    """Returns the figures that are in the document, hidden or not."""
    text = page.evaluate("document.documentElement.outerHTML")
    return [figure for figure in FIGURES if figure in text]


def test_signing_out_leaves_nothing_of_the_figures_in_the_page_its_memory_or_its_history(visit: Visiting) -> None:
    page = visit().enter("finance", "/?q=speech")
    page.goto(page.url.replace("speech", "robotics"))
    expect(page.get_by_role("table", name="Budgets")).to_be_visible()
    assert "robotics" in figures_in(page)
    page.evaluate("window.held = 'what scripts remember'")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert figures_in(page) == []
    assert page.evaluate("window.held") is None
    assert "?" not in page.url
    page.go_back()
    expect(page.get_by_label("Token")).to_be_visible()
    assert figures_in(page) == []


def test_a_token_that_ends_while_figures_are_shown_takes_them_along_and_says_why(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open("/?window=30d")
    page.evaluate("window.held = 'what scripts remember'")
    visiting.sign_in(visiting.server.signer.person("finance"))
    visiting.wait_for_all_figures()
    page.route(
        "**/v1/**", lambda route: route.fulfill(status=401, json={"title": "Unauthorized", "detail": "it ended"})
    )
    page.get_by_role("link", name="speech").first.click()
    expect(page.get_by_role("alert")).to_contain_text("it ended")
    expect(page.get_by_label("Token")).to_be_focused()
    assert figures_in(page) == []
    assert page.evaluate("window.held") is None
    page.reload()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_token_stands_in_no_address_cookie_or_log(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    token = visiting.server.signer.person("finance")
    visiting.sign_in(token)
    expect(page.get_by_role("table", name="Budgets")).to_be_visible()
    signature = token.rpartition(".")[2]
    assert not [request.url for request in visiting.requests if signature in request.url]
    assert page.context.cookies() == []
    assert signature not in page.content()
    assert signature not in visiting.server.log()
    assert page.evaluate("JSON.stringify({...localStorage})") == "{}"


def test_a_member_of_one_team_sees_its_namespace_and_nothing_else(visit: Visiting) -> None:
    page = visit().enter("speaker")
    table = page.get_by_role("table", name="Budgets")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text("speech")
    expect(page.get_by_role("heading", name="speech: what is left")).to_be_visible()


def test_a_member_who_names_another_teams_namespace_is_shown_so(visit: Visiting) -> None:
    page = visit().enter("speaker", "/?ns=robotics")
    expect(page.locator("#budgets")).to_contain_text("Your token may not read this")
    expect(page.locator("#budgets")).to_contain_text("in namespace 'robotics'")
    expect(page.locator("#rest")).to_be_hidden()


def test_a_person_who_may_read_nothing_that_is_known_is_asked_for_a_namespace(visit: Visiting) -> None:
    page = visit().enter("nobody")
    expect(page.locator("#budgets")).to_contain_text("Name the namespace")
