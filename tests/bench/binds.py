"""The requests of a bind, and the binds that fail, of 5,000 pods through a real kube-scheduler with the extender.

kube-scheduler binds asynchronously: it asks about the next pods while Bindings are under way, and the extender packs
them onto the same GPUs. The API server's audit log has what the extender and kube-scheduler send, each of which has an
account of its own. FAIRGPU_BENCH_NODES and FAIRGPU_BENCH_PODS name other sizes than those of the goal.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.placement import row
from tests.bench.scheduling import (
    GOAL_NODES,
    GOAL_PODS,
    create_node,
    each,
    extender,
    kube_scheduler,
    seconds_of_bindings,
    waiting_pods,
)
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import AUDIT_LOG, running_control_plane
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

EXTENDER, KUBE_SCHEDULER = "bench-extender", "bench-kube-scheduler"
SHARES = (20, 50, 60, 100)
"""In percent of a GPU: a few pods fill a node, so that those of one moment compete for what is left of it."""
TAKEN = "were taken since they were chosen"
"""The words by which the extender refuses a bind whose devices are held by another pod (scheduler/extender/binding)."""


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    nodes = int(os.environ.get("FAIRGPU_BENCH_NODES", GOAL_NODES))
    pods = int(os.environ.get("FAIRGPU_BENCH_PODS", GOAL_PODS))
    with ExitStack() as stack:
        plane = stack.enter_context(running_control_plane(control_plane_binaries(os.environ), audited=True))
        each(range(nodes), lambda number: create_node(plane, f"node-{number:04}"))
        path = waiting_pods(plane, Random(1).choices(SHARES, k=pods))
        port, metrics = free_ports(2)
        asked, asks = (plane.user(name, ["system:masters"]).kubeconfig for name in (EXTENDER, KUBE_SCHEDULER))
        stack.enter_context(extender(plane, EXTENDER, asked, port, metrics))
        stack.enter_context(kube_scheduler(plane, asks, port))
        seconds = seconds_of_bindings(plane, path)
        # A pod is bound before the extender has answered kube-scheduler that it is.
        wait_until(lambda: binds(metrics)["placed"] >= pods, "the extender has answered every bind")
        outcomes = binds(metrics)
        taken = refused_as_taken(plane.folder / f"{EXTENDER}.log")
        log, namespace = plane.folder / AUDIT_LOG, path.split("/")[4]
        requests = wait_until(
            lambda: found if len(found := requests_about_pods(log, namespace)) >= pods else None,
            "the audit log names every pod",
        )
    context = f"{nodes:,} nodes, {pods:,} pods, all bound within {seconds:.0f} s, load {os.getloadavg()[0]:.0f}"
    refused = f"{context}, {sum(outcomes.values()):,.0f} binds, {outcomes['refused']:.0f} refused for any cause"
    yield row("binds refused for devices taken since filter", taken, "", "0", refused, met=taken == 0)
    kinds = Counter(kind for of_pod in requests.values() for kind in of_pod)
    a_pod, most = kinds.total() / pods, max(len(of_pod) for of_pod in requests.values())
    named = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    sent = f"{context}; {named}; at most {most} for one pod"
    met = (a_pod, most) == (1, 1)
    yield row("API calls of extender and kube-scheduler to bind one pod", a_pod, "", "1", sent, met=met)


def binds(metrics: int) -> dict[str, float]:
    """The binds that the extender has answered, by outcome."""
    with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    calls = [sample for sample in samples if sample.name == "fairgpu_scheduler_calls_total"]
    return {sample.labels["outcome"]: sample.value for sample in calls if sample.labels["verb"] == "bind"}


def refused_as_taken(log: Path) -> int:
    """The binds that the extender has logged as refused since other pods hold the devices."""
    return sum('"not bound"' in line and TAKEN in line for line in log.read_text().splitlines())


def requests_about_pods(log: Path, namespace: str) -> Mapping[str, list[str]]:
    """The requests of both accounts that name a pod of a namespace, by pod; lists and watches name none."""
    found: dict[str, list[str]] = {}
    with log.open() as lines:
        for event in answered(lines):
            about = event.get("objectRef") or {}
            if about.get("resource") == "pods" and about.get("namespace") == namespace and about.get("name"):
                kind = " ".join(filter(None, (event["verb"], about.get("subresource"))))
                found.setdefault(about["name"], []).append(kind)
    return found


def answered(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The audit events of both accounts' requests, each once."""
    for line in lines:
        event = json.loads(line)
        if event["user"]["username"] in {EXTENDER, KUBE_SCHEDULER} and event["stage"] == "ResponseComplete":
            yield event
