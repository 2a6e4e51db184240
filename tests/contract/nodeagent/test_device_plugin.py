"""The node agent's conversation with a kubelet, over the kubelet's own protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet.device_plugin import Offered, Slots, keep_registered
from nodeagent.kubelet.pod_resources import KubeletError, PodResources
from tests.support.fake_kubelet import FakeKubelet
from tests.support.waiting import wait_until

RESOURCE = "fairgpu.io/gpu"


class Plugin:
    """A plugin that notes what it is asked to prepare."""

    def __init__(self) -> None:
        self.slots = Slots(Offered(("slot-0", "slot-1")))
        self.prepared: list[frozenset[str]] = []
        self.refusal = ""
        self.attempts: list[KubeletError | OSError | None] = []

    def prepare(self, slots: frozenset[str]) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        self.prepared.append(slots)

    @contextmanager
    def kept(self, folder: Path) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(
            target=keep_registered,
            args=(folder, "fairgpu.sock", RESOURCE, self.slots, self.prepare),
            kwargs={"wait": lambda seconds: stop.wait(seconds / 20), "attempted": self.attempts.append},
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
def kubelet(tmp_path: Path, plugin: Plugin) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path) as kubelet, plugin.kept(tmp_path):
        wait_until(lambda: kubelet.registered, "the plugin is registered")
        yield kubelet


def test_the_plugin_registers_its_resource_and_wants_to_hear_of_each_start(kubelet: FakeKubelet) -> None:
    (request,) = kubelet.registered
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "fairgpu.sock", RESOURCE)
    assert request.options.pre_start_required
    with kubelet.plugin() as client:
        assert client.options().pre_start_required


def test_slots_that_change_are_shown_at_once(kubelet: FakeKubelet, plugin: Plugin) -> None:
    with kubelet.plugin() as client:
        devices = client.devices()
        first = next(devices)
        plugin.slots.replace(Offered(("slot-0",)))
        second = next(devices)
        plugin.slots.replace(Offered(("slot-0",), open=False))
        third = next(devices)
        devices.cancel()
    assert [(each.ID, each.health) for each in first.devices] == [("slot-0", "Healthy"), ("slot-1", "Healthy")]
    assert [each.ID for each in second.devices] == ["slot-0"]
    assert [(each.ID, each.health) for each in third.devices] == [("slot-0", "Unhealthy")]


def test_a_container_is_allocated_one_cdi_device_by_its_slots(kubelet: FakeKubelet) -> None:
    with kubelet.plugin() as client:
        first, second = client.allocate(["slot-1", "slot-0"], ["slot-2"])
        assert client.allocate(["slot-0", "slot-1"]) == [first]
    assert first != second
    assert [name.partition("=")[0] for name in first] == ["fairgpu.io/container"]


def test_a_start_is_prepared_by_its_slots_and_a_refusal_reaches_the_kubelet(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    with kubelet.plugin() as client:
        client.pre_start("slot-1", "slot-0")
        assert plugin.prepared == [frozenset({"slot-0", "slot-1"})]
        plugin.refusal = "the pod has no allocation"
        with pytest.raises(grpc.RpcError, match="the pod has no allocation"):
            client.pre_start("slot-1")


def test_a_kubelet_that_comes_back_is_registered_with_again(tmp_path: Path, plugin: Plugin) -> None:
    with plugin.kept(tmp_path):
        for _ in range(2):
            with FakeKubelet(tmp_path) as kubelet:
                wait_until(lambda: kubelet.registered, "the plugin is registered")
                with kubelet.plugin() as client:
                    client.pre_start("slot-1")
    assert plugin.prepared == [frozenset({"slot-1"})] * 2


def test_a_kubelet_that_refuses_is_asked_again(tmp_path: Path, plugin: Plugin) -> None:
    with FakeKubelet(tmp_path) as kubelet:
        kubelet.refuse = "unsupported version"
        with plugin.kept(tmp_path):
            error = wait_until(lambda: plugin.attempts and plugin.attempts[0], "the refusal is reported")
            assert "unsupported version" in str(error)
            kubelet.refuse = ""
            wait_until(lambda: kubelet.registered, "the plugin is registered")


def test_the_kubelets_list_is_the_union_over_the_devices_of_a_container(kubelet: FakeKubelet) -> None:
    kubelet.containers = [Listed("team", "train", "main", frozenset({"slot-0", "slot-1"}))]
    client = PodResources(kubelet.pod_resources)
    assert client.listing(RESOURCE) == kubelet.containers
    assert client.listing("example.com/other") == []
    client.close()


def test_a_kubelet_that_is_away_is_an_error_that_says_so(tmp_path: Path) -> None:
    client = PodResources(tmp_path / "none.sock")
    with pytest.raises(KubeletError, match="PodResources"):
        client.listing(RESOURCE)
    client.close()
