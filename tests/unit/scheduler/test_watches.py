"""Events of watches become the state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairgpu.cluster.warning_events import About, warning_event
from fairgpu.inventory import Inventory
from scheduler.cluster.acting import Acting
from scheduler.cluster.objects import PodNote
from scheduler.cluster.state import State
from scheduler.cluster.watches import (
    MAX_WARNED,
    NODES,
    PODS,
    SOURCE,
    AllocationFaults,
    NodesView,
    NodeWarnings,
    PodsView,
)
from tests.unit.scheduler.extended import ApiServer, api_node, ask, bind_pod, pod, state_of

OURS = "fairgpu-scheduler-0_0b1c"


def reflected(collection: Any, item: dict[str, Any]) -> dict[str, Any]:
    """An item as the reflector hands it on."""
    read: dict[str, Any] = collection.read(item)
    return read


def test_nothing_is_answered_before_nodes_and_pods_were_read() -> None:
    state = State()
    assert state.missing() == ("nodes", "pods")
    NodesView(state).replaced([])
    PodsView(state).replaced([])
    assert state.missing() == ()


def test_a_list_of_pods_holds_their_devices_and_one_that_is_deleted_frees_them() -> None:
    state, item = State(), pod("a", core=100)
    bind_pod(state_of("n0"), ApiServer(item), item, "n0")
    NodesView(state).replaced([reflected(NODES, api_node("n0"))])
    view = PodsView(state)
    view.replaced([reflected(PODS, item)])
    assert ask(state, pod("b")).node_names == []
    view.changed("DELETED", reflected(PODS, item))
    assert ask(state, pod("b")).node_names == ["n0"]


def test_a_listener_is_called_once_all_pods_of_a_list_are_stored_and_before_any_is_answered() -> None:
    state, seen = State(), list[tuple[bool, bool]]()
    view = PodsView(state, stored=lambda: seen.append((state.bound("uid-a"), "pods" in state.missing())))
    item = pod("a", nodeName="n0")
    view.replaced([reflected(PODS, item)])
    view.changed("MODIFIED", reflected(PODS, item))
    assert seen == [(True, True)]


def without_the_label(item: dict[str, Any]) -> dict[str, Any]:
    """A GPU pod of a namespace that webhook and policies leave out."""
    del item["metadata"]["labels"]
    return item


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_gpu_that_a_pod_without_the_label_was_given_is_given_to_no_other(kind: str) -> None:
    asks = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "100", "fairgpu.io/gpu-memory-percentage": "100"}
    asking = {"name": "asks", "restartPolicy": "Always", "resources": {"limits": asks}}
    spec = {"containers": [{"name": "main"}]} | {kind: [asking]}
    state, item = state_of("n0"), without_the_label(pod("a", **spec))
    api, view = ApiServer(item), PodsView(state)
    assert ask(state, item).node_names == ["n0"]
    bind_pod(state, api, item, "n0")
    view.changed("MODIFIED", reflected(PODS, api.pods["a"]))
    assert ask(state, pod("b", core=100)).node_names == []
    view.changed("DELETED", reflected(PODS, api.pods["a"]))
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_the_pods_of_a_gang_are_counted_without_the_label() -> None:
    state = state_of("n0", "n1")
    gang = [without_the_label(pod(f"train-{at}", core=100, gang="train/2")) for at in range(2)]
    view = PodsView(state)
    view.replaced([reflected(PODS, item) for item in gang])
    assert len(ask(state, gang[0]).node_names) == 1


def test_a_node_whose_inventory_makes_no_sense_is_taken_out_until_it_does() -> None:
    state = State()
    view = NodesView(state)
    view.replaced([reflected(NODES, api_node("n0")), reflected(NODES, api_node("n1"))])
    view.changed("MODIFIED", reflected(NODES, api_node("n0", encode=nonsense)))
    assert ask(state, pod("a"), names=["n0"]).node_names == []
    view.changed("MODIFIED", reflected(NODES, api_node("n0")))
    assert ask(state, pod("a"), names=["n0"]).node_names == ["n0"]
    view.changed("DELETED", reflected(NODES, api_node("n0")))
    assert list(state.fleet.rows) == ["n1"]
    view.replaced([])
    assert not state.fleet.rows


def test_a_node_that_is_left_out_has_an_event_and_a_line_that_say_why_and_counts_in_the_figures() -> None:
    state, api = State(), ApiServer()
    view = NodesView(state, NodeWarnings(api, lambda: "2026-01-01T00:00:00Z").warn)
    twin = api_node("n1")
    twin["metadata"]["name"] = "n2"
    with capture_logs() as logged:
        view.replaced([reflected(NODES, api_node("n0", encode=nonsense)), reflected(NODES, api_node("n1"))])
        assert (state.figures().nodes, state.figures().refused, state.figures().gpus) == (1, 1, 1)
        view.changed("ADDED", reflected(NODES, twin))
    assert [(line["event"], line["node"]) for line in logged] == [
        ("inventory refused", "n0"),
        ("device on two nodes", "n1"),
        ("device on two nodes", "n2"),
    ]
    assert (state.figures().nodes, state.figures().shared) == (0, 2)
    said = {(event["involvedObject"]["name"], event["reason"]): event["message"] for event in api.posted}
    assert set(said) == {("n0", "InventoryRefused"), ("n1", "InventoryRefused"), ("n2", "InventoryRefused")}
    assert "the annotation fairgpu.io/inventory cannot be used" in said["n0", "InventoryRefused"]
    assert "another node offers the GPU" in said["n1", "InventoryRefused"]
    view.changed("DELETED", reflected(NODES, twin))
    view.changed("MODIFIED", reflected(NODES, api_node("n0")))
    assert (state.figures().nodes, state.figures().refused, state.figures().shared) == (2, 0, 0)


def test_a_node_whose_other_annotations_change_offers_what_it_did_and_has_no_second_event() -> None:
    state, api = State(), ApiServer()
    view = NodesView(state, NodeWarnings(api, lambda: "2026-01-01T00:00:00Z").warn)
    view.replaced([reflected(NODES, api_node("n0", encode=nonsense)), reflected(NODES, api_node("n1"))])
    before = state.offers, state.fleet.version, len(api.posted)
    for item in (api_node("n0", encode=nonsense), api_node("n1")):
        item["metadata"]["annotations"]["management.cattle.io/pod-requests"] = '{"pods":"7"}'
        view.changed("MODIFIED", reflected(NODES, item))
    assert (state.offers, state.fleet.version, len(api.posted)) == before


def test_a_new_list_forgets_every_node_that_it_lacks() -> None:
    state, bare = State(), api_node("n2")
    del bare["metadata"]["annotations"]["fairgpu.io/inventory"]
    view = NodesView(state)
    items = [api_node("n0", encode=nonsense), api_node("n1"), bare]
    view.replaced([reflected(NODES, item) for item in items])
    before = state.sites
    assert state.figures().refused == 1
    view.replaced([reflected(NODES, api_node("n1"))])
    assert (state.figures().nodes, state.figures().refused) == (1, 0)
    assert state.sites == before + 2


def test_both_replicas_write_one_event_of_what_they_find() -> None:
    stamps = [f"2026-01-01T00:00:0{second}Z" for second in (1, 2)]
    events = [warning_event(About("Node", "n0", "uid"), "InventoryRefused", "why", at, SOURCE) for at in stamps]
    assert len({event["metadata"]["name"] for event in events}) == 1


class Watched:
    """A state with its views, and the pods about which an event was written."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.state = State()
        self.pods: list[str] = []
        faults = AllocationFaults(self.state, self._warn)
        self.pods_view, self.nodes_view = PodsView(self.state, faults=faults), NodesView(self.state, faults=faults)
        self.nodes_view.replaced([reflected(NODES, item) for item in nodes])

    def _warn(self, note: PodNote, reason: str, message: str) -> None:
        assert (reason, message.partition(": ")[2]) == ("AllocationIgnored", "node n0 does not offer the GPU n0-1")
        self.pods.append(note.name)


