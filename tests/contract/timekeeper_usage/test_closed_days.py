"""Cached sums of closed days give the answers that the store gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.ledger.stored_hours import delete_row, delete_rows, rows_of, write_rows
from timekeeper.api.usage import LAGGING_DAYS, ClosedDays, Query, divided, find, read_query
from timekeeper.controller.archive import Archivist
from timekeeper.controller.state.accounts import default_account
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import IDLE, Group
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import keys
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.shared import write_capacity
from timekeeper.ledger.writing import Restoration, restore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

MIDNIGHT = NOON - 12 * HOUR
QUESTIONS = ((("model",), "1d"), (("budget", "node"), None), (("owner", "namespace"), "2d"))


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        harness = LedgerHarness(tmp_path, client)
        harness.budget("a", ["team-a"])
        harness.budget("b", ["team-b"])
        harness.pod("p1", "team-a")
        harness.pod("p2", "team-b", core=50)
        harness.pod("p3", "nobodys", core=10)
        harness.lead()
        harness.reconcile()
        yield harness


def answer(
    harness: LedgerHarness, aggregate: tuple[str, ...], step: str | None, closed: ClosedDays | None
) -> list[Group]:
    window = Window(MIDNIGHT, harness.now // DAY * DAY + DAY)
    return find(harness.client, Query(window, step, aggregate, 1000, idle=True), harness.now, closed).items


def check(harness: LedgerHarness, closed: ClosedDays) -> None:
    for aggregate, step in QUESTIONS:
        for _ in range(2):
            assert answer(harness, aggregate, step, closed) == answer(harness, aggregate, step, None)


def test_answers_are_those_of_the_store_whatever_happens_to_the_past(harness: LedgerHarness) -> None:
    closed = ClosedDays()
    for day in range(6):
        harness.reconcile(86_400)
        check(harness, closed)
        if day == 1:
            harness.pod("p4", "team-b", core=20)
        if day == 3:
            harness.remove("p1")
    harness.correct("refund", "a", "0.5", NOON + HOUR)
    harness.reconcile(60)
    check(harness, closed)
    assert harness.reconciler is not None
    Archivist(
        harness.client, harness.source, harness.reconciler.books, harness.reconciler.fencing_token, Retention(3, 13)
    ).archive(harness.now)
    check(harness, closed)
    harness.pod("p5", "newcomers")
    harness.reconcile(60)
    harness.reconcile(3600)
    check(harness, closed)


def test_hours_that_a_session_held_while_no_leader_settled_are_reported_their_days(harness: LedgerHarness) -> None:
    closed = ClosedDays()
    harness.reconcile(86_400)
    harness.pass_time(6 * 86_400)
    check(harness, closed)
    harness.lead()
    harness.reconcile()
    check(harness, closed)


def test_cached_days_that_the_store_has_lost_do_not_count(harness: LedgerHarness) -> None:
    closed = ClosedDays()
    for _ in range(2):
        harness.reconcile(86_400)
    head, rows = harness.client.dump(keys.AccountKeys("a").head), rows_of(harness.client, "a")
    for _ in range(4):
        harness.reconcile(86_400)
    check(harness, closed)
    harness.client.restore(keys.AccountKeys("a").head, 0, head, replace=True)
    delete_rows(harness.client, "a")
    write_rows(harness.client, "a", rows)
    gone = Restoration("a", MONTH, MONTH + 31 * DAY, GPU_HOUR, 0, 1000, [], "the store went back")
    restore(harness.client, int(harness.client.get(keys.BOOK_FENCING_TOKEN) or 0), harness.now, gone)
    check(harness, closed)
    harness.client.flushall()
    harness.lead()
    harness.reconcile()
    check(harness, closed)


def test_pages_that_tell_what_was_idle_hold_what_one_page_would(harness: LedgerHarness) -> None:
    write_capacity(harness.client, highest_fencing_token(harness.client), NOON + 1, {"A100": 8 * GPU_SECOND})
    for _ in range(3):
        harness.reconcile(86_400)
    closed = ClosedDays()
    asked = {"window": "3d", "step": "1d", "idle": "true"}
    whole = find(harness.client, read_query(asked, (), harness.now), harness.now, None).items
    assert [item.key for item in whole] == [("nobodys",), ("team-a",), ("team-b",), (IDLE,)] * 3
    paged: list[Group] = []
    cursor: str | None = ""
    while cursor is not None:
        query = read_query({**asked, "limit": "2", "cursor": cursor}, (), harness.now)
        found = find(harness.client, query, harness.now, closed)
        paged += found.items
        cursor = found.following
    assert paged == whole


def test_a_closed_day_is_read_once(harness: LedgerHarness) -> None:
    closed = ClosedDays()
    for _ in range(5):
        harness.reconcile(86_400)
    before = answer(harness, ("model",), "1d", closed)
    delete_row(harness.client, "a", min(rows_of(harness.client, "a")))
    assert answer(harness, ("model",), "1d", closed) == before
    assert answer(harness, ("model",), "1d", None) != before


def test_days_that_close_and_accounts_that_come_are_added_to_what_is_remembered(harness: LedgerHarness) -> None:
    beside = next(
        name
        for name in (f"newcomers-{number}" for number in range(1000))
        if len(divided(["a", default_account(name)])) == 1
    )
    closed = ClosedDays()
    for _ in range(5):
        harness.reconcile(86_400)
    answer(harness, ("model",), "1d", closed)
    first, early = min(rows_of(harness.client, "a").items())
    delete_row(harness.client, "a", first)
    harness.pod("p4", beside)
    harness.reconcile(60)
    found: list[Group] = []
    for _ in range(LAGGING_DAYS + 2):
        harness.reconcile(86_400)
        found = answer(harness, ("model",), "1d", closed)
    write_rows(harness.client, "a", {first: early})
    assert found == answer(harness, ("model",), "1d", None)
