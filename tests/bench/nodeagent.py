"""The node agent's costs: a container's start, the schedule pages, and a reading of the driver's figures."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from fairgpu import names
from fairgpu.inventory import Device, Inventory
from nodeagent import schedule_page
from nodeagent.containers.folders import Folders, put
from nodeagent.containers.records import GivenDevice, Record
from nodeagent.containers.resolving import Listed
from nodeagent.driver_figures import DriverSample
from nodeagent.gpu_watch import GpuWatch, Node
from nodeagent.kubelet.device_plugin import Offered, Slots, keep_registered
from nodeagent.kubelet.pod_resources import PodResources
from nodeagent.ledger_slots import LIVE, SLOTS_AT, SLOTS_USED_AT
from nodeagent.offer import Offer, slot_ids
from nodeagent.pages import SCHEDULE
from nodeagent.pods import NodePods
from nodeagent.publishing import notices, schedule
from nodeagent.starting import StartEnvironment, Starter
from nodeagent.turns import Policy
from tests.bench._agent import BEGUN, WARNED, lay_out, process_of
from tests.support.background import in_background
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fake_runtime import runtime_with_cdi
from tests.support.processes import ending
from tests.support.schedule_page import unpack
from tests.support.waiting import wait_until

PODS = 100
GPUS = 8
STARTS = 500
START_GOAL_MS = 20.0
MEASURED_SECONDS = 20.0
GOALS = ((4, 2.0), (16, 8.0))
AGE_GOAL_MS = 100.0
SHARING = 16
LOOKS = 50
LOOK_GOAL = 2.0


def rows() -> Iterator[dict[str, Any]]:
    """Starts of containers; the agent and its writer with eight GPUs whose containers are all active; the look."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield _start()
    for containers, goal in GOALS:
        yield from _agent_and_writer(containers, goal)
    yield _look()


def _start() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, _agent(Path(name)) as kubelet:
        times = []
        with kubelet.plugin() as client:
            for number in range(STARTS):
                began = time.perf_counter()
                client.pre_start(f"slot-{number % PODS}")
                times.append(1000 * (time.perf_counter() - began))
    p99 = sorted(times)[int(0.99 * STARTS)]
    return row("nodeagent.start.p99", p99, "ms", START_GOAL_MS, f"{STARTS} PreStartContainer, {PODS} pods on the node")


@contextmanager
def _agent(folder: Path) -> Iterator[FakeKubelet]:
    """The agent's device plugin on a node of 100 pods, each with one container."""
    devices = tuple(Device(f"GPU-{number}", "A100", 81920, None, f"0:{number}") for number in range(GPUS))
    links = tuple(tuple(5 * (row != column) for column in range(GPUS)) for row in range(GPUS))
    inventory = Inventory("fake", "1", 64, devices, links)  # type: ignore[arg-type]
    edits = {device.uuid: ("0.6.0", {"deviceNodes": [{"path": f"/dev/{device.uuid}"}]}) for device in devices}
    pods = NodePods(lambda: None, lambda _: None)
    pods.replaced([_pod(number) for number in range(PODS)])
    sockets = folder / "kubelet"
    sockets.mkdir()
    stop = threading.Event()
    with FakeKubelet(sockets) as kubelet:
        kubelet.containers = [Listed("team", f"pod-{n}", "main", frozenset({f"slot-{n}"})) for n in range(PODS)]
        resources = PodResources(kubelet.pod_resources)
        folders = Folders(folder / "run", folder / "lib", folder / "cdi")

        def publish(records: Iterable[Record]) -> None:
            noticed = notices(pods.all(), dt.datetime.now(dt.UTC), time.monotonic_ns())
            put(folders.root / SCHEDULE, schedule(records, noticed, folders), 0o600)

        environment = StartEnvironment(
            "n1",
            lambda: resources.listing(names.GPU),
            pods,
            lambda _namespace, _name: {},
            lambda: Offer(inventory, edits),
            publish,
            wait=lambda _: None,  # most starts here replace the spec of one just before, as few do on a node
        )
        starter = Starter(environment, folders, Path("/shim"))
        run = partial(
            keep_registered,
            sockets,
            "fairgpu.sock",
            names.GPU,
            Slots(Offered(slot_ids(GPUS))),
            starter.prepare,
            wait=stop.wait,
            attempted=lambda _: None,
        )
        with closing(resources), in_background(run, stop.set):
            wait_until(lambda: kubelet.registered, "the plugin is registered")
            yield kubelet