def bound(name: str, gpu: str) -> dict[str, Any]:
    """A pod on n0 that holds a percent of a GPU."""
    share = {"uuid": gpu, "model": "A100", "totalMiB": 1000, "core": 1, "memoryMiB": 1}
    item = pod(name, nodeName="n0")
    held = {"v": 1, "node": "n0", "containers": [{"name": "main", "devices": [share]}]}
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(held)
    return reflected(PODS, item)


def test_the_pods_of_a_gpu_have_an_event_as_soon_as_their_node_no_longer_offers_it() -> None:
    watched = Watched(api_node("n0", gpus=2))
    watched.pods_view.replaced([bound("a", "n0-0"), bound("b", "n0-1")])
    assert watched.pods == []
    watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=1)))
    assert watched.pods == ["b"]
    # Neither the pod's nor the node's next change says it again while it lasts.
    watched.pods_view.changed("MODIFIED", bound("b", "n0-1"))
    watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=1)))
    assert watched.pods == ["b"]
    for gpus in (2, 1):
        watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=gpus)))
    assert watched.pods == ["b", "b"]


def test_a_pod_that_is_deleted_while_the_pods_of_its_node_are_looked_at_has_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(api_node("n0", gpus=2))
    watched.pods_view.replaced([bound("a", "n0-1"), bound("b", "n0-1")])
    notes_on = watched.state.notes_on

    def and_then_one_is_deleted(name: str) -> list[PodNote]:
        notes = notes_on(name)
        watched.pods_view.changed("DELETED", bound("a", "n0-1"))
        return notes

    monkeypatch.setattr(watched.state, "notes_on", and_then_one_is_deleted)
    watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=1)))
    assert watched.pods == ["b"]


