"""The node agent's conversation with a kubelet, over the kubelet's own protocol."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet import device_plugin
from nodeagent.kubelet.device_plugin import Checkpoint, Offered, Server, Slots, keep_registered, register
from nodeagent.kubelet.pod_resources import KubeletError, PodResources
from nodeagent.kubelet.registration import FIRST_DELAY_SECONDS, HIDDEN_SECONDS, UNFOLLOWED_SECONDS, Loss
from tests.support.background import in_background
from tests.support.fake_kubelet import FakeKubelet
from tests.support.other_plugin import another_plugin
from tests.support.waiting import wait_until

RESOURCE = "fairgpu.io/gpu"
A_WHILE = 1000.0


class Plugin:
    """A plugin that notes what it is asked to prepare."""

    def __init__(self) -> None:
        self.slots = Slots(Offered(("slot-0", "slot-1")))
        self.prepared: list[frozenset[str]] = []
        self.refusal = ""
        self.attempts: list[KubeletError | OSError | None] = []
        self.losses: list[Loss | None] = []
        self.replaced = 0
        self.shown = (True, "first")
        """True where the Node shows the slots, and the version of the status that the kubelet wrote last."""
        self.seconds = 0.0
        """The time of the plugin's clock, which passes where a test lets it."""

    def note_another(self) -> None:
        self.replaced += 1

    def prepare(self, slots: frozenset[str]) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        self.prepared.append(slots)

    @contextmanager
    def kept(self, folder: Path) -> Iterator[None]:
        stop = threading.Event()
        run = partial(
            keep_registered,
            folder,
            "fairgpu.sock",
            RESOURCE,
            self.slots,
            self.prepare,
            wait=lambda seconds: stop.wait(seconds / 20),
            attempted=self.attempts.append,
            looked=self.losses.append,
            shown=lambda: self.shown,
            replaced=self.note_another,
            now=lambda: self.seconds,
        )
        with in_background(run, stop.set):
            yield


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


def test_a_socket_that_the_host_does_not_allow_is_an_error_after_which_the_plugin_tries_again(
    tmp_path: Path, plugin: Plugin
) -> None:
    """As where the disk has no room for the socket."""
    with pytest.raises(OSError, match="cannot be listened on"):
        Server(tmp_path / "absent" / "fairgpu.sock", plugin.slots, plugin.prepare)


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


def test_a_kubelet_that_ends_before_it_follows_the_slots_waits_for_no_plugin(tmp_path: Path, plugin: Plugin) -> None:
    with plugin.kept(tmp_path):
        kubelet = FakeKubelet(tmp_path)
        with kubelet, contextlib.ExitStack() as slow:
            slow.enter_context(kubelet.slow())
            wait_until(lambda: kubelet.registered, "the plugin is registered")
            held = slow.pop_all()  # it ends while it has not asked yet
        held.close()
    assert kubelet.healthy[RESOURCE] == frozenset()


FOREIGN = ("foreign-0", "foreign-1")


def looks_again(plugin: Plugin) -> None:
    """Returns once the agent has looked at what is there now.

    A look that began before the kubelet followed the slots, and ends after the clock was moved, is one of a kubelet
    that has not followed them for long.
    """
    before = len(plugin.losses)
    wait_until(lambda: len(plugin.losses) >= before + 2, "a look has begun and ended")


def ours(kubelet: FakeKubelet) -> bool:
    """Whether the kubelet asks this plugin, and knows its slots."""
    return kubelet.registered[-1].endpoint == "fairgpu.sock" and kubelet.healthy.get(RESOURCE) == {"slot-0", "slot-1"}


def test_a_resource_that_another_plugin_registers_is_registered_again(kubelet: FakeKubelet, plugin: Plugin) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    looks_again(plugin)
    plugin.seconds = A_WHILE
    with another_plugin(kubelet.folder, RESOURCE, FOREIGN):
        wait_until(lambda: Loss.TAKEN in plugin.losses, "the agent has noticed")
        wait_until(lambda: ours(kubelet), "the kubelet asks the agent again")


