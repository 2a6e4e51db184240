from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ledger.harness import NOON, LedgerHarness, report
from tests.support.servers.redis_server import RedisServer
from timekeeper.api.usage import Query, find
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import DAY
from timekeeper.domain.usage import Group
from timekeeper.domain.windows import Window
from timekeeper.ledger import reading
from timekeeper.ledger.usage import accounts_usage, added

if TYPE_CHECKING:
    from collections.abc import Iterator

ALWAYS = Window(NOON - 60 * DAY, NOON + 60 * DAY)
NAMESPACES = ("team-a", "team-b")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def used(harness: LedgerHarness, *aggregate: str, step: str | None = None) -> dict[tuple[str, ...], int | None]:
    """Returns the used GPU time by key; with a step the hour of the day comes first."""
    window = ALWAYS if step is None else Window(NOON, NOON + DAY // 4)
    found = find(harness.client, Query(window, step, aggregate, 1000), harness.now)
    hours = {item: f"{(item.step.start - NOON) // (DAY // 24)}" for item in found.items}
    return {((hours[item],) if step else ()) + item.key: item.figures.used for item in found.items}


def answer(harness: LedgerHarness) -> list[Group]:
    """Returns the items of a question about all payers by hour."""
    window = Window(NOON, NOON + DAY // 4)
    return find(harness.client, Query(window, "1h", ("namespace", "budget"), 1000), harness.now).items


def entered(harness: LedgerHarness, account: str) -> int:
    """Returns the use that is posted to hours, without the reported use of running pods."""
    (usage,) = accounts_usage(harness.client, [account], reading.assignments(harness.client))
    return sum(stretch[-1] or 0 for stretch in usage.posted.raw_rows)


def test_use_is_shown_as_soon_as_it_was_reported_and_settled_long_before_the_ledger_has_it(
    harness: LedgerHarness,
) -> None:
    harness.pod("p1", "team-a")
    harness.pod("p2", "team-b")
    harness.reconcile(0)
    harness.pass_time(60)
    report(harness, "p1", 1, 45)
    harness.reconcile(0)
    assert used(harness, "namespace") == {("team-a",): 45 * GPU_SECOND, ("team-b",): None}
    assert entered(harness, "namespace:team-a") == 0


def test_a_second_question_computes_nothing_of_a_pod_that_was_neither_settled_nor_reported_since(
    harness: LedgerHarness,
) -> None:
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.pass_time(60)
    report(harness, "p1", 1, 45)
    harness.reconcile(0)
    used(harness, "namespace")
    computed = added.cache_info().misses
    assert used(harness, "namespace", "node") == {("team-a", "n1"): 45 * GPU_SECOND}
    assert added.cache_info().misses == computed


def test_a_worker_that_was_asked_before_answers_like_one_that_was_not(harness: LedgerHarness) -> None:
    harness.budget("one", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(0)

    def grow() -> None:
        harness.pass_time(600)

    def move() -> None:
        harness.budget("one", ["none"])
        harness.budget("two", ["team-a"])

    changes = (
        grow,
        lambda: report(harness, "p1", 1, 45),
        lambda: harness.reconcile(1),
        move,
        lambda: harness.reconcile(1),
        lambda: report(harness, "p1", 2, 300),
        lambda: harness.reconcile(3600),
        lambda: harness.remove("p1"),
        lambda: harness.reconcile(1),
    )
    for change in changes:
        change()
        asked_before = answer(harness)
        added.cache_clear()
        assert asked_before == answer(harness)


def test_a_sidecar_that_begins_anew_takes_nothing_back_under_any_leader(harness: LedgerHarness) -> None:
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.pass_time(3600)
    report(harness, "p1", 1, 1800)
    harness.reconcile(0)
    report(harness, "p1", 1, 10, boot="second")
    harness.lead()
    harness.reconcile(0)
    harness.reconcile(3600)
    assert used(harness, "namespace", step="1h") == {
        ("0", "team-a"): 1800 * GPU_SECOND,
        ("1", "team-a"): 10 * GPU_SECOND,
    }
    assert entered(harness, "namespace:team-a") == 1810 * GPU_SECOND


def test_a_namespaces_use_before_it_went_to_another_budget_and_came_back_stays_where_it_was(
    harness: LedgerHarness,
) -> None:
    harness.budget("one", ["team-a"])
    harness.budget("two", ["nobody"])
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for number, (paid, total) in enumerate([("one", 100), ("two", 150), ("one", 157), ("two", 160)]):
        harness.budget("one", ["team-a" if paid == "one" else "none"])
        harness.budget("two", ["team-a" if paid == "two" else "nobody"])
        harness.reconcile(0)
        harness.pass_time(299)
        report(harness, "p1", number, total)
        harness.reconcile(1)
    harness.remove("p1")
    harness.reconcile(1)
    assert used(harness, "budget") == {("one",): 107 * GPU_SECOND, ("two",): 53 * GPU_SECOND}


def test_a_new_leader_takes_no_use_from_a_period_that_ended_before_it_began(harness: LedgerHarness) -> None:
    harness.budget("shared", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.pass_time(3)
    report(harness, "p1", 1, 1)
    harness.pass_time(1)
    harness.budget("shared", ["nobody"], period={"every": "hour"})
    harness.reconcile(0)
    harness.reconcile(3 * 3600)
    assert entered(harness, "shared") == GPU_SECOND
    harness.lead()
    harness.reconcile(0)
    assert entered(harness, "shared") == GPU_SECOND
    assert used(harness, "namespace") == {("team-a",): GPU_SECOND}


class Reporting:
    """The running pods and the reports of their sidecars, recorded apart from settlements."""

    def __init__(self, harness: LedgerHarness) -> None:
        self.harness = harness
        self.namespace: list[str] = []
        self.running: set[int] = set()
        self.boots: list[list[int]] = []
        self.began: list[int] = []
        self.reports = 0

    def start(self, namespace: str) -> None:
        """A pod begins."""
        index = len(self.namespace)
        self.harness.pod(f"p{index}", namespace)
        self.namespace.append(namespace)
        self.boots.append([0])
        self.began.append(self.harness.now)
        self.running.add(index)

    def report(self, index: int, seconds: int, *, anew: bool) -> None:
        """A sidecar reports; a new start of it counts from 0."""
        boots = self.boots[index]
        if anew:
            boots.append(0)
        used = sum(boots)
        boots[-1] += min(seconds, (self.harness.now - self.began[index]) // SECOND - used)
        self.reports += 1
        report(self.harness, f"p{index}", self.reports, boots[-1], boot=f"b{len(boots)}")

    def end(self, index: int) -> None:
        """A pod is deleted."""
        self.harness.remove(f"p{index}")
        self.running.discard(index)

    def shown(self, namespace: str) -> int:
        """All that was reported there, in microGPU-seconds."""
        found = [sum(boots) for name, boots in zip(self.namespace, self.boots, strict=True) if name == namespace]
        return sum(found) * GPU_SECOND


def happen(reporting: Reporting, kind: str, choice: int) -> None:
    running = sorted(reporting.running)
    match kind:
        case "start":
            reporting.start(NAMESPACES[choice % 2])
        case "report" | "restart" if running:
            reporting.report(running[choice % len(running)], choice, anew=kind == "restart")
        case "end" if running:
            reporting.end(running[choice % len(running)])
        case "lead":
            reporting.harness.lead()
        case "move":
            paid = [NAMESPACES[index] for index in (0, 1) if choice >> index & 1]
            reporting.harness.budget("shared", paid or ["nobody"], period={"every": ("hour", "day")[choice % 2]})


events = st.lists(
    st.tuples(
        st.sampled_from(["start", "report", "report", "restart", "end", "lead", "move"]),
        st.integers(0, 200),
        st.sampled_from([1, 59, 600, 3600, 5000]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=min(settings.default.max_examples, 25))
@given(events)
def test_use_in_answers_is_what_was_reported_while_pods_run_and_once_the_ledger_has_it_all(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("cluster")
    with server.client() as client:
        client.flushall()
        harness = LedgerHarness(folder, client)
        reporting = Reporting(harness)
        harness.lead()
        reporting.start("team-a")
        harness.reconcile(0)
        for kind, choice, seconds in found:
            happen(reporting, kind, choice)
            harness.reconcile(0)
            harness.reconcile(seconds)
            assert_is_what_was_reported(reporting)
        for index in sorted(reporting.running):
            reporting.end(index)
        harness.reconcile(1)
        assert_is_what_was_reported(reporting)
        accounts = reading.account_names(client)
        assert sum(entered(harness, account) for account in accounts) == sum(map(reporting.shown, NAMESPACES))
    shutil.rmtree(folder)


def assert_is_what_was_reported(reporting: Reporting) -> None:
    shown = used(reporting.harness, "namespace")
    for namespace in NAMESPACES:
        assert (shown.get((namespace,)) or 0) == reporting.shown(namespace)
