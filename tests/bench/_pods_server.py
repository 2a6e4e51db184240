"""An API server as the scheduler's extender needs it; its nodes and pods exist only as the JSON that it answers.

    with serving(Cluster(nodes=5000, gpus=8, pods=40_000)) as server: ...

It lists both in pages, and keeps watches open, in which a node changes when the caller says so. Any other request is
answered 404.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import yaml

from fairgpu import inventory
from fairgpu.inventory import Device, Inventory, Link

MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
MEMORY_MIB = 81_000
CORES = (5, 10, 20, 30)
"""The percent of a GPU that a pod holds."""
ENVIRONMENT = [{"name": f"VARIABLE_{number}", "value": "a value of some length"} for number in range(20)]
STATUS = [
    {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "imageID": "sha256:" + "0" * 64}
]
COUNTS = {"/api/v1/nodes": "nodes", "/api/v1/pods": "pods"}
"""The collections that there are, each with the field of Cluster that says how many objects it has."""

NOT_FOUND = b'{"kind":"Status","code":404,"reason":"NotFound","message":"there is no such object"}'


def model_of(node: int) -> str:
    """The model of a node's GPUs."""
    return MODELS[node % len(MODELS)]


def uuid_of(node: int, gpu: int) -> str:
    """A uuid as long as NVIDIA's."""
    return f"GPU-{node:08}-{gpu:04}-0000-0000-000000000000"


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs, and pods on them: each node and each GPU has as many, of mixed shares."""

    nodes: int
    gpus: int
    pods: int

    def node(self, number: int, model: str = "") -> dict[str, Any]:
        """A Node of 6 kB: with labels, taints and images. Its model is one of MODELS, or the one that is named."""
        devices = tuple(
            Device(uuid_of(number, at), model or model_of(number), MEMORY_MIB, at // 4, f"{at:02X}:00.0")
            for at in range(self.gpus)
        )
        name = f"node-{number:05}"
        return {
            "metadata": {
                "name": name,
                "uid": f"10000000-0000-0000-0000-{number:012}",
                "resourceVersion": "1",
                "labels": {f"example.org/label-{at}": f"{name}-{at}" for at in range(30)},
                "annotations": {
                    "fairgpu.io/inventory": inventory.encode(
                        Inventory("nvidia", "580.1", 64, devices, links(self.gpus))
                    )
                },
            },
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "128", "memory": "1056763Mi", "pods": "110", "fairgpu.io/gpu": "512"},
                "images": [{"names": [f"registry.example.org/image-{at}:1"], "sizeBytes": 1 << 30} for at in range(50)],
            },
        }

    def pod(self, number: int) -> dict[str, Any]:
        """A running pod of 8 kB, on a GPU of its own while there are as many."""
        node, gpu = number % self.nodes, number // self.nodes % self.gpus
        core = CORES[number * 7919 // 13 % len(CORES)]
        held_of_it = {"core": core, "memoryMiB": MEMORY_MIB * core // 100}
        shares = [{"uuid": uuid_of(node, gpu), "model": model_of(node), "totalMiB": MEMORY_MIB, **held_of_it}]
        held = {"v": 1, "node": f"node-{node:05}", "containers": [{"name": "main", "devices": shares}]}
        return pod_of(number, f"node-{node:05}", orjson.dumps(held).decode())


def pod_of(number: int, node: str, allocation: str) -> dict[str, Any]:
    """A running pod as the API server lists it: most of it is managedFields, probes, volumes and statuses."""
    amounts = {"cpu": "2", "memory": "8Gi", "fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30"}
    return {
        "metadata": {
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "namespace": f"team-{number % 100}",
            "name": f"train-{number}",
            "resourceVersion": "1",
            "labels": {"fairgpu.io/pod": "gpu"},
            "annotations": {"fairgpu.io/allocation": allocation, "fairgpu.io/created-by": "alice"},
            "managedFields": [{"manager": "kubelet", "fieldsType": "FieldsV1", "fieldsV1": managed_fields()}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}, "env": ENVIRONMENT}],
            "volumes": [{"name": f"v{at}", "emptyDir": {}} for at in range(8)],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": STATUS,
        },
    }


@cache
def managed_fields() -> dict[str, Any]:
    """The managedFields of one manager."""
    return {f"f:field-{at}": {"f:value": {}, "f:another": {}} for at in range(120)}


@cache
def links(gpus: int) -> tuple[tuple[Link, ...], ...]:
    """The links of a node with two NUMA nodes."""
    return tuple(
        tuple(Link.SELF if a == b else Link.NVLINK if a // 4 == b // 4 else Link.SYSTEM for b in range(gpus))
        for a in range(gpus)
    )


class PodsServer(ThreadingHTTPServer):
    """The server, on a port of loopback."""

    daemon_threads = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cluster = cluster
        self.events: queue.Queue[bytes] = queue.Queue()
        self.ending = threading.Event()

    @property
    def port(self) -> int:
        """The port at which it listens, on 127.0.0.1."""
        return int(self.server_address[1])

    def change(self, number: int, model: str) -> None:
        """Shows to the watch of nodes that a node's GPUs are of another model now."""
        event = {"type": "MODIFIED", "object": self.cluster.node(number, model)}
        self.events.put(orjson.dumps(event) + b"\n")

    def write_kubeconfig(self, file: Path) -> None:
        """Writes a kubeconfig that names this server."""
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        cluster = {"name": "bench", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        user = {"name": "bench", "user": {"token": "none"}}
        configuration = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "bench"}
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **configuration}))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PodsServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path not in COUNTS:
            self.answer(404, NOT_FOUND)
        elif query.get("watch") == "true":
            self.watch(parts.path)
        else:
            first, limit = int(query.get("continue", 0)), int(query["limit"])
            self.answer(200, page_of(self.server.cluster, COUNTS[parts.path], first, limit))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(404, NOT_FOUND)

    def watch(self, path: str) -> None:
        """Sends what changes of nodes; of pods nothing changes."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if path.endswith("pods"):
            self.server.ending.wait()
            return
        while not self.server.ending.is_set():
            try:
                event = self.server.events.get(timeout=0.1)
            except queue.Empty:
                continue
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()

    def answer(self, status: int, body: bytes) -> None:
        """Answers with JSON."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def page_of(cluster: Cluster, kind: str, first: int, limit: int) -> bytes:
    """A page of a list, from the object with this number on."""
    count = getattr(cluster, kind)
    item = cluster.node if kind == "nodes" else cluster.pod
    end = min(first + limit, count)
    metadata = {"resourceVersion": "1"} | ({"continue": str(end)} if end < count else {})
    return orjson.dumps({"metadata": metadata, "items": [item(number) for number in range(first, end)]})


@contextmanager
def serving(cluster: Cluster) -> Iterator[PodsServer]:
    """A server, for the length of a with statement."""
    server = PodsServer(cluster)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
