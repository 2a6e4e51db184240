"""The whole node agent beside a real API server; the kubelet's sockets and the GPUs are what a test says."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from fairgpu import keeping, names
from fairgpu.cluster.api import ApiError
from nodeagent import handover, offer, service, starting, writer_process
from nodeagent.containers.records import GivenDevice, Record, encode
from nodeagent.containers.resolving import Listed
from nodeagent.driver_figures import DriverSample
from nodeagent.offer import Offer
from nodeagent.pages import SCHEDULE, last_write_ns
from nodeagent.service import Agent
from nodeagent.settings import Kubelet, Nodeagent
from nodeagent.turns import Policy
from nodeagent.whole_gpus import MOST_MEASURED_NS
from sidecar.usage_record import read_usage
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import StandInNode, bind, create_node, forged_allocation
from tests.cluster.installation import Manifest
from tests.cluster.pods import canonical_pod
from tests.support.background import in_background
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fake_runtime import runtime_that_hangs, runtime_with_cdi, runtime_without_cri
from tests.support.fake_vendor import MEMORY_MIB, FakeVendor, gpus
from tests.support.other_plugin import another_plugin
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S, wait_until

SLOT = "slot-0"


@dataclass
class Machine:
    """A node with an agent that a test starts and ends."""

    plane: ControlPlane
    node: StandInNode
    folder: Path
    kubelet: FakeKubelet
    vendor: FakeVendor
    runtime_socket: Path

    @property
    def settings(self) -> Nodeagent:
        folder = self.folder
        sockets = self.kubelet.folder
        return Nodeagent(
            node=self.node.name,
            run_folder=folder / "run",
            shim_folder=folder / "shim",
            shim=folder / "libvcuda.so.1",
            cdi_folder=folder / "cdi",
            bundles=folder / "bundles",
            runtime_socket=self.runtime_socket,
            look_seconds=0.1,
            metrics_host="127.0.0.1",
            metrics_port=free_port(),
            kubelet=Kubelet(device_plugins=sockets, pods=folder / "pods", pod_resources=self.kubelet.pod_resources),
        )

    @contextmanager
    def agent(self) -> Iterator[int]:
        """The agent, registered with the kubelet, until the end of the block; gives the port of its metrics."""
        before = len(self.kubelet.registered)
        with self.process() as port:
            wait_until(lambda: len(self.kubelet.registered) > before, "the agent has registered")
            yield port

    @contextmanager
    def process(self) -> Iterator[int]:
        """An agent that acts or stands by, until the end of the block; gives the port of its metrics."""
        settings = self.settings
        agent = Agent(settings, self.plane.admin.api, self.vendor)
        with in_background(agent.run, agent.stop):
            yield settings.metrics_port

    def place(self, namespace: str, name: str, slot: str = SLOT) -> dict[str, Any]:
        """A pod with a part of the first GPU, for which the kubelet lists the slot."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        pod = self.plane.admin.api.create(pods, canonical_pod(name))
        allocation = forged_allocation(pod, self.node.name, total_mib=MEMORY_MIB)
        allocation["containers"][0]["devices"][0]["uuid"] = "GPU-0"
        bind(self.plane.service_account("fairgpu-system", "fairgpu-scheduler"), pod, self.node.name, allocation)
        self.kubelet.containers = [*self.kubelet.containers, Listed(namespace, name, "main", frozenset({slot}))]
        return self.plane.admin.api.get(f"{pods}/{name}")

    def start(self, slot: str = SLOT) -> str:
        """Lets the kubelet start the container with the slot; returns why it must not, or nothing."""
        with self.kubelet.plugin() as plugin:
            try:
                plugin.pre_start(slot)
            except grpc.RpcError as error:
                return str(error)
        return ""

    def folder_of(self, pod: dict[str, Any]) -> Path:
        """Returns the folder in which the agent keeps a pod's files."""
        return self.folder / "run" / "containers" / str(pod["metadata"]["uid"])

    def writer(self) -> int:
        """The process id of the writer of the pages."""
        root = str(self.folder / "run").encode()
        children = (int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split())
        (found,) = (pid for pid in children if root in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        return found

    def notices(self) -> list[int]:
        """The notice of each container of which the writer of the pages knows."""
        try:
            schedule = json.loads((self.folder / "run" / SCHEDULE).read_bytes())
        except FileNotFoundError:
            return []
        return [container["noticeNs"] for gpu in schedule["gpus"] for container in gpu["containers"]]

    def events(self, about: str, reason: str, namespace: str = "default") -> list[str]:
        """The messages of an object's events of a kind; a Node's bear its name for a uid."""
        query = {"fieldSelector": f"involvedObject.uid={about},reason={reason}"}
        found = self.plane.admin.api.get(f"/api/v1/namespaces/{namespace}/events", query)
        return [event["message"] for event in found["items"]]

    def says_at(self, pod: dict[str, Any], why: str) -> bool:
        """Returns whether an event of a pod gives this reason for a refused start; another start may have another."""
        metadata = pod["metadata"]
        return any(why in each for each in self.events(metadata["uid"], "PlacementRefused", metadata["namespace"]))


def lives(port: int) -> bool:
    """Returns whether an agent answers the kubelet's liveness probe."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def series(port: int) -> dict[str, float] | None:
    """An agent's metrics; None before it listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.URLError:
        return None
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def shown(port: int, name: str) -> float:
    """The value of a series among an agent's metrics."""
    found = series(port)
    assert found is not None
    return found[name]


@pytest.fixture
def make_machine(
    control_plane: ControlPlane, installation: list[Manifest], tmp_path: Path
) -> Iterator[Callable[[str], Machine]]:
    assert installation
    made: list[str] = []
    (tmp_path / "libvcuda.so.1").write_bytes(b"shim")
    (tmp_path / "sockets").mkdir()
    runtime = tmp_path / "runtime.sock"
    with FakeKubelet(tmp_path / "sockets") as kubelet, runtime_with_cdi(runtime, tmp_path / "cdi"):

        def make(name: str) -> Machine:
            made.append(name)
            node = create_node(control_plane, name, gpus=2, memory_mib=MEMORY_MIB)
            return Machine(control_plane, node, tmp_path, kubelet, FakeVendor(gpus(2)), runtime)

        yield make
    for name in made:
        control_plane.admin.api.delete(f"/api/v1/nodes/{name}")


def test_an_agent_that_starts_while_the_driver_is_silent_does_all_that_needs_no_driver(
    make_machine: Callable[[str], Machine], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "SILENT_AFTER_SECONDS", 0.0)
    machine = make_machine("silent-driver")
    api = machine.plane.admin.api
    with machine.agent():
        stays, goes = machine.place(namespace, "stays"), machine.place(namespace, "goes", "slot-1")
        wait_until(lambda: machine.start() == "", "the one container may start")
        wait_until(lambda: machine.start("slot-1") == "", "the other may, too")
    api.delete(f"/api/v1/namespaces/{namespace}/pods/goes", {"gracePeriodSeconds": 0})
    machine.vendor.silent = True
    with machine.agent():
        wait_until(lambda: machine.events(machine.node.name, "DriverSilent"), "the Node says so")
        wait_until(lambda: not machine.folder_of(goes).exists(), "the files of the pod that is gone are removed")
        assert machine.folder_of(stays).exists()
        at = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
        timekeeper = machine.plane.service_account("fairgpu-system", "fairgpu-timekeeper")
        notice = {"metadata": {"annotations": {names.EVICTION_AT: at}}}
        timekeeper.api.patch(f"/api/v1/namespaces/{namespace}/pods/stays", notice)
        wait_until(lambda: all(machine.notices()) and machine.notices(), "the notice is passed on")
        assert "their driver has not answered" in machine.start()
        wait_until(lambda: machine.says_at(stays, "their driver has not answered"), "the pod says why")
        machine.vendor.silent = False
        wait_until(lambda: machine.start() == "", "the container starts again once the driver answers")


def test_a_node_on_which_another_plugin_registers_the_resource_says_so_and_goes_on(
    make_machine: Callable[[str], Machine],
) -> None:
    machine = make_machine("taken-resource")
    slots = {f"slot-{number}" for number in range(128)}
    with machine.agent():
        wait_until(lambda: machine.kubelet.healthy.get(names.GPU) == slots, "the kubelet knows the agent's slots")
        with another_plugin(machine.kubelet.folder, names.GPU, ("foreign-0",)):
            (message, *_) = wait_until(lambda: machine.events(machine.node.name, "ResourceTaken"), "the Node says so")
            assert "another device plugin has registered fairgpu.io/gpu" in message
            wait_until(
                lambda: machine.kubelet.registered[-1].endpoint == "fairgpu.sock", "the agent has registered again"
            )
            wait_until(lambda: machine.kubelet.healthy[names.GPU] == slots, "the kubelet knows the agent's slots again")


def test_a_node_on_which_another_plugin_had_the_resource_before_says_so_even_before_the_agent_has_read_the_node(
    make_machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "_watch_node", lambda agent: agent._stop.wait())
    machine = make_machine("had-resource")
    folder = machine.kubelet.folder
    with another_plugin(folder, names.GPU, ("foreign-0",)):
        wait_until(lambda: machine.kubelet.healthy.get(names.GPU) == {"foreign-0"}, "the kubelet knows its slots")
        with machine.agent():
            (message, *_) = wait_until(lambda: machine.events(machine.node.name, "ResourceTaken"), "the Node says so")
            assert "had registered fairgpu.io/gpu" in message


ANSWERED = "fairgpu_nodeagent_driver_answered_timestamp_seconds"
CONFIRMED = 'fairgpu_nodeagent_watch_confirmed_timestamp_seconds{collection="%s"}'


def test_the_metrics_say_when_the_driver_and_the_api_server_last_answered(
    make_machine: Callable[[str], Machine],
) -> None:
    machine = make_machine("answered")
    machine.vendor.silent = True
    before = time.time()
    with machine.agent() as port:
        began = shown(port, ANSWERED)
        assert began >= before, "what was never read is as old as the agent"
        for collection in ("pods", "nodes", "resourceslices"):
            wait_until(lambda each=collection: shown(port, CONFIRMED % each) > began, f"the {collection} are known")
        assert shown(port, ANSWERED) == began
        machine.vendor.silent = False
        wait_until(lambda: shown(port, ANSWERED) > began, "the driver has answered")
        first = shown(port, ANSWERED)
        wait_until(lambda: shown(port, ANSWERED) > first, "and again")


def test_an_agent_whose_driver_was_replaced_ends_so_that_the_kubelet_starts_it_with_the_new_library(
    make_machine: Callable[[str], Machine],
) -> None:
    machine = make_machine("replaced-driver")
    agent = Agent(machine.settings, machine.plane.admin.api, machine.vendor)
    with in_background(agent.run, agent.stop):
        wait_until(lambda: machine.kubelet.registered, "the agent has registered")
        machine.vendor.replaced = True
        wait_until(agent._stop.is_set, "it ends")


def test_an_agent_that_waits_for_another_ones_end_shows_no_metric_that_an_alert_reads(
    make_machine: Callable[[str], Machine],
) -> None:
    machine = make_machine("stands-by")
    with machine.agent() as acting, machine.process() as waiting:
        wait_until(lambda: series(waiting) is not None, "the second agent answers the kubelet's probes")
        assert series(waiting) == {}
        wait_until(lambda: shown(acting, "fairgpu_nodeagent_registered") == 1, "the first says that it is registered")


def test_a_node_whose_resource_slices_cannot_be_read_offers_nothing_and_says_why(
    make_machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ApiError(403, "Forbidden", "resourceslices is forbidden")

    monkeypatch.setattr(service, "slices_of", refuse)
    machine = make_machine("unread-slices")
    with machine.agent() as port:
        (message, *_) = wait_until(
            lambda: machine.events(machine.node.name, "ResourceSlicesNotRead"), "the Node says so"
        )
        assert "resourceslices is forbidden" in message
        wait_until(
            lambda: shown(port, CONFIRMED % "resourceslices") < shown(port, CONFIRMED % "pods"),
            "the slices' time stays that of the agent's beginning",
        )
        assert shown(port, "fairgpu_nodeagent_offering") == 0
        assert not machine.kubelet.healthy.get(names.GPU)


RUNTIME_ANSWERED = "fairgpu_nodeagent_runtime_answered_timestamp_seconds"
OFFERING = "fairgpu_nodeagent_offering"


@pytest.mark.parametrize(
    ("runtime", "event", "until"),
    [
        (runtime_that_hangs, "RuntimeSilent", "until it answers at nodeagent.runtime_socket"),
        (lambda _: contextlib.nullcontext(), "RuntimeSilent", "until it answers at nodeagent.runtime_socket"),
        (runtime_without_cri, "RuntimeRefuses", "until it answers; let the setting name"),
    ],
    ids=["hangs", "is-away", "is-no-runtime"],
)
def test_a_node_whose_runtime_has_not_said_since_the_agents_start_how_it_is_configured_offers_nothing_and_says_why(
    request: pytest.FixtureRequest,
    make_machine: Callable[[str], Machine],
    runtime: Callable[[Path], AbstractContextManager[None]],
    event: str,
    until: str,
) -> None:
    machine = make_machine(f"runtime-{request.node.callspec.id}")  # the events of one case are no other's
    machine.runtime_socket = machine.folder / "late.sock"
    with machine.agent() as port:
        began = shown(port, RUNTIME_ANSWERED)
        with runtime(machine.runtime_socket):
            (message, *_) = wait_until(lambda: machine.events(machine.node.name, event), "the Node says so")
            assert f"FairGPU offers nothing new here {until}" in message
            assert shown(port, OFFERING) == 0
            assert not machine.kubelet.healthy.get(names.GPU)
            assert shown(port, RUNTIME_ANSWERED) == began
        with capture_logs() as logs:
            with runtime_with_cdi(machine.runtime_socket, machine.folder / "cdi"):
                wait_until(lambda: shown(port, OFFERING) == 1, "the node offers its GPUs once the runtime answers")
                assert shown(port, RUNTIME_ANSWERED) > began
            is_noticed = lambda: any(each["event"] == "runtime silent" for each in logs)  # noqa: E731
            wait_until(is_noticed, "the agent has noticed that the runtime no longer answers")
        assert shown(port, OFFERING) == 1, "one that has answered stays as it was known"


SHIM_INSTALLED = "fairgpu_nodeagent_shim_installed"


def test_an_agent_that_cannot_write_the_shim_to_the_host_offers_nothing_and_all_else_goes_on(
    make_machine: Callable[[str], Machine], namespace: str
) -> None:
    machine = make_machine("no-shim")
    with machine.agent() as port:
        stays = machine.place(namespace, "stays")
        wait_until(lambda: machine.start() == "", "the container may start")
        assert shown(port, SHIM_INSTALLED) == 1
    spec = next((machine.folder / "cdi").iterdir()).read_bytes()
    shims = machine.folder / "shim"
    shims.rename(machine.folder / "lost")
    shims.write_text("no folder, as on a disk that fails")
    with machine.agent() as port:
        (message, *_) = wait_until(lambda: machine.events(machine.node.name, "ShimNotInstalled"), "the Node says so")
        assert f"cannot write the shim to the host: [Errno 20] Not a directory: '{shims}" in message
        assert (shown(port, SHIM_INSTALLED), shown(port, OFFERING)) == (0, 0)
        wait_until(lambda: not machine.kubelet.healthy.get(names.GPU), "the kubelet is offered nothing")
        wait_until(lambda: "the shim is not on the host" in machine.start(), "a container that restarts is refused")
        assert next((machine.folder / "cdi").iterdir()).read_bytes() == spec
        at = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
        timekeeper = machine.plane.service_account("fairgpu-system", "fairgpu-timekeeper")
        notice = {"metadata": {"annotations": {names.EVICTION_AT: at}}}
        timekeeper.api.patch(f"/api/v1/namespaces/{namespace}/pods/stays", notice)
        wait_until(lambda: all(machine.notices()) and machine.notices(), "the notice is passed on")
        wait_until(lambda: machine.says_at(stays, "the shim is not on the host"), "the pod says why")
        shims.unlink()
        wait_until(lambda: shown(port, OFFERING) == 1, "the node offers its GPUs once the host takes the shim")
        assert shown(port, SHIM_INSTALLED) == 1
        wait_until(lambda: machine.start() == "", "the container starts again")


def test_an_agent_whose_host_does_not_answer_while_it_writes_the_shim_says_so_and_goes_on_once_it_does(
    make_machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SHIM_SECONDS", 0.2)
    machine = make_machine("slow-disk")
    digest = hashlib.sha256((machine.folder / "libvcuda.so.1").read_bytes()).hexdigest()
    shims = machine.folder / "shim" / digest
    shims.mkdir(parents=True)
    disk = contextlib.ExitStack()
    disk.enter_context(
        handover.turn_of(shims)
    )  # the agent's own turn is in the kernel's hands, as a write of a disk is
    with capture_logs() as logs, disk, machine.agent() as port:
        (message, *_) = wait_until(lambda: machine.events(machine.node.name, "ShimNotInstalled"), "the Node says so")
        assert "cannot write the shim to the host: it has not answered for more than 0.2 seconds;" in message
        assert (shown(port, SHIM_INSTALLED), shown(port, OFFERING)) == (0, 0)
        disk.close()
        wait_until(lambda: shown(port, OFFERING) == 1, "the node offers its GPUs once the host answers")
        assert shown(port, SHIM_INSTALLED) == 1
        assert [each["error"] for each in logs if each["event"] == "shim not installed"] == [
            "it has not answered for more than 0.2 seconds"
        ]


def test_a_part_that_fails_unexpectedly_is_run_again_and_ends_no_other(
    make_machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine("part-fails")
    offer = machine.vendor.offer
    failures = iter(range(2))

    def fails_twice() -> Offer:
        if next(failures, None) is not None:
            raise RuntimeError("an answer of another form")
        return offer()

    monkeypatch.setattr(machine.vendor, "offer", fails_twice)
    monkeypatch.setattr(keeping, "FIRST_PAUSE_SECONDS", 0.01)
    with machine.agent() as port:
        wait_until(lambda: shown(port, "fairgpu_nodeagent_offering") == 1, "the node offers its GPUs")
        assert shown(port, 'fairgpu_nodeagent_part_failures_total{part="watch_gpus"}') == 2
        assert shown(port, 'fairgpu_nodeagent_part_failures_total{part="serve"}') == 0
    assert next(failures, None) is None


def test_an_agent_whose_loop_hangs_fails_its_liveness_probe(
    make_machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine("loop-hangs")
    goes_on = threading.Event()

    def hangs(*_: object, **__: object) -> list[object]:
        goes_on.wait()
        return []

    monkeypatch.setattr(service, "STUCK_SECONDS", 3.0)
    with machine.agent() as port:
        wait_until(lambda: lives(port), "it lives")
        monkeypatch.setattr(service, "withholdings", hangs)
        try:
            wait_until(lambda: not lives(port), "the probe finds that the loop hangs")
            assert series(port) is not None, "it still shows its metrics"
        finally:
            goes_on.set()
        wait_until(lambda: lives(port), "the loop goes on")


@pytest.mark.patient
def test_a_writer_of_the_pages_that_hangs_is_replaced(
    make_machine: Callable[[str], Machine], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than a busy machine takes to start a writer, which would else be ended before its first page.
    monkeypatch.setattr(writer_process, "HANGS_SECONDS", 10.0)
    machine = make_machine("writer-hangs")
    with machine.agent() as port:
        assert last_write_ns(machine.folder / "run", ["GPU-0"]) is None
        machine.place(namespace, "train")
        wait_until(lambda: machine.start() == "", "the container may start")
        wait_until(lambda: last_write_ns(machine.folder / "run", ["GPU-0"]), "its GPU has a page")
        os.kill(machine.writer(), signal.SIGSTOP)
        wait_until(lambda: shown(port, "fairgpu_nodeagent_page_writer_ends_total") == 1, "the writer is replaced")
        since = time.monotonic_ns()
        wait_until(
            lambda: (last_write_ns(machine.folder / "run", ["GPU-0"]) or 0) > since, "the next one writes the page"
        )
        wait_until(lambda: shown(port, "fairgpu_nodeagent_oldest_page_age_seconds") < 1, "the page is shown as new")


def test_a_gpu_whose_page_does_not_show_a_container_that_may_start_is_counted_until_it_does(
    make_machine: Callable[[str], Machine], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_process, "HANGS_SECONDS", 3600.0)
    machine = make_machine("pages-outdated")
    outdated = "fairgpu_nodeagent_outdated_pages"
    with machine.agent() as port:
        assert shown(port, outdated) == 0
        machine.place(namespace, "train")
        wait_until(lambda: machine.start() == "", "the container may start")
        wait_until(lambda: last_write_ns(machine.folder / "run", ["GPU-0"]), "its GPU has a page")
        wait_until(lambda: shown(port, outdated) == 0, "the page shows it")
        os.kill(machine.writer(), signal.SIGSTOP)
        assert machine.start() == ""
        assert shown(port, outdated) == 1
        os.kill(machine.writer(), signal.SIGCONT)
        wait_until(lambda: shown(port, outdated) == 0, "the page shows its next start")


def test_a_start_that_fails_unexpectedly_is_refused_and_counted(
    make_machine: Callable[[str], Machine], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an annotation of another form")

    machine = make_machine("start-fails")
    refused = 'fairgpu_nodeagent_starts_total{outcome="refused"}'
    with machine.agent() as port:
        machine.place(namespace, "train")
        wait_until(lambda: machine.start() == "", "the container may start")
        before = shown(port, refused)
        monkeypatch.setattr(starting, "read_choices", fail)
        assert "an annotation of another form" in machine.start()
        assert shown(port, refused) == before + 1


def whole_container(machine: Machine, namespace: str) -> Path:
    """A container that has the first GPU whole, which an earlier agent started; returns its pod's usage volume."""
    pod = machine.place(namespace, "train")
    uid = str(pod["metadata"]["uid"])
    device = GivenDevice("GPU-0", 100, MEMORY_MIB, 0, 7)
    record = Record(namespace, "train", uid, "main", frozenset({SLOT}), 1, True, Policy.HARD, 1, (device,))
    folder = machine.folder_of(pod) / "main"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(encode(record))
    usage = machine.settings.kubelet.pods / uid / "volumes" / "kubernetes.io~empty-dir" / names.USAGE_VOLUME
    (usage / "main").mkdir(parents=True)
    return usage


def test_an_agent_counts_the_use_of_a_whole_gpu_from_where_the_last_one_ended(
    make_machine: Callable[[str], Machine], namespace: str
) -> None:
    machine = make_machine("agent-away")
    usage = whole_container(machine, namespace)
    ended_ns = time.monotonic_ns() - 60 * 10**9
    lock = handover.lock(machine.folder / "run" / handover.AGENT)
    assert lock is not None
    handover.note(lock, ended_ns)
    os.close(lock)

    def busy_seconds() -> float:
        read = read_usage(str(usage), "main")
        return read.devices[0].busy_ns / 10**9 if read is not None and read.devices else 0.0

    with machine.agent():
        wait_until(busy_seconds, "the use is counted")
        assert busy_seconds() >= 60 - MOST_MEASURED_NS / 10**9
        wait_until(
            lambda: handover.noted_ns(machine.folder / "run" / handover.AGENT) > ended_ns, "the next one goes on"
        )


def test_an_agent_that_the_driver_has_kept_until_its_end_writes_no_use_beside_the_next_one(
    make_machine: Callable[[str], Machine], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sidecar would take the earlier agent's counts for those of another start, and add all of them again."""
    machine = make_machine("driver-slow")
    usage = whole_container(machine, namespace) / "main" / "usage"
    hangs, goes_on = threading.Event(), threading.Event()
    asking: list[threading.Thread] = []
    answer = machine.vendor.sample

    def sample(uuid: str) -> DriverSample:
        if hangs.is_set():
            asking.append(threading.current_thread())
            goes_on.wait(LIMIT_S)
        return answer(uuid)

    monkeypatch.setattr(machine.vendor, "sample", sample)
    with machine.agent():
        wait_until(usage.exists, "the use is counted")
        hangs.set()
        wait_until(lambda: asking, "the agent asks the driver")
    before = usage.read_bytes()
    goes_on.set()
    asking[0].join(LIMIT_S)
    assert usage.read_bytes() == before
