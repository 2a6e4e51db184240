"""An API server that swallows requests delays neither a round, nor the look at the driver, nor the kubelet's answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json
from nodeagent.containers.folders import LEDGER_BYTES
from nodeagent.containers.refusal import PlacementRefusedError
from nodeagent.containers.resolving import Listed
from nodeagent.kubelet.registration import Loss
from nodeagent.service import Agent
from nodeagent.settings import Kubelet, Nodeagent
from tests.support.background import in_background
from tests.support.fake_vendor import MEMORY_MIB, FakeVendor, gpus
from tests.support.waiting import LIMIT_S, wait_until

OF_ONE_GPU = {
    "fairgpu.io/gpu-core": "100",
    "fairgpu.io/gpu-memory": str(MEMORY_MIB),
    "fairgpu.io/gpu-memory-percentage": "100",
}
"""The capacity of one GPU."""


def pod(**annotations: str) -> Json:
    """A pod whose container has a slot."""
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "1000"}
    return {
        "metadata": {"namespace": "team", "name": "train", "uid": "uid-train", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {},
    }


class Server:
    """An API server that answers no request before a test lets it."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.events: list[Json] = []
        self.patches: list[Json] = []

    def get(self, path: str) -> Json:
        self.asked.set()
        self.answers.wait()
        raise ApiError(404, "NotFound", path)

    def create(self, _path: str, event: Json) -> Json:
        self.asked.set()
        self.answers.wait()
        self.events.append(event)
        return event

    def patch(self, _path: str, patch: Json) -> Json:
        self.asked.set()
        self.answers.wait()
        self.patches.append(patch)
        return patch

    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.events)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.answers.set()


@pytest.fixture
def vendor() -> FakeVendor:
    return FakeVendor(gpus(2))


@pytest.fixture
def agent(tmp_path: Path, server: Server, vendor: FakeVendor) -> Iterator[Agent]:
    """An agent of which only the thread that writes events runs."""
    settings = Nodeagent(
        node="node",
        run_folder=tmp_path / "run",
        shim_folder=tmp_path / "shim",
        shim=tmp_path / "libvcuda.so.1",
        cdi_folder=tmp_path / "cdi",
        bundles=tmp_path / "bundles",
        runtime_socket=tmp_path / "runtime.sock",
        kubelet=Kubelet(device_plugins=tmp_path, pods=tmp_path / "pods", pod_resources=tmp_path / "pod-resources.sock"),
    )
    made = Agent(settings, server, vendor)  # type: ignore[arg-type]

    def end() -> None:
        server.answers.set()
        made._events.end()

    with in_background(made._events.write, end):
        yield made


def test_the_driver_is_read_and_each_warning_is_written_once_the_server_answers(
    agent: Agent, server: Server, vendor: FakeVendor
) -> None:
    vendor.faults = {"GPU-0": "Xid 79", "GPU-1": "Xid 79"}
    agent._look()
    wait_until(server.asked.is_set, "the first event is on its way")
    before = agent._answered_at
    agent._look()
    assert agent._answered_at > before, "the driver has answered again meanwhile"
    assert server.events == []
    server.answers.set()
    wait_until(lambda: server.reasons() == ["GPUFenced"] * 2, "the Node says so of each GPU")


def test_a_refusal_reaches_the_kubelet_and_a_warning_that_is_given_once_waits_for_the_server(
    agent: Agent, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent._resources, "listing", lambda _: [Listed("team", "train", "main", frozenset({"slot-0"}))])
    monkeypatch.setattr("nodeagent.starting.WATCH_SECONDS", 0.01)
    agent._pods.replaced([pod()])
    agent._shim_tried.set()
    with pytest.raises(PlacementRefusedError, match="no annotation"):
        agent._prepare(frozenset({"slot-0"}))
    agent._note_loss(Loss.TAKEN)
    agent._note_loss(None)
    assert server.events == []
    server.answers.set()
    wait_until(lambda: server.reasons() == ["PlacementRefused", "ResourceTaken"], "both are written")


def test_a_round_goes_on_while_the_node_is_written_and_the_node_gets_what_is_known_last(
    agent: Agent, server: Server, vendor: FakeVendor
) -> None:
    def end() -> None:
        server.answers.set()
        agent.stop()

    node = {"metadata": {"name": "node", "resourceVersion": "1"}, "status": {"capacity": {}}}
    agent._look()
    with in_background(agent._write_node, end):
        agent._open_or_withhold(node)
        wait_until(server.asked.is_set, "the inventory is on its way")
        vendor.devices = gpus(1)
        agent._look()
        agent._open_or_withhold(node)
        assert server.patches == []
        server.answers.set()

        def next_round() -> bool:
            agent._open_or_withhold(node)
            return {"status": {"capacity": OF_ONE_GPU}} in server.patches

        wait_until(next_round, "the capacity of one GPU is written")


def prepared(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepares a container with a piece of GPU-0, and lets no writer of pages run; returns the container's ledger."""
    monkeypatch.setattr(agent._resources, "listing", lambda _: [Listed("team", "train", "main", frozenset({"slot-0"}))])
    monkeypatch.setattr(agent._writer, "keep", lambda: None)
    device = {"uuid": "GPU-0", "model": "Fake GPU", "totalMiB": MEMORY_MIB, "core": 30, "memoryMiB": 1000}
    allocation = {"v": 1, "node": "node", "containers": [{"name": "main", "devices": [device]}]}
    agent._look()
    agent._pods.replaced([pod(**{names.ALLOCATION: json.dumps(allocation)})])
    agent._starter.shim = Path("/shim")
    return Path(agent._folders.ledger(agent._starter.prepare(frozenset({"slot-0"}))))


def test_a_ledger_that_its_container_made_longer_is_cut_while_the_server_is_silent_and_the_pod_is_told(
    agent: Agent, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = prepared(agent, monkeypatch)
    for _ in range(2):
        with ledger.open("ab") as file:
            file.write(bytes(1 << 20))
        agent._round()
        assert ledger.stat().st_size == LEDGER_BYTES
    assert server.events == []
    server.answers.set()
    wait_until(lambda: server.reasons() == ["LedgerTooLong"], "the pod has one event")
    assert server.events[0]["involvedObject"]["uid"] == "uid-train"


def test_rounds_go_on_while_the_server_is_asked_whether_a_pod_that_has_gone_lives(
    agent: Agent, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        server.answers.set()
        agent.stop()

    prepared(agent, monkeypatch)
    agent._pods.replaced([])
    with in_background(agent._collect, end):
        for _ in range(2):
            a_round = threading.Thread(target=agent._round, daemon=True)
            a_round.start()
            wait_until(server.asked.is_set, "the server is asked for the pod")
            a_round.join(LIMIT_S)
            assert not a_round.is_alive()
        assert len(agent._starter.records()) == 1, "the pod may live"
        server.answers.set()
        wait_until(lambda: agent._starter.records() == [], "the container is collected")
