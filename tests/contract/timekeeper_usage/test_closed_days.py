"""What is remembered of closed days gives the answers that the store gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.ledger.stored_hours import delete_row, delete_rows, rows_of, write_rows
from timekeeper.api.usage_finding import LAGGING_DAYS, ClosedDays, divided, find
from timekeeper.api.usage_query import Query, read_query
from timekeeper.controller.archive import Archivist
from timekeeper.controller.state.accounts import default_account
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import IDLE
from timekeeper.domain.usage_grouping import Group
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import keys
from timekeeper.ledger.adjustments import Restoration, restore
from timekeeper.ledger.shared import write_capacity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

MIDNIGHT = NOON - 12 * HOUR
QUESTIONS = ((("model",), "1d"), (("budget", "node"), None), (("owner", "namespace"), "2d"))


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        stage = LedgerHarness(tmp_path, client)
        stage.budget("a", ["team-a"])
        stage.budget("b", ["team-b"])
        stage.pod("p1", "team-a")
        stage.pod("p2", "team-b", core=50)
        stage.pod("p3", "nobodys", core=10)
        stage.lead()
        stage.round()
        yield stage


def answer(
    stage: LedgerHarness, aggregate: tuple[str, ...], step: str | None, closed: ClosedDays | None
) -> list[Group]:
    window = Window(MIDNIGHT, stage.now // DAY * DAY + DAY)
    return find(stage.client, Query(window, step, aggregate, 1000, idle=True), stage.now, closed).items


def check(stage: LedgerHarness, closed: ClosedDays) -> None:
    for aggregate, step in QUESTIONS:
        for _ in range(2):
            assert answer(stage, aggregate, step, closed) == answer(stage, aggregate, step, None)


def test_answers_are_those_of_the_store_whatever_happens_to_the_past(stage: LedgerHarness) -> None:
    closed = ClosedDays()
    for day in range(6):
        stage.round(86_400)
        check(stage, closed)
        if day == 1:
            stage.pod("p4", "team-b", core=20)
        if day == 3:
            stage.remove("p1")
    stage.correct("refund", "a", "0.5", NOON + HOUR)
    stage.round(60)
    check(stage, closed)
    assert stage.keeper is not None
    Archivist(stage.client, stage.source, stage.keeper.books, stage.keeper.epoch, Retention(3, 13)).archive(stage.now)
    check(stage, closed)
    stage.pod("p5", "newcomers")
    stage.round(60)
    stage.round(3600)
    check(stage, closed)


def test_hours_that_a_session_held_while_nobody_settled_are_reported_their_days(stage: LedgerHarness) -> None:
    closed = ClosedDays()
    stage.round(86_400)
    stage.pass_time(6 * 86_400)
    check(stage, closed)
    stage.lead()
    stage.round()
    check(stage, closed)


def test_days_that_the_store_has_lost_are_remembered_by_nobody(stage: LedgerHarness) -> None:
    closed = ClosedDays()
    for _ in range(2):
        stage.round(86_400)
    head, rows = stage.client.dump(keys.AccountKeys("a").head), rows_of(stage.client, "a")
    for _ in range(4):
        stage.round(86_400)
    check(stage, closed)
    stage.client.restore(keys.AccountKeys("a").head, 0, head, replace=True)
    delete_rows(stage.client, "a")
    write_rows(stage.client, "a", rows)
    gone = Restoration("a", MONTH, GPU_HOUR, 0, 1000, [], "the store went back")
    restore(stage.client, int(stage.client.get(keys.BOOK_EPOCH) or 0), stage.now, gone)
    check(stage, closed)
    stage.client.flushall()
    stage.lead()
    stage.round()
    check(stage, closed)


def test_pages_that_tell_what_was_idle_hold_what_one_page_would(stage: LedgerHarness) -> None:
    write_capacity(stage.client, NOON + 1, 8 * GPU_SECOND)
    for _ in range(3):
        stage.round(86_400)
    closed = ClosedDays()
    asked = {"window": "3d", "step": "1d", "idle": "true"}
    whole = find(stage.client, read_query(asked, (), stage.now), stage.now, None).items
    assert [item.key for item in whole] == [("nobodys",), ("team-a",), ("team-b",), (IDLE,)] * 3
    paged: list[Group] = []
    cursor: str | None = ""
    while cursor is not None:
        query = read_query({**asked, "limit": "2", "cursor": cursor}, (), stage.now)
        found = find(stage.client, query, stage.now, closed)
        paged += found.items
        cursor = found.following
    assert paged == whole


def test_a_closed_day_is_read_once(stage: LedgerHarness) -> None:
    closed = ClosedDays()
    for _ in range(5):
        stage.round(86_400)
    before = answer(stage, ("model",), "1d", closed)
    delete_row(stage.client, "a", min(rows_of(stage.client, "a")))
    assert answer(stage, ("model",), "1d", closed) == before
    assert answer(stage, ("model",), "1d", None) != before


def test_days_that_close_and_accounts_that_come_are_added_to_what_is_remembered(stage: LedgerHarness) -> None:
    beside = next(
        name
        for name in (f"newcomers-{number}" for number in range(1000))
        if len(divided(["a", default_account(name)])) == 1
    )
    closed = ClosedDays()
    for _ in range(5):
        stage.round(86_400)
    answer(stage, ("model",), "1d", closed)
    first, early = min(rows_of(stage.client, "a").items())
    delete_row(stage.client, "a", first)
    stage.pod("p4", beside)
    stage.round(60)
    found: list[Group] = []
    for _ in range(LAGGING_DAYS + 2):
        stage.round(86_400)
        found = answer(stage, ("model",), "1d", closed)
    write_rows(stage.client, "a", {first: early})
    assert found == answer(stage, ("model",), "1d", None)