def test_a_gpu_that_went_while_another_node_offered_one_of_the_same_node_has_its_event_once_that_is_over() -> None:
    watched, twin = Watched(api_node("n0", gpus=2)), api_node("n0", gpus=1)
    watched.pods_view.replaced([bound("a", "n0-0"), bound("b", "n0-1")])
    twin["metadata"]["name"] = "n1"
    watched.nodes_view.changed("ADDED", reflected(NODES, twin))
    watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=1)))
    assert watched.pods == []
    watched.nodes_view.changed("DELETED", reflected(NODES, twin))
    assert watched.pods == ["b"]


def test_pods_that_were_read_before_their_node_are_looked_at_once_it_is_read() -> None:
    watched = Watched()
    watched.pods_view.replaced([bound("a", "n0-1")])
    assert watched.pods == []
    watched.nodes_view.replaced([reflected(NODES, api_node("n0"))])
    assert watched.pods == ["a"]


def test_pods_beyond_a_hundred_on_a_gpu_that_goes_are_named_in_the_log_alone() -> None:
    watched, names = Watched(api_node("n0", gpus=2)), [f"p{number:03}" for number in range(MAX_WARNED + 5)]
    watched.pods_view.replaced([bound(name, "n0-1") for name in names])
    with capture_logs() as logged:
        watched.nodes_view.changed("MODIFIED", reflected(NODES, api_node("n0", gpus=1)))
    assert watched.pods == names[:MAX_WARNED]
    assert [line["pod"] for line in logged if line["event"] == "allocation ignored"] == [f"team/{n}" for n in names]
    # Pods that end make room for those that come to have the fault.
    for name in names[:6]:
        watched.pods_view.changed("DELETED", bound(name, "n0-1"))
    watched.pods_view.changed("ADDED", bound("late", "n0-1"))
    assert watched.pods == [*names[:MAX_WARNED], "late"]


def nonsense(_: Inventory) -> str:
    return "{}"


OTHERS = "fairgpu-scheduler-1_77"
RELEASED = ""


