"""A container's start as the kubelet asks for it: its own files, or none and a reason."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError
from fairgpu.inventory import Device, Inventory
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import Record
from nodeagent.containers.refusal import Cause, PlacementRefusedError
from nodeagent.containers.resolving import Listed
from nodeagent.offer import Offer
from nodeagent.pods import NodePods
from nodeagent.starting import SETTLE_SECONDS, StartEnvironment, Starter
from tests.support.waiting import LIMIT_S

DEVICES = tuple(Device(f"GPU-{number}", "A100", 1000, None, f"0:{number}") for number in range(2))
EDITS = {device.uuid: ("0.6.0", {"deviceNodes": [{"path": f"/dev/{device.uuid}"}]}) for device in DEVICES}
OFFER = Offer(Inventory("fake", "1", 64, DEVICES, ()), EDITS)
SLOT = frozenset({"slot-0"})


def pod(name: str, containers: dict[str, int], init: dict[str, int] | None = None) -> dict[str, Any]:
    """A pod whose containers get so many percent of GPU-0."""
    both = {**(init or {}), **containers}
    given = [
        {
            "name": each,
            "devices": [{"uuid": "GPU-0", "model": "A100", "totalMiB": 1000, "core": core, "memoryMiB": 10 * core}],
        }
        for each, core in both.items()
    ]

    def shown(group: Mapping[str, int]) -> list[dict[str, Any]]:
        return [
            {
                "name": each,
                "resources": {
                    "limits": {
                        "fairgpu.io/gpu": "1",
                        "fairgpu.io/gpu-core": str(core),
                        "fairgpu.io/gpu-memory": str(10 * core),
                    }
                },
            }
            for each, core in group.items()
        ]

    allocation = json.dumps({"v": 1, "node": "n1", "containers": given})
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {names.ALLOCATION: allocation},
        },
        "spec": {"containers": shown(containers), "initContainers": shown(init or {})},
        "status": {"phase": "Pending"},
    }


def init_status(pod: dict[str, Any], name: str, **state: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "status": {"phase": "Pending", "initContainerStatuses": [{"name": name, "state": state}]}}


@dataclass
class Node:
    """A node on which everything but the files is a value."""

    folder: Path
    listing: list[Listed] = field(default_factory=list)
    server: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    changes: list[list[str]] = field(default_factory=list)
    offer: Offer = OFFER
    has_room: bool = True
    made: frozenset[tuple[str, str]] = frozenset()
    made_starts: frozenset[str] = frozenset()
    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = NodePods(lambda: None, lambda _: None)
        self.folders = Folders(self.folder / "run", self.folder / "lib", self.folder / "cdi")
        self.starter = self.new_starter()

    def new_starter(self, read_pod: Callable[[str, str], dict[str, Any]] | None = None) -> Starter:
        read = read_pod or self.read_pod
        environment = StartEnvironment(
            "n1",
            lambda: self.listing,
            self.pods,
            read,
            lambda: self.offer,
            self.changed,
            lambda: self.made,
            lambda: self.made_starts,
            self.waited.append,
            lambda: BOOTED,
        )
        return Starter(environment, self.folders, Path("/shim"))

    def read_pod(self, _namespace: str, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if name not in self.server:
            raise ApiError(404, "NotFound", name)
        return self.server[name]

    def changed(self, records: Iterable[Record]) -> None:
        if not self.has_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.changes.append([f"{record.pod}/{record.container}" for record in records])

    def knows(self, pod: dict[str, Any]) -> None:
        """The API server has the pod, and the watch has brought it."""
        self.server[pod["metadata"]["name"]] = pod
        self.pods.changed("ADDED", pod)

    def lists(self, pod: str, container: str, slots: frozenset[str] = SLOT) -> None:
        self.listing.append(Listed("team", pod, container, slots))

    def specs(self) -> set[str]:
        return {path.name for path in self.folders.cdi.glob("*")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def shares(records: Sequence[Record]) -> dict[str, int]:
    return {record.container: record.devices[0].core_percent for record in records}


def test_two_containers_of_a_pod_each_get_their_own_share(node: Node) -> None:
    node.knows(pod("train", {"one": 30, "two": 60}))
    node.lists("train", "one", frozenset({"slot-0"}))
    node.lists("train", "two", frozenset({"slot-1"}))
    two = node.starter.prepare(frozenset({"slot-1"}))
    one = node.starter.prepare(frozenset({"slot-0"}))
    assert shares([one, two]) == {"one": 30, "two": 60}
    assert {record.devices[0].slot for record in (one, two)} == {0, 1}
    assert len(node.specs()) == 2


def test_a_pod_that_the_watch_has_not_brought_is_asked_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    node.server["train"] = pod("train", {"main": 30})
    node.lists("train", "main")
    assert shares([node.starter.prepare(SLOT)]) == {"main": 30}
    assert node.asked == ["train"]


def test_a_pod_is_asked_for_only_after_the_watch_had_two_seconds_to_bring_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def wait_for(_namespace: str, _name: str, seconds: float) -> None:
        assert node.asked == []
        waited.append(seconds)

    monkeypatch.setattr(node.pods, "wait_for", wait_for)
    node.server["train"] = pod("train", {"main": 30})
    node.lists("train", "main")
    assert shares([node.starter.prepare(SLOT)]) == {"main": 30}
    assert (waited, node.asked) == ([2.0], ["train"])


def test_a_pod_that_the_watch_brings_meanwhile_is_not_asked_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for = node.pods.wait_for

    def brings(namespace: str, name: str, seconds: float) -> Mapping[str, Any] | None:
        node.pods.changed("ADDED", pod("train", {"main": 30}))
        return wait_for(namespace, name, seconds)

    monkeypatch.setattr(node.pods, "wait_for", brings)
    node.lists("train", "main")
    assert shares([node.starter.prepare(SLOT)]) == {"main": 30}
    assert node.asked == []


def test_a_pod_that_is_nowhere_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    node.lists("train", "main")
    with pytest.raises(PlacementRefusedError, match="404") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.cause is Cause.UNKNOWN_CONTAINER
    assert node.specs() == set()


def test_the_main_container_gets_its_own_share_after_the_init_containers(node: Node) -> None:
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(given)
    node.lists("train", "main")
    assert shares([node.starter.prepare(SLOT)]) == {"init": 10}
    node.knows(init_status(given, "init", terminated={"exitCode": 0}))
    assert shares([node.starter.prepare(SLOT)]) == {"main": 20}
    assert shares(node.starter.records()) == {"main": 20}
    assert len(node.specs()) == 1


BOOTED = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("finished_at", "expected"),
    [("2026-11-28T11:59:59Z", {"init": 10}), ("2026-11-28T12:00:30Z", {"main": 20}), (None, {"main": 20})],
    ids=["before the boot", "after it, and the records were removed by hand", "at an unknown time"],
)
def test_an_init_container_that_ended_before_the_boot_starts_again_with_its_own_share(
    node: Node, finished_at: str | None, expected: dict[str, int]
) -> None:
    """The kubelet starts a pod's containers again after a boot, and its status says what was before."""
    given = pod("train", {"main": 20}, {"init": 10})
    ended = {"exitCode": 0, "finishedAt": finished_at}
    node.knows(init_status(given, "init", terminated=ended))
    node.lists("train", "main")
    assert shares([node.starter.prepare(SLOT)]) == expected
    assert shares([node.starter.prepare(SLOT)]) == {"main": 20}, "the init container was prepared since the boot"


