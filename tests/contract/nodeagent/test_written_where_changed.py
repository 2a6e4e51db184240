"""The agent writes its Node and the page writer's input only where something has changed."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json
from nodeagent.containers.records import GivenDevice, Record
from nodeagent.node_object import read_node
from nodeagent.pages import SCHEDULE
from nodeagent.service import Agent
from nodeagent.settings import Kubelet, Nodeagent
from nodeagent.turns import Policy
from tests.support.fake_vendor import FakeVendor, gpus


class Server:
    """An API server with one Node, which takes patches."""

    def __init__(self) -> None:
        self.node: Json = {"metadata": {"name": "node", "resourceVersion": "1"}, "status": {"capacity": {}}}
        self.is_away = False
        self.asked = 0

    def noting(self, _answered: object) -> Server:
        return self

    def patch(self, _path: str, patch: Json) -> Json:
        self.asked += 1
        if self.is_away:
            raise ApiError(0, "", "no answer")
        for part, fields in patch.items():
            for key, value in fields.items():
                self.node[part].setdefault(key, {}).update(value)
        self.has_changed()
        return self.node

    def create(self, _path: str, event: Json) -> Json:
        return event

    def set_capacity(self, amount: str) -> None:
        """Sets the capacity of GPU time, as a kubelet that overwrites the Node's status does."""
        self.node["status"]["capacity"][names.GPU_CORE] = amount
        self.has_changed()

    def has_changed(self) -> None:
        self.node["metadata"]["resourceVersion"] += "1"

    @property
    def capacity(self) -> str:
        found: str = self.node["status"]["capacity"][names.GPU_CORE]
        return found


class Written:
    """An agent that never ran, its server, and its file for the page writer."""

    def __init__(self, folder: Path) -> None:
        settings = Nodeagent(
            node="node",
            run_folder=folder / "run",
            shim_folder=folder / "shim",
            shim=folder / "libvcuda.so.1",
            cdi_folder=folder / "cdi",
            bundles=folder / "bundles",
            runtime_socket=folder / "runtime.sock",
            kubelet=Kubelet(device_plugins=folder, pods=folder / "pods", pod_resources=folder / "pod-resources.sock"),
        )
        self.server = Server()
        self.vendor = FakeVendor(gpus(2))
        self.agent = Agent(settings, self.server, self.vendor)  # type: ignore[arg-type]
        self.schedule = settings.run_folder / SCHEDULE

    def write_node(self) -> int:
        """Lets the agent write the Node as the API server has it; returns how often it asked the API server."""
        before = self.server.asked
        self.agent._open_or_withhold(read_node(copy.deepcopy(self.server.node)))
        self.agent._write_what_is_left()
        return self.server.asked - before


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def record(uid: str, slot: int) -> Record:
    device = GivenDevice("GPU-0", 30, 1024, slot, 7 + slot)
    return Record("team", "pod", uid, "main", frozenset({uid}), 1, False, Policy.HARD, 1, (device,))


def test_a_container_whose_start_the_host_did_not_take_is_missing_on_no_page_once_it_is_gone(written: Written) -> None:
    agent, schedule = written.agent, written.schedule
    agent._publish([])
    schedule.unlink()
    schedule.mkdir()  # a host that takes no new file in its place
    with pytest.raises(OSError, match=SCHEDULE):
        agent._publish([record("refused", 0)])
    assert agent._writer.outdated_pages() == 1
    schedule.rmdir()
    agent._publish([])
    assert agent._writer.outdated_pages() == 0
    assert json.loads(schedule.read_bytes()) == {"gpus": []}


def test_a_node_that_was_right_is_written_again_where_its_status_its_gpus_or_its_pods_are_others(
    written: Written,
) -> None:
    agent, server = written.agent, written.server
    agent._look()
    assert written.write_node() == 2
    assert [written.write_node(), written.write_node(), server.capacity] == [0, 0, "200"]
    server.set_capacity("0")
    assert [written.write_node(), written.write_node(), server.capacity] == [1, 0, "200"]
    written.vendor.faults["GPU-1"] = "Xid 79"
    agent._look()
    assert [written.write_node(), written.write_node(), server.capacity] == [2, 0, "100"]
    limits = {names.GPU_CORE: "130"}
    pod = {"metadata": {"uid": "u"}, "spec": {"containers": [{"resources": {"limits": limits}}]}, "status": {}}
    agent._pods.changed("ADDED", pod)
    assert [written.write_node(), written.write_node(), server.capacity] == [1, 0, "130"]


def test_a_node_that_the_api_server_did_not_let_be_written_is_tried_again(written: Written) -> None:
    server = written.server
    written.agent._look()
    written.write_node()
    assert written.write_node() == 0
    server.set_capacity("0")
    server.is_away = True
    assert [written.write_node(), written.write_node()] == [1, 1]
    server.is_away = False
    assert [written.write_node(), server.capacity] == [1, "200"]
