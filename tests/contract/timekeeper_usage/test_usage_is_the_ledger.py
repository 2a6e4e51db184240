from __future__ import annotations

import shutil
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.servers.redis_server import RedisServer
from timekeeper.api.usage import Query, continuation_of, find
from timekeeper.domain.money import GPU_HOUR, SECOND
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import UNKNOWN
from timekeeper.domain.windows import Window
from timekeeper.ledger import reading
from timekeeper.ledger.reading import load_accounts

if TYPE_CHECKING:
    from collections.abc import Iterator

ALWAYS = Window(NOON - 60 * DAY, NOON + 60 * DAY)
PART_OF_A_SECOND = 987_654_321
NAMESPACES = ("team-a", "team-b")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


class Truth:
    """The parts that namespaces held over time, recorded apart from settlements, segments and hours."""

    def __init__(self) -> None:
        self.held: list[tuple[str, int, int, int | None]] = []
        self.shared: dict[str, int] = {}
        """The namespaces that the shared budget pays for, or did, and since when."""
        self.corrected: list[tuple[str, int, int]] = []

    def start(self, namespace: str, core: int, now: int) -> None:
        # A pod's manifest tells whole seconds.
        self.held.append((namespace, core * 10_000, now - now % SECOND, None))

    def end(self, index: int, now: int) -> None:
        namespace, rate, start, _ = self.held[index]
        self.held[index] = (namespace, rate, start, now)

    def share(self, namespaces: list[str], now: int) -> None:
        """The shared budget pays for these: one that it paid for no longer than this very instant was never its own."""
        kept = {name: since for name, since in self.shared.items() if since < now or name in namespaces}
        self.shared = dict.fromkeys(namespaces, now) | kept

    def in_hour(self, namespace: str, hour: int, now: int) -> Fraction:
        """Returns the amount that a namespace held in an hour, in microGPU-seconds."""
        total = Fraction(0)
        for held_by, rate, start, end in self.held:
            low, high = max(start, hour), min(now if end is None else end, hour + HOUR)
            if held_by == namespace and low < high:
                total += Fraction(rate * (high - low), SECOND)
        return total

    def set_right_in_hour(self, namespace: str, hour: int) -> int:
        """Returns the sum of a namespace's corrections in an hour."""
        return sum(amount for of, at, amount in self.corrected if (of, at) == (namespace, hour))


def step(harness: LedgerHarness, truth: Truth, kind: str, choice: int) -> None:
    """One thing that happens."""
    running = [index for index, (*_, end) in enumerate(truth.held) if end is None]
    match kind:
        case "start":
            namespace, core = NAMESPACES[choice % 2], 1 + choice % 100
            harness.pod(f"p{len(truth.held)}", namespace, core=core)
            truth.start(namespace, core, harness.now)
        case "end" if running:
            index = running[choice % len(running)]
            harness.remove(f"p{index}")
            truth.end(index, harness.now)
        case "lead":
            harness.lead()
        case "move":
            paid = [NAMESPACES[index] for index in (0, 1) if choice >> index & 1]
            harness.budget("shared", paid or ["nobody"], period={"every": ("hour", "day")[choice % 2]})
            truth.share(paid or ["nobody"], harness.now)
        case "correct" if truth.shared:
            whose = ["", *sorted(truth.shared)][choice % (len(truth.shared) + 1)]
            spec = {"namespace": whose} if whose else {}
            harness.correct(f"c{len(truth.corrected)}", "shared", choice + 1, harness.now, **spec)
            truth.corrected.append((whose or UNKNOWN, harness.now // HOUR * HOUR, (choice + 1) * GPU_HOUR))


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "lead", "move", "correct", "nothing"]),
        st.integers(0, 200),
        st.sampled_from([0, 1, 59, 600, 3599, 3600, 5000, 2 * 86_400]),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=min(settings.default.max_examples * 2 // 5, 200))
@given(steps)
@example([("move", 1, 0, True), ("move", 2, 0, True), ("correct", 1, 0, True)])
def test_use_in_answers_adds_up_to_the_ledger_to_the_last_unit_and_each_hour_to_what_was_held_in_it(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("cluster")
    with server.client() as client:
        client.flushall()
        harness, truth = LedgerHarness(folder, client), Truth()
        harness.now += PART_OF_A_SECOND
        harness.lead()
        harness.reconcile(0)
        for kind, choice, seconds, full in found:
            step(harness, truth, kind, choice)
            harness.reconcile(0, full=full)
            assert_is_the_ledger(harness)
            harness.reconcile(seconds, full=full)
        harness.reconcile(0)
        assert_is_the_ledger(harness)
        assert_is_what_was_held(harness, truth)
    shutil.rmtree(folder)


def assert_is_the_ledger(harness: LedgerHarness) -> None:
    """Each account's use, of all time, is what its periods stand at."""
    everything = 0
    shown = find(harness.client, Query(ALWAYS, None, ("budget",), 1000), harness.now)
    billed = {item.key[0]: item.figures.billed for item in shown.items}
    for account in load_accounts(harness.client, reading.account_names(harness.client), latest_periods=10_000):
        spent = sum(harness.spent(account.name, period.start) for period in account.periods)
        assert billed.get(account.name, 0) == spent
        everything += spent
    for limit in (1, 1000):
        assert sum(by_namespace(harness, limit)) == everything


def by_namespace(harness: LedgerHarness, limit: int) -> Iterator[int]:
    """Returns the amount billed to each namespace, page by page."""
    after = None
    while True:
        query = Query(ALWAYS, None, ("namespace",), limit, after)
        shown = find(harness.client, query, harness.now)
        yield from (item.figures.billed for item in shown.items)
        if shown.following is None:
            return
        continuation = continuation_of(shown.following, len(query.aggregate))
        assert continuation is not None
        after = continuation.after


def assert_is_what_was_held(harness: LedgerHarness, truth: Truth) -> None:
    window = Window(NOON, (harness.now // HOUR + 1) * HOUR)
    shown = find(harness.client, Query(window, "1h", ("namespace",), 10_000), harness.now)
    figures = {(item.step.start, item.key[0]): item.figures for item in shown.items}
    for hour in range(window.start, window.end, HOUR):
        for namespace in (*NAMESPACES, "nobody", UNKNOWN):
            held = truth.in_hour(namespace, hour, harness.now)
            found = figures.get((hour, namespace))
            # Each piece is rounded down once at either end.
            room = 2 * len(truth.held) + 2
            corrected = truth.set_right_in_hour(namespace, hour)
            assert abs((found.billed if found else 0) - corrected - held) <= room
            assert abs((found.core if found else 0) - held) <= room