def test_a_plugin_that_was_there_before_the_agent_is_noticed_though_the_kubelet_hides_it_from_then_on(
    tmp_path: Path, plugin: Plugin
) -> None:
    with FakeKubelet(tmp_path) as kubelet, another_plugin(tmp_path, RESOURCE, FOREIGN):
        wait_until(lambda: kubelet.healthy.get(RESOURCE) == set(FOREIGN), "the kubelet knows the other plugin's slots")
        with plugin.kept(tmp_path):
            wait_until(lambda: ours(kubelet), "the kubelet asks the agent")
            wait_until(lambda: plugin.replaced == 1, "the agent has noticed")
            looks_again(plugin)
            assert plugin.losses[-1] is None
            assert plugin.replaced == 1


def test_a_plugin_that_the_kubelet_leaves_before_the_agent_has_looked_again_is_noticed(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeKubelet(tmp_path) as kubelet, another_plugin(tmp_path, RESOURCE, FOREIGN):
        wait_until(lambda: kubelet.healthy.get(RESOURCE) == set(FOREIGN), "the kubelet knows the other plugin's slots")

        def register_and_be_followed(folder: Path, endpoint: str, resource: str) -> None:
            register(folder, endpoint, resource)
            wait_until(lambda: ours(kubelet), "the kubelet asks the agent")

        monkeypatch.setattr(device_plugin, "register", register_and_be_followed)
        with plugin.kept(tmp_path):
            wait_until(lambda: plugin.attempts, "the agent has registered")
            looks_again(plugin)
            assert plugin.replaced == 1


def test_a_plugin_that_is_alone_notices_no_other(kubelet: FakeKubelet, plugin: Plugin) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    kubelet.admit("uid-1", "main", RESOURCE, "slot-0")
    looks_again(plugin)
    assert plugin.replaced == 0


def test_another_plugin_that_names_its_slots_as_the_agent_does_is_noticed_by_its_first_container(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    kubelet.admit("uid-1", "main", RESOURCE, "slot-0")
    kubelet.admit("uid-1", "other", "example.com/nic", "slot-0")
    looks_again(plugin)
    with another_plugin(kubelet.folder, RESOURCE, ("slot-0", "slot-1")):
        looks_again(plugin)
        assert Loss.TAKEN not in plugin.losses
        plugin.seconds = A_WHILE
        kubelet.admit("uid-2", "main", RESOURCE, "slot-1")
        wait_until(lambda: Loss.TAKEN in plugin.losses, "the agent has noticed")
        wait_until(lambda: kubelet.registered[-1].endpoint == "fairgpu.sock", "the agent has registered again")
        looks_again(plugin)
        assert plugin.losses[-1] is None, "what was given before is no new answer"


def test_a_container_that_another_plugin_answers_before_the_agent_registers_again_is_of_before(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    with another_plugin(kubelet.folder, RESOURCE, FOREIGN):
        wait_until(lambda: plugin.losses[-1] is Loss.TAKEN, "the agent has noticed")
        kubelet.before_register = lambda: kubelet.admit("uid-1", "main", RESOURCE, "foreign-0")
        plugin.seconds = A_WHILE
        wait_until(lambda: ours(kubelet), "the kubelet asks the agent again")
        plugin.seconds += UNFOLLOWED_SECONDS / 2
        looks_again(plugin)
        assert plugin.losses[-1] is None


ENTRY = {"PodUID": "uid", "ContainerName": "main", "ResourceName": RESOURCE}


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"PodDeviceEntries": [{}], "RegisteredDevices": None},
        {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": ["slot-0"]}], "RegisteredDevices": {}},
        {
            "PodDeviceEntries": [{**ENTRY, "DeviceIDs": {"-1": ["slot-0"]}, "AllocResp": "AA=="}],
            "RegisteredDevices": {},
        },
    ],
)
def test_a_checkpoint_of_another_form_says_nothing(tmp_path: Path, data: object) -> None:
    (tmp_path / "checkpoint").write_text(json.dumps({"Data": data}))
    found = Checkpoint(tmp_path / "checkpoint", RESOURCE)
    assert (found.slots(), found.answered_by_others()) == ((), frozenset())


def test_a_checkpoint_that_cannot_be_read_once_says_what_it_said_before_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    found = Checkpoint(path, RESOURCE)

    def write(*slots: str) -> None:
        (tmp_path / "new").write_text(json.dumps({"Data": {"RegisteredDevices": {RESOURCE: slots}}}))
        (tmp_path / "new").replace(path)

    def fail(_: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    write("slot-0")
    assert found.slots() == ("slot-0",)
    write("foreign-0")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        assert found.slots() == ("slot-0",)
    assert found.slots() == ("foreign-0",)
    path.unlink()
    assert found.slots() == ()


def test_two_plugins_take_no_turns_while_the_agent_waits(kubelet: FakeKubelet, plugin: Plugin) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    looks_again(plugin)
    plugin.seconds = A_WHILE
    with another_plugin(kubelet.folder, RESOURCE, FOREIGN):
        wait_until(lambda: ours(kubelet), "the kubelet asks the agent again")
        looks_again(plugin)
        with another_plugin(kubelet.folder, RESOURCE, FOREIGN, "second.sock"):
            before = len(plugin.losses)
            wait_until(lambda: plugin.losses[before:].count(Loss.TAKEN) > 5, "the agent has looked some more times")
            assert kubelet.registered[-1].endpoint == "second.sock"
            plugin.seconds += FIRST_DELAY_SECONDS
            wait_until(lambda: ours(kubelet), "the kubelet asks the agent again")


def test_a_kubelet_that_is_slow_to_ask_for_the_slots_is_not_taken_for_one_that_another_plugin_has(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    looks_again(plugin)
    with another_plugin(kubelet.folder, RESOURCE, FOREIGN):
        wait_until(lambda: Loss.TAKEN in plugin.losses, "the agent has noticed")
        with kubelet.slow():
            plugin.seconds = A_WHILE
            wait_until(lambda: kubelet.registered[-1].endpoint == "fairgpu.sock", "the agent has registered again")
            wait_until(lambda: plugin.losses[-1] is None, "it counts on the kubelet")
            plugin.seconds += 5.0
            looks_again(plugin)
            assert plugin.losses[-1] is None
        wait_until(lambda: ours(kubelet), "the kubelet knows the slots again")
        looks_again(plugin)
        assert plugin.losses[-1] is None
        assert len(kubelet.registered) == 3


def test_the_kubelet_asks_the_agent_also_when_the_other_plugin_ends(kubelet: FakeKubelet, plugin: Plugin) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    looks_again(plugin)
    plugin.seconds = A_WHILE
    with another_plugin(kubelet.folder, RESOURCE, FOREIGN):
        wait_until(lambda: ours(kubelet) and len(kubelet.registered) == 3, "the kubelet asks the agent again")
    wait_until(lambda: not kubelet.healthy[RESOURCE], "the kubelet has stopped whom it asks, as the other's call ended")
    plugin.seconds += UNFOLLOWED_SECONDS
    looks_again(plugin)
    plugin.shown = (False, "second")
    looks_again(plugin)
    plugin.seconds += HIDDEN_SECONDS
    wait_until(lambda: ours(kubelet) and len(kubelet.registered) == 4, "the agent has registered again")
    assert Loss.HIDDEN in plugin.losses


def test_a_kubelet_that_ends_its_call_for_the_slots_is_registered_with_again(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    wait_until(lambda: ours(kubelet), "the kubelet knows the slots")
    kubelet.end_calls()
    wait_until(lambda: not kubelet.healthy[RESOURCE], "the kubelet has no slot any more")
    plugin.seconds = A_WHILE
    wait_until(lambda: ours(kubelet), "the agent has registered again")
    assert Loss.UNFOLLOWED in plugin.losses


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


def test_a_kubelet_that_limits_the_questions_is_asked_again(kubelet: FakeKubelet) -> None:
    kubelet.containers = [Listed("team", "train", "main", frozenset({"slot-0"}))]
    kubelet.takes_list = iter([False, False, True]).__next__
    client = PodResources(kubelet.pod_resources)
    assert client.listing(RESOURCE) == kubelet.containers
    client.close()


def test_a_kubelet_that_takes_no_question_is_an_error_that_says_so(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.kubelet.pod_resources.LIMIT_SECONDS", 0.1)
    kubelet.takes_list = lambda: False
    client = PodResources(kubelet.pod_resources)
    with pytest.raises(KubeletError, match="rejected by rate limit"):
        client.listing(RESOURCE)
    client.close()


def test_a_kubelet_that_is_away_is_an_error_that_says_so(tmp_path: Path) -> None:
    client = PodResources(tmp_path / "none.sock")
    with pytest.raises(KubeletError, match="PodResources"):
        client.listing(RESOURCE)
    client.close()
