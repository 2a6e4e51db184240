"""Odd input to the scheduler and its outcome: one function for each row of docs/bad-input.md.

Each returns the outcome in a few words, and the text that its pod's event, the Node's event or the answer has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.cluster.reflector import reflect
from fairgpu.inventory import Inventory, encode
from fairgpu.serving.messages import Response
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from scheduler.application import Routes
from scheduler.cluster.eligible import Site
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import State
from scheduler.cluster.watches import NODES, PODS, AllocationFaults, NodesView, PodsView
from scheduler.extender.binding import BindError
from scheduler.measures import Measures
from tests.unit.scheduler.extended import ApiServer, Time, api_node, ask, bind_pod, pod, state_of, watched
from tests.unit.scheduler.fleets import node

Outcome = tuple[str, str]
HOUR = 3600.0


def bound_elsewhere(name: str, allocation: object, **changes: Any) -> dict[str, Any]:
    """A pod on n0 with an allocation that somebody wrote."""
    item = pod(name, nodeName="n0", **changes)
    text = allocation if isinstance(allocation, str) else json.dumps(allocation)
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    return item


def held(uuid: str, core: int, on: str = "n0") -> dict[str, Any]:
    """An allocation of one device."""
    device = {"uuid": uuid, "model": "A100", "totalMiB": 1000, "core": core, "memoryMiB": 10 * core}
    return {"v": 1, "node": on, "containers": [{"name": "main", "devices": [device]}]}


def answered(body: bytes, *, acts: bool = True) -> Outcome:
    """Returns filter's answer over HTTP."""
    routes = Routes(state_of("n0"), ApiServer(), Time().clock, lambda _=0.0: acts, Measures(CollectorRegistry()))  # type: ignore[arg-type] # a part
    answer: Response = routes.filter(body)
    return f"answered {answer.status}; kube-scheduler tries the pod again", json.loads(answer.body)["detail"]


def refused(item: dict[str, Any], state: State | None = None) -> Outcome:
    """Returns filter's text about a pod on every node."""
    result = ask(state or state_of("n0"), item)
    assert result.node_names == []
    [text] = {*result.failed_nodes.values(), *result.failed_and_unresolvable_nodes.values()}
    return "waits", text


def counted(item: dict[str, Any]) -> Outcome:
    """Returns whether a pod on n0 leaves its one GPU to others, and what its event says."""
    state, said = state_of("n0"), list[str]()
    view = PodsView(state, faults=AllocationFaults(state, lambda _note, _reason, message: said.append(message)))
    for _ in range(2):
        view.changed("MODIFIED", PODS.read(item) or {})
    free = ask(state, pod("next", core=100)).node_names == ["n0"]
    return ("holds no GPU" if free else "its GPU counts as held"), "; ".join(said)


def not_bound_now(state: State, item: dict[str, Any], api: ApiServer | None = None) -> str:
    """Returns bind's error; the pod holds nothing of n0 then."""
    with pytest.raises(BindError) as error:
        bind_pod(state, api or ApiServer(item), item, "n0")
    return str(error.value)


def not_bound(state: State, said: str) -> Outcome:
    """Returns bind's error, after which the devices must be free."""
    assert ask(state, pod("next", core=100)).node_names == ["n0"]
    return "not bound; its GPUs are free", said


def made_anew() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    return not_bound(state, not_bound_now(state, item, ApiServer(pod("a", uid="another"))))


def bound_by_another_scheduler() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    api = ApiServer(pod("a", core=100, nodeName="n7"))
    return not_bound(state, not_bound_now(state, item, api))


def told_inventory(*items: dict[str, Any]) -> Outcome:
    """Returns the outcome of pods for n0, and the text of its Node's event."""
    state, said = State(), list[str]()
    view = NodesView(state, lambda name, _uid, _reason, message: said.append(message) if name == "n0" else None)
    view.replaced([NODES.read(item) or {} for item in items])
    placed = ask(state, pod("a"), names=["n0"]).node_names
    return ("placed" if placed else "no pod is placed on the node; running ones go on"), said[0]


