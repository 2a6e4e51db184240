from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu import allocation, inventory
from fairgpu.allocation import Allocation, ContainerAllocation, DeviceShare
from fairgpu.inventory import Device, Health, Inventory, Link
from timekeeper.api import gpu_objects
from timekeeper.api.gpu_objects import (
    GPU_NODES,
    GPU_PODS,
    ExpiredError,
    GPUFeed,
    VersionError,
    document,
    read_node,
    read_pod,
)
from timekeeper.api.models import GPUNodesAnswer, GPUPodsAnswer

MIB = 1000


def node(name: str, *healths: Health, text: str = "") -> dict[str, Any]:
    """A Node whose agent has written its GPUs."""
    devices = tuple(
        Device(f"{name}-{at}", "NVIDIA A100-SXM4-80GB", MIB, 0, "-", health, "" if health is Health.OK else "Xid 79")
        for at, health in enumerate(healths or (Health.OK,))
    )
    links = tuple(tuple(Link.SELF if a == b else Link.NVLINK for a in devices) for b in devices)
    annotation = text or inventory.encode(Inventory("nvidia", "580.1", 64, devices, links))
    return {"metadata": {"name": name, "annotations": {"fairgpu.io/inventory": annotation}}}


def pod(name: str, where: str = "", *shares: tuple[str, int], **status: Any) -> dict[str, Any]:
    """A GPU pod; bound where a node is named, with its containers' shares of that node's first GPU."""
    containers = [
        ContainerAllocation(one, (DeviceShare(f"{where}-0", "A100", MIB, core, core),)) for one, core in shares
    ]
    written = {"fairgpu.io/allocation": allocation.encode(Allocation(where, tuple(containers)))} if where else {}
    return {
        "metadata": {"uid": f"uid-{name}", "namespace": "team", "name": name, "annotations": written},
        "spec": {"nodeName": where} if where else {},
        "status": status,
    }


def deleted(item: dict[str, Any]) -> dict[str, Any]:
    """The pod once it was deleted, while a finalizer keeps it."""
    return item | {"metadata": item["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


def feed_of(nodes: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]]) -> GPUFeed:
    """A feed that has read these objects."""
    version = 10
    feed = GPUFeed()
    feed.replace_nodes([found for item in nodes if (found := read_node(item))], version)
    feed.reach("nodes", version)
    feed.replace_pods(map(read_pod, pods), version)
    feed.reach("pods", version)
    return feed


def put(feed: GPUFeed, item: dict[str, Any], version: int) -> None:
    """The watch of pods shows a pod."""
    feed.put_pod(item["metadata"]["uid"], read_pod(item), version)
    feed.reach("pods", version)


def listed(feed: GPUFeed, kind: str, namespace: str = "") -> Any:
    return json.loads(feed.listed(kind, namespace))


def changes(feed: GPUFeed, kind: str, since: str, namespace: str = "") -> list[tuple[str, str]]:
    """Returns the immediate changes of a watch from a version: types and names."""
    position = feed.position(kind, since)
    assert position is not None
    _, events, version = feed.since(kind, position, namespace)
    return [(change, json.loads(document(kind, body, version))["metadata"]["name"]) for change, body in events]


def test_a_node_shows_what_each_of_its_gpus_holds_and_for_which_pods() -> None:
    feed = feed_of([node("n0", Health.OK, Health.FENCED)], [pod("a", "n0", ("main", 30)), pod("b", "n0", ("x", 20))])
    answer = GPUNodesAnswer.model_validate_json(feed.listed(GPU_NODES), extra="forbid")
    (found,) = answer.items
    first, second = found.status.devices
    assert (first.held.corePercent, first.held.memoryMiB, first.held.containers) == (50, 50, 2)
    assert [(one.name, one.corePercent) for one in first.pods] == [("a", 30), ("b", 20)]
    assert (second.health, second.why, second.pods) == ("fenced", "Xid 79", [])
    assert answer.metadata.resourceVersion == "10.10"


def test_an_init_container_counts_as_the_scheduler_counts_it() -> None:
    item = pod("a", "n0", ("init", 40), ("side", 10), ("main", 25))
    item["spec"]["initContainers"] = [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}]
    held = read_pod(item).held["n0-0"]
    assert held == (40, 40, 2)


def test_an_inventory_that_is_none_is_shown_with_what_is_wrong() -> None:
    (found,) = listed(feed_of([node("n0", text="{}")], []), GPU_NODES)["items"]
    assert (found["status"]["fault"], found["status"]["devices"]) == ("the inventory is no JSON object with v: 1", [])


def test_a_node_without_an_inventory_is_no_gpu_node() -> None:
    assert read_node({"metadata": {"name": "n0"}}) is None


