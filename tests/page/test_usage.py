"""The board shows use, waste and pods."""

from __future__ import annotations

import csv
import io
import itertools
import re
import time
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.conftest import Visiting
from tests.support.servers.redis_server import RedisServer
from timekeeper.api.figures import Book
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import present_use
from timekeeper.ledger.present_use import PresentUse


def test_usage_is_stacked_by_team_the_largest_first_and_the_small_ones_together(board: Page) -> None:
    legend = board.locator("#usage .legend .name")
    expect(legend.nth(1)).to_have_text("language-models")
    expect(legend).to_have_count(9)
    expect(legend.last).to_have_text("3 others")
    expect(board.locator("#usage canvas")).to_be_visible()


def test_a_chart_is_described_walked_through_with_arrow_keys_and_heard(visit: Visiting) -> None:
    page = visit().enter()
    chart = page.locator("#usage .plot")
    expect(chart).to_have_attribute("aria-label", re.compile(r"^Billed: [\d,]+ GPU-h; most by language-models"))
    page.locator("#usage canvas").wait_for()
    chart.focus()
    page.keyboard.press("Home")
    first = page.locator("#usage [aria-live]").inner_text()
    assert re.match(r"\w+, \w+ \d+: [\d,]+ GPU-h\. language-models", first)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#usage [aria-live]")).not_to_have_text(first)
    expect(page.locator("#usage .legend .sum .name")).not_to_have_text("Whole time")


def test_a_pointer_on_a_bar_shows_that_very_step(visit: Visiting) -> None:
    page = visit().enter(address="/?window=7d")
    page.locator("#usage canvas").wait_for()
    page.locator("#usage .plot").scroll_into_view_if_needed()
    box = page.locator("#usage .u-over").bounding_box()
    assert box is not None
    heading = page.locator("#usage .legend .sum .name")
    shown = []
    for step in range(7):
        page.mouse.move(box["x"] + box["width"] * (step + 0.7) / 7, box["y"] + 20)
        expect(heading).not_to_have_text(shown[-1] if shown else "Whole time")
        shown.append(heading.inner_text())
    assert len(set(shown)) == 7


def test_a_chart_can_be_read_as_a_table_that_adds_up_with_the_largest_first(visit: Visiting) -> None:
    page = visit().enter(address="/?by=model")
    page.locator("#usage").get_by_text("Show as a table").click()
    table = page.locator("#usage .as-table")
    expect(table.locator("thead th")).to_have_count(5)
    step, *models, total = table.locator("thead th").all_inner_texts()
    assert (step, sorted(models), total) == ("Step (UTC)", ["A100", "H100", "L40S"], "Sum")
    rows = [
        [float(figure.replace(",", "")) for figure in line.split("\t")[1:]]
        for line in table.locator("tbody tr").all_inner_texts()
    ]
    for *parts, whole in rows:
        assert abs(sum(parts) - whole) <= len(parts) * 0.6
    sums = [sum(column) for column in zip(*rows, strict=True)][:-1]
    assert all(first >= second - len(rows) for first, second in itertools.pairwise(sums))


def test_idle_capacity_is_shown_to_who_may_read_all(visit: Visiting) -> None:
    page = visit().enter()
    page.get_by_label("Idle capacity").check()
    expect(page.locator("#usage .legend .name").last).to_have_text("Idle")
    assert "idle=1" in page.url
    member = visit().enter("speaker")
    expect(member.get_by_label("Idle capacity")).to_be_hidden()
    expect(member.locator("#usage .legend .name").nth(1)).to_have_text("speech")


def test_cost_is_shown_in_the_currency(visit: Visiting) -> None:
    page = visit().enter(address="/?measure=cost")
    expect(page.locator("#usage .legend .sum")).to_contain_text("€")


def test_usage_is_kept_as_csv_with_exact_figures(visit: Visiting, tmp_path: Path) -> None:
    page = visit().enter()
    button = page.get_by_role("button", name="Download CSV")
    page.locator("#usage canvas").wait_for()
    with page.expect_download() as download:
        button.click()
    download.value.save_as(tmp_path / "usage.csv")
    assert download.value.suggested_filename == "fairgpu-usage.csv"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "usage.csv").read_text())))
    assert {found["namespace"] for found in rows} >= {"language-models", "speech"}
    assert all(found["billed_micro_gpu_seconds"].isdigit() for found in rows)


def test_a_file_that_did_not_come_is_not_said_to_be_saved(visit: Visiting) -> None:
    page = visit().enter()
    page.locator("#usage canvas").wait_for()
    page.route("**/v1/usage?*format=csv*", lambda route: route.abort())
    page.get_by_role("button", name="Download CSV").click()
    expect(page.locator("#usage .bad")).to_contain_text("The timekeeper cannot be reached.")
    expect(page.locator("#announcement")).not_to_have_text("Saved as CSV")