def twin() -> dict[str, Any]:
    item = api_node("n0")
    item["metadata"]["name"] = "n1"
    return item


def shrunk() -> Outcome:
    state, item = state_of("n0", gpus=2), pod("a", core=100, gpus=2)
    api = ApiServer(item)
    bind_pod(state, api, item, "n0")
    watched(state, api, "a")
    state.put_node(node("n0", 1))
    return refused(pod("next"), state)


def gone_since_filter() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    state.put_node(node("n0", 1).__class__("n0", node("m", 1).inventory))
    return not_bound(state, not_bound_now(state, item))


def fenced_since_filter() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    state.put_node(node("n0", 1, fenced=[0]))
    said = not_bound_now(state, item)
    state.put_node(node("n0", 1))
    return not_bound(state, said)


def cordoned_since_filter() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    state.put_site(Site("n0"))
    ask(state, item)
    state.put_site(Site("n0", unschedulable=True))
    return not_bound(state, not_bound_now(state, item))


def deleted_since_filter() -> Outcome:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    state.remove_node("n0")
    said = not_bound_now(state, item)
    state.put_node(node("n0", 1))
    return not_bound(state, said)


def old_states() -> Outcome:
    state = state_of("n0")
    known = NamespaceState("team", "research", BudgetState.HELD, 0, 0, 0)
    state.budgets.learn_states(StatesDocument("e.1", False, (known,), BudgetState.UNLIMITED, {}), -HOUR)
    return refused(pod("a"), state)


def no_states() -> Outcome:
    return ("placed, as within its budget" if ask(state_of("n0"), pod("a")).node_names else "waits"), ""


def failed_by_the_kubelet() -> Outcome:
    item = bound_elsewhere("a", held("n0-0", 100))
    item["status"] = {"phase": "Failed", "reason": "OutOfcpu"}
    return counted(item)


def nothing(_: Inventory) -> str:
    return " " * (64 << 10)