@pytest.mark.parametrize(
    ("item", "stage", "waits"),
    [
        (
            pod(
                "a",
                conditions=[
                    {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes are available"},
                    {"type": "fairgpu.io/Placeable", "message": "gpu-core: 50 percent of one GPU asked"},
                ],
            ),
            "waits",
            [("kube-scheduler", "0/1 nodes are available"), ("fairgpu", "gpu-core: 50 percent of one GPU asked")],
        ),
        (
            pod("a") | {"spec": {"schedulingGates": [{"name": "fairgpu.io/budget"}]}},
            "gated",
            [("gate", "fairgpu.io/budget")],
        ),
        (pod("a", "n0", ("main", 10)), "placed", []),
        (pod("a", "n0", ("main", 10), phase="Failed"), "ended", []),
        (deleted(pod("a", conditions=[{"type": "PodScheduled", "message": "0/1 nodes are available"}])), "ended", []),
        (deleted(pod("a") | {"spec": {"schedulingGates": [{"name": "fairgpu.io/budget"}]}}), "ended", []),
        (deleted(pod("a", "n0", ("main", 10))), "placed", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_shows_its_stage_and_why_it_waits(item: dict[str, Any], stage: str, waits: list[tuple[str, str]]) -> None:
    answer = GPUPodsAnswer.model_validate_json(feed_of([], [item]).listed(GPU_PODS), extra="forbid")
    status = answer.items[0].status
    assert (status.stage, [(one.by, one.why) for one in status.waits]) == (stage, waits)


@pytest.mark.parametrize(
    ("where", "text", "fault"),
    [
        ("n0", "{}", "the allocation is no JSON object with v: 1"),
        ("n1", "", "the allocation is of node n0, and the pod is bound to n1"),
    ],
)
def test_an_allocation_that_counts_for_nothing_says_why(where: str, text: str, fault: str) -> None:
    item = pod("a", "n0", ("main", 30))
    item["spec"]["nodeName"] = where
    if text:
        item["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    feed = feed_of([node("n0"), node("n1")], [item])
    assert listed(feed, GPU_PODS)["items"][0]["status"]["fault"] == fault
    assert all(not one["status"]["devices"][0]["pods"] for one in listed(feed, GPU_NODES)["items"])


def test_a_list_of_one_namespace_holds_no_pod_of_another() -> None:
    other = pod("b")
    other["metadata"]["namespace"] = "other"
    feed = feed_of([], [pod("a"), other])
    assert [one["metadata"]["name"] for one in listed(feed, GPU_PODS, "team")["items"]] == ["a"]
    put(feed, other | {"status": {"phase": "Failed"}}, 11)
    assert changes(feed, GPU_PODS, "10", "team") == []
    assert changes(feed, GPU_PODS, "10") == [("MODIFIED", "b")]


def test_a_watch_goes_on_after_the_version_that_it_names() -> None:
    feed = feed_of([node("n0")], [pod("a")])
    put(feed, pod("b"), 11)
    put(feed, pod("a", "n0", ("main", 30)), 12)
    feed.put_pod("uid-b", None, 13)
    feed.reach("pods", 13)
    assert changes(feed, GPU_PODS, "10") == [("MODIFIED", "a"), ("DELETED", "b")]
    assert changes(feed, GPU_PODS, "12") == [("DELETED", "b")]
    assert changes(feed, GPU_PODS, "13") == []
    assert changes(feed, GPU_NODES, "10.11") == [("MODIFIED", "n0")]
    assert changes(feed, GPU_NODES, "10.12") == []


def test_a_pods_status_changes_no_node() -> None:
    feed = feed_of([node("n0")], [pod("a", "n0", ("main", 30))])
    put(feed, pod("a", "n0", ("main", 30), phase="Running", conditions=[{"type": "Ready"}]), 11)
    assert changes(feed, GPU_NODES, "10.10") == []
    assert listed(feed, GPU_NODES)["items"][0]["status"]["devices"][0]["held"]["corePercent"] == 30
    put(feed, pod("a", "n0", ("main", 30), phase="Succeeded"), 12)
    assert changes(feed, GPU_NODES, "10.10") == [("MODIFIED", "n0")]
    assert listed(feed, GPU_NODES)["items"][0]["status"]["devices"][0]["held"]["corePercent"] == 0


def test_an_object_that_came_since_is_added_and_one_that_is_gone_ends_with_its_last_state() -> None:
    feed = feed_of([node("n0")], [])
    feed.put_node("n1", read_node(node("n1")), 11)
    feed.put_node("n0", None, 12)
    feed.reach("nodes", 12)
    assert changes(feed, GPU_NODES, "10.10") == [("ADDED", "n1"), ("DELETED", "n0")]


def test_a_list_that_was_read_again_counts_for_what_it_lacks() -> None:
    feed = feed_of([], [pod("a"), pod("b")])
    feed.replace_pods([read_pod(pod("b")), read_pod(pod("c"))], 20)
    feed.reach("pods", 20)
    assert changes(feed, GPU_PODS, "15") == [("DELETED", "a"), ("ADDED", "c")]


def test_a_pod_that_came_before_its_node_was_seen_reaches_a_watch_that_knows_the_node() -> None:
    """Another worker may see the node first, and its version says nothing of the pod."""
    feed = feed_of([], [])
    put(feed, pod("a", "n1", ("main", 11)), 13)
    feed.put_node("n1", read_node(node("n1")), 12)
    feed.reach("nodes", 12)
    assert [name for _, name in changes(feed, GPU_NODES, "12.11")] == ["n1"]
    assert changes(feed, GPU_NODES, "12.13") == []


def test_a_version_from_before_the_list_is_expired() -> None:
    feed = feed_of([], [pod("a")])
    with pytest.raises(ExpiredError, match="list again"):
        feed.position(GPU_PODS, "9")


def test_a_version_whose_changes_were_dropped_is_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_objects, "MAX_CHANGES", 3)
    feed = feed_of([], [])
    for version in range(11, 16):
        put(feed, pod(f"p{version}"), version)
    with pytest.raises(ExpiredError):
        feed.position(GPU_PODS, "11")
    assert len(changes(feed, GPU_PODS, "12")) == 3
    with pytest.raises(ExpiredError, match="too far behind"):
        feed.since(GPU_PODS, 1)


def test_a_worker_that_is_behind_a_version_says_so() -> None:
    assert feed_of([], []).position(GPU_PODS, "11") is None
    assert feed_of([], []).position(GPU_NODES, "10.11") is None


@pytest.mark.parametrize("version", ["", "x", "10", "1.2.3", "-1.5", "1.²", "1.", f"{'9' * 21}.1"])
def test_a_text_that_is_no_version_is_said_to_be_none(version: str) -> None:
    with pytest.raises(VersionError):
        feed_of([], []).position(GPU_NODES, version)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "n0", "n1", "gone"])), max_size=12)


