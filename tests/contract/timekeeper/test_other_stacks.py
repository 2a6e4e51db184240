"""Pods that hold GPUs by other stacks: decided once, metered from the first leader's term on, kept in the record."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.support.ledger.audited import audited, write_statuses
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from timekeeper.controller.report.checkpoints import CheckpointKeeper
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.other_stacks import unknown_models
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, PricePoint
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.codec import decode_session
from timekeeper.ledger.keys import AccountKeys

PRICES = {
    "*": (PricePoint(0, Fraction(1)),),
    "A100": (PricePoint(0, Fraction(4)),),
    BY_WORDS: (PricePoint(0, Fraction(1)),),
}
RULES = ControllerRules(prices=PRICES, own_resources={})
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}


def write_node(harness: LedgerHarness, labels: dict[str, str], name: str = "n1") -> None:
    (harness.folder / "nodes").mkdir(exist_ok=True)
    item = {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "32"}}}
    (harness.folder / "nodes" / f"{name}.json").write_text(json.dumps(item))


def shared(harness: LedgerHarness, uid: str, namespace: str = "team-a", since: int | None = None) -> dict[str, Any]:
    stamp = format_instant(harness.now if since is None else since)
    item = {
        "metadata": {"uid": uid, "name": uid, "namespace": namespace, "creationTimestamp": stamp},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
        },
    }
    harness.write_pod(item)
    return item


@pytest.fixture
def looking(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.lead(RULES)
    harness.round()
    return harness


def test_a_replica_of_a_gpu_is_charged_as_its_part_at_the_models_price(looking: LedgerHarness) -> None:
    shared(looking, "p1")
    looking.round(10)

    assert looking.spent("a") == 10 * GPU_SECOND


def test_metering_begins_with_the_first_term_and_not_with_a_pod_that_ran_before(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    shared(harness, "p1", since=NOON - 24 * HOUR)
    harness.lead(RULES)
    harness.round()
    harness.round(10)

    assert harness.spent("a") == 10 * GPU_SECOND
    assert reading.since(harness.client) == NOON


def test_a_later_leader_meters_from_the_first_ones_instant(looking: LedgerHarness) -> None:
    looking.pass_time(60)
    shared(looking, "p1", since=NOON - HOUR)
    looking.lead(RULES)
    looking.round()

    assert looking.spent("a") == 60 * GPU_SECOND


def test_a_pod_that_ended_before_metering_began_has_no_session(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.finish(shared(harness, "p1", since=NOON - HOUR), seconds_ago=60)
    harness.lead(RULES)
    harness.round()

    assert reading.stored_amounts(harness.client, "a", MONTH) == {}


def test_what_a_pod_holds_is_kept_under_relabelling_and_by_the_next_leader(looking: LedgerHarness) -> None:
    shared(looking, "p1")
    looking.round(10)
    write_node(looking, {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "64"})
    looking.round(10)
    looking.lead(RULES)
    looking.round(10)

    assert looking.spent("a") == 30 * GPU_SECOND


def test_a_changed_price_holds_for_what_the_record_says_even_once_the_labels_are_gone(looking: LedgerHarness) -> None:
    shared(looking, "p1")
    looking.round(10)
    write_node(looking, {})
    looking.lead(ControllerRules(prices=PRICES | {"A100": (PricePoint(0, Fraction(8)),)}, own_resources={}))
    looking.round()
    looking.round(10)

    assert looking.spent("a") == (10 + 20) * GPU_SECOND


def test_labels_that_come_late_count_from_the_pods_start(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(RULES)
    harness.round()
    shared(harness, "p1")
    harness.round(120)
    before = harness.spent("a")
    write_node(harness, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.round(60)

    assert (before, harness.spent("a")) == (120 * GPU_SECOND, 4 * 180 * GPU_SECOND)


def test_labels_that_make_the_pod_cheaper_give_the_difference_back(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(ControllerRules(prices=PRICES | {"T4": (PricePoint(0, Fraction(1, 2)),)}, own_resources={}))
    harness.round()
    shared(harness, "p1")
    harness.round(120)
    write_node(harness, {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"})
    harness.round(40)
    harness.round(HOUR / SECOND)

    assert harness.spent("a") == (160 + 3600) * GPU_SECOND // 8


def test_labels_that_come_after_ten_minutes_change_nothing(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(RULES)
    harness.round()
    shared(harness, "p1")
    harness.round(700)
    write_node(harness, LABELS)
    harness.round(100)

    assert harness.spent("a") == 800 * GPU_SECOND


def test_late_labels_change_no_period_that_is_over(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    write_node(harness, {})
    harness.now = NOON + HOUR - 60 * SECOND
    harness.lead(RULES)
    harness.round()
    shared(harness, "p1")
    harness.round(30)
    harness.round(60)
    write_node(harness, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.round(30)

    assert harness.spent("a", NOON) == 60 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 4 * 60 * GPU_SECOND


def test_the_record_holds_what_was_decided(looking: LedgerHarness) -> None:
    shared(looking, "p1")
    looking.round(10)
    (text,) = looking.client.hvals(AccountKeys("a").sessions)
    (holding,) = decode_session(text).holdings

    assert (holding.way, holding.model, holding.count, holding.time) == (
        "nvidia",
        "NVIDIA-A100-SXM4-80GB",
        1,
        Fraction(1, 4),
    )


def test_the_instant_outlives_a_store_that_was_emptied(looking: LedgerHarness) -> None:
    keeper = looking.keeper
    assert keeper is not None
    CheckpointKeeper(looking.source, keeper.books).write(looking.now)
    looking.pass_time(60)
    looking.client.flushall()
    looking.lead(RULES)
    looking.round()

    assert reading.since(looking.client) == NOON


def test_pods_of_other_stacks_are_not_metered_where_the_admin_does_not_ask_for_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    shared(harness, "p1")
    harness.lead()
    harness.round(10)

    assert harness.spent("a") == 0
    assert reading.since(harness.client) is None


def test_the_audit_agrees_with_a_day_of_pods_of_other_stacks(looking: LedgerHarness) -> None:
    write_node(looking, {}, "n2")
    first, _, late = (shared(looking, uid) for uid in ("p1", "p2", "p3"))
    late["spec"]["nodeName"] = "n2"
    looking.write_pod(late)
    looking.round(100)
    write_node(looking, LABELS, "n2")
    looking.round(HOUR / SECOND)
    looking.finish(first)
    looking.remove("p2")
    looking.lead(RULES)
    looking.round(HOUR / SECOND)
    write_statuses(looking)

    assert audited(looking).differences == ()


def test_the_audit_agrees_where_pods_are_older_than_metering(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    shared(harness, "p1", since=NOON - 24 * HOUR)
    shared(harness, "reserved", "kai-resource-reservation", since=NOON - 24 * HOUR)
    harness.lead(RULES)
    harness.round()
    harness.round(HOUR / SECOND)
    write_statuses(harness)

    assert audited(harness).differences == ()


def test_the_capacity_of_the_nodes_is_written_for_the_idle_share_of_usage(looking: LedgerHarness) -> None:
    points = looking.client.hgetall(keys.CAPACITY)

    assert [int(rate) for rate in points.values()] == [8 * GPU_SECOND]


def test_how_much_is_charged_without_a_known_model_is_counted(looking: LedgerHarness) -> None:
    write_node(looking, {}, "n2")
    shared(looking, "known")
    unknown = shared(looking, "unknown")
    unknown["spec"]["nodeName"] = "n2"
    looking.write_pod(unknown)
    looking.round(10)
    keeper = looking.keeper

    assert keeper is not None
    assert unknown_models(keeper.books) == GPU_SECOND
