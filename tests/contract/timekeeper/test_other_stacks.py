"""Pods that hold GPUs by other stacks: decided once, metered from the first leader's term on, kept in the record."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from fairgpu.existing import Existing
from tests.support.ledger.audited import audited, write_statuses
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published
from timekeeper.audit.command import as_json, as_text
from timekeeper.audit.sums import UnseenEnd
from timekeeper.controller.report.status_writer import CheckpointKeeper
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.loading import DECIDED
from timekeeper.controller.state.other_stacks import doubtful, unknown_models
from timekeeper.domain.holdings.holding import Doubt
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, Bill, PricePoint
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.codec import decode_session
from timekeeper.ledger.keys import AccountKeys
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.folder import write_json

PRICES = {
    "*": (PricePoint(0, Fraction(1)),),
    "A100": (PricePoint(0, Fraction(4)),),
    BY_WORDS: (PricePoint(0, Fraction(1)),),
}
RULES = ControllerRules(prices=PRICES, own_resources={})
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}


def write_node(harness: LedgerHarness, labels: dict[str, str], name: str = "n1") -> None:
    item = {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "32"}}}
    write_json(harness.folder / "nodes" / f"{name}.json", item)


@pytest.fixture
def looking(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.lead(RULES)
    harness.reconcile()
    return harness


def test_a_replica_of_a_gpu_is_charged_as_its_part_at_the_models_price(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)

    assert looking.spent("a") == 10 * GPU_SECOND


@pytest.mark.parametrize("bill", Bill)
def test_a_pod_without_a_sidecar_is_charged_as_reserved_whatever_is_billed(harness: LedgerHarness, bill: Bill) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.lead(replace(RULES, bill=bill))
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(10)

    assert harness.spent("a") == 10 * GPU_SECOND


def test_metering_begins_with_the_first_term_and_not_with_a_pod_that_ran_before(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.pod_of_another_stack("p1", since=NOON - 24 * HOUR)
    harness.lead(RULES)
    harness.reconcile()
    harness.reconcile(10)

    assert harness.spent("a") == 10 * GPU_SECOND
    assert reading.since(harness.client) == NOON


def test_a_later_leader_meters_from_the_first_ones_instant(looking: LedgerHarness) -> None:
    looking.pass_time(60)
    looking.pod_of_another_stack("p1", since=NOON - HOUR)
    looking.lead(RULES)
    looking.reconcile()

    assert looking.spent("a") == 60 * GPU_SECOND


def test_a_pod_that_ended_before_metering_began_has_no_session(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.finish(harness.pod_of_another_stack("p1", since=NOON - HOUR), seconds_ago=60)
    harness.lead(RULES)
    harness.reconcile()

    assert reading.stored_amounts(harness.client, "a", MONTH) == {}


def test_a_pods_holding_is_kept_under_relabelling_and_by_the_next_leader(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    write_node(looking, {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "64"})
    looking.reconcile(10)
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 30 * GPU_SECOND


def test_a_changed_price_holds_for_what_the_record_says_even_once_the_labels_are_gone(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    write_node(looking, {})
    looking.lead(ControllerRules(prices=PRICES | {"A100": (PricePoint(0, Fraction(8)),)}, own_resources={}))
    looking.reconcile()
    looking.reconcile(10)

    assert looking.spent("a") == (10 + 20) * GPU_SECOND


def test_labels_that_come_late_count_from_the_pods_start(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(120)
    before = harness.spent("a")
    write_node(harness, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.reconcile(60)

    assert (before, harness.spent("a")) == (120 * GPU_SECOND, 4 * 180 * GPU_SECOND)


def test_labels_that_make_the_pod_cheaper_give_the_difference_back(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(ControllerRules(prices=PRICES | {"T4": (PricePoint(0, Fraction(1, 2)),)}, own_resources={}))
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(120)
    write_node(harness, {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"})
    harness.reconcile(40)
    harness.reconcile(HOUR / SECOND)

    assert harness.spent("a") == (160 + 3600) * GPU_SECOND // 8


@pytest.mark.parametrize(
    "cloud",
    [
        {"node.kubernetes.io/instance-type": "p4de.24xlarge"},
        {"karpenter.k8s.aws/instance-gpu-name": "a100"},
        {"karpenter.azure.com/sku-gpu-name": "A100"},
    ],
)
def test_a_node_whose_model_a_cloud_names_gets_the_labels_of_feature_discovery_late_too(
    harness: LedgerHarness, cloud: dict[str, str]
) -> None:
    """The cloud's labels come with the node, and do not say that four pods share each GPU."""
    harness.budget("a", ["team-a"])
    write_node(harness, cloud)
    harness.lead(ControllerRules(prices=PRICES | {"a100": PRICES["A100"]}, own_resources={}))
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(120)
    before = harness.spent("a")
    write_node(harness, cloud | LABELS)
    harness.reconcile(40)
    write_node(harness, cloud | {"nvidia.com/gpu.product": "Tesla-T4"})
    harness.reconcile(40)
    write_node(harness, cloud)
    harness.reconcile(HOUR / SECOND)

    assert (before, harness.spent("a")) == (4 * 120 * GPU_SECOND, (200 + 3600) * GPU_SECOND)