@given(STEPS, STEPS, st.randoms(use_true_random=False))
def test_a_watch_that_goes_on_at_another_worker_ends_with_what_a_list_shows(
    before: list[tuple[int, str]], after: list[tuple[int, str]], random: Random
) -> None:
    """Two workers see the same events of pods and nodes in the same order each, and in another order together."""
    history: dict[str, list[Callable[[GPUFeed], None]]] = {"nodes": [], "pods": []}
    for version, (number, where) in enumerate([*before, *after], 11):
        history["pods"].append(_step(number, where, version))
        if number == 0:
            history["nodes"].append(_node_step(where, version))
    one, other = feed_of([node("n0")], []), feed_of([node("n0")], [])
    _play(one, history, len(before), random)
    seen = {kind: _objects(feed=one, kind=kind) for kind in (GPU_NODES, GPU_PODS)}
    versions = {kind: one.version(kind) for kind in (GPU_NODES, GPU_PODS)}
    _play(other, history, len(history["pods"]) + len(history["nodes"]), random)
    for kind, objects in seen.items():
        position = other.position(kind, versions[kind])
        assert position is not None
        for change, body in other.since(kind, position)[1]:
            metadata = json.loads(body)["metadata"]
            key = metadata.get("uid", metadata["name"])
            if change == "DELETED":
                objects.pop(key, None)
            else:
                objects[key] = body
        assert objects == _objects(feed=other, kind=kind)


def _step(number: int, where: str, version: int) -> Callable[[GPUFeed], None]:
    item = None if where == "gone" else read_pod(pod(f"p{number}", where, ("main", 10 + number)))

    def act(feed: GPUFeed) -> None:
        feed.put_pod(f"uid-p{number}", item, version)
        feed.reach("pods", version)

    return act


def _node_step(where: str, version: int) -> Callable[[GPUFeed], None]:
    item = None if where == "gone" else read_node(node("n1", *[Health.OK] * (1 + version % 2)))

    def act(feed: GPUFeed) -> None:
        feed.put_node("n1", item, version)
        feed.reach("nodes", version)

    return act


def _play(feed: GPUFeed, history: dict[str, list[Callable[[GPUFeed], None]]], count: int, random: Random) -> None:
    """Plays so many events, of either collection in its own order."""
    left = {source: list(events) for source, events in history.items()}
    for _ in range(count):
        source = random.choice([name for name, events in left.items() if events] or [""])
        if source:
            left[source].pop(0)(feed)


def _objects(feed: GPUFeed, kind: str) -> dict[str, bytes]:
    """Each object's body by its uid or name."""
    _, events, _ = feed.since(kind, None)
    found = {}
    for _, body in events:
        metadata = json.loads(body)["metadata"]
        found[metadata.get("uid", metadata["name"])] = body
    return found


def test_readers_and_writers_in_many_threads_disturb_nobody() -> None:
    feed = feed_of([node("n0")], [])
    faults: list[Exception] = []

    def write() -> None:
        for version in range(11, 300):
            put(feed, pod(f"p{version % 7}", "n0" if version % 3 else "", ("main", version % 100)), version)

    def read() -> None:
        number = None
        while thread.is_alive():
            try:
                number, _, _ = feed.since(GPU_NODES, number)
                listed(feed, GPU_PODS)
            except Exception as error:  # noqa: BLE001 - whatever it is
                faults.append(error)
                return

    thread = threading.Thread(target=write)
    thread.start()
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for each in (thread, *readers):
        each.join()
    assert faults == []
