from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.inventory import Device, Inventory, Link, encode
from fairgpu.names import INVENTORY
from tests.support.ledger.fake_cluster import MirroredCluster
from tests.support.ledger.harness import NOON, LedgerHarness, report
from timekeeper.api import usage
from timekeeper.api.usage import Query, find, read_query
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import IDLE, Group, UsageFigures
from timekeeper.domain.windows import Window
from timekeeper.ledger import shared
from timekeeper.ledger.reading import load_accounts
from timekeeper.ledger.writing import Opening, open_periods, take_fencing_token
from timekeeper.sources.folder import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

TODAY = Window(NOON - 12 * HOUR, NOON + 12 * HOUR)


def used(
    harness: LedgerHarness, *aggregate: str, window: Window = TODAY, step: str | None = None, idle: bool = False
) -> dict[tuple[int, *tuple[str, ...]], UsageFigures]:
    """Returns the figure of each key by the hour in which its step starts, counted from noon."""
    found = find(harness.client, Query(window, step, aggregate or ("namespace",), 1000, idle=idle), harness.now)
    return {((item.step.start - NOON) // HOUR, *item.key): item.figures for item in found.items}


def test_a_running_pod_is_asked_to_the_last_settlement(harness: LedgerHarness) -> None:
    harness.pod("p1", "team-a", core=50)
    harness.reconcile(0)
    harness.reconcile(600)
    assert used(harness) == {(-12, "team-a"): UsageFigures(300 * GPU_SECOND, 300 * GPU_SECOND, 7200)}


def test_a_page_that_ends_before_days_to_come_reads_no_account_for_them(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.pod("p1", "team-a", core=50)
    harness.reconcile(0)
    harness.reconcile(600)
    today = used(harness, step="1d")
    monkeypatch.setattr(usage, "_everything", lambda *_: pytest.fail("all accounts are read"))
    assert used(harness, window=Window(TODAY.start, TODAY.start + 20 * DAY), step="1d") == today


def test_each_hour_gets_what_was_held_in_it_however_late_it_is_posted(harness: LedgerHarness) -> None:
    harness.pass_time(30 * 60)
    pod = harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(2 * 3600)
    harness.reconcile(1800)
    harness.finish(pod, seconds_ago=600)
    harness.reconcile(0)
    billed = {key[0]: figures.billed for key, figures in used(harness, step="1h").items()}
    assert billed == {0: GPU_HOUR // 2, 1: GPU_HOUR, 2: GPU_HOUR * 50 // 60}
    assert sum(billed.values()) == harness.spent("namespace:team-a")


def test_use_is_shown_by_whatever_it_is_put_down_to(harness: LedgerHarness) -> None:
    harness.lead(ControllerRules(labels=("team",)))
    harness.budget("research", ["team-a", "team-b"])
    item = harness.pod("p1", "team-a")
    item["metadata"] |= {
        "labels": {"team": "vision", "pod-template-hash": "5d4", "other": "x"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-5d4", "controller": True}],
    }
    item["metadata"]["annotations"]["fairgpu.io/created-by"] = "Deployment/serve"
    harness.write_pod(item)
    harness.pod("p2", "team-b")
    harness.reconcile(0)
    harness.reconcile(60)
    names = ("namespace", "budget", "model", "node", "owner", "user", "label:team")
    assert set(used(harness, *names)) == {
        (-12, "team-a", "research", "A100", "n1", "Deployment/serve", "Deployment/serve", "vision"),
        (-12, "team-b", "research", "A100", "n1", "Pod/p2", "__unallocated__", "__unallocated__"),
    }
    assert used(harness, "budget")[-12, "research"].billed == harness.spent("research")


def test_days_are_cut_at_midnight_in_utc(harness: LedgerHarness) -> None:
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    for _ in range(30):
        harness.reconcile(3600)
    window = Window(TODAY.start, TODAY.end + DAY)
    billed = {key[0]: figures.billed for key, figures in used(harness, window=window, step="1d").items()}
    assert billed == {-12: 12 * GPU_HOUR, 12: 18 * GPU_HOUR}


def test_capacity_that_no_pod_held_is_idle_so_that_the_sum_is_the_capacity(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client() as client:
        harness, now = LedgerHarness(tmp_path, client), [NOON]
        cluster = MirroredCluster(lambda: now[0])
        reconciler = Reconciler(client, cluster, ControllerRules(), take_fencing_token(client, 0))
        cluster.replace("nodes", [node("n1", 200), node("n2", 100)])
        cluster.replace("pods", [harness.pod("p1", "team-a", core=50)])
        reconciler.reconcile(now[0])
        now[0] += HOUR
        cluster.replace("nodes", [node("n1", 200)])
        reconciler.reconcile(now[0])
        now[0] += HOUR // 2
        reconciler.reconcile(now[0])
        harness.now = now[0]
        found = used(harness, "namespace", "model", step="1h", idle=True)
        assert [found[hour, "__idle__", "__idle__"].core for hour in (0, 1)] == [2.5 * GPU_HOUR, 0.75 * GPU_HOUR]
        for hour, whole in ((0, 3 * GPU_HOUR), (1, GPU_HOUR)):
            assert sum(figures.core for key, figures in found.items() if key[0] == hour) == whole
            assert sum(figures.memory for key, figures in found.items() if key[0] == hour) == whole
            assert found[hour, "__idle__", "__idle__"].billed == 0


def test_idle_capacity_of_fairgpus_nodes_is_divided_by_the_models_of_their_inventories(harness: LedgerHarness) -> None:
    devices = tuple(
        Device(f"GPU-{at}", model, 81038, None, f"pci-{at}") for at, model in enumerate(["A100", "A100", "T4"])
    )
    links = tuple(tuple(Link.SELF if row == at else Link.SYSTEM for at in range(3)) for row in range(3))
    known = node("n1", 300)
    known["metadata"]["annotations"] = {INVENTORY: encode(Inventory("nvidia", "580.1", 64, devices, links))}
    (harness.folder / "nodes").mkdir()
    for item in (known, node("n2", 100)):
        write_json(harness.folder / "nodes" / f"{item['metadata']['name']}.json", item)
    harness.pod("p1", "team-a", core=50)
    harness.reconcile(0)
    harness.reconcile(3600)
    query = read_query({"window": "today", "aggregate": "model", "idle": "model"}, (), harness.now)
    found = {item.key[0]: item.figures.core for item in find(harness.client, query, harness.now).items}

    assert found == {
        "A100": GPU_HOUR // 2,
        f"{IDLE} A100": 3 * GPU_HOUR // 2,
        f"{IDLE} T4": GPU_HOUR,
        f"{IDLE} *": GPU_HOUR,
    }


def node(name: str, percent: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name}, "status": {"capacity": {"fairgpu.io/gpu-core": str(percent)}}}


def test_use_stands_beside_what_was_held_and_nothing_where_nothing_was_reported(
    harness: LedgerHarness,
) -> None:
    harness.budget("hourly", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.pod("p2", "team-b")
    harness.reconcile(0)
    for hour, busy in enumerate((600, 900, 2700)):
        harness.pass_time(3599)
        report(harness, "p1", hour, busy)
        if hour == 1:
            harness.lead()  # the next leader knows from the store what was answered before
        harness.reconcile(1)
        harness.reconcile(0)
    found = used(harness, step="1h")
    assert [found[hour, "team-a"].used for hour in range(3)] == [600 * GPU_SECOND, 300 * GPU_SECOND, 1800 * GPU_SECOND]
    assert found[0, "team-b"].used is None


def test_spending_of_a_lost_store_is_shown_as_no_namespaces(harness: LedgerHarness) -> None:
    harness.budget("research", ["team-a"])
    reconciler = harness.lead()
    harness.reconcile(0)
    period = load_accounts(harness.client, ["research"])[0].periods[-1]
    harness.client.flushall()
    opening = Opening("research", period.start, period.end, checkpoint=7 * GPU_HOUR)
    open_periods(harness.client, reconciler.fencing_token, harness.now, [opening])
    shared.write_assignments(harness.client, 10**9, {"team-a": ((0, "research"),)})
    assert used(harness, "namespace", "budget")[-12, "__unallocated__", "research"].billed == 7 * GPU_HOUR


def test_pages_of_a_window_that_moves_with_the_clock_have_the_window_of_the_first_page(harness: LedgerHarness) -> None:
    harness.pod("p1", "team-a")
    harness.pod("p2", "team-b")
    harness.reconcile(0)
    harness.reconcile(2 * 3600)
    harness.remove("p1")
    harness.remove("p2")
    harness.reconcile(0)
    arguments = {"window": "6h", "step": "1h"}
    whole = find(harness.client, read_query(arguments, (), harness.now), harness.now).items
    items = list[Group]()
    cursor: str | None = ""
    while cursor is not None:
        query = read_query({**arguments, "limit": "1", "cursor": cursor}, (), harness.now)
        page = find(harness.client, query, harness.now)
        items += page.items
        cursor = page.following
        harness.pass_time(3600)
    assert len(whole) == 4
    assert items == whole