def test_so_does_one_whose_resource_names_a_model(harness: LedgerHarness) -> None:
    """The name of Huawei's resource says Ascend910; which of these it is, a label says."""
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    prices = PRICES | {"Ascend910": PRICES["A100"], "910B3": (PricePoint(0, Fraction(2)),)}
    harness.lead(ControllerRules(prices=prices, own_resources={}))
    harness.reconcile()
    pod = harness.pod_of_another_stack("p1")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"huawei.com/Ascend910": "1"}}
    harness.write_pod(pod)
    harness.reconcile(120)
    before = harness.spent("a")
    write_node(harness, {"node.kubernetes.io/npu.chip.name": "910B3"})
    harness.reconcile(60)
    write_node(harness, {"node.kubernetes.io/npu.chip.name": "Ascend310"})
    harness.reconcile(HOUR / SECOND)

    assert (before, harness.spent("a")) == (4 * 120 * GPU_SECOND, 2 * (180 + 3600) * GPU_SECOND)


def test_a_decision_by_the_labels_of_feature_discovery_is_kept_on_a_clouds_node(harness: LedgerHarness) -> None:
    cloud = {"node.kubernetes.io/instance-type": "p4de.24xlarge"}
    harness.budget("a", ["team-a"])
    write_node(harness, cloud | LABELS)
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(10)
    write_node(harness, cloud)
    harness.reconcile(10)
    write_node(harness, cloud | {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.reconcile(10)

    assert harness.spent("a") == 30 * GPU_SECOND


def test_labels_that_come_after_ten_minutes_change_nothing(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(700)
    write_node(harness, LABELS)
    harness.reconcile(100)

    assert harness.spent("a") == 800 * GPU_SECOND


def test_late_labels_change_no_period_that_is_over(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    write_node(harness, {})
    harness.now = NOON + HOUR - 60 * SECOND
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(30)
    harness.reconcile(60)
    write_node(harness, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.reconcile(30)

    assert harness.spent("a", NOON) == 60 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 4 * 60 * GPU_SECOND


def test_the_record_holds_what_was_decided(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    (text,) = looking.client.hvals(AccountKeys("a").sessions)
    (holding,) = decode_session(text).holdings

    assert (holding.way, holding.model, holding.count, holding.time) == (
        "nvidia",
        "NVIDIA-A100-SXM4-80GB",
        1,
        Fraction(1, 4),
    )


def test_the_instant_outlives_a_store_that_was_emptied(looking: LedgerHarness) -> None:
    reconciler = looking.reconciler
    assert reconciler is not None
    CheckpointKeeper(looking.source, reconciler.books).write(looking.now)
    looking.pass_time(60)
    looking.client.flushall()
    looking.lead(RULES)
    looking.reconcile()

    assert reading.since(looking.client) == NOON


def test_pods_of_other_stacks_are_not_metered_where_the_admin_does_not_ask_for_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.pod_of_another_stack("p1")
    harness.lead()
    harness.reconcile(10)

    assert harness.spent("a") == 0
    assert reading.since(harness.client) is None


def test_the_audit_agrees_with_a_day_of_pods_of_other_stacks(looking: LedgerHarness) -> None:
    write_node(looking, {}, "n2")
    first, _, late = (looking.pod_of_another_stack(uid) for uid in ("p1", "p2", "p3"))
    late["spec"]["nodeName"] = "n2"
    looking.write_pod(late)
    looking.reconcile(100)
    write_node(looking, LABELS, "n2")
    looking.reconcile(HOUR / SECOND)
    looking.finish(first)
    looking.remove("p2")
    looking.lead(RULES)
    looking.reconcile(HOUR / SECOND)
    write_statuses(looking)

    assert audited(looking).differences == ()


def test_the_audit_says_how_much_of_the_bill_has_the_price_of_unknown_models(looking: LedgerHarness) -> None:
    write_node(looking, {}, "n2")
    looking.pod_of_another_stack("known")
    unknown = looking.pod_of_another_stack("unknown")
    unknown["spec"]["nodeName"] = "n2"
    looking.write_pod(unknown)
    looking.reconcile(HOUR / SECOND)
    looking.remove("known")
    looking.remove("unknown")
    looking.reconcile()
    found = audited(looking)

    assert (found.billed, found.unknown_model) == (looking.spent("a"), 3600 * GPU_SECOND)
    assert "At the price of `*`, since nothing names the model: 1.00 of 2.00 GPU-hours." in as_text(found)
    assert as_json(found)["unknownModel"] == str(3600 * GPU_SECOND)


def test_the_audit_lists_apart_what_the_timekeeper_did_not_see_end(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("seen")
    looking.pod_of_another_stack("away", since=NOON - 24 * HOUR)
    looking.reconcile(10)
    looking.remove("seen")
    looking.reconcile(10)
    looking.remove("away")
    looking.now += 500 * SECOND
    looking.lead(RULES)
    looking.reconcile()
    found = audited(looking)

    assert found.unseen == (UnseenEnd("a", "team-a", "away", NOON, NOON + 20 * SECOND, 20 * GPU_SECOND),)
    assert "Ended unobserved, and charged up to the last sign of life: 1 session, 0.005556 GPU-hours." in as_text(found)
    assert as_json(found)["unseenEnds"] == [
        {
            "account": "a",
            "namespace": "team-a",
            "pod": "away",
            "start": "2026-01-15T12:00:00Z",
            "end": "2026-01-15T12:00:20Z",
            "amount": str(20 * GPU_SECOND),
        }
    ]


def test_an_end_that_was_seen_and_a_session_that_runs_are_not_among_the_unseen(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("running")
    finished = looking.pod_of_another_stack("finished")
    looking.pod_of_another_stack("deleted")
    looking.reconcile(10)
    looking.finish(finished)
    looking.remove("deleted")
    refused = looking.pod_of_another_stack("refused")
    stamp = format_instant(looking.now + 5 * SECOND)
    refused["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    refused["status"]["conditions"] += [{"type": "Ready", "status": "False", "lastTransitionTime": stamp}]
    looking.write_pod(refused)
    looking.reconcile(10)
    found = audited(looking)

    assert {entry.pod for entry in reading.ledger_page(looking.client, "a", "", 10)} >= {"finished", "refused"}
    assert found.unseen == ()
    assert "unobserved" not in as_text(found)


def test_the_audit_agrees_where_pods_are_older_than_metering(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, LABELS)
    harness.pod_of_another_stack("p1", since=NOON - 24 * HOUR)
    harness.pod_of_another_stack("reserved", "kai-resource-reservation", since=NOON - 24 * HOUR)
    harness.lead(RULES)
    harness.reconcile()
    harness.reconcile(HOUR / SECOND)
    write_statuses(harness)

    assert audited(harness).differences == ()


def test_the_capacity_of_the_nodes_is_written_for_the_idle_share_of_usage(looking: LedgerHarness) -> None:
    points = looking.client.hgetall(keys.CAPACITY)

    assert [int(rate) for rate in points.values()] == [8 * GPU_SECOND]


def test_pods_charged_without_a_known_model_are_counted(looking: LedgerHarness) -> None:
    write_node(looking, {}, "n2")
    looking.pod_of_another_stack("known")
    unknown = looking.pod_of_another_stack("unknown")
    unknown["spec"]["nodeName"] = "n2"
    looking.write_pod(unknown)
    looking.reconcile(10)
    reconciler = looking.reconciler

    assert reconciler is not None
    assert unknown_models(reconciler.books) == GPU_SECOND


def write_checkpoint(harness: LedgerHarness) -> None:
    assert harness.reconciler is not None
    CheckpointKeeper(harness.source, harness.reconciler.books).write(harness.now)


def test_a_decision_outlives_an_emptied_store_a_new_leader_and_other_labels(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    ended = looking.pod_of_another_stack("p2")
    looking.reconcile(10)
    looking.finish(ended)
    looking.reconcile()
    write_checkpoint(looking)
    looking.client.flushall()
    write_node(looking, {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "64"})
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == (20 + 10) * GPU_SECOND


def test_a_lost_annotation_ends_no_bill_even_with_an_emptied_store(looking: LedgerHarness) -> None:
    pod = looking.pod_of_another_stack("p1")
    pod["metadata"] |= {"annotations": {"gpu-fraction": "0.5", "received-resource-type": "Fraction"}}
    pod["spec"]["containers"] = [{"name": "main"}]
    looking.write_pod(pod)
    looking.reconcile(10)
    write_checkpoint(looking)
    looking.client.flushall()
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    looking.write_pod(pod)
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 20 * GPU_SECOND // 2


def test_one_teams_fraction_with_a_huge_exponent_stops_no_other_teams_bill(looking: LedgerHarness) -> None:
    pod = looking.pod_of_another_stack("hostile", "b")
    pod["metadata"] |= {"annotations": {"gpu-fraction": "1e-9999999", "received-resource-type": "Fraction"}}
    looking.write_pod(pod)
    looking.pod_of_another_stack("p1")
    looking.reconcile()
    looking.reconcile(10)

    assert looking.spent("a") == 10 * GPU_SECOND


def test_a_running_pod_whose_annotations_are_removed_stays_on_its_bill_under_the_next_leader(
    looking: LedgerHarness,
) -> None:
    pod = looking.pod_of_another_stack("p1")
    pod["metadata"] |= {"annotations": {"gpu-fraction": "0.5", "received-resource-type": "Fraction"}}
    pod["spec"] |= {"containers": [{"name": "main"}], "schedulerName": "kai-scheduler"}
    looking.write_pod(pod)
    looking.reconcile(10)
    pod["metadata"]["annotations"] = {}
    looking.write_pod(pod)
    looking.reconcile(10)
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND // 2


def test_the_late_labels_of_a_node_are_in_the_checkpoint(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_node(harness, {})
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(60)
    write_checkpoint(harness)
    write_node(harness, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    harness.reconcile(60)
    write_checkpoint(harness)
    harness.client.flushall()
    write_node(harness, {})
    harness.lead(RULES)
    harness.reconcile()

    assert harness.spent("a") == 4 * 120 * GPU_SECOND


def test_an_unreadable_checkpoint_of_holdings_counts_as_missing(looking: LedgerHarness) -> None:
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    write_checkpoint(looking)
    for file in (looking.folder / "status").glob("checkpoints-*.json"):
        kept = json.loads(file.read_text())
        broken = {name: {"kinds": [[1]], "begun": 7} for name in kept if name.startswith(DECIDED)}
        file.write_text(json.dumps(kept | broken))
    looking.client.flushall()
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 20 * GPU_SECOND


def test_a_checkpoint_of_which_only_holdings_changed_is_written_twice_a_minute_at_most(looking: LedgerHarness) -> None:
    reconciler = looking.reconciler
    assert reconciler is not None
    checkpoints = CheckpointKeeper(looking.source, reconciler.books)
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    checkpoints.write(looking.now)
    looking.pod_of_another_stack("p15")  # its checkpoint is in the same shard
    looking.reconcile(20)
    early = checkpoints.write(looking.now)
    looking.reconcile(10)

    assert (early, checkpoints.write(looking.now)) == (0, 1)


OVERHEAD_RULES = replace(RULES, overhead=frozenset({"kube-system", "gpu-operator"}))


def test_pods_of_the_cluster_itself_are_charged_to_the_account_overhead(harness: LedgerHarness) -> None:
    write_node(harness, LABELS)
    harness.lead(OVERHEAD_RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1", "kube-system")
    harness.pod_of_another_stack("p2", "gpu-operator")
    harness.pod_of_another_stack("p3", "team-b")
    harness.reconcile(10)

    assert harness.spent("overhead") == 20 * GPU_SECOND
    assert harness.spent("namespace:team-b") == 10 * GPU_SECOND
    assert published(harness, "overhead").state == "unlimited"


def test_a_budget_that_names_such_a_namespace_pays_for_it(harness: LedgerHarness) -> None:
    harness.budget("operations", ["gpu-operator"])
    write_node(harness, LABELS)
    harness.lead(OVERHEAD_RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1", "gpu-operator")
    harness.pod_of_another_stack("p2", "kube-system")
    harness.reconcile(10)

    assert (harness.spent("operations"), harness.spent("overhead")) == (10 * GPU_SECOND, 10 * GPU_SECOND)


def test_a_budget_of_that_name_takes_the_place_of_the_account(harness: LedgerHarness) -> None:
    harness.budget("overhead", ["kube-system"], gpu_hours=7)
    write_node(harness, LABELS)
    harness.lead(OVERHEAD_RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1", "kube-system")
    harness.pod_of_another_stack("p2", "gpu-operator")
    harness.reconcile(10)

    assert harness.spent("overhead") == 10 * GPU_SECOND
    assert harness.spent("namespace:gpu-operator") == 10 * GPU_SECOND


def test_the_overhead_of_pods_that_are_gone_outlives_an_emptied_store(harness: LedgerHarness) -> None:
    write_node(harness, LABELS)
    harness.lead(OVERHEAD_RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1", "kube-system")
    harness.reconcile(10)
    harness.remove("p1")
    harness.reconcile(1)
    write_checkpoint(harness)
    harness.client.flushall()
    harness.lead(OVERHEAD_RULES)
    harness.reconcile(5)
    write_statuses(harness)

    assert harness.spent("overhead") == 11 * GPU_SECOND
    assert audited(harness).differences == ()


def test_the_settings_name_the_namespaces_of_the_overhead() -> None:
    looking = TimekeeperSettings(mode="look").beside(Existing(left_alone=("monitoring",)))

    assert {"kube-system", "fairgpu-system", "gpu-operator"} <= TimekeeperSettings(mode="look").overhead_namespaces
    assert {"kube-system", "monitoring"} <= looking.overhead_namespaces
    assert TimekeeperSettings().overhead_namespaces == frozenset()


def test_a_session_that_is_charged_by_a_rule_keeps_the_cause_in_its_record(looking: LedgerHarness) -> None:
    write_node(looking, {**LABELS, "nvidia.com/gpu.replicas": "many"})
    looking.pod_of_another_stack("p1")
    looking.reconcile(10)
    looking.lead(RULES)
    looking.reconcile(10)
    reconciler = looking.reconciler

    assert reconciler is not None
    assert doubtful(reconciler.books) == {Doubt.REPLICAS_UNREADABLE: 1}
    assert looking.spent("a") == 4 * 20 * GPU_SECOND


def test_labels_that_come_late_remove_the_cause(harness: LedgerHarness) -> None:
    write_node(harness, {})
    harness.lead(RULES)
    harness.reconcile()
    harness.pod_of_another_stack("p1")
    harness.reconcile(60)
    reconciler = harness.reconciler
    assert reconciler is not None
    assert doubtful(reconciler.books) == {Doubt.MODEL_UNKNOWN: 1}
    write_node(harness, LABELS)
    harness.reconcile(60)

    assert doubtful(reconciler.books) == {}
