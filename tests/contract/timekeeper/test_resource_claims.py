"""Claims of Dynamic Resource Allocation: each allocation metered once, from its first pod's binding to its end."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.support.ledger.audited import audited, write_statuses
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from timekeeper.api.usage import Query, find, read_query
from timekeeper.controller.report.status_writer import CheckpointKeeper
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.observing import Clocks
from timekeeper.controller.state.other_stacks import held_idle
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, PricePoint
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.domain.usage import IDLE
from timekeeper.domain.windows import Window
from timekeeper.ledger import reading
from timekeeper.ledger.codec import decode_session
from timekeeper.ledger.keys import WATCHED_CLAIMS, AccountKeys
from timekeeper.ledger.usage import capacity
from timekeeper.sources.folder import write_json

PRICES = {
    "*": (PricePoint(0, Fraction(1)),),
    "A100": (PricePoint(0, Fraction(4)),),
    BY_WORDS: (PricePoint(0, Fraction(1)),),
}
RULES = ControllerRules(prices=PRICES, own_resources={})
A100 = "NVIDIA A100-SXM4-80GB"


def write_slice(harness: LedgerHarness, product: str = A100, driver: str = "gpu.nvidia.com") -> None:
    devices = [{"name": f"gpu-{at}", "attributes": {"productName": {"string": product}}} for at in range(8)]
    spec = {"driver": driver, "nodeName": "n1", "pool": {"name": "n1", "generation": 1}, "devices": devices}
    item = {"metadata": {"name": f"n1-{driver}", "uid": f"n1-{driver}"}, "spec": spec}
    write_json(harness.folder / "slices" / f"n1-{driver}.json", item)


def write_claim(harness: LedgerHarness, name: str, devices: list[str], pods: list[str], **result: Any) -> None:
    found = [{"driver": "gpu.nvidia.com", "pool": "n1", "device": device, **result} for device in devices]
    status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]}
    if found:
        status["allocation"] = {"devices": {"results": found}}
    metadata = {"name": name, "namespace": "team-a", "uid": name, "creationTimestamp": format_instant(NOON - HOUR)}
    write_json(harness.folder / "claims" / f"{name}.json", {"metadata": metadata, "status": status})


def claiming(harness: LedgerHarness, uid: str, bound_ago: float = 0) -> dict[str, Any]:
    stamp = format_instant(harness.now - int(bound_ago * SECOND))
    item = {
        "metadata": {"uid": uid, "name": uid, "namespace": "team-a", "creationTimestamp": stamp},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
        },
    }
    harness.write_pod(item)
    return item


def having_by_claim(harness: LedgerHarness) -> dict[str, Any]:
    """Writes the pod p1, which has an extended resource by the claim c1; returns it."""
    pod = claiming(harness, "p1")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    mapped = [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}]
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c1", "requestMappings": mapped}
    harness.write_pod(pod)
    return pod


@pytest.fixture
def looking(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"])
    write_slice(harness)
    harness.lead(RULES)
    harness.reconcile()
    return harness


def test_a_claim_is_charged_from_the_binding_of_its_earliest_pod(looking: LedgerHarness) -> None:
    looking.pass_time(60)
    claiming(looking, "p1", bound_ago=20)
    claiming(looking, "p2", bound_ago=30)
    write_claim(looking, "c1", ["gpu-0"], ["p1", "p2"])
    looking.reconcile()
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 40 * GPU_SECOND


def test_pods_that_share_a_claim_in_turn_are_one_holding(looking: LedgerHarness) -> None:
    first = claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    claiming(looking, "p2")
    write_claim(looking, "c1", ["gpu-0"], ["p1", "p2"])
    looking.finish(first)
    looking.reconcile(10)
    write_claim(looking, "c1", ["gpu-0"], ["p2"])
    looking.remove("p1")
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND


def test_a_claim_ends_with_the_last_of_the_pods_that_reserved_it(looking: LedgerHarness) -> None:
    pods = [claiming(looking, "p1"), claiming(looking, "p2")]
    write_claim(looking, "c1", ["gpu-0"], ["p1", "p2"])
    looking.reconcile(10)
    looking.finish(pods[0], seconds_ago=5)
    looking.finish(pods[1], seconds_ago=3)
    looking.reconcile()
    write_claim(looking, "c1", [], [])
    looking.reconcile(60)

    assert looking.spent("a") == 4 * 7 * GPU_SECOND


def test_a_deleted_pods_end_is_that_of_its_claim(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    looking.remove("p1")
    looking.reconcile()
    (looking.folder / "claims" / "c1.json").unlink()
    looking.reconcile(30)

    assert looking.spent("a") == 4 * 10 * GPU_SECOND


def test_a_claim_that_no_pod_reserves_is_charged_and_shown_as_held_idle(looking: LedgerHarness) -> None:
    write_claim(looking, "c1", ["gpu-0", "gpu-1"], [])
    looking.reconcile()
    looking.reconcile(10)
    reconciler = looking.reconciler
    (text,) = looking.client.hvals(AccountKeys("a").sessions)

    assert reconciler is not None
    assert looking.spent("a") == 8 * 10 * GPU_SECOND
    assert held_idle(reconciler.books, looking.now) == 8 * GPU_SECOND
    assert (decode_session(text).pod, decode_session(text).idle) == ("resourceclaim/c1", True)


def test_devices_that_no_claim_has_are_idle_capacity(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0", "gpu-1"], ["p1"])
    looking.reconcile()
    looking.reconcile(3600)
    query = Query(Window(NOON, NOON + HOUR), None, ("namespace",), 10, idle=True)
    cores = {item.key[0]: item.figures.core for item in find(looking.client, query, looking.now).items}

    assert cores == {"team-a": 2 * 3600 * GPU_SECOND, IDLE: 6 * 3600 * GPU_SECOND}


def test_idle_capacity_is_known_by_model(looking: LedgerHarness) -> None:
    write_slice(looking, "NVIDIA L4", "gpu.amd.com")
    write_claim(looking, "c1", ["gpu-0", "gpu-1"], [])
    looking.reconcile()
    looking.reconcile(3600)
    arguments = {"window": f"{format_instant(NOON)},{format_instant(NOON + HOUR)}", "idle": "model"}
    for by, before in (("model", ()), ("namespace,model", (IDLE,))):
        found = find(looking.client, read_query({**arguments, "aggregate": by}, (), looking.now), looking.now)
        idle = {item.key: item.figures.core for item in found.items if item.key[-1].startswith(IDLE)}
        assert idle == {
            (*before, f"{IDLE} {A100}"): 6 * 3600 * GPU_SECOND,
            (*before, f"{IDLE} NVIDIA L4"): 8 * 3600 * GPU_SECOND,
        }


def test_idle_capacity_follows_the_devices_that_are_published(looking: LedgerHarness) -> None:
    assert max(capacity(looking.client).items())[1] == 8 * GPU_SECOND
    (looking.folder / "slices" / "n1-gpu.nvidia.com.json").unlink()
    looking.reconcile(60)
    assert max(capacity(looking.client).items())[1] == 0


def test_a_claim_is_held_idle_no_longer_once_a_pod_reserves_it(looking: LedgerHarness) -> None:
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile(10)
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    reconciler = looking.reconciler

    assert reconciler is not None
    assert held_idle(reconciler.books, looking.now) == 0


def test_administrative_access_and_devices_of_other_kinds_cost_nothing(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"], adminAccess=True)
    write_claim(looking, "c2", ["nic-0"], ["p1"], driver="dra.net")
    looking.reconcile(10)

    assert reading.stored_amounts(looking.client, "a", MONTH) == {}


def test_a_driver_that_the_admin_lists_is_charged(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_slice(harness, "NPU 9", "npu.example.com")
    harness.lead(ControllerRules(prices=PRICES, own_resources={}, drivers=frozenset({"npu.example.com"})))
    harness.reconcile()
    claiming(harness, "p1")
    write_claim(harness, "c1", ["gpu-0"], ["p1"], driver="npu.example.com")
    harness.reconcile(10)

    assert harness.spent("a") == 10 * GPU_SECOND


def test_a_claim_that_is_allocated_anew_is_another_session(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    looking.remove("p1")
    write_claim(looking, "c1", [], [])
    looking.reconcile()
    looking.pass_time(100)
    claiming(looking, "p2")
    write_claim(looking, "c1", ["gpu-1"], ["p2"])
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 20 * GPU_SECOND
    assert len(reading.stored_amounts(looking.client, "a", MONTH)) == 2


def test_the_next_leader_continues_a_claims_session(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    claiming(looking, "p2")
    write_claim(looking, "c1", ["gpu-0"], ["p2"])
    looking.remove("p1")
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 20 * GPU_SECOND
    assert len(reading.stored_amounts(looking.client, "a", MONTH)) == 1


def test_a_claim_that_ended_without_a_leader_ended_when_it_was_last_observed(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    write_claim(looking, "c1", [], [])
    looking.pass_time(100)
    looking.lead(RULES)
    looking.reconcile()

    assert looking.spent("a") == 4 * 10 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True], ids=["the leader goes on", "another leader follows"])
@pytest.mark.parametrize(
    ("until", "seconds"), [("", 1701), ("freed before", 100), ("freed", 150), ("allocated anew", 150)]
)
def test_a_claim_whose_record_could_not_be_read_is_charged_once_from_its_start_to_its_end(
    looking: LedgerHarness, until: str, seconds: int, *, another: bool
) -> None:
    """No pod reserves it, so a leader that cannot read its record begins its session when it first looks."""
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    records = AccountKeys("a").sessions
    ((uid, record),) = looking.client.hgetall(records).items()
    looking.client.hset(records, uid, "nonsense")
    if until == "freed before":
        write_claim(looking, "c1", [], [])
    looking.lead(RULES)
    looking.reconcile(50)
    if until == "freed":
        write_claim(looking, "c1", [], [])
    if until == "allocated anew":
        write_claim(looking, "c1", ["gpu-1"], [])
    looking.reconcile()
    looking.reconcile(950)
    if another:
        looking.lead(RULES)
    looking.client.hset(records, uid, record)
    looking.reconcile(600)
    looking.reconcile(1)
    # Of an allocation that was never written, the next leader knows no start.
    of_the_next = (1 if another else 950 + 600 + 1) if until == "allocated anew" else 0
    assert looking.spent("a") == 4 * (seconds + of_the_next) * GPU_SECOND
    assert looking.reconciler is not None
    assert looking.reconciler.books.not_settled == {}


def test_slices_that_come_late_count_from_the_claims_start(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(RULES)
    harness.reconcile()
    claiming(harness, "p1")
    write_claim(harness, "c1", ["gpu-0"], ["p1"])
    harness.reconcile(120)
    before = harness.spent("a")
    write_slice(harness)
    harness.reconcile(60)

    assert (before, harness.spent("a")) == (120 * GPU_SECOND, 4 * 180 * GPU_SECOND)


def test_a_claims_holding_is_kept_when_its_device_is_published_anew(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    write_slice(looking, "Tesla T4")
    looking.reconcile(10)
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND


def test_a_claims_holding_outlives_an_emptied_store_and_a_new_leader(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    claiming(looking, "p2")
    write_claim(looking, "c1", ["gpu-0"], ["p2"])
    looking.remove("p1")
    looking.reconcile(10)
    assert looking.reconciler is not None
    CheckpointKeeper(looking.source, looking.reconciler.books).write(looking.now)
    looking.client.flushall()
    write_slice(looking, "Tesla T4")
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND


def test_an_extended_resource_that_a_claim_covers_is_no_second_bill(looking: LedgerHarness) -> None:
    having_by_claim(looking)
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 10 * GPU_SECOND


@pytest.mark.parametrize("new_leader", [False, True], ids=["the same leader", "a new leader"])
def test_it_is_none_either_once_the_pod_has_ended_and_kubernetes_has_deleted_the_claim(
    looking: LedgerHarness,
    new_leader: bool,  # noqa: FBT001
) -> None:
    pod = having_by_claim(looking)
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    looking.finish(pod)
    (looking.folder / "claims" / "c1.json").unlink()
    looking.reconcile(10)
    if new_leader:
        looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 10 * GPU_SECOND


def test_a_pod_that_had_one_by_a_claim_and_ended_while_no_timekeeper_ran_costs_nothing(looking: LedgerHarness) -> None:
    looking.reconcile(10)
    pod = having_by_claim(looking)
    looking.finish(pod)
    looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 0


def test_an_extended_resource_without_its_claim_is_charged_as_the_device_plugins(looking: LedgerHarness) -> None:
    having_by_claim(looking)
    looking.reconcile(10)

    assert looking.spent("a") == 10 * GPU_SECOND


@pytest.mark.parametrize("new_leader", [False, True], ids=["the same leader", "a new leader"])
def test_a_claim_that_is_seen_after_its_pod_is_the_only_bill_from_the_start(
    looking: LedgerHarness,
    new_leader: bool,  # noqa: FBT001
) -> None:
    having_by_claim(looking)
    looking.reconcile(10)
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile(10)
    if new_leader:
        looking.lead(RULES)
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND
    write_statuses(looking)
    assert audited(looking).differences == ()


def test_metering_of_claims_begins_with_the_first_term(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_slice(harness)
    claiming(harness, "p1", bound_ago=3600)
    write_claim(harness, "c1", ["gpu-0"], ["p1"])
    harness.lead(RULES)
    harness.reconcile()
    harness.reconcile(10)

    assert harness.spent("a") == 4 * 10 * GPU_SECOND


def test_claims_cost_nothing_where_the_admin_does_not_ask_for_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    write_slice(harness)
    claiming(harness, "p1")
    write_claim(harness, "c1", ["gpu-0"], ["p1"])
    harness.lead()
    harness.reconcile(10)

    assert harness.spent("a") == 0


def test_the_audit_agrees_with_a_day_of_claims(looking: LedgerHarness) -> None:
    first = claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    write_claim(looking, "idle", ["gpu-1"], [])
    looking.reconcile(HOUR / SECOND)
    looking.finish(first)
    write_claim(looking, "c1", [], [])
    looking.lead(RULES)
    looking.reconcile(HOUR / SECOND)
    claiming(looking, "p2")
    write_claim(looking, "c2", ["gpu-2"], ["p2"])
    looking.reconcile(HOUR / SECOND)
    write_statuses(looking)

    assert audited(looking).differences == ()


def test_the_audit_names_a_claim_without_a_session(looking: LedgerHarness) -> None:
    claiming(looking, "p1", bound_ago=600)
    looking.reconcile(600)
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.source.refresh()
    write_statuses(looking)

    assert [difference.subject for difference in audited(looking).differences] == ["c1"]


def test_the_audit_names_a_claim_without_a_session_of_a_driver_that_the_settings_list(looking: LedgerHarness) -> None:
    claiming(looking, "p1")
    write_claim(looking, "c1", ["npu-0"], ["p1"], driver="npu.example.com")
    looking.reconcile(120)
    write_statuses(looking)
    assert audited(looking).differences == ()
    listed = audited(looking, drivers=frozenset({"npu.example.com"})).differences
    assert [difference.subject for difference in listed] == ["c1"]


@pytest.mark.parametrize("seen", ["deleted", "missing"])
@pytest.mark.parametrize("another", [False, True])
def test_a_claim_that_is_deleted_while_a_clock_is_behind_keeps_what_it_has_cost(
    looking: LedgerHarness,
    another: bool,  # noqa: FBT001
    seen: str,
) -> None:
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    looking.ahead = -3 * HOUR
    if another:
        looking.lead(RULES)
    looking.pass_time(900)
    (claim,) = looking.source.mirrors.claims.items()
    (looking.folder / "claims" / "c1.json").unlink()
    if seen == "deleted":
        looking.source.mirrors.claims.changed("DELETED", claim)
    else:
        looking.source.mirrors.claims.replaced([])
    looking.reconcile()
    looking.ahead = 0
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 100 * GPU_SECOND


@pytest.mark.parametrize("received", ["by the wrong clock", "by the right clock"])
def test_a_claim_that_is_deleted_when_a_clock_that_was_ahead_is_right_again_has_not_ended_in_the_future(
    looking: LedgerHarness, received: str
) -> None:
    looking.lead(RULES, clocks=Clocks(looking.leaders_time, lambda: looking.now))
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    looking.ahead = 3 * HOUR
    looking.reconcile(10)
    if received == "by the right clock":
        looking.ahead = 0
    looking.pass_time(10)
    (claim,) = looking.source.mirrors.claims.items()
    (looking.folder / "claims" / "c1.json").unlink()
    looking.source.mirrors.claims.changed("DELETED", claim)
    looking.ahead = 0
    looking.reconcile()

    assert looking.spent("a") == 4 * 120 * GPU_SECOND


@pytest.mark.parametrize(
    "seen", ["deleted", "missing", "missing for another leader", "missing for another leader, as is the node"]
)
@pytest.mark.parametrize("reserved", [False, True])
def test_a_claim_that_is_deleted_behind_a_silent_node_is_charged_to_the_last_sign_of_life(
    looking: LedgerHarness,
    seen: str,
    reserved: bool,  # noqa: FBT001
) -> None:
    if reserved:
        claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"] if reserved else [])
    looking.reconcile()
    looking.reconcile(40)
    looking.silence("n1", looking.now - 10 * SECOND)
    looking.reconcile(60)
    assert looking.spent("a") == 4 * 30 * GPU_SECOND
    if reserved:
        looking.remove("p1")
    (claim,) = looking.source.mirrors.claims.items()
    (looking.folder / "claims" / "c1.json").unlink()
    if seen == "deleted":
        looking.source.mirrors.claims.changed("DELETED", claim)
    if seen == "missing":
        looking.source.mirrors.claims.replaced([])
    if seen == "missing for another leader":
        looking.lead(RULES)
        looking.silence("n1", looking.now - 70 * SECOND)
    if seen == "missing for another leader, as is the node":
        (looking.folder / "nodes" / "n1.json").unlink()
        looking.renewed.clear()
        looking.lead(RULES)
    looking.reconcile(60)

    assert looking.spent("a") == 4 * 30 * GPU_SECOND


def unwatched(harness: LedgerHarness, seconds: int) -> None:
    """Lets time pass in which the watch of claims is broken, and that of pods is not; the leader does one round."""
    assert harness.reconciler is not None
    harness.now += seconds * SECOND
    harness.source.mirrors.pods.confirmed()
    harness.reconciler.reconcile(harness.now)


@pytest.mark.parametrize("another", [False, True])
def test_a_claim_that_vanishes_while_claims_are_not_watched_has_ended_when_it_was_last_seen(
    looking: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    unwatched(looking, 9000)
    (looking.folder / "claims" / "c1.json").unlink()
    if another:
        looking.lead(RULES)
    else:
        looking.source.mirrors.claims.replaced([])
    looking.reconcile(10)

    assert looking.spent("a") == 4 * 100 * GPU_SECOND
    (*_, last) = reading.ledger_page(looking.client, "a", "", 10)
    assert last.note.startswith("last-seen")


def test_a_claim_that_vanishes_while_claims_are_not_watched_did_not_end_before_its_pods(
    looking: LedgerHarness,
) -> None:
    pod = claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"])
    looking.reconcile()
    looking.reconcile(100)
    unwatched(looking, 100)
    looking.remove("p1")
    looking.source.mirrors.pods.changed("DELETED", pod)
    unwatched(looking, 100)
    (looking.folder / "claims" / "c1.json").unlink()
    looking.source.mirrors.claims.replaced([])
    looking.reconcile(100)

    assert looking.spent("a") == 4 * 200 * GPU_SECOND


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("leader", ["goes on", "is followed"])
@pytest.mark.parametrize("becomes", ["another claim of its name", "another allocation", "no allocation"])
def test_a_claim_that_is_replaced_while_claims_are_not_watched_has_ended_when_it_was_last_seen(
    looking: LedgerHarness,
    becomes: str,
    leader: str,
    reserved: bool,  # noqa: FBT001
) -> None:
    """A list then shows its successor."""
    if reserved:
        claiming(looking, "p1")
    write_claim(looking, "c1", ["gpu-0"], ["p1"] if reserved else [])
    looking.reconcile()
    looking.reconcile(100)
    unwatched(looking, 9000)
    (before,) = looking.source.mirrors.claims.items()
    after = {**before, "metadata": {**before["metadata"], "creationTimestamp": format_instant(looking.now)}}
    if becomes == "another claim of its name":
        after["metadata"]["uid"] = "c1-again"
    if becomes == "another allocation":
        write_claim(looking, "c1", ["gpu-1"], [])
        after["status"] = json.loads((looking.folder / "claims" / "c1.json").read_text())["status"]
    if becomes == "no allocation":
        after["status"] = {"reservedFor": []}
    write_json(looking.folder / "claims" / "c1.json", after)
    if leader == "goes on":
        looking.source.mirrors.claims.replaced([after])
    else:
        looking.lead(RULES)
    looking.reconcile()
    looking.reconcile(50)

    assert looking.spent("a") == 4 * (100 + (0 if becomes == "no allocation" else 50)) * GPU_SECOND


def test_a_claim_that_vanished_before_an_upgrade_has_ended_when_pods_were_last_seen(looking: LedgerHarness) -> None:
    """A store of an earlier version does not say up to when claims were watched."""
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    looking.client.delete(WATCHED_CLAIMS)
    (looking.folder / "claims" / "c1.json").unlink()
    looking.lead(RULES)
    looking.reconcile(60)

    assert looking.spent("a") == 4 * 100 * GPU_SECOND


@pytest.mark.parametrize("pods", [[], ["p1", "p2"]])
@pytest.mark.parametrize("leaders", [1, 2])
def test_a_claim_that_is_not_metered_for_a_while_is_charged_once(
    looking: LedgerHarness, pods: list[str], leaders: int
) -> None:
    """The pod that was bound first has ended when it is metered again; no leader charges it meanwhile."""
    for uid in pods:
        claiming(looking, uid)
        looking.pass_time(10)
    looking.pass_time(-10 * len(pods))
    write_claim(looking, "c1", ["gpu-0"], pods)
    looking.reconcile()
    looking.reconcile(100)
    charged = looking.spent("a")
    assert charged == 4 * 100 * GPU_SECOND
    for _ in range(leaders):
        looking.lead(ControllerRules(prices=PRICES))
        looking.reconcile(100)
    assert looking.spent("a") == charged
    if pods:
        looking.remove("p1")
        write_claim(looking, "c1", ["gpu-0"], ["p2"])
    looking.lead(RULES)
    looking.reconcile()
    again = looking.spent("a")
    looking.reconcile(50)

    assert again == charged + (4 * leaders * 100 * GPU_SECOND if pods else 0)
    assert looking.spent("a") == again + 4 * 50 * GPU_SECOND


def test_a_list_that_comes_while_claims_are_read_counts_as_unwatched_once_it_is_read(
    looking: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_claim(looking, "c1", ["gpu-0"], [])
    looking.reconcile()
    looking.reconcile(100)
    mirror = looking.source.mirrors.claims
    (before,) = mirror.items()
    write_claim(looking, "c2", ["gpu-1"], [])
    write_json(looking.folder / "claims" / "c1.json", {**before, "status": {"reservedFor": []}})
    after = [json.loads((looking.folder / "claims" / f"{name}.json").read_text()) for name in ("c1", "c2")]
    mirror.changed("ADDED", after[1])
    take = mirror.take_departures

    def listed_meanwhile() -> Any:
        monkeypatch.undo()
        mirror.replaced(after)
        return take()

    monkeypatch.setattr(mirror, "take_departures", listed_meanwhile)
    unwatched(looking, 1000)
    unwatched(looking, 50)
    looking.reconcile()

    assert looking.spent("a") == 4 * (100 + 50) * GPU_SECOND
