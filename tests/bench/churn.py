"""A thousand binds at once through the real extender and API server, while answers are lost and the extender is killed.

The bench asks as kube-scheduler does, from many threads. A relay between extender and API server closes the connection
in place of some answers, so that a Binding may have been made without an answer. One pod in ten is deleted between
filter and bind. After a quarter of the pods the extender gets SIGKILL, and another one goes on.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any
from urllib.request import urlopen

from fairgpu.cluster.api import ApiError
from tests.bench.scheduling import create_node, each, extender, pod
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.processes import Process
from tests.cluster.services.relay import Relay, through
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

PODS, NODES, GPUS, THREADS = 1000, 100, 8, 64
SHARES = (20, 50, 60, 100)
BIND_SECONDS = 120.0


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    random = Random(1)
    names = [f"node-{number:03}" for number in range(NODES)]
    with ExitStack() as stack:
        plane = stack.enter_context(running_control_plane(control_plane_binaries(os.environ)))
        each(names, lambda name: create_node(plane, name))
        namespace = plane.create_namespace("bench-")
        path = f"/api/v1/namespaces/{namespace}/pods"
        shares = {f"p{number}": random.choice(SHARES) for number in range(PODS)}
        each(shares.items(), lambda item: plane.admin.api.create(path, pod(*item)))
        relay = stack.enter_context(closing(Relay(plane, random)))
        kubeconfig = through(relay, plane.admin.kubeconfig)
        port, metrics = free_ports(2)
        first = stack.enter_context(extender(plane, "churn-first", kubeconfig, port, metrics))
        load = Load(plane, path, names, random)
        with relay.losing():
            place_all(load, list(shares), port, (first, PODS // 4))
        port, metrics = free_ports(2)
        stack.enter_context(extender(plane, "churn-second", kubeconfig, port, metrics))
        waiting = [item["metadata"]["name"] for item in listed(plane, path) if not item["spec"].get("nodeName")]
        with relay.losing():
            place_all(load, waiting, port)
        held = held_of(listed(plane, path))
        # A Binding without an answer is read by the extender a minute later.
        wait_until(lambda: abs(gpus_held(metrics) - total(listed(plane, path))) < 1e-6, "what is held is what is bound")
        bound = sum(bool(item["spec"].get("nodeName")) for item in listed(plane, path))
        context = f"{PODS:,} pods on {NODES} nodes x {GPUS} GPUs, {bound:,} bound, {relay.lost:,} answers lost, SIGKILL"
        over = sum(core > 100 for core in held.values())
        yield row("devices over their capacity, by a real API server", over, context)
        leaked = abs(gpus_held(metrics) - total(listed(plane, path)))
        yield row("GPUs held for no pod, by a real API server", round(leaked, 6), context)


def row(name: str, value: float, context: str) -> dict[str, Any]:
    """One row."""
    return {"name": name, "value": value, "unit": "", "goal": "0", "met": value == 0, "context": context}


@dataclass(frozen=True)
class Load:
    """Pods that are to be placed.

    Attributes:
        plane: the control plane.
        path: of the pods' collection.
        names: the nodes that each pod may go to.
        random: says which pods are deleted.
    """

    plane: ControlPlane
    path: str
    names: Sequence[str]
    random: Random


def place_all(load: Load, pods: Sequence[str], port: int, killed: tuple[Process, int] | None = None) -> None:
    """Filters and binds pods in many threads; kills the extender once so many were begun."""
    plane, path = load.plane, load.path
    deleted = {name for name in pods if load.random.random() < 0.1}
    begun, ended = count(), threading.Event()

    def place(name: str) -> None:
        if killed is not None and next(begun) == killed[1]:
            os.killpg(killed[0].popen.pid, signal.SIGKILL)
            ended.set()
        if ended.is_set():
            return
        with suppress(OSError, http.client.HTTPException, ApiError):
            item = plane.admin.api.get(f"{path}/{name}")
            nodes = asked(port, "/filter", {"Pod": item, "Nodes": None, "NodeNames": list(load.names)})["NodeNames"]
            if name in deleted:
                plane.admin.api.delete(f"{path}/{name}")
            if nodes:
                metadata = item["metadata"]
                binding = {"PodName": name, "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
                asked(port, "/bind", binding | {"Node": nodes[0]})

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(place, pods))


def asked(port: int, verb: str, body: dict[str, Any]) -> Any:
    """The extender's answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=BIND_SECONDS)) as connection:
        connection.request("POST", verb, json.dumps(body))
        return json.loads(connection.getresponse().read())


def listed(plane: ControlPlane, path: str) -> list[dict[str, Any]]:
    """All pods, from the API server itself."""
    items: list[dict[str, Any]] = plane.admin.api.get(path)["items"]
    return items


def held_of(items: Sequence[dict[str, Any]]) -> Counter[str]:
    """The percent of GPU time that bound pods hold of each device; memory is asked for in the same percent."""
    found: Counter[str] = Counter()
    for item in items:
        if item["spec"].get("nodeName"):
            for container in json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])["containers"]:
                for device in container["devices"]:
                    found[device["uuid"]] += device["core"]
    return found


def total(items: Sequence[dict[str, Any]]) -> float:
    """The GPUs that bound pods hold."""
    return sum(held_of(items).values()) / 100


def gpus_held(metrics: int) -> float:
    """The GPUs that the extender holds for pods, as its metrics have it."""
    with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("fairgpu_scheduler_held_gpus"))
