"""The commands `fairgpu top`, `inspect` and `why`: they read the cluster once, with the rights of the kubeconfig."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from fairgpu.client.tables import table
from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.cluster.connect import connect, namespace_of_context, unreadable
from fairgpu.commands import CommandError
from scheduler.view.cluster import Cluster, forbidden, read_cluster
from scheduler.view.gpus import Row, gpu_rows, node_rows
from scheduler.view.waiting import (
    FRAGMENTED,
    Reason,
    conditions_of,
    fitting_nodes,
    latest_event,
    reasons_of,
    reclaim_of,
    stage_of,
)

RIGHTS = "this needs `list` of nodes and of pods in the whole cluster"
NO_POD = {"pod": "", "corePercent": 0, "memoryMiB": 0, "containers": 0}
SHOWN = 8
"""The most nodes that a line names."""


def run_top(arguments: argparse.Namespace) -> int:
    """Prints a line for each node that offers GPUs, with the parts that pods hold; returns 0.

    The totals follow, and the nodes whose inventory is not used. With `-o json` the nodes come as JSON, without totals.

    Raises:
        CommandError: the cluster cannot be read.
    """
    cluster = _whole(connect(os.environ))
    rows = node_rows(cluster)
    if arguments.output == "json":
        return _print(json.dumps({"nodes": rows, "faults": cluster.faults}, indent=2))
    headings = ("node", "model", "gpus", "fenced", "held", "time %", "memory %", "pods")
    lines = [
        (
            row["node"],
            row["model"],
            str(row["gpus"]),
            str(row["fenced"] or ""),
            f"{row['held']:.2f}",
            f"{row['corePercent']:.0f}",
            f"{row['memoryPercent']:.0f}",
            str(row["pods"]),
        )
        for row in rows
    ]
    gpus, held = sum(row["gpus"] for row in rows), sum(row["held"] for row in rows)
    waiting = cluster.state.waiting.count
    text = [table(headings, lines)] if lines else ["No node offers GPUs."]
    wait = "1 pod waits" if waiting == 1 else f"{waiting} pods wait"
    text.append(f"\n{held:.2f} of {gpus} GPUs are held; {wait} for a node.")
    text += [f"{name}: its inventory is not used: {fault}" for name, fault in sorted(cluster.faults.items())]
    return _print("\n".join(text))


def run_inspect(arguments: argparse.Namespace) -> int:
    """Prints a line for each GPU of one node or of all nodes, or the same as JSON; returns 0.

    With `-d` the table has a line for each pod on each GPU, and one for a GPU without pods.

    Raises:
        CommandError: the cluster cannot be read, or the node offers no GPUs.
    """
    cluster = _whole(connect(os.environ))
    rows = gpu_rows(cluster, arguments.node or "")
    if not rows and arguments.node:
        fault = cluster.faults.get(arguments.node)
        raise CommandError(f"{arguments.node}: {fault or 'no such node offers GPUs; fairgpu top lists those that do'}")
    if arguments.output == "json":
        return _print(json.dumps({"gpus": rows}, indent=2))
    return _print(_pods_table(rows) if arguments.details else _gpus_table(rows))


def run_why(arguments: argparse.Namespace) -> int:
    """Prints a pod's stage and the messages about it and, if it waits for a node, why; returns 0.

    The reasons are the causes that keep the pod from nodes, each with the number of these nodes and its remedy; with
    `-v` also with their names. If the pod's GPUs are free on some nodes, these are named instead. Without the right to
    read events or all nodes and pods, a line says so.

    Raises:
        CommandError: the pod or, for another cause than a missing right, its events or the cluster cannot be read.
    """
    namespace = arguments.namespace or namespace_of_context(os.environ)
    name = f"{namespace}/{arguments.pod}"
    api = connect(os.environ)
    try:
        pod = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(arguments.pod, safe='')}")
    except ApiError as error:
        if error.not_found:
            other = "" if arguments.namespace else "; -n names another namespace"
            raise CommandError(f"there is no pod {name}{other}") from error
        raise unreadable(error, f"pod {name}") from error
    lines = [f"Pod {name}: {stage_of(pod)}"]
    lines += [f"{who} says: {text}" for who, text in conditions_of(pod)]
    lines += _of_events(api, pod, namespace, arguments.pod)
    if stage_of(pod) == "waits for a node":
        lines += reclaim_of(pod)
        lines += _of_nodes(api, pod, verbose=arguments.verbose)
    return _print("\n".join(lines))


def _of_events(api: KubernetesAPI, pod: dict[str, Any], namespace: str, name: str) -> list[str]:
    """Returns at most one line: with FairGPU's latest event at the pod, or that the caller has no right to events."""
    try:
        selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
        events = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/events", {"fieldSelector": selector})["items"]
    except ApiError as error:
        if forbidden(error):
            return [f"The pod's events are not shown: this needs `list` of events in the namespace {namespace}."]
        raise unreadable(error, f"events of {namespace}") from error
    said = latest_event(pod, events)
    return [] if said is None else [f"FairGPU's latest event says: {said}"]


