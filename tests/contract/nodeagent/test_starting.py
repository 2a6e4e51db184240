"""A container's start as the kubelet asks for it: its own files, or none and a reason."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
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
from nodeagent.starting import Starter, World

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

    def shown(group: Iterable[str]) -> list[dict[str, Any]]:
        return [{"name": each, "resources": {"limits": {"fairgpu.io/gpu": "1"}}} for each in group]

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

    def __post_init__(self) -> None:
        self.pods = NodePods(lambda: None, lambda _: None)
        self.folders = Folders(self.folder / "run", self.folder / "lib", self.folder / "cdi")
        self.starter = self.new_starter()

    def new_starter(self) -> Starter:
        world = World("n1", lambda: self.listing, self.pods, self.read_pod, lambda: self.offer, self.changed)
        return Starter(world, self.folders, Path("/shim"))

    def read_pod(self, _namespace: str, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if name not in self.server:
            raise ApiError(404, "NotFound", name)
        return self.server[name]

    def changed(self, records: Iterable[Record]) -> None:
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


def test_an_init_container_that_failed_starts_again_with_its_own_share(node: Node) -> None:
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


def test_a_start_that_stays_in_doubt_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.DOUBT_SECONDS", 0.01)
    given = pod("train", {"main": 20}, {"init": 10})
    node.knows(init_status(given, "init", running={}))
    node.lists("train", "main")
    node.starter.prepare(SLOT)
    with pytest.raises(PlacementRefusedError, match="whether init container init has ended"):
        node.starter.prepare(SLOT)


def test_what_overlaps_is_refused_until_the_other_is_gone(node: Node) -> None:
    for name, slot in (("first", "slot-0"), ("second", "slot-1")):
        node.knows(pod(name, {"main": 60}))
        node.lists(name, "main", frozenset({slot}))
    node.starter.prepare(frozenset({"slot-0"}))
    with pytest.raises(PlacementRefusedError, match="40 percent of its time left, not 60") as refused:
        node.starter.prepare(frozenset({"slot-1"}))
    assert refused.value.pod == ("team", "second", "uid-second")
    gone = node.server.pop("first")
    node.pods.changed("DELETED", gone)
    node.starter.collect()
    assert node.starter.prepare(frozenset({"slot-1"})).pod == "second"
    assert len(node.specs()) == 1


def test_a_pod_that_is_newer_than_the_watch_is_not_collected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    node.server["train"] = pod("train", {"main": 30})
    node.lists("train", "main")
    record = node.starter.prepare(SLOT)
    node.starter.collect()
    assert node.starter.records() == [record]


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


def test_a_gpu_that_is_no_longer_offered_starts_nothing(node: Node) -> None:
    node.knows(pod("train", {"main": 30}))
    node.lists("train", "main")
    node.offer = replace(OFFER, inventory=replace(OFFER.inventory, devices=DEVICES[1:]))
    with pytest.raises(PlacementRefusedError, match="GPU-0 is not offered") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.cause is Cause.UNUSABLE_DEVICE


class KilledError(BaseException):
    """SIGKILL in place of the system call that raises it: no handler of an error runs on the disk."""


SYSTEM_CALLS = ("mkdir", "open", "replace", "truncate", "fchmod")


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


def left(node: Node) -> set[str]:
    """All files of containers on the host, as far as they are the same for each start."""
    found = {str(path.relative_to(node.folder)) for path in node.folder.rglob("*") if path.is_file()}
    return {path for path in found if "/gpus/" not in path}


def test_an_agent_killed_at_any_step_of_a_start_starts_the_container_when_it_is_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(folder: Path, kill_at: int) -> tuple[Node, int]:
        folder.mkdir()
        node = Node(folder)
        node.knows(pod("train", {"main": 60}))
        node.lists("train", "main")
        with monkeypatch.context() as patched:
            kills = Kills(patched, kill_at)
            with contextlib.suppress(KilledError):
                node.starter.prepare(SLOT)
        return node, kills.calls

    whole, steps = start(tmp_path / "whole", kill_at=0)
    assert steps > 10, "the start makes many calls"
    for step in range(1, steps + 1):
        node, _ = start(tmp_path / str(step), step)
        again = node.new_starter()
        again.recover()
        record = again.prepare(SLOT)
        assert node.specs() == whole.specs(), step
        expected = {path.replace("/main/1/", f"/main/{record.start}/") for path in left(whole)}
        assert left(node) == expected, step
        node.pods.changed("DELETED", node.server.pop("train"))
        again.collect()
        assert left(node) == set(), step


def test_a_static_pod_is_refused(node: Node) -> None:
    """Its mirror on the API server has no allocation: no scheduler has placed it."""
    static = pod("monitor-n1", {"main": 30})
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0"}
    node.knows(static)
    node.lists("monitor-n1", "main")
    with pytest.raises(PlacementRefusedError, match="was not placed by fairgpu-scheduler") as refused:
        node.starter.prepare(SLOT)
    assert refused.value.cause is Cause.NO_ALLOCATION
