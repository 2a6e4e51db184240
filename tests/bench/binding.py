"""A thousand binds at once on a hundred nodes, while pods are deleted, answers are lost and the extender is killed.

In process, over an API server that keeps pods and takes Bindings as the real one does. One Binding in five is answered
by a time-out: half of these were made. One pod in ten is deleted meanwhile. After a quarter of the pods the extender is
killed: it sends nothing more, its state is thrown away, and a new one lists the pods and goes on with all that wait.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import orjson

from fairgpu.cluster.api import ApiError
from fairgpu.inventory import Device, Inventory, Link
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import SETTLE_SECONDS, State
from scheduler.extender.binding import GIVE_UP_SECONDS, BindError, Clock, bind, settle
from scheduler.extender.filtering import filter_nodes
from scheduler.extender.wire import BindArguments, decode_filter
from scheduler.placement.fleet import Node

PODS, NODES, GPUS, THREADS = 1000, 100, 8, 64
SHARES = (20, 50, 60, 100)
CONTEXT = f"{PODS:,} pods on {NODES} nodes x {GPUS} GPUs, {THREADS} threads, simulated API server, in process"


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    over, leaked = churn(Random(1), PODS, NODES)
    yield row("devices over their capacity after concurrent binds", over)
    yield row("devices of which something is held for no pod", leaked)


def row(name: str, value: int) -> dict[str, Any]:
    """One row."""
    return {"name": name, "value": value, "unit": "", "goal": "0", "met": value == 0, "context": CONTEXT}


class SimulatedServer:
    """Keeps pods; its answers are lost at random."""

    def __init__(self, random: Random, pods: int) -> None:
        self.pods = {f"p{at}": pod(f"p{at}", random.choice(SHARES)) for at in range(pods)}
        self.lock = threading.Lock()
        self._random = random

    def get(self, path: str) -> dict[str, Any]:
        """A pod."""
        with self.lock:
            found = self.pods.get(path.rpartition("/")[2])
            if found is None:
                raise ApiError(404, "NotFound", path)
            return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    def create(self, path: str, body: dict[str, Any], _query: Any = None) -> dict[str, Any]:
        """Takes a Binding."""
        name = path.split("/")[-2]
        with self.lock:
            fate = self._random.random()
            if fate < 0.1:
                raise ApiError(0, "Unanswered", "read timed out")
            found = self.pods.get(name)
            if found is None:
                raise ApiError(404, "NotFound", name)
            if found["spec"].get("nodeName") or found["metadata"]["uid"] != body["metadata"]["uid"]:
                raise ApiError(409, "Conflict", name)
            found["spec"]["nodeName"] = body["target"]["name"]
            found["metadata"]["annotations"] |= body["metadata"]["annotations"]
            if fate < 0.2:
                raise ApiError(0, "Unanswered", "read timed out")
        return {}

    def delete(self, name: str) -> None:
        """Takes a pod away."""
        with self.lock:
            self.pods.pop(name, None)

    def held(self) -> Counter[str]:
        """The percent of GPU time that bound pods hold of each device."""
        found: Counter[str] = Counter()
        for item in self.pods.values():
            if item["spec"].get("nodeName"):
                for container in json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])["containers"]:
                    for device in container["devices"]:
                        found[device["uuid"]] += device["core"]
        return found


def churn(random: Random, pods: int, nodes: int) -> tuple[int, int]:
    """Binds pods at once; devices over their capacity, and devices of which too much is held in the end."""
    server = SimulatedServer(random, pods)
    names = [f"n{at}" for at in range(nodes)]
    place_all(listed(server, names), server, list(server.pods), names, random, pods // 4)
    state = listed(server, names)
    waiting = [name for name, item in server.pods.items() if not item["spec"].get("nodeName")]
    place_all(state, server, waiting, names, random, pods)
    show(state, server)
    settle(state, server, 2 * SETTLE_SECONDS + 1000.0)
    held = server.held()
    over = sum(core > 100 for core in held.values())
    fleet = state.fleet
    leaked = sum(100 - int(fleet.core[place]) != held[uuid] for uuid, place in fleet.places.items())
    return over, leaked


def place_all(
    state: State, server: SimulatedServer, pods: list[str], names: list[str], random: Random, killed_after: int
) -> None:
    """Filters and binds pods in many threads until so many were begun; one in ten is deleted meanwhile."""
    deleted = {name for name in pods if random.random() < 0.1}
    begun = count()
    killed = threading.Event()
    clock = Clock(lambda: 1000.0, lambda _: killed.is_set())

    def place(name: str) -> None:
        if next(begun) >= killed_after:
            killed.set()
            return
        with suppress(ApiError, BindError):
            item = server.get(f"/{name}")
            found = filter_nodes(
                state, decode_filter(orjson.dumps({"Pod": item, "NodeNames": names})), 1000.0
            ).node_names
            if name in deleted:
                server.delete(name)
                state.remove_pod(item["metadata"]["uid"])
            if found:
                arguments = BindArguments(name, "team", item["metadata"]["uid"], str(found[0]))
                bind(state, server, arguments, clock, lambda: True, clock.now() + GIVE_UP_SECONDS)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(place, pods))


def listed(server: SimulatedServer, names: list[str]) -> State:
    """An extender that has read everything."""
    state = State()
    links = tuple(tuple(Link.SELF if a == b else Link.NVLINK for a in range(GPUS)) for b in range(GPUS))
    for name in names:
        devices = tuple(Device(f"{name}-{at}", "A100", 1000, 0, f"{at}") for at in range(GPUS))
        state.put_node(Node(name, Inventory("nvidia", "1", 64, devices, links), 1_000_000, 1 << 20))
    state.listed("nodes")
    show(state, server)
    state.listed("pods")
    return state


def show(state: State, server: SimulatedServer) -> None:
    """The watch catches up."""
    state.replace_pods(read_note(item) for item in server.pods.values())


def pod(name: str, core: int) -> dict[str, Any]:
    """A pod as the webhook admits it."""
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": str(core), "fairgpu.io/gpu-memory-percentage": str(core)}
    return {
        "metadata": {
            "uid": f"uid-{name}",
            "namespace": "team",
            "name": name,
            "labels": {"fairgpu.io/pod": "gpu"},
            "annotations": {},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
    }
