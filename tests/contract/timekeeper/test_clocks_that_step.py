"""Instants that a leader wrote while its clock was ahead or behind, and what a right clock makes of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
import redis

from fairgpu.inventory import Device, Inventory, Link, encode
from fairgpu.leadership import Term
from fairgpu.names import GPU_CORE, INVENTORY
from fairgpu.states import BudgetState
from tests.contract.timekeeper.test_wrong_clocks_and_silent_nodes import differences
from tests.support.ledger.harness import NOON, LedgerHarness, published, report
from timekeeper.controller.eviction import eviction_writes
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.pod_writes import PodWrite, Progress, Step
from timekeeper.controller.releases import Releaser
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.observing import Clocks
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, Bill, PricePoint
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE
from timekeeper.ledger import reading
from timekeeper.ledger.client import StoreUnavailableError
from timekeeper.ledger.usage import capacity, capacity_of_models
from timekeeper.ledger.writing import Kind
from timekeeper.sources.folder import write_json

AHEAD = [90 * SECOND, 3 * HOUR, 3 * DAY]


def node(harness: LedgerHarness, name: str, gpus: int) -> None:
    """Writes a node with GPUs of one model."""
    devices = tuple(Device(f"GPU-{name}-{place}", "A100", 81920, None, f"0:{place}") for place in range(gpus))
    links = tuple(tuple(Link.SELF if row == column else Link.NVLINK for column in range(gpus)) for row in range(gpus))
    annotations = {INVENTORY: encode(Inventory("nvidia", "580.1", 64, devices, links))}
    metadata = {"name": name, "uid": f"node-{name}", "annotations": annotations}
    (harness.folder / "nodes").mkdir(exist_ok=True)
    status = {"capacity": {GPU_CORE: str(100 * gpus)}}
    write_json(harness.folder / "nodes" / f"{name}.json", {"metadata": metadata, "status": status})


def priced(price: str, since: int = 0) -> ControllerRules:
    points = (PricePoint(since, Fraction(price)),)
    return ControllerRules(prices={"A100": points, BY_WORDS: (PricePoint(0, Fraction(1)),)})


def paid_by_a(harness: LedgerHarness) -> None:
    """The budget a pays for a pod of team-a, for 100 seconds until now; the budget b is there beside it."""
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)


def move_to_b(harness: LedgerHarness) -> None:
    """The budget b names team-a, and the budget a does no more."""
    harness.budget("a", ["a-none"])
    harness.budget("b", ["team-a", "team-b"])


def set_right(harness: LedgerHarness, rules: ControllerRules, *, another: bool) -> None:
    """The leader's clock is right again, and the same leader goes on or another one follows."""
    harness.ahead = 0
    if another:
        harness.lead(rules)


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("another", [False, True])
def test_a_namespace_that_moves_while_a_clock_is_ahead_has_moved_once_the_clock_is_right(
    harness: LedgerHarness,
    ahead: int,
    another: bool,  # noqa: FBT001
    bill: Bill,
) -> None:
    rules = ControllerRules(bill=bill)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.budget("b", ["team-b"], period={"every": "hour"})
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = ahead
    harness.budget("a", ["a-none"], period={"every": "hour"})
    harness.budget("b", ["team-a", "team-b"], period={"every": "hour"})
    harness.reconcile(10)
    set_right(harness, rules, another=another)
    harness.reconcile(10)
    moved = harness.now
    harness.reconcile(1000)
    assert reading.assignments(harness.client)["team-a"] == ((0, "a"), (moved, "b"))
    assert (harness.spent("a", NOON), harness.spent("b", NOON)) == (120 * GPU_SECOND, 1000 * GPU_SECOND)
    for _ in range(4):
        harness.reconcile(HOUR // SECOND)
    assert (harness.spent("a", NOON), harness.spent("b", NOON)) == (120 * GPU_SECOND, 3480 * GPU_SECOND)
    assert harness.spent("b", NOON + HOUR) == 3600 * GPU_SECOND
    harness.reconcile(10)  # a closing balance follows an amount one reconciliation later
    assert differences(harness) == []


def test_a_namespace_that_moves_there_and_back_while_a_clock_is_ahead_has_not_moved(harness: LedgerHarness) -> None:
    paid_by_a(harness)
    harness.ahead = 3 * HOUR
    move_to_b(harness)
    harness.reconcile(10)
    harness.budget("b", ["team-b"])
    harness.budget("a", ["team-a"])
    harness.reconcile(10)
    harness.ahead = 0
    harness.reconcile(1000)
    assert (harness.spent("a"), harness.spent("b")) == (1120 * GPU_SECOND, 0)
    harness.reconcile(4 * HOUR // SECOND)
    assert (harness.spent("a"), harness.spent("b")) == ((harness.now - NOON) // SECOND * GPU_SECOND, 0)
    assert differences(harness) == []


def test_a_move_stays_as_it_is_under_a_leader_whose_clock_is_behind(harness: LedgerHarness) -> None:
    paid_by_a(harness)
    move_to_b(harness)
    harness.reconcile(200, full=False)
    before = reading.assignments(harness.client)
    harness.ahead = -200 * SECOND
    harness.lead()
    harness.reconcile(10)
    assert reading.assignments(harness.client) == before
    harness.ahead = 0
    harness.reconcile(90)
    assert (harness.spent("a"), harness.spent("b")) == (300 * GPU_SECOND, 100 * GPU_SECOND)
    assert differences(harness) == []


@pytest.mark.parametrize("another", [False, True])
def test_a_price_that_is_read_while_a_clock_is_ahead_holds_once_the_clock_is_right(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(priced("1"))
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = 3 * HOUR
    dearer = priced("2", NOON)
    harness.lead(dearer)
    harness.reconcile(10)
    set_right(harness, dearer, another=another)
    harness.reconcile(10)
    harness.reconcile(1000)
    assert harness.spent("a") == (120 + 2 * 1000) * GPU_SECOND
    harness.reconcile(4 * HOUR // SECOND)
    assert harness.spent("a") == (120 + 2 * 1000 + 8 * 3600) * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("another", [False, True])
def test_a_capacity_that_is_seen_while_a_clock_is_ahead_holds_once_the_clock_is_right(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"])
    node(harness, "n1", 4)
    harness.reconcile(100)
    harness.ahead = 3 * HOUR
    node(harness, "n2", 4)
    harness.reconcile(10)
    set_right(harness, ControllerRules(), another=another)
    harness.reconcile(10)
    right = harness.now
    assert capacity(harness.client) == {NOON + 100 * SECOND: 4 * GPU_SECOND, right: 8 * GPU_SECOND}
    (harness.folder / "nodes" / "n2.json").unlink()
    harness.reconcile(HOUR // SECOND)
    assert capacity(harness.client) == {
        NOON + 100 * SECOND: 4 * GPU_SECOND,
        right: 8 * GPU_SECOND,
        harness.now: 4 * GPU_SECOND,
    }
    assert max(capacity_of_models(harness.client)["A100"]) == harness.now


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("bill", list(Bill))
def test_an_amount_billed_by_a_clock_that_was_ahead_is_billed_anew_once_the_period_has_ended(
    harness: LedgerHarness,
    bill: Bill,
    another: bool,  # noqa: FBT001
) -> None:
    rules = ControllerRules(bill=bill)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.lead(rules)
    harness.reconcile()
    harness.ahead = 9000 * SECOND
    harness.reconcile()
    if another:
        harness.lead(rules)
    harness.pass_time(1200)
    report(harness, "p1", 1, busy_seconds=60)
    harness.pass_time(2400)
    harness.ahead = 0
    harness.reconcile()
    for _ in range(2):
        harness.reconcile(10)
    assert harness.spent("a", NOON) == (60 if bill is Bill.USED else 3600) * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("bill", list(Bill))
def test_a_pod_that_ends_while_a_clock_is_behind_is_charged_to_its_end(
    harness: LedgerHarness,
    bill: Bill,
    another: bool,  # noqa: FBT001
) -> None:
    rules = ControllerRules(bill=bill)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(rules)
    ends, runs = harness.pod("ends", "team-a"), harness.pod("runs", "team-a", core=50)
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    if another:
        harness.lead(rules)
    harness.pass_time(4000)
    harness.finish(ends, seconds_ago=100)
    harness.reconcile()
    harness.remove("ends")
    harness.reconcile(10)
    harness.pass_time(90)
    harness.finish(runs)
    harness.reconcile()
    harness.ahead = 0
    for _ in range(2):
        harness.reconcile(10)
    assert harness.spent("a", NOON) == (3600 + 1800) * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == (400 + 300) * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("finalizer", [False, True])
def test_a_pod_that_ends_and_is_deleted_between_two_rounds_of_a_clock_that_is_behind_is_charged_to_its_end(
    harness: LedgerHarness,
    finalizer: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"])
    ends = harness.pod("ends", "team-a")
    if finalizer:
        ends["metadata"]["finalizers"] = ["fairgpu.io/meter"]
        harness.write_pod(ends)
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    harness.pass_time(900)
    harness.finish(ends, seconds_ago=50)
    harness.remove("ends")
    harness.source.mirrors.pods.changed("DELETED", ends)
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(10)
    assert harness.spent("a") == 950 * GPU_SECOND
    assert differences(harness) == []


def test_a_deletion_is_kept_where_the_store_does_not_say_what_time_it_is(harness: LedgerHarness) -> None:
    answers = [True] * 20

    def store_clock() -> int:
        if not answers.pop():
            raise redis.ConnectionError
        return harness.now

    harness.lead(clocks=Clocks(lambda: 0, store_clock))
    harness.budget("a", ["team-a"])
    ends = harness.pod("ends", "team-a")
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    harness.pass_time(900)
    harness.finish(ends)
    harness.remove("ends")
    harness.source.mirrors.pods.changed("DELETED", ends)
    answers += [False, True]  # the second question of the round
    with pytest.raises(StoreUnavailableError):
        harness.reconcile()
    harness.reconcile()
    assert harness.spent("a") == 1000 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True])
def test_a_running_pod_that_is_deleted_while_a_clock_is_behind_keeps_what_it_has_cost(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    if another:
        harness.lead()
    harness.pass_time(900)
    harness.remove("p1")
    harness.source.mirrors.pods.changed("DELETED", pod)
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(10)
    assert harness.spent("a") == 100 * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("received", ["by the wrong clock", "by the right clock"])
def test_a_pod_that_is_deleted_when_a_clock_that_was_ahead_is_right_again_has_not_ended_in_the_future(
    harness: LedgerHarness, received: str
) -> None:
    harness.lead(clocks=Clocks(harness.leaders_time, lambda: harness.now))
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = 3 * HOUR
    harness.reconcile(10)
    if received == "by the right clock":
        harness.ahead = 0
    harness.pass_time(10)
    harness.remove("p1")
    harness.source.mirrors.pods.changed("DELETED", pod)
    harness.ahead = 0
    harness.reconcile()
    assert harness.spent("a") == 120 * GPU_SECOND
    harness.reconcile(10)
    assert harness.spent("a") == 120 * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_a_pod_that_a_later_list_lacks_while_a_clock_is_behind_keeps_what_it_has_cost(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
    ours: bool,  # noqa: FBT001
) -> None:
    clocks = Clocks(harness.leaders_time if ours else lambda: 0, lambda: harness.now)
    harness.lead(clocks=clocks)
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    if another:
        harness.lead(clocks=clocks)
    harness.pass_time(900)
    harness.remove("p1")
    harness.source.mirrors.pods.replaced([])
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(10)
    assert harness.spent("a") == 100 * GPU_SECOND
    assert differences(harness) == []


def test_a_pod_that_is_deleted_between_two_leaders_keeps_what_it_cost_before_the_firsts_clock_was_behind(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = -3 * HOUR
    harness.reconcile(10)
    harness.remove("p1")
    harness.ahead = 0
    harness.lead()
    harness.reconcile(900)
    assert harness.spent("a") == 100 * GPU_SECOND
    assert differences(harness) == []


def test_a_pod_that_a_later_list_lacks_once_a_clock_that_was_ahead_is_right_has_ended_when_it_was_last_seen(
    harness: LedgerHarness,
) -> None:
    harness.lead(clocks=Clocks(harness.leaders_time, lambda: harness.now))
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = 3 * HOUR
    harness.reconcile(10)
    harness.ahead = 0
    harness.reconcile(10)
    harness.now += 900 * SECOND
    harness.remove("p1")
    harness.source.mirrors.pods.replaced([])
    harness.reconcile()
    assert harness.spent("a") == 120 * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("another", [False, True])
def test_a_pod_that_was_last_seen_by_a_clock_ahead_has_ended_when_it_was_last_seen(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    """The watch breaks off before the clock is right: the mirror was last known to be current in the future."""
    harness.lead(clocks=Clocks(harness.leaders_time, lambda: harness.now))
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead = 3 * HOUR
    harness.reconcile(10)
    harness.ahead = 0
    for _ in range(2):
        harness.now += 900 * SECOND
        assert harness.reconciler is not None
        harness.reconciler.reconcile(harness.now)
    if another:
        harness.remove("p1")
        harness.lead()
    else:
        harness.source.mirrors.pods.replaced([])
        harness.remove("p1")
    harness.reconcile()
    assert harness.spent("a") == 110 * GPU_SECOND
    assert differences(harness) == []


def test_a_pod_that_a_later_list_lacks_costs_the_same_where_redis_clock_is_behind(harness: LedgerHarness) -> None:
    harness.lead(clocks=Clocks(harness.leaders_time, lambda: harness.now - 3 * HOUR))
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.now += 900 * SECOND
    assert harness.reconciler is not None
    harness.reconciler.reconcile(harness.now)
    harness.source.mirrors.pods.replaced([])
    harness.remove("p1")
    harness.reconcile()
    assert harness.spent("a") == 100 * GPU_SECOND


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_taken_back_by_a_second_leader_whose_clock_is_behind(harness: LedgerHarness, full: bool) -> None:  # noqa: FBT001
    """The first leader's clock is behind as well: it took the time from a pod that was created and is deleted again."""
    harness.budget("a", ["team-a"], gpu_hours=1)
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.pass_time(HOUR // SECOND)
    harness.ahead = -HOUR
    harness.lead()
    harness.pod("p2", "team-b")
    harness.reconcile()
    harness.remove("p2")
    harness.pass_time(10)
    harness.pod("p3", "team-a")
    harness.reconcile(full=full)
    harness.remove("p3")
    harness.reconcile(full=full)
    assert harness.spent("a") == (3700 + 10) * GPU_SECOND
    harness.ahead = -HOUR - 50 * SECOND
    harness.lead()
    harness.reconcile(20)
    assert harness.spent("a") == (3700 + 10) * GPU_SECOND
    assert published(harness, "a").state is BudgetState.OVER
    harness.ahead = 0
    harness.reconcile(30)
    assert harness.spent("a") == (3700 + 60) * GPU_SECOND
    assert differences(harness) == []


@pytest.mark.parametrize("gpus", [8, 12], ids=["unchanged", "changed"])
def test_a_capacity_stays_from_when_it_was_seen_under_a_second_leader_whose_clock_is_behind(
    harness: LedgerHarness, gpus: int
) -> None:
    """The first leader's clock is behind as well: it took the time from a pod that was created and is deleted again."""
    harness.budget("a", ["team-a"])
    node(harness, "n1", 4)
    harness.reconcile(100)
    first = harness.now
    harness.pass_time(HOUR // SECOND)
    harness.ahead = -HOUR
    harness.lead()
    harness.pod("p1", "team-a")
    node(harness, "n2", 4)
    harness.reconcile()
    seen = harness.now
    harness.remove("p1")
    harness.reconcile(10)
    assert capacity(harness.client) == {first: 4 * GPU_SECOND, seen: 8 * GPU_SECOND}
    harness.ahead = -HOUR - 50 * SECOND
    node(harness, "n2", gpus - 4)
    harness.lead()
    harness.reconcile(10)
    found = capacity(harness.client)
    assert found.pop(first) == 4 * GPU_SECOND
    assert min(found) >= seen
    assert found[max(found)] == gpus * GPU_SECOND
    assert capacity_of_models(harness.client)["A100"] == {first: 4 * GPU_SECOND} | found


@pytest.mark.parametrize("spec", [{}, {"expires": "2026-02-01T00:00:00Z"}], ids=["lapses", "expires"])
def test_a_grant_that_is_made_while_a_new_leaders_clock_is_behind_adds_to_the_period_in_which_it_was_made(
    harness: LedgerHarness, spec: dict[str, str]
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(3500)
    harness.ahead = -3 * HOUR
    harness.lead()
    harness.reconcile(10)
    harness.pass_time(600)
    harness.grant("g", "a", 5, **spec)
    harness.reconcile(10)
    harness.ahead = 0
    for _ in range(2):
        harness.reconcile(10)
    given = [entry for entry in reading.ledger_page(harness.client, "a", "", 100) if entry.kind == Kind.GRANT]
    assert [(entry.period, entry.amount) for entry in given] == [(NOON + HOUR, 5 * GPU_HOUR)]
    assert published(harness, "a").available == 105 * GPU_HOUR


@pytest.mark.parametrize("store_ahead", [0, -3 * HOUR], ids=["ours is ahead", "the store's is behind"])
def test_no_pod_is_evicted_for_money_that_was_spent_by_a_clock_ahead_of_the_stores(
    harness: LedgerHarness, store_ahead: int
) -> None:
    harness.budget("a", ["team-a"], gpu_hours=1, enforcement="evict", evictionNotice="1m")
    difference = [0]
    reconciler = harness.lead(clocks=Clocks(lambda: 0, lambda: harness.now + difference[0]))
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.ahead, difference[0] = (3 * HOUR if store_ahead == 0 else 0), store_ahead
    harness.reconcile(10 if store_ahead == 0 else 2 * HOUR // SECOND)

    def planned() -> tuple[PodWrite, ...] | None:
        now = harness.leaders_time()
        return eviction_writes(reconciler.books, now, reconciler.past, now, 600)

    assert published(harness, "a").state is BudgetState.OVER
    assert planned() is None
    harness.ahead = difference[0] = 0
    harness.reconcile(10)
    steps = [write.step for write in planned() or ()]
    assert steps == ([] if store_ahead == 0 else [Step.NOTICE])


def test_no_held_pod_starts_for_the_money_of_a_period_that_has_begun_by_a_wrong_clock_alone(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], gpu_hours="0.2", period={"every": "hour"}, onExhausted="hold")
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(700)
    harness.remove("p1")
    harness.gated("p2", "team-a")
    harness.reconcile(10)

    def released() -> list[str]:
        now = harness.leaders_time()
        writes, _ = Releaser(harness.source, reconciler.books).releases(now, reconciler.past, Progress())
        return [write.uid for write in writes]

    assert released() == []
    harness.ahead = HOUR
    harness.reconcile(10)
    assert published(harness, "a").period_start == NOON + HOUR
    assert released() == []
    harness.budget("a", ["team-a"], gpu_hours="0.2", period={"every": "hour"}, enforcement="observe")
    harness.reconcile()
    assert released() == ["p2"], "a budget that is only observed holds no pod, whatever the time"
    harness.budget("a", ["team-a"], gpu_hours="0.2", period={"every": "hour"}, onExhausted="hold")
    harness.ahead = 0
    harness.reconcile(10)
    assert released() == []
    harness.reconcile(HOUR // SECOND)
    assert released() == ["p2"]


def test_held_pods_start_in_a_period_that_has_begun_by_all_clocks_but_the_leaders(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], gpu_hours="0.2", period={"every": "hour"}, onExhausted="hold")
    reconciler = harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile(700)
    harness.remove("p1")
    harness.gated("p2", "team-a")
    harness.reconcile(10)
    harness.ahead = -3 * HOUR
    harness.pass_time(HOUR // SECOND)
    harness.gated("p3", "team-a")  # the API server's stamp says what time it is
    harness.reconcile(10)
    assert published(harness, "a").period_start == NOON + HOUR
    writes, _ = Releaser(harness.source, reconciler.books).releases(harness.leaders_time(), reconciler.past, Progress())
    assert "p2" in [write.uid for write in writes]


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("ahead", [-3 * HOUR, 5 * MINUTE, 3 * HOUR])
def test_the_clocks_of_one_machine_that_are_wrong_together_leave_no_trace_in_what_is_reserved(
    harness: LedgerHarness,
    ahead: int,
    another: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    clocks = Clocks(lambda: 0, harness.leaders_time)
    harness.lead(clocks=clocks)
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    harness.ahead = ahead
    for _ in range(2):
        harness.reconcile(10)
    harness.ahead = 0
    if another:
        harness.lead(clocks=clocks)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 1830 * GPU_SECOND
    for _ in range(4):
        harness.reconcile(HOUR // SECOND)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(4)] == [3600 * GPU_SECOND] * 4
    harness.reconcile(10)
    assert differences(harness) == []


def test_a_pod_that_the_wrong_clocks_of_one_machine_bound_is_charged_once_time_has_reached_its_start(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(clocks=Clocks(lambda: 0, harness.leaders_time))
    harness.reconcile(10)
    true, harness.ahead = harness.now, HOUR
    harness.now += HOUR
    item = harness.pod("p1", "team-a")
    harness.now = true
    harness.write_pod(item)
    harness.reconcile(10)
    harness.ahead = 0
    harness.reconcile(1800)
    assert harness.spent("a") == 0
    harness.reconcile(2 * HOUR // SECOND)
    assert harness.spent("a") == (harness.now - true - HOUR) // SECOND * GPU_SECOND


def test_a_process_that_leads_no_more_says_nothing_of_its_clock(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.source.refresh()
    term, measures = Term(lambda: 0.0), JobMeasures()
    environment = TaskEnvironment(harness.client, harness.source, term, lambda: harness.now, holder="first")
    tasks = LeaderTasks(environment, ControllerRules(), measures)
    gauge = "fairgpu_timekeeper_clock_ahead_of_store_seconds"
    term.hold(1, 1000.0, 0.0)
    tasks.settle()
    assert measures.registry.get_sample_value(gauge) != 0  # this test's clock is not Redis's
    term.lose()
    tasks.react()
    assert measures.registry.get_sample_value(gauge) == 0


@pytest.mark.parametrize(("every", "ahead"), [("hour", 25 * HOUR), ("hour", HOUR), ("month", 31 * DAY)])
@pytest.mark.parametrize("another", [False, True])
def test_a_correction_that_comes_while_the_leaders_clock_is_ahead_changes_the_money_that_was_carried_over(
    harness: LedgerHarness, every: str, ahead: int, *, another: bool
) -> None:
    harness.budget("a", ["team-a"], 10, period={"every": every}, rollover={"gpuHours": 10})
    harness.reconcile()
    before = harness.now
    harness.reconcile({"hour": HOUR, "month": 31 * DAY}[every] / SECOND)
    harness.ahead = ahead
    harness.reconcile()
    if another:
        harness.lead()
        harness.reconcile()
    harness.correct("late", "a", 4, before)
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(MINUTE / SECOND)
    assert differences(harness) == []
    period = reading.period_at(harness.client, "a", harness.now)
    assert period is not None
    totals = reading.period_totals(harness.client, "a", period.start)
    assert totals is not None
    assert totals.granted == 6 * GPU_HOUR