def test_a_table_of_more_pages_than_are_asked_for_is_no_file(visit: Visiting) -> None:
    page = visit().enter()
    page.locator("#usage canvas").wait_for()
    link = '</v1/usage?cursor=abc>; rel="next"'
    page.route(
        "**/v1/usage?*format=csv*",
        lambda route: route.fulfill(body="start,end\r\n1,2\r\n", content_type="text/csv", headers={"Link": link}),
    )
    page.get_by_role("button", name="Download CSV").click()
    expect(page.locator("#usage .bad")).to_contain_text("Choose a shorter time")
    expect(page.locator("#announcement")).not_to_have_text("Saved as CSV")


def test_the_months_expected_amounts_are_shown_by_the_filters_group_the_most_first(visit: Visiting) -> None:
    """The teams were metered for weeks, so that the last day's pace is known."""
    page = visit().enter(address="/?by=model")
    panel = page.locator("#expected")
    expect(panel.locator("thead th")).to_have_text(
        ["GPU model", "GPU-h so far", "GPU-h expected", "At the last hour's pace", "Cost expected"]
    )
    names = panel.locator("tbody th").all_inner_texts()
    rows = [
        [float(re.sub(r"[^\d.]", "", figure)) for figure in line.locator("td").all_inner_texts()]
        for line in panel.locator("tbody tr").all()
    ]
    assert sorted(names) == ["A100", "H100", "L40S"]
    assert all(billed <= expected for billed, expected, *_ in rows)
    assert all(first[1] >= second[1] for first, second in itertools.pairwise(rows))
    expect(panel.locator(".hint")).to_contain_text("UTC, if pods go on as in the last")
    page.get_by_label("Grouped by").select_option("owner")
    expect(panel.locator("thead th").first).to_have_text("Workload")


def test_waste_is_what_was_reserved_and_not_used_the_most_first(board: Page) -> None:
    first = board.locator("#waste li").first
    expect(first).to_contain_text("recommendations")
    expect(first).to_contain_text(re.compile(r"\d\d % used\d+ GPU-h unused of \d+"))
    expect(board.locator("#waste")).to_contain_text("1 more reported nothing")


def test_the_dearest_pods_come_first_and_say_what_they_used(board: Page) -> None:
    rows = board.locator("#pods tbody tr")
    expect(rows.first).to_contain_text("llm-eval-7")
    expect(rows).to_have_count(10)
    expect(board.locator("#pods")).to_contain_text("The 10 dearest of those that run now")


def test_a_pod_that_reports_nothing_is_shown_with_how_busy_prometheus_says_it_is(
    visit: Visiting, store: RedisServer
) -> None:
    now = time.time_ns()
    with store.client() as client:
        (pod,) = Book(client, time.time_ns).sessions("platform", "", 9)
        present_use.write(client, {pod.session.uid: PresentUse(now, now + HOUR, 8360)}, {})
    page = visit().enter(address="/?ns=platform")
    used = page.locator("#pods tbody tr", has_text="dcgm-bench-0").locator("td").nth(2)
    expect(used).to_have_text("not reported; 84 % busy now")
    expect(used.locator("span")).to_have_attribute(
        "title", re.compile("by Prometheus, .* advisory, and no part of any")
    )


def test_a_part_that_fails_says_why_and_can_be_tried_again_while_the_others_show(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.page
    page.route(
        "**/v1/usage?*", lambda route: route.fulfill(status=503, json={"title": "Not now", "detail": "Redis is away"})
    )
    visiting.enter()
    expect(page.locator("#usage")).to_contain_text("Redis is away")
    expect(page.locator(".budgets tbody tr")).to_have_count(10)
    page.unroute("**/v1/usage?*")
    page.locator("#usage").get_by_role("button", name="Try again").click()
    expect(page.locator("#usage canvas")).to_be_visible()


def test_a_server_that_is_away_is_said_to_be(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    page.route("**/v1/**", lambda route: route.abort())
    visiting.sign_in(visiting.server.signer.person("finance"))
    expect(page.locator("#budgets")).to_contain_text("cannot be reached")


def test_figures_stay_while_the_timekeeper_is_away_and_say_that_they_are_old(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.enter()
    visiting.wait_for_all_figures()
    page.route("**/v1/**", lambda route: route.abort())
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("These figures are not up to date")).to_be_visible()
    expect(page.locator(".budgets tbody tr")).to_have_count(10)
    expect(page.locator("#usage canvas")).to_be_visible()
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("These figures are not up to date")).to_be_hidden()


def test_a_token_that_expires_while_the_page_is_open_asks_for_another(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.enter(address="/?window=30d")
    visiting.wait_for_all_figures()
    page.route("**/v1/**", lambda route: route.fulfill(status=401, json={"title": "Unauthorized", "detail": "expired"}))
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("alert")).to_contain_text("expired")
    expect(page.locator("#board")).to_be_hidden()
    page.unroute("**/v1/**")
    visiting.sign_in(visiting.server.signer.person("finance"))
    expect(page.locator("#usage canvas")).to_be_visible()
    assert "window=30d" in page.url
