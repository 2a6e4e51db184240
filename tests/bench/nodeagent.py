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
from contextlib import closing, contextmanager
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
from nodeagent.starting import Starter, World
from nodeagent.turns import Policy
from tests.support.background import in_background
from tests.support.fake_kubelet import FakeKubelet
from tests.support.processes import ending
from tests.support.schedule_page import unpack
from tests.support.waiting import wait_until

PODS = 100
GPUS = 8
STARTS = 500
START_GOAL_MS = 20.0
WRITER_SECONDS = 10.0
WRITER_GOALS = ((4, 2.0), (16, 8.0))
AGE_GOAL_MS = 100.0
SHARING = 16
LOOKS = 50
LOOK_GOAL = 2.0


def rows() -> Iterator[dict[str, Any]]:
    """Starts of containers on a node with 100 pods; the writer of eight GPUs with all containers active; the look."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield _start()
    for containers, goal in WRITER_GOALS:
        yield from _writer(containers, goal)
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

        world = World(
            "n1",
            lambda: resources.listing(names.GPU),
            pods,
            lambda _namespace, _name: {},
            lambda: Offer(inventory, edits),
            publish,
        )
        starter = Starter(world, folders, Path("/shim"))
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


def _writer(containers: int, goal_percent: float) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        ledgers = lay_out(root, containers)
        command = [sys.executable, "-m", "nodeagent.pages", "--root", name, "--parent", str(os.getpid())]
        with ending(subprocess.Popen(command)) as writer:
            pages = [root / "gpus" / f"GPU-{number}" / "schedule" for number in range(GPUS)]
            use(ledgers)
            wait_until(lambda: all(page.exists() for page in pages), "the pages are there")
            before, began = _processor_seconds(writer.pid), time.monotonic()
            ages: list[float] = []
            while time.monotonic() - began < WRITER_SECONDS:
                use(ledgers)
                ages.extend(ages_of(pages))
                time.sleep(0.04)
            percent = 100 * (_processor_seconds(writer.pid) - before) / (time.monotonic() - began)
    context = f"{GPUS} GPUs, {containers} active containers each"
    yield row(f"nodeagent.pages.{containers}.processor", percent, "% of a core", goal_percent, context)
    oldest = sorted(ages)[int(0.999 * len(ages))]
    yield row(f"nodeagent.pages.{containers}.age.p99.9", oldest, "ms", AGE_GOAL_MS, context)


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
            _process(root / "proc" / str(number + 2), f"0::/kubepods/pod{uid}/{container_id}\n")
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


def _process(folder: Path, cgroup: str) -> None:
    """Writes the files of /proc of a process that is the first of its PID namespace."""
    folder.mkdir(parents=True)
    fields = " ".join(map(str, range(4, 22)))
    (folder / "stat").write_text(f"{folder.name} (python) S {fields} 50 0\n")
    (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{folder.name}\t1\n")
    (folder / "cgroup").write_text(cgroup)


def _ledger_of_one(folder: Path) -> None:
    """A ledger with one process, as the shim of a container makes it."""
    folder.mkdir(parents=True)
    with (folder / "ledger").open("wb") as file:
        file.truncate(4 << 20)
        file.write(struct.pack("<QQ", schedule_page.LEDGER_MAGIC, schedule_page.LEDGER_VERSION))
        file.seek(SLOTS_USED_AT)
        file.write(struct.pack("<Q", 1))
        file.seek(SLOTS_AT)
        file.write(struct.pack("<QQQ", LIVE, 1, 50))


def lay_out(root: Path, containers: int) -> list[int]:
    """The schedule of a node on which every GPU is divided among so many; returns their ledgers, open."""
    gpus, ledgers = [], []
    for gpu in range(GPUS):
        listed = []
        for slot in range(containers):
            ledger = root / f"ledger-{gpu}-{slot}"
            ledger.write_bytes(bytes(4096))
            ledgers.append(os.open(ledger, os.O_RDWR))
            share = {"slot": slot, "key": slot + 1, "corePercent": 100 // containers, "policy": "hard"}
            listed.append(share | {"ledger": str(ledger)})
        gpus.append({"uuid": f"GPU-{gpu}", "containers": listed})
    (root / SCHEDULE).write_text(json.dumps({"gpus": gpus}))
    return ledgers


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
    """Returns the processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
