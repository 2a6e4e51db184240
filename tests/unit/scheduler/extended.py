"""A cluster for the tests of the extender: nodes, pods and an API server that answers as a test sets it up."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from fairgpu import inventory
from fairgpu.cluster.api import ApiError
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import State
from scheduler.extender.binding import GIVE_UP_SECONDS, Clock, bind
from scheduler.extender.filtering import filter_nodes
from scheduler.extender.wire import BindArguments, FilterArguments, decode_filter, encode
from tests.unit.scheduler.fleets import node

ALLOCATION = "fairgpu.io/allocation"


def pod(name: str, *, uid: str = "", core: int = 50, gpus: int = 1, gang: str = "", **changes: Any) -> dict[str, Any]:
    """A pod as the webhook admits it."""
    annotations = {"fairgpu.io/gang": gang} if gang else {}
    limits = {
        "fairgpu.io/gpu": str(gpus),
        "fairgpu.io/gpu-core": str(core * gpus),
        "fairgpu.io/gpu-memory-percentage": str(core * gpus),
    }
    return {
        "metadata": {
            "uid": uid or f"uid-{name}",
            "namespace": "team",
            "name": name,
            "labels": {"fairgpu.io/pod": "gpu"},
            "annotations": annotations,
        },
        "spec": {
            "schedulerName": "fairgpu-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}],
        }
        | changes,
    }


def deleted(item: dict[str, Any]) -> dict[str, Any]:
    """The pod once it was deleted, while a finalizer keeps it."""
    return item | {"metadata": item["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}}


def state_of(*names: str, gpus: int = 1) -> State:
    """A state that has read nodes of these names, and no pods."""
    state = State()
    for name in names:
        state.put_node(node(name, gpus))
    state.listed("nodes")
    state.listed("pods")
    return state


class Answer(NamedTuple):
    """Filter's answer as kube-scheduler reads it."""

    node_names: list[str]
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]


class ApiServer:
    """Keeps pods, and takes Bindings and events.

    Attributes:
        pods: by name.
        answers: what comes of each POST in turn, before the rest succeed: an error, and whether it was carried out;
            None where the API server is still at it.
        under_way: the path and body of each POST that the API server is still at.
        posted: all Bindings and events.
        unread: what comes of each GET in place of the pod.
    """

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {item["metadata"]["name"]: item for item in pods}
        self.answers: list[tuple[ApiError, bool | None]] = []
        self.under_way: list[tuple[str, dict[str, Any]]] = []
        self.posted: list[dict[str, Any]] = []
        self.unread: ApiError | None = None

    def get(self, path: str) -> dict[str, Any]:
        """A pod."""
        if self.unread is not None:
            raise self.unread
        name = path.rpartition("/")[2]
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        return self.pods[name]

    def create(self, path: str, body: dict[str, Any], _query: Any = None) -> dict[str, Any]:
        """Binds a pod, as far as its uid is the one that is named, it is not bound yet, and was not deleted."""
        self.posted.append(body)
        if body.get("kind") == "Event":
            return {}
        error, carried_out = self.answers.pop(0) if self.answers else (None, True)
        if carried_out is None:
            self.under_way.append((path, body))
        if carried_out:
            self._bind(path.split("/")[-2], body)
        if error is not None:
            raise error
        return {}

    def finish(self) -> None:
        """Carries out what is still under way, as far as it can be."""
        for path, body in self.under_way:
            with suppress(ApiError):
                self._bind(path.split("/")[-2], body)
        self.under_way.clear()

    def _bind(self, name: str, body: dict[str, Any]) -> None:
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        item = self.pods[name]
        given, there = body["metadata"]["uid"], item["metadata"]["uid"]
        if given != there:
            text = f"Precondition failed: UID in precondition: {given}, UID in object meta: {there}"
            raise ApiError(409, "Conflict", text)
        if item["metadata"].get("deletionTimestamp"):
            raise ApiError(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host")
        if item["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f"pod {name} is already assigned to node {item['spec'].get('nodeName')}")
        item["spec"]["nodeName"] = body["target"]["name"]
        item["metadata"]["annotations"] |= body["metadata"]["annotations"]


class Time:
    """A clock that goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wait(self, seconds: float) -> bool:
        """Goes on; nothing is to end."""
        self.now += seconds
        return False

    @property
    def clock(self) -> Clock:
        """As binding takes it."""
        return Clock(lambda: self.now, self.wait)


def arguments(item: dict[str, Any], names: list[str]) -> FilterArguments:
    """The arguments of filter and prioritize, as kube-scheduler sends them."""
    return decode_filter(json.dumps({"Pod": item, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode())


def ask(state: State, item: dict[str, Any], now: float = 1000.0, names: list[str] | None = None) -> Answer:
    """Filter's answer; all nodes are named where none are."""
    asked = arguments(item, list(state.fleet.rows) if names is None else names)
    answer = json.loads(encode(filter_nodes(state, asked, now)))
    return Answer(answer["NodeNames"], answer["FailedNodes"], answer["FailedAndUnresolvableNodes"])


def bind_pod(
    state: State,
    api: ApiServer,
    item: dict[str, Any],
    name: str,
    time: Time | None = None,
    leads: Callable[[], bool] = lambda: True,
) -> None:
    """Binds a pod to a node."""
    metadata = item["metadata"]
    asked = BindArguments(metadata["name"], metadata["namespace"], metadata["uid"], name)
    clock = (time or Time()).clock
    bind(state, api, asked, clock, leads, clock.now() + GIVE_UP_SECONDS)


def watched(state: State, api: ApiServer, name: str) -> None:
    """The watch shows a pod as the API server has it."""
    state.put_pod(read_note(api.pods[name]))


def device_of(item: dict[str, Any]) -> str:
    """The first device that a bound pod holds."""
    uuid: str = json.loads(item["metadata"]["annotations"][ALLOCATION])["containers"][0]["devices"][0]["uuid"]
    return uuid


def api_node(
    name: str, gpus: int = 1, encode: Callable[[inventory.Inventory], str] = inventory.encode
) -> dict[str, Any]:
    """A node as the API server has it."""
    text = encode(node(name, gpus).inventory)
    return {
        "metadata": {"name": name, "annotations": {"fairgpu.io/inventory": text}},
        "status": {"allocatable": {"cpu": "64", "memory": "256000Mi"}},
    }