class Gone:
    """An API server that shows no pods, ends the watch with 410, and then shows a pod that holds n0."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lists: list[list[dict[str, Any]]] = [[], [bound_elsewhere("other", held("n0-0", 100))]]
        self.meanwhile: list[str] = []

    def get(self, _path: str, _query: Any, **_options: Any) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": self._lists.pop(0)}

    def stream(self, *_: Any) -> Any:
        if self._lists:
            self.meanwhile = ask(self._state, pod("meanwhile", core=100)).node_names
            self._state.forget("uid-meanwhile")
            raise ApiError(410, "Expired", "too old resource version")
        return []

    def wait(self, _seconds: float) -> bool:
        return not self._lists


def watch_gone() -> Outcome:
    state = state_of("n0")
    api = Gone(state)
    reflect(api, PODS, PodsView(state), api.wait, lambda: 0.5)  # type: ignore[arg-type] # a part
    assert api.meanwhile == ["n0"]
    outcome, text = refused(pod("next", core=100), state)
    return f"placed by what was known; by a new list: {outcome}", text


def unknown_node() -> Outcome:
    state = state_of("n0")
    result = ask(state, pod("a"), names=["n8"])
    return "waits", result.failed_and_unresolvable_nodes["n8"]


def without_inventory() -> Outcome:
    state, item = state_of("n0"), api_node("n8")
    del item["metadata"]["annotations"]["fairgpu.io/inventory"]
    NodesView(state).changed("ADDED", NODES.read(item) or {})
    result = ask(state, pod("a"), names=["n8"])
    return "waits", result.failed_and_unresolvable_nodes["n8"]


def both_memories() -> dict[str, Any]:
    item = pod("a")
    item["spec"]["containers"][0]["resources"]["limits"]["fairgpu.io/gpu-memory"] = "100"
    return item


def no_memory(inventory: Inventory) -> str:
    return encode(inventory).replace('"memoryMiB":1000', '"memoryMiB":0')


def same_twice(inventory: Inventory) -> str:
    return encode(inventory).replace('"n0-1"', '"n0-0"')


def without_a_label(item: dict[str, Any]) -> dict[str, Any]:
    """The pod as the policies leave it where it asks for no GPU: they let its author write any annotation later."""
    del item["metadata"]["labels"]
    item["spec"]["containers"] = [{"name": "main"}]
    return item


def overlapping() -> Outcome:
    state = state_of("n0")
    for name in ("a", "b"):
        state.put_pod(read_note(bound_elsewhere(name, held("n0-0", 80))))
    return refused(pod("next", core=10), state)


def more_than_there_is() -> Outcome:
    """Two pods past the scheduler, in one list: one that asks for more than any node has, and one on another node."""
    state, huge = state_of("n0", "n1"), bound_elsewhere("a", held("n0-0", 10))
    huge["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "9E"}
    sound = bound_elsewhere("b", held("n1-0", 100, on="n1"))
    sound["spec"]["nodeName"] = "n1"
    PodsView(state).replaced([PODS.read(item) or {} for item in (huge, sound)])
    _, text = refused(pod("next", core=100), state)
    full = state.fleet.cpu[state.fleet.rows["n0"]] < 0
    return ("its node has no CPU left; every other pod counts as it is" if full else "counts for nothing"), text


ODD_INPUT: dict[str, Callable[[], Outcome]] = {
    "a body that is no JSON": lambda: answered(b"<html>"),
    "a body that is not UTF-8": lambda: answered(b'{"Pod":{"a":"\xff"},"NodeNames":[]}'),
    "a body of 100,000 objects, each within the one before": lambda: answered(b'{"Pod":' + b'{"a":' * 100_000),
    "a body without `NodeNames`": lambda: answered(b'{"Pod":{}}'),
    "any body, at a replica that does not lead": lambda: answered(b"{}", acts=False),
    "a pod without a GPU that names our scheduler": lambda: refused(pod("a", containers=[{"name": "main"}])),
    "a pod with both memory resources": lambda: refused(both_memories()),
    "a name of a node that is not known": unknown_node,
    "a node without an inventory": without_inventory,
    "an allocation that is no JSON": lambda: counted(bound_elsewhere("a", "{")),
    "an allocation of another node": lambda: counted(bound_elsewhere("a", held("n0-0", 100, on="n9"))),
    "an allocation of a GPU that the node does not have": lambda: counted(bound_elsewhere("a", held("n9-3", 100))),
    "a pod without an allocation that another scheduler has bound": lambda: counted(pod("a", nodeName="n0")),
    "an allocation that a process with the scheduler's account wrote": lambda: counted(
        bound_elsewhere("a", held("n0-0", 100))
    ),
    "an allocation on a pod without a GPU": lambda: counted(without_a_label(bound_elsewhere("a", held("n0-0", 100)))),
    "allocations that overlap": overlapping,
    "a pod with `cpu: 9E` that another scheduler has bound": more_than_there_is,
    "an inventory of 64 KiB of spaces": lambda: told_inventory(api_node("n0", encode=nothing)),
    "an inventory with a GPU of 0 MiB": lambda: told_inventory(api_node("n0", encode=no_memory)),
    "an inventory that has a GPU twice": lambda: told_inventory(api_node("n0", gpus=2, encode=same_twice)),
    "an inventory with a GPU of another node": lambda: told_inventory(api_node("n0"), twin()),
    "an inventory that shrinks below what pods hold": shrunk,
    "a GPU that is gone between filter and bind": gone_since_filter,
    "a GPU that is fenced between filter and bind": fenced_since_filter,
    "a node that is cordoned or tainted between filter and bind": cordoned_since_filter,
    "a node that is deleted between filter and bind": deleted_since_filter,
    "a pod that another scheduler has bound": bound_by_another_scheduler,
    "a pod that was deleted and made anew under its name": made_anew,
    "states that never came": no_states,
    "states that are an hour old": old_states,
    "a watch of pods that ends with 410": watch_gone,
    "a pod that the kubelet fails, since another took its CPU": failed_by_the_kubelet,
}