def _of_nodes(api: KubernetesAPI, pod: dict[str, Any], *, verbose: bool) -> list[str]:
    """Returns the lines that say why a pod fits on no node, or where it fits; one line if nodes cannot be seen.

    A line names at most SHOWN nodes, or all with `verbose`.
    """
    try:
        cluster = read_cluster(api)
    except ApiError as error:
        if forbidden(error):
            return [f"What each node has free is not shown: {RIGHTS}."]
        raise unreadable(error, "nodes and pods") from error
    fitting = fitting_nodes(cluster, pod)
    if fitting:
        return [
            f"Its GPUs are free on {_names(fitting, verbose=verbose)}.",
            "What keeps it from there is above: a budget, a gang, or a rule of kube-scheduler's own.",
        ]
    reasons = reasons_of(cluster, pod)
    if not reasons:
        return ["No node offers GPUs: `kubectl get nodes` and docs/nodes.md say why."]
    return [line for reason in reasons for line in _reason_lines(reason, verbose=verbose)]


def _reason_lines(reason: Reason, *, verbose: bool) -> list[str]:
    count = f"{len(reason.nodes)} node{'' if len(reason.nodes) == 1 else 's'}: " if reason.nodes else ""
    lines = [f"{count}{reason.text}"]
    if verbose and reason.nodes:
        lines.append(f"  on: {_names(reason.nodes, verbose=True)}")
    if reason.fragmented:
        lines.append(f"  on {len(reason.fragmented)} of them {FRAGMENTED}")
    return [*lines, f"  helps: {reason.remedy}"]


def _gpus_table(rows: Sequence[Row]) -> str:
    headings = ("node", "gpu", "model", "health", "time %", "memory MiB", "of", "containers")
    lines = [
        (
            row["node"],
            row["uuid"],
            row["model"],
            f"{row['health']}: {row['why']}" if row["why"] else row["health"],
            str(row["coreHeld"]),
            str(row["memoryHeldMiB"]),
            str(row["memoryMiB"]),
            str(row["containers"]),
        )
        for row in rows
    ]
    return table(headings, lines)


def _pods_table(rows: Sequence[Row]) -> str:
    headings = ("node", "gpu", "pod", "time %", "memory MiB", "containers")
    lines = [
        (row["node"], row["uuid"], pod["pod"], *(str(pod[key]) for key in ("corePercent", "memoryMiB", "containers")))
        for row in rows
        for pod in row["pods"] or [NO_POD]
    ]
    return table(headings, lines)


def _names(nodes: Sequence[str], *, verbose: bool) -> str:
    shown = nodes if verbose else nodes[:SHOWN]
    more = len(nodes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _whole(api: KubernetesAPI) -> Cluster:
    try:
        return read_cluster(api)
    except ApiError as error:
        raise unreadable(error, "nodes and pods", RIGHTS) from error


def _print(text: str) -> int:
    print(text)  # noqa: T201 - a person reads this
    return 0