def _pod(number: int) -> dict[str, Any]:
    device = {"uuid": f"GPU-{number % GPUS}", "model": "A100", "totalMiB": 81920, "core": 5, "memoryMiB": 1024}
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": [device]}]}
    limits = {names.GPU: "1", names.GPU_CORE: "5", names.GPU_MEMORY: "1024"}
    return {
        "metadata": {
            "namespace": "team",
            "name": f"pod-{number}",
            "uid": f"uid-{number}",
            "annotations": {names.ALLOCATION: json.dumps(allocation)},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], "initContainers": []},
        "status": {"phase": "Pending"},
    }


def _agent_and_writer(sharing: int, goal_percent: float) -> Iterator[dict[str, Any]]:
    """The agent with its writer once all containers run: processor time of both, and how old the pages become."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, running_agent(Path(name), sharing) as (pids, ledgers):
        pages = [Path(name) / "run" / "gpus" / f"GPU-{number}" / "schedule" for number in range(GPUS)]
        before, began = [_processor_seconds(pid) for pid in pids], time.monotonic()
        ages: list[float] = []
        while time.monotonic() - began < MEASURED_SECONDS:
            use(ledgers)
            ages.extend(ages_of(pages))
            time.sleep(0.04)
        seconds = time.monotonic() - began
        agent, writer = (100 * (_processor_seconds(pid) - was) / seconds for pid, was in zip(pids, before, strict=True))
    context = f"{GPUS} GPUs, {sharing} active containers each"
    both = f"{context}: {agent:.2f} the agent, {writer:.2f} the writer of the pages"
    yield row(f"nodeagent.{sharing}.processor", agent + writer, "% of a core", goal_percent, both)
    oldest = sorted(ages)[int(0.999 * len(ages))]
    yield row(f"nodeagent.pages.{sharing}.age.p99.9", oldest, "ms", AGE_GOAL_MS, context)


@contextmanager
def running_agent(folder: Path, sharing: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Gives the process ids of an agent and of its writer, and the ledgers of all containers, open."""
    lay_out(folder, sharing)
    sockets = folder / "kubelet"
    sockets.mkdir()
    slots = range(GPUS * sharing)
    command = [sys.executable, "-m", "tests.bench._agent", "--folder", str(folder), "--sharing", str(sharing)]
    with (
        FakeKubelet(sockets) as kubelet,
        runtime_with_cdi(folder / "runtime.sock", folder / "cdi"),
        ending(subprocess.Popen(command)) as agent,
    ):
        kubelet.containers = [Listed("team", f"pod-{n}", "main", frozenset({f"slot-{n}"})) for n in slots]
        wait_until(lambda: kubelet.healthy.get(names.GPU), "the agent offers its GPUs")
        with kubelet.plugin() as client:
            for number in slots:
                client.pre_start(f"slot-{number}")
        (writer,) = (int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
        files = list((folder / "run").glob("containers/*/main/*/ledger"))
        for file in files:
            _register_one(file)
        (folder / BEGUN).touch()
        with ExitStack() as opened:
            ledgers = []
            for file in files:
                ledgers.append(os.open(file, os.O_RDWR))
                opened.callback(os.close, ledgers[-1])
            wait_until(
                lambda: _all_are_active(folder / "run", sharing, ledgers), "all containers are active on the pages"
            )
            yield (agent.pid, writer), ledgers
    if (folder / WARNED).exists():
        raise RuntimeError((folder / WARNED).read_text())


def _all_are_active(run: Path, sharing: int, ledgers: list[int]) -> bool:
    use(ledgers)
    try:
        slots = [unpack((run / "gpus" / f"GPU-{number}" / "schedule").read_bytes()).slots for number in range(GPUS)]
    except (OSError, ValueError):  # not made yet, or being written
        return False
    return all([slot.active for slot in each] == [True] * sharing for each in slots)


def _look() -> dict[str, Any]:
    """The agent's look at all processes on all GPUs; what NVML itself takes is not in it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        folders = Folders(root, root, root)
        records, pods, pids = [], [], dict[Any, Any]()
        for number in range(GPUS * SHARING):
            uid, container_id = str(uuid.UUID(int=number)), f"{number:064x}"
            device = GivenDevice(f"GPU-{number % GPUS}", 100 // SHARING, 1024, number // GPUS, number + 1)
            slots = frozenset({f"slot-{number}"})
            record = Record("team", f"p{number}", uid, "main", slots, 1, False, Policy.HARD, 1, (device,))
            records.append(record)
            status = {"name": "main", "containerID": f"containerd://{container_id}", "state": {"running": {}}}
            pods.append({"metadata": {"uid": uid}, "status": {"containerStatuses": [status]}})
            process_of(root / "proc" / str(number + 2), f"0::/kubepods/pod{uid}/{container_id}\n")
            _ledger_of_one(folders.start(record))
            pids.setdefault(device.uuid, {})[number + 2] = 1 << 30
        node = Node(lambda: records, lambda: pods, lambda: list(pids), lambda gpu: DriverSample(1, 1 << 35, pids[gpu]))
        watch = GpuWatch(node, folders, root / "proc")
        watch.look(0.0)
        began = time.process_time()
        for second in range(LOOKS):
            seen = watch.look(float(second))
        percent = 100 * (time.process_time() - began) / LOOKS
        if seen.strays or len(seen.figures) != len(records):
            raise RuntimeError(f"{len(seen.strays)} strays, {len(seen.figures)} figures of {len(records)} containers")
    context = f"once a second, {GPUS} GPUs, {SHARING} containers of one process each, without NVML's own time"
    return row("nodeagent.look.processor", percent, "% of a core", LOOK_GOAL, context)


def _ledger_of_one(folder: Path) -> None:
    """A ledger with one process, as the shim of a container makes it."""
    folder.mkdir(parents=True)
    (folder / "ledger").write_bytes(b"")
    os.truncate(folder / "ledger", 4 << 20)
    _register_one(folder / "ledger")


def _register_one(ledger: Path) -> None:
    """Enters the one process of a container into its ledger."""
    with ledger.open("r+b") as file:
        file.write(struct.pack("<QQ", schedule_page.LEDGER_MAGIC, schedule_page.LEDGER_VERSION))
        file.seek(SLOTS_USED_AT)
        file.write(struct.pack("<Q", 1))
        file.seek(SLOTS_AT)
        file.write(struct.pack("<QQQ", LIVE, 1, 50))


def use(ledgers: list[int]) -> None:
    """Lets every container say that it has work now."""
    now = time.monotonic_ns()
    head = struct.pack("<QQ", schedule_page.LEDGER_MAGIC, schedule_page.LEDGER_VERSION)
    activity = schedule_page.ACTIVITY.pack(now, 0, now // 100, 0, 5, 0, 0)
    for ledger in ledgers:
        os.pwrite(ledger, head, 0)
        os.pwrite(ledger, activity, schedule_page.LEDGER_DEVICES_AT)


def ages_of(pages: list[Path]) -> Iterator[float]:
    """Yields the age of each page in ms; a page that is being written is passed over."""
    for page in pages:
        try:
            found = unpack(page.read_bytes())
        except ValueError:
            continue
        yield (time.monotonic_ns() - found.heartbeat_ns) / 1e6


def _processor_seconds(pid: int) -> float:
    """Returns the processor seconds that all threads of a process have used so far.

    The id of a process's clock is as in clock_getcpuclockid(3), which Python does not have (linux/posix-timers.h).
    """
    return time.clock_gettime(~pid << 3 | 2)


def row(name: str, value: float, unit: str, goal: float, context: str) -> dict[str, Any]:
    """A figure with its goal, at most which it is to be."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "goal": f"<= {goal:g}",
        "met": value <= goal,
        "context": context,
    }