@pytest.mark.parametrize(
    ("looks", "leads"),
    [
        ([(OURS, "t0", 0)], False),
        ([(OURS, "t0", 0), (OURS, "t0", 15)], False),
        ([(OURS, "t0", 0), (OURS, "t1", 2)], False),
        ([(OURS, "t0", 0), (OURS, "t0", 10), (OURS, "t1", 14), (OURS, "t1", 15)], True),
        ([(OURS, "t0", 0), (OURS, "t0", 10), (OURS, "t1", 14), (OURS, "t1", 24)], True),
        ([(OURS, "t0", 0), (OURS, "t0", 10), (OURS, "t1", 14), (OURS, "t1", 25)], False),
        ([(OURS, "t0", 0), (OURS, "t1", 20), (OTHERS, "t2", 21)], False),
        ([(OTHERS, "t0", 0), (OTHERS, "t0", 14), (OURS, "t1", 15)], True),
        ([("fairgpu-scheduler-01_77", "t0", 0), ("fairgpu-scheduler-01_77", "t1", 20)], False),
    ],
)
def test_an_extender_leads_while_its_pods_lease_was_seen_to_be_renewed(
    looks: list[tuple[str, str, float]], *, leads: bool
) -> None:
    assert wants_mark(looks) == leads


@pytest.mark.parametrize(
    "looks",
    [
        # An extender that was killed, beside a kube-scheduler that leads on.
        [(OURS, "t1", 100)],
        # A kube-scheduler that was ended, and gave its Lease away before it ran out.
        [(OTHERS, "t0", 90), (OTHERS, "t1", 99), (RELEASED, "t2", 100)],
        [(RELEASED, "t2", 100)],
        # The other one renews its Lease once more and gives it away, both between two looks.
        [(OTHERS, "t0", 90), (RELEASED, "t2", 100)],
        [(OTHERS, "t0", 90), (OURS, "t2", 100)],
    ],
    ids=["killed", "released", "released before the first look", "released unseen", "released and taken unseen"],
)
def test_an_extender_that_begins_waits_until_no_binding_of_another_process_can_be_made(
    looks: list[tuple[str, str, float]],
) -> None:
    """By then each Binding that was sent under the Lease of the time before is made, or never is."""
    assert not wants_mark([*looks, (OURS, "t3", 102), (OURS, "t4", 114)])
    assert wants_mark([*looks, (OURS, "t3", 102), (OURS, "t4", 114), (OURS, "t4", 115)])


def wants_mark(looks: list[tuple[str, str, float]]) -> bool:
    """Returns whether an extender that saw the Lease so writes its mark after the last look."""
    acting = Acting("fairgpu-scheduler-0")
    for holder, renewed, now in looks:
        acting.see({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}, now)
    return bool(acting.wanted_mark(looks[-1][2]))


def leading(acting: Acting, renewed: str, now: float) -> None:
    acting.see({"holderIdentity": OURS, "renewTime": renewed, "leaseDurationSeconds": 15}, now)


def marked(mark: str) -> dict[str, Any]:
    own = pod("fairgpu-scheduler-0")
    own["status"] = {"conditions": [{"type": "fairgpu.io/Leads", "message": mark}]}
    return reflected(PODS, own)


def test_a_leader_acts_once_its_watch_shows_its_mark_and_not_by_an_earlier_one() -> None:
    acting = Acting("fairgpu-scheduler-0")
    view = PodsView(State(), "team/fairgpu-scheduler-0", acting.show)
    leading(acting, "t0", -20)
    leading(acting, "t0", 0)
    leading(acting, "t1", 2)
    first = acting.wanted_mark(2)
    view.changed("MODIFIED", reflected(PODS, pod("fairgpu-scheduler-0")))
    assert not acting.acts(2)
    view.changed("MODIFIED", marked(first))
    assert acting.acts(14)
    assert acting.wanted_mark(14) == ""
    assert not acting.acts(15)
    leading(acting, "t2", 60)
    leading(acting, "t3", 61)
    assert not acting.acts(61)
    view.replaced([marked(first)])
    assert not acting.acts(61)
    view.replaced([marked(acting.wanted_mark(61))])
    assert acting.acts(61)


def test_the_mark_of_another_replica_is_not_ours() -> None:
    acting = Acting("fairgpu-scheduler-0")
    view = PodsView(State(), "team/fairgpu-scheduler-1", acting.show)
    leading(acting, "t0", -20)
    leading(acting, "t0", 0)
    leading(acting, "t1", 2)
    view.changed("MODIFIED", marked(acting.wanted_mark(2)))
    assert not acting.acts(2)
