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


def write_node(stage: LedgerHarness, labels: dict[str, str], name: str = "n1") -> None:
    (stage.folder / "nodes").mkdir(exist_ok=True)
    item = {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "32"}}}
    (stage.folder / "nodes" / f"{name}.json").write_text(json.dumps(item))


def shared(stage: LedgerHarness, uid: str, namespace: str = "team-a", since: int | None = None) -> dict[str, Any]:
    stamp = format_instant(stage.now if since is None else since)
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
    stage.write_pod(item)
    return item


@pytest.fixture
def looking(stage: LedgerHarness) -> LedgerHarness:
    stage.budget("a", ["team-a"])
    write_node(stage, LABELS)
    stage.lead(RULES)
    stage.round()
    return stage


def test_a_replica_of_a_gpu_is_charged_as_its_part_at_the_models_price(looking: LedgerHarness) -> None:
    shared(looking, "p1")
    looking.round(10)

    assert looking.spent("a") == 10 * GPU_SECOND


def test_metering_begins_with_the_first_term_and_not_with_a_pod_that_ran_before(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, LABELS)
    shared(stage, "p1", since=NOON - 24 * HOUR)
    stage.lead(RULES)
    stage.round()
    stage.round(10)

    assert stage.spent("a") == 10 * GPU_SECOND
    assert reading.since(stage.client) == NOON


def test_a_later_leader_meters_from_the_first_ones_instant(looking: LedgerHarness) -> None:
    looking.pass_time(60)
    shared(looking, "p1", since=NOON - HOUR)
    looking.lead(RULES)
    looking.round()

    assert looking.spent("a") == 60 * GPU_SECOND


def test_a_pod_that_ended_before_metering_began_has_no_session(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, LABELS)
    stage.finish(shared(stage, "p1", since=NOON - HOUR), seconds_ago=60)
    stage.lead(RULES)
    stage.round()

    assert reading.stored_amounts(stage.client, "a", MONTH) == {}


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


def test_labels_that_come_late_count_from_the_pods_start(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, {})
    stage.lead(RULES)
    stage.round()
    shared(stage, "p1")
    stage.round(120)
    before = stage.spent("a")
    write_node(stage, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    stage.round(60)

    assert (before, stage.spent("a")) == (120 * GPU_SECOND, 4 * 180 * GPU_SECOND)


def test_labels_that_make_the_pod_cheaper_give_the_difference_back(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, {})
    stage.lead(ControllerRules(prices=PRICES | {"T4": (PricePoint(0, Fraction(1, 2)),)}, own_resources={}))
    stage.round()
    shared(stage, "p1")
    stage.round(120)
    write_node(stage, {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"})
    stage.round(40)
    stage.round(HOUR / SECOND)

    assert stage.spent("a") == (160 + 3600) * GPU_SECOND // 8


def test_labels_that_come_after_ten_minutes_change_nothing(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, {})
    stage.lead(RULES)
    stage.round()
    shared(stage, "p1")
    stage.round(700)
    write_node(stage, LABELS)
    stage.round(100)

    assert stage.spent("a") == 800 * GPU_SECOND


def test_late_labels_change_no_period_that_is_over(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    write_node(stage, {})
    stage.now = NOON + HOUR - 60 * SECOND
    stage.lead(RULES)
    stage.round()
    shared(stage, "p1")
    stage.round(30)
    stage.round(60)
    write_node(stage, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    stage.round(30)

    assert stage.spent("a", NOON) == 60 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 4 * 60 * GPU_SECOND


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


def test_pods_of_other_stacks_are_not_metered_where_the_admin_does_not_ask_for_it(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, LABELS)
    shared(stage, "p1")
    stage.lead()
    stage.round(10)

    assert stage.spent("a") == 0
    assert reading.since(stage.client) is None


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


def test_the_audit_agrees_where_pods_are_older_than_metering(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    write_node(stage, LABELS)
    shared(stage, "p1", since=NOON - 24 * HOUR)
    shared(stage, "reserved", "kai-resource-reservation", since=NOON - 24 * HOUR)
    stage.lead(RULES)
    stage.round()
    stage.round(HOUR / SECOND)
    write_statuses(stage)

    assert audited(stage).differences == ()


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
