"""A whole node agent beside an API server and a driver in its own memory and a /proc of files, for its costs.

    python -m tests.bench._agent --folder FOLDER --sharing CONTAINERS

The kubelet's and the runtime's sockets are the caller's. Each GPU is divided among the containers, which each run one
process of their own.
"""

from __future__ import annotations

import argparse
import copy
import json
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json
from fairgpu.logs import configure_logs
from fairgpu.signals import call_at_end
from nodeagent.driver_figures import DriverSample
from nodeagent.gpu_watch import GpuWatch, Node
from nodeagent.offer import slot_ids
from nodeagent.runtime.devices import CONTAINER_NAME, PROOFS, SANDBOX_UID
from nodeagent.service import END_SECONDS, Agent
from nodeagent.settings import Kubelet, Nodeagent
from nodeagent.vendors.nvidia import EVENT_MILLISECONDS
from tests.support.fake_kubelet import POD_RESOURCES
from tests.support.fake_vendor import MEMORY_MIB, FakeVendor, gpus
from tests.support.ports import free_port

GPUS = 8
NODE = "n1"
PODS_PATH, NODES_PATH = "/api/v1/pods", "/api/v1/nodes"
FIRST_PID = 1000
BEGUN = "begun"
"""The file that the caller makes once each ledger names the container's process."""
WARNED = "warned"
"""The file with the last event by which the agent warned: nothing is the matter on this node."""


class MemoryServer:
    """The API server of a node's agent: its pods, which stay as they are, and its Node, which the agent patches.

    It writes down the last event by which the agent warns.
    """

    def __init__(self, pods: list[Json], node: Json, warned: Path) -> None:
        self._warned = warned
        self._items = {PODS_PATH: pods, NODES_PATH: [node]}
        self._events: dict[str, queue.Queue[Json]] = {PODS_PATH: queue.Queue(), NODES_PATH: queue.Queue()}

    def get(self, path: str, _query: Any = None, **_options: Any) -> Json:
        if path not in self._items:
            raise ApiError(404, "NotFound", path)
        return {"items": copy.deepcopy(self._items[path]), "metadata": {"resourceVersion": "1"}}

    def stream(self, path: str, *_arguments: Any) -> Iterator[Json]:
        while True:
            yield self._events[path].get()

    def patch(self, _path: str, patch: Json, *_arguments: Any) -> Json:
        (node,) = self._items[NODES_PATH]
        merge(node, patch)
        self._events[NODES_PATH].put({"type": "MODIFIED", "object": copy.deepcopy(node)})
        return node

    def create(self, path: str, body: Json, *_arguments: Any) -> Json:
        self._warned.write_text(f"{path}: {body}")
        return body


def merge(item: Json, patch: Mapping[str, Any]) -> None:
    """Applies a JSON merge patch (RFC 7386) to an object."""
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(item.setdefault(key, {}), value)
        elif value is None:
            item.pop(key, None)
        else:
            item[key] = value


class BusyVendor(FakeVendor):
    """GPUs on which each container has one process once its ledger does."""

    def __init__(self, folder: Path, sharing: int) -> None:
        super().__init__(gpus(GPUS))
        self._begun = folder / BEGUN
        self._pids = {f"GPU-{gpu}": [FIRST_PID + gpu + GPUS * place for place in range(sharing)] for gpu in range(GPUS)}

    def sample(self, uuid: str) -> DriverSample:
        pids = self._pids[uuid] if self._begun.exists() else []
        return DriverSample(1, MEMORY_MIB << 20, dict.fromkeys(pids, 100 << 20), dict.fromkeys(pids, 50.0))

    def watch(self, goes_on: Callable[[], bool], _changed: Callable[[], None]) -> None:
        while goes_on():
            time.sleep(EVENT_MILLISECONDS / 1000)


def uid_of(number: int) -> str:
    """The uid of the pod of this number."""
    return str(uuid.UUID(int=number))


def pod_of(number: int, sharing: int) -> Json:
    """A pod whose one container runs and has its part of one GPU."""
    device = {
        "uuid": f"GPU-{number % GPUS}",
        "model": "Fake GPU",
        "totalMiB": MEMORY_MIB,
        "core": 100 // sharing,
        "memoryMiB": MEMORY_MIB // sharing,
    }
    allocation = {"v": 1, "node": NODE, "containers": [{"name": "main", "devices": [device]}]}
    limits = {names.GPU: "1", names.GPU_CORE: str(device["core"]), names.GPU_MEMORY: str(device["memoryMiB"])}
    status = {"name": "main", "containerID": f"containerd://{number:064x}", "state": {"running": {}}, "restartCount": 0}
    return {
        "metadata": {
            "namespace": "team",
            "name": f"pod-{number}",
            "uid": uid_of(number),
            "annotations": {names.ALLOCATION: json.dumps(allocation)},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], "initContainers": []},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def lay_out(folder: Path, sharing: int) -> None:
    """Writes what the runtime and the kernel keep of each container, and the shim's library."""
    for number in range(GPUS * sharing):
        process_of(folder / "proc" / str(FIRST_PID + number), f"0::/kubepods/pod{uid_of(number)}/{number:064x}\n")
        bundle = folder / "bundles" / f"{number:064x}"
        bundle.mkdir(parents=True)
        start = f"{folder}/run/containers/{uid_of(number)}/main/1"
        mount = {"destination": PROOFS[0], "source": f"{start}/config"}
        annotations = {SANDBOX_UID: uid_of(number), CONTAINER_NAME: "main"}
        (bundle / "config.json").write_text(json.dumps({"mounts": [mount], "annotations": annotations}))
    (folder / "libvcuda.so.1").write_bytes(b"shim")


def process_of(folder: Path, cgroup: str) -> None:
    """Writes the files of /proc of a process that is the first of its PID namespace."""
    folder.mkdir(parents=True)
    fields = " ".join(map(str, range(4, 22)))
    (folder / "stat").write_text(f"{folder.name} (python) S {fields} 50 0\n")
    (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{folder.name}\t1\n")
    (folder / "cgroup").write_text(cgroup)


def main() -> None:
    """Runs the agent until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sharing", type=int, required=True)
    arguments = parser.parse_args()
    folder, sharing = arguments.folder, arguments.sharing
    configure_logs("WARNING")
    sockets = folder / "kubelet"
    settings = Nodeagent(
        node=NODE,
        run_folder=folder / "run",
        shim_folder=folder / "shim",
        shim=folder / "libvcuda.so.1",
        cdi_folder=folder / "cdi",
        bundles=folder / "bundles",
        runtime_socket=folder / "runtime.sock",
        metrics_host="127.0.0.1",
        metrics_port=free_port(),
        kubelet=Kubelet(device_plugins=sockets, pods=folder / "pods", pod_resources=sockets / POD_RESOURCES),
    )
    slots = {names.GPU: str(len(slot_ids(GPUS)))}
    node = {"metadata": {"name": NODE, "uid": NODE, "resourceVersion": "1"}, "status": {"allocatable": slots}}
    pods = [pod_of(number, sharing) for number in range(GPUS * sharing)]
    vendor = BusyVendor(folder, sharing)
    agent = Agent(settings, MemoryServer(pods, node, folder / WARNED), vendor)  # type: ignore[arg-type]
    watched = Node(agent._starter.records, agent._pods.all, agent._uuids, vendor.sample)
    agent._gpu_watch = GpuWatch(watched, agent._folders, folder / "proc")
    call_at_end(agent.stop, END_SECONDS)
    agent.run()


if __name__ == "__main__":
    main()