def test_an_init_container_that_failed_starts_again_with_its_own_share(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.starting.SURE_SECONDS", 0.01)
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(given)
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    node.knows(init_status(given, "init", waiting={"reason": "CrashLoopBackOff"}))
    again = node.starter.prepare(SLOT)
    assert (shares([again]), again.start) == ({"init": 10}, 2)


def test_an_api_server_that_lags_behind_the_kubelet_gives_no_container_anothers_share(node: Node) -> None:
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(init_status(given, "init", waiting={"reason": "PodInitializing"}))
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    prepared: list[Record] = []
    start = threading.Thread(target=lambda: prepared.append(node.starter.prepare(SLOT)))
    start.start()
    while not node.asked:
        assert start.is_alive()
    node.server["train"] = init_status(given, "init", terminated={"exitCode": 0})
    start.join()
    assert shares(prepared) == {"main": 20}


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "CreateContainerError"])
def test_a_failure_that_the_init_container_has_since_recovered_from_gives_no_container_anothers_share(
    node: Node, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """It has completed so soon after its second start that the API server still shows why the first one failed."""
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(init_status(given, "init", waiting={"reason": reason}))
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    read_pod = node.read_pod

    def read_late(namespace: str, name: str) -> dict[str, Any]:
        if len(node.asked) == 3:
            node.server["train"] = init_status(given, "init", terminated={"exitCode": 0})
        return read_pod(namespace, name)

    monkeypatch.setattr(node, "read_pod", read_late)
    starter = node.new_starter()
    starter.recover()
    assert shares([starter.prepare(SLOT)]) == {"main": 20}


def test_a_start_that_stays_in_doubt_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.DOUBT_SECONDS", 0.01)
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(init_status(given, "init", running={}))
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    with pytest.raises(PlacementRefusedError, match="whether init container init has ended"):
        node.starter.prepare(SLOT)


def test_a_container_that_overlaps_another_is_refused_until_that_one_has_ended(node: Node) -> None:
    for name, slot in (("first", "slot-0"), ("second", "slot-1")):
        node.knows(pod(name, {"main": 60}))
        node.lists(name, "main", frozenset({slot}))
    node.starter.prepare(frozenset({"slot-0"}))
    with pytest.raises(PlacementRefusedError, match="40 percent of its time left, not 60") as refused:
        node.starter.prepare(frozenset({"slot-1"}))
    assert refused.value.pods == (("team", "second", "uid-second"),)
    gone = node.server.pop("first")
    node.pods.changed("DELETED", gone)
    node.starter.collect()
    assert node.starter.prepare(frozenset({"slot-1"})).pod == "second"
    assert len(node.specs()) == 1


def test_slots_are_another_pods_until_their_container_has_ended_as_far_as_the_agent_knows(node: Node) -> None:
    """The kubelet gives the slots of a pod that has ended to the next one, before the watch has brought the end.

    A runtime may make the next container from the CDI spec that it has read before, and a removal takes the new one.
    """
    for name in ("first", "second"):
        node.knows(pod(name, {"main": 30}))
    node.lists("first", "main")
    first = node.starter.prepare(SLOT)
    spec = node.folders.spec(first).read_text()
    node.listing.clear()
    node.lists("second", "main")
    with pytest.raises(PlacementRefusedError, match="slots of container main of pod team/first") as refused:
        node.starter.prepare(SLOT)
    assert (refused.value.cause, refused.value.pods) == (Cause.OVERLAP, (("team", "second", "uid-second"),))
    assert (node.starter.records(), node.folders.spec(first).read_text()) == ([first], spec)
    node.pods.changed("DELETED", node.server.pop("first"))
    node.starter.collect()
    second = node.starter.prepare(SLOT)
    assert (node.starter.records(), node.specs()) == ([second], {node.folders.spec(second).name})


def test_a_spec_goes_once_the_runtime_has_made_the_container_by_it(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    first = node.starter.prepare(SLOT)
    node.starter.remove_used_specs()
    assert len(node.specs()) == 1
    node.made_starts = frozenset({str(node.folders.start(first))})
    node.starter.remove_used_specs()
    assert (node.specs(), node.starter.records()) == (set(), [first])
    assert (node.folders.start(first) / "config").exists()
    node.starter.prepare(SLOT)
    node.starter.remove_used_specs()
    assert len(node.specs()) == 1, "the runtime still shows the start before"


def test_a_start_waits_where_the_runtime_may_know_the_spec_of_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd reads specs anew a moment after each change: it would make the container by the other's spec."""
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(given)
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    node.knows(init_status(given, "init", terminated={"exitCode": 0}))
    main = node.starter.prepare(SLOT)
    node.made_starts = frozenset({str(node.folders.start(main))})
    node.starter.remove_used_specs()
    node.starter.prepare(SLOT)
    first, replaced, removed = node.waited
    assert first == 0.0
    assert 0.0 < replaced <= SETTLE_SECONDS
    assert 0.0 < removed <= SETTLE_SECONDS
    node.made_starts = frozenset({str(node.folders.start(each)) for each in node.starter.records()})
    node.starter.remove_used_specs()
    later = time.monotonic() + SETTLE_SECONDS
    monkeypatch.setattr("nodeagent.starting.time.monotonic", lambda: later)
    node.starter.prepare(SLOT)
    assert node.waited[3] == 0.0, "the runtime has read that the spec is gone"


def test_a_start_waits_where_a_pod_that_has_just_ended_had_the_slots(node: Node) -> None:
    for name in ("first", "second"):
        node.knows(pod(name, {"main": 30}))
    node.lists("first", "main")
    node.starter.prepare(SLOT)
    node.listing.clear()
    node.lists("second", "main")
    node.pods.changed("DELETED", node.server.pop("first"))
    node.starter.collect()
    node.starter.prepare(SLOT)
    assert 0.0 < node.waited[1] <= SETTLE_SECONDS


def test_a_pod_that_is_newer_than_the_watch_is_not_collected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    node.server["train"] = pod("train", {"main": 30})
    node.lists("train", "main")
    record = node.starter.prepare(SLOT)
    node.starter.collect()
    assert node.starter.records() == [record]


def test_a_pod_that_the_watch_shows_to_have_ended_is_collected_without_a_question(node: Node) -> None:
    train = pod("train", {"main": 30})
    node.knows(train)
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    assert not node.starter.has_ended_ones()
    node.knows({**train, "status": {"phase": "Failed"}})
    assert node.starter.has_ended_ones()
    node.starter.collect()
    assert (node.starter.records(), node.asked) == ([], [])
    assert not node.starter.has_ended_ones()


def test_a_spec_that_the_host_does_not_remove_keeps_no_other_container_and_is_tried_again(node: Node) -> None:
    records = []
    for name, slot in (("first", "slot-0"), ("second", "slot-1")):
        node.knows(pod(name, {"main": 30}))
        node.lists(name, "main", frozenset({slot}))
        records.append(node.starter.prepare(frozenset({slot})))
        node.pods.changed("DELETED", node.server.pop(name))
    spec = node.folders.spec(records[0])
    spec.unlink()
    spec.mkdir()
    with pytest.raises(OSError, match=spec.name):
        node.starter.collect()
    assert node.starter.records() == records[:1]
    assert node.starter.has_ended_ones(), "it is tried again"
    spec.rmdir()
    node.starter.collect()
    assert node.starter.records() == []


@pytest.mark.parametrize("phase", [None, "Failed"], ids=["deleted by force", "marked by the pod garbage collector"])
def test_a_container_that_outlives_its_pod_keeps_its_piece_until_it_ends(node: Node, phase: str | None) -> None:
    for name, slot in (("first", "slot-0"), ("second", "slot-1")):
        node.knows(pod(name, {"main": 60}))
        node.lists(name, "main", frozenset({slot}))
    record = node.starter.prepare(frozenset({"slot-0"}))
    node.made = frozenset({("uid-first", "main")})
    first = node.server["first"]
    if phase is None:
        node.pods.changed("DELETED", node.server.pop("first"))
    else:
        node.knows({**first, "status": {"phase": phase}})
    for _ in range(2):
        node.starter.collect()
        assert node.starter.records() == [record]
        assert node.asked == [], "the API server need not say what the runtime shows"
    with pytest.raises(PlacementRefusedError, match="40 percent of its time left, not 60"):
        node.starter.prepare(frozenset({"slot-1"}))
    assert node.starter.has_ended_ones(), "it is looked at again"
    node.made = frozenset({("uid-second", "main")})
    node.starter.collect()
    assert node.starter.prepare(frozenset({"slot-1"})).pod == "second"


def test_an_agent_that_comes_back_knows_what_it_gave(node: Node) -> None:
    node.knows(pod("train", {"main": 60}))
    node.lists("train", "main")
    before = node.starter.prepare(SLOT)
    (node.folders.root / "containers" / "uid-gone" / "main" / "1").mkdir(parents=True)
    again = node.new_starter()
    again.recover()
    assert again.records() == [before]
    assert node.changes[-1] == ["train/main"]
    assert sorted(path.name for path in (node.folders.root / "containers").iterdir()) == ["uid-train"]
    restarted = again.prepare(SLOT)
    assert (restarted.start, restarted.devices[0].slot) == (2, before.devices[0].slot)


def test_the_writer_is_shown_before_the_container_may_start(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    assert node.changes == [["train/main"]]


def test_no_round_shows_the_writer_records_that_a_start_has_overtaken(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows, goes_on = threading.Event(), threading.Event()
    show = node.changed

    def shown_late(records: Iterable[Record]) -> None:
        if not shows.is_set():
            shows.set()
            goes_on.wait(60)
        show(records)

    node.knows(pod("train", {"main": 60}))
    node.lists("train", "main")
    monkeypatch.setattr(node, "changed", shown_late)
    node.starter = node.new_starter()
    a_round = threading.Thread(target=node.starter.show)
    a_round.start()
    assert shows.wait(60), "the round shows what it knows, which is nothing"
    start = threading.Thread(target=node.starter.prepare, args=(SLOT,))
    start.start()
    start.join(0.2)  # a start that did not wait for the round would show its record now
    goes_on.set()
    for thread in (a_round, start):
        thread.join()
    assert node.changes == [[], ["train/main"]]


def test_a_start_that_the_writer_cannot_be_shown_is_refused_until_the_host_has_room(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    node.has_room = False
    with pytest.raises(PlacementRefusedError, match="No space left") as refused:
        node.starter.prepare(SLOT)
    assert (refused.value.cause, refused.value.pods) == (Cause.NOT_PREPARED, (("team", "train", "uid-train"),))
    node.has_room = True
    assert shares([node.starter.prepare(SLOT)]) == {"main": 30}
    assert node.changes == [["train/main"]]


def test_a_start_that_waits_for_the_api_server_until_its_agent_has_ended_writes_nothing(node: Node) -> None:
    """The next agent may have prepared others meanwhile, whom the last one's schedule would lack."""
    node.lists("train", "main")
    node.server["train"] = pod("train", {"main": 30})
    asked, answers = threading.Event(), threading.Event()
    refused: list[PlacementRefusedError] = []

    def answer_late(_namespace: str, name: str) -> dict[str, Any]:
        asked.set()
        answers.wait(LIMIT_S)
        return node.server[name]

    def prepare() -> None:
        try:
            starter.prepare(SLOT)
        except PlacementRefusedError as error:
            refused.append(error)

    starter = node.new_starter(answer_late)
    start = threading.Thread(target=prepare)
    start.start()
    assert asked.wait(LIMIT_S)
    starter.end()
    answers.set()
    start.join(LIMIT_S)
    assert [(error.cause, error.pods) for error in refused] == [(Cause.NOT_PREPARED, (("team", "train", "uid-train"),))]
    assert (node.changes, node.specs()) == ([], set())
    assert shares([node.starter.prepare(SLOT)]) == {"main": 30}, "the next agent prepares it"


def test_an_agent_that_has_ended_leaves_removals_to_the_next_one(node: Node) -> None:
    train = pod("train", {"main": 30})
    node.knows(train)
    node.lists("train", "main")
    record = node.starter.prepare(SLOT)
    node.server.clear()
    node.pods.changed("DELETED", train)
    changes = list(node.changes)
    node.starter.end()
    node.starter.collect()
    assert (node.starter.records(), node.changes) == ([record], changes)
    assert node.folders.container(record).exists()


def test_a_start_whose_figures_do_not_fit_the_configuration_is_refused_and_its_pod_named(node: Node) -> None:
    uuid = "GPU-" + 60 * "a"
    device = replace(DEVICES[0], uuid=uuid)
    node.offer = Offer(Inventory("fake", "1", 64, (device,), ()), {uuid: EDITS["GPU-0"]})
    train = pod("train", {"main": 30})
    annotations = train["metadata"]["annotations"]
    annotations[names.ALLOCATION] = annotations[names.ALLOCATION].replace("GPU-0", uuid)
    node.knows(train)
    node.lists("train", "main")
    with pytest.raises(PlacementRefusedError, match="a uuid has 64 bytes") as refused:
        node.starter.prepare(SLOT)
    assert (refused.value.cause, refused.value.pods) == (Cause.NOT_PREPARED, (("team", "train", "uid-train"),))
    assert (node.starter.records(), node.specs()) == ([], set())


def test_a_gpu_that_is_no_longer_offered_starts_nothing(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    node.offer = replace(OFFER, inventory=replace(OFFER.inventory, devices=DEVICES[1:]))
    with pytest.raises(PlacementRefusedError, match="GPU-0 is not offered") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.cause is Cause.UNUSABLE_DEVICE


def test_each_of_two_live_pods_of_one_name_is_told(node: Node) -> None:
    both = [pod("train", {"main": 30}), pod("train", {"main": 30})]
    both[1]["metadata"]["uid"] = "uid-again"
    for each in both:
        node.knows(each)
    node.lists("train", "main")
    with pytest.raises(PlacementRefusedError, match="two live pods are called team/train") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.pods == (("team", "train", "uid-again"), ("team", "train", "uid-train"))


def test_a_pod_whose_init_containers_alone_ask_for_gpus_is_told(node: Node) -> None:
    alone = pod("alone", {}, {"init": 30})
    alone["spec"]["containers"] = [{"name": "main"}]
    done = init_status(pod("done", {}, {"init": 30}), "init", terminated={"exitCode": 0})
    done["spec"]["containers"] = [{"name": "main"}]
    for each in (alone, done, pod("other", {"main": 30}, {"init": 30})):
        node.knows(each)
    node.lists("other", "main", frozenset({"slot-9"}))
    with pytest.raises(PlacementRefusedError, match="the kubelet lists no container with the slots slot-0") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.pods == (("team", "alone", "uid-alone"),)


def test_each_pod_for_which_the_kubelet_lists_the_same_slots_is_told(node: Node) -> None:
    for name in ("one", "two"):
        node.knows(pod(name, {"main": 30}))
        node.lists(name, "main")
    with pytest.raises(PlacementRefusedError, match="for team/one, team/two") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.pods == (("team", "one", "uid-one"), ("team", "two", "uid-two"))


def test_a_pod_that_has_ended_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    node.server["train"] = {**pod("train", {"main": 30}), "status": {"phase": "Failed"}}
    node.lists("train", "main")
    with pytest.raises(PlacementRefusedError, match="has ended") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.pods == (("team", "train", "uid-train"),)


NEXT_SLOT = frozenset({"slot-1"})


def test_a_pod_made_anew_under_its_name_waits_until_the_kubelet_lists_the_old_one_no_more(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    node.lists("train", "main", NEXT_SLOT)
    for slots in (SLOT, NEXT_SLOT):
        with pytest.raises(PlacementRefusedError, match="lists two pods called team/train") as refused:
            node.starter.prepare(slots)
        assert (refused.value.cause, refused.value.pods) == (Cause.AMBIGUOUS, (("team", "train", "uid-train"),))
    assert (node.starter.records(), node.specs()) == ([], set())


def made_anew(name: str, gpu: str) -> dict[str, Any]:
    """Another pod of that name, as a StatefulSet makes it, which the scheduler placed on another GPU."""
    again = pod(name, {"main": 30})
    annotations = again["metadata"]["annotations"]
    annotations[names.ALLOCATION] = annotations[names.ALLOCATION].replace("GPU-0", gpu)
    again["metadata"]["uid"] = f"uid-{name}-again"
    return again


@pytest.fixture
def remade(node: Node) -> Node:
    """A pod that has a container was made anew; the kubelet and the API server have the new one, the watch the old."""
    node.knows(pod("train", {"main": 30}))
    node.made = frozenset({("uid-other", "main"), ("uid-train", "")})
    node.lists("train", "main")
    assert node.starter.prepare(SLOT).uid == "uid-train"
    node.server["train"] = made_anew("train", "GPU-1")
    node.made = frozenset({("uid-other", "main"), ("uid-train-again", "")})
    node.listing.clear()
    return node


def test_a_pod_made_anew_gets_its_own_gpu_while_the_watch_still_has_the_old_one(remade: Node) -> None:
    """An API server that is gone without a word is followed for minutes, and the kubelet may follow another one."""
    remade.lists("train", "main", NEXT_SLOT)
    again = remade.starter.prepare(NEXT_SLOT)
    assert (again.uid, [device.uuid for device in again.devices]) == ("uid-train-again", ["GPU-1"])


def test_a_pod_made_anew_waits_for_the_slots_of_the_old_one_while_the_watch_still_has_that(remade: Node) -> None:
    remade.lists("train", "main")
    with pytest.raises(PlacementRefusedError, match="which has not ended yet") as refused:
        remade.starter.prepare(SLOT)
    assert refused.value.pods == (("team", "train", "uid-train-again"),)
    remade.pods.replaced([remade.server["train"]])
    remade.starter.collect()
    assert [device.uuid for device in remade.starter.prepare(SLOT).devices] == ["GPU-1"]


def test_a_container_that_starts_again_asks_no_api_server(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.made = frozenset({("uid-train", "")})
    node.lists("train", "main")
    node.server.clear()
    assert [node.starter.prepare(SLOT).start for _ in range(2)] == [1, 2]
    assert node.asked == []


def test_a_late_call_for_a_pod_that_was_made_anew_leaves_no_spec_behind(node: Node) -> None:
    """The kubelet asks for the old pod while the API server has the new one alone."""
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    late = node.starter.prepare(SLOT)
    node.listing.clear()
    node.lists("train", "main", NEXT_SLOT)
    own = node.starter.prepare(NEXT_SLOT)
    assert node.starter.records() == [own]
    assert node.specs() == {node.folders.spec(own).name} != {node.folders.spec(late).name}
    assert own.devices[0].key != late.devices[0].key
    node.pods.changed("DELETED", node.server.pop("train"))
    node.starter.collect()
    assert node.specs() == set()


@pytest.fixture
def unread(node: Node) -> Starter:
    """An agent that came back after a later version, whose record of a container with 90 percent it cannot read."""
    node.knows(pod("newer", {"main": 90}))
    node.lists("newer", "main")
    record = node.starter.prepare(SLOT)
    path = node.folders.container(record) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "v": 2}))
    again = node.new_starter()
    again.recover()
    node.knows(pod("next", {"main": 90}))
    node.lists("next", "main", NEXT_SLOT)
    return again


def test_a_record_that_cannot_be_read_bars_its_gpu_until_its_pod_has_ended(node: Node, unread: Starter) -> None:
    unread.collect()
    with pytest.raises(PlacementRefusedError, match="uid-newer may hold GPU GPU-0, and this agent cannot") as refused:
        unread.prepare(NEXT_SLOT)
    assert (refused.value.cause, refused.value.pods) == (Cause.OVERLAP, (("team", "next", "uid-next"),))
    assert (node.folders.root / "containers" / "uid-newer" / "main" / "1" / "config").exists()
    node.pods.changed("DELETED", node.server.pop("newer"))
    unread.collect()
    assert not (node.folders.root / "containers" / "uid-newer").exists()
    assert shares([unread.prepare(NEXT_SLOT)]) == {"main": 90}


def test_a_record_that_cannot_be_read_bars_its_gpu_as_long_as_its_container_outlives_its_pod(
    node: Node, unread: Starter
) -> None:
    node.pods.changed("DELETED", node.server.pop("newer"))
    node.made = frozenset({("uid-newer", "main")})
    unread.collect()
    with pytest.raises(PlacementRefusedError, match="cannot read its record"):
        unread.prepare(NEXT_SLOT)
    node.made = frozenset()
    unread.collect()
    assert unread.prepare(NEXT_SLOT).pod == "next"


def test_a_container_whose_record_cannot_be_read_starts_again(node: Node, unread: Starter) -> None:
    assert shares([unread.prepare(SLOT)]) == {"main": 90}
    with pytest.raises(PlacementRefusedError, match="10 percent of its time left, not 90"):
        unread.prepare(NEXT_SLOT)
    assert len(node.specs()) == 1


def test_a_record_that_cannot_be_read_bars_no_other_gpu(node: Node, unread: Starter) -> None:
    other = pod("next", {"main": 90})
    text = other["metadata"]["annotations"][names.ALLOCATION].replace("GPU-0", "GPU-1")
    node.knows({**other, "metadata": {**other["metadata"], "annotations": {names.ALLOCATION: text}}})
    assert unread.prepare(NEXT_SLOT).devices[0].uuid == "GPU-1"


def test_a_record_of_a_pod_whose_allocation_cannot_be_read_either_bars_every_gpu(node: Node, unread: Starter) -> None:
    newer = pod("newer", {"main": 90})
    node.knows({**newer, "metadata": {**newer["metadata"], "annotations": {}}})
    other = pod("next", {"main": 90})
    text = other["metadata"]["annotations"][names.ALLOCATION].replace("GPU-0", "GPU-1")
    node.knows({**other, "metadata": {**other["metadata"], "annotations": {names.ALLOCATION: text}}})
    with pytest.raises(PlacementRefusedError, match="may hold GPU GPU-1"):
        unread.prepare(NEXT_SLOT)


class KilledError(BaseException):
    """SIGKILL in place of the system call that raises it: no handler of an error runs on the disk."""


SYSTEM_CALLS = ("mkdir", "open", "replace", "truncate", "fchmod", "unlink", "rmdir")


class Kills:
    """Ends the agent at one of its system calls that change files, counted from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.calls = 0
        self._at = at
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                raise KilledError
            return call(*arguments, **options)

        return counted


def killed(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> int:
    """Lets the agent act until it is killed at that call; returns how many calls it made."""
    with monkeypatch.context() as patched:
        kills = Kills(patched, at)
        with contextlib.suppress(KilledError):
            act()
    return kills.calls


def left(node: Node) -> set[str]:
    """All files of containers on the host, as far as they are the same for each start."""
    found = {str(path.relative_to(node.folder)) for path in node.folder.rglob("*") if path.is_file()}
    return {path for path in found if "/gpus/" not in path}


def test_an_agent_killed_at_any_step_of_a_start_starts_the_container_when_it_is_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = starting(tmp_path / "whole")
    steps = killed(monkeypatch, 0, lambda: whole.starter.prepare(SLOT))
    assert steps > 10, "the start makes many calls"
    for step in range(1, steps + 1):
        node = starting(tmp_path / str(step))
        killed(monkeypatch, step, partial(node.starter.prepare, SLOT))
        again = node.new_starter()
        again.recover()
        record = again.prepare(SLOT)
        assert node.specs() == whole.specs(), step
        expected = {path.replace("/main/1/", f"/main/{record.start}/") for path in left(whole)}
        assert left(node) == expected, step
        node.pods.changed("DELETED", node.server.pop("train"))
        again.collect()
        assert left(node) == set(), step


def starting(folder: Path) -> Node:
    """A node with one pod, whose container is about to start."""
    folder.mkdir()
    node = Node(folder)
    node.knows(pod("train", {"main": 60}))
    node.lists("train", "main")
    return node


def prepared(folder: Path) -> Node:
    """A node whose pod is gone again, with the files of its container."""
    node = starting(folder)
    node.starter.prepare(SLOT)
    node.pods.changed("DELETED", node.server.pop("train"))
    return node


def test_an_agent_killed_at_any_step_of_a_start_leaves_nothing_of_a_pod_that_is_gone_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = starting(tmp_path / "whole")
    steps = killed(monkeypatch, 0, lambda: whole.starter.prepare(SLOT))
    for step in range(1, steps + 1):
        node = starting(tmp_path / str(step))
        killed(monkeypatch, step, partial(node.starter.prepare, SLOT))
        node.pods.changed("DELETED", node.server.pop("train"))
        again = node.new_starter()
        again.recover()
        again.collect()
        assert left(node) == set(), step


def test_an_agent_killed_at_any_step_of_a_removal_removes_the_rest_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepared(tmp_path / "whole")
    steps = killed(monkeypatch, 0, whole.starter.collect)
    assert (left(whole), steps > 5) == (set(), True)
    for step in range(1, steps + 1):
        node = prepared(tmp_path / str(step))
        killed(monkeypatch, step, node.starter.collect)
        again = node.new_starter()
        again.recover()
        again.collect()
        assert left(node) == set(), step
        assert list((node.folders.root / "containers").iterdir()) == [], step


def test_a_static_pod_is_refused(node: Node) -> None:
    """Its mirror on the API server has no allocation: no scheduler has placed it."""
    static = pod("monitor-n1", {"main": 30})
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0"}
    node.knows(static)
    node.lists("monitor-n1", "main")
    with pytest.raises(PlacementRefusedError, match="was not placed by fairgpu-scheduler") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.cause is Cause.NO_ALLOCATION
