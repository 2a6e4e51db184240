"""Pods of a gang are placed together or not at all."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from fairgpu.serving.messages import Request as HTTPRequest
from scheduler.application import Routes
from scheduler.cluster.eligible import Site
from scheduler.cluster.gang_pods import GangKey, Hold
from scheduler.cluster.objects import read_note, read_waiting
from scheduler.cluster.state import State
from scheduler.cluster.waiting import FITS
from scheduler.extender.binding import BindError
from scheduler.extender.filtering import GONE, explain_pod
from scheduler.gangs import holding
from scheduler.gangs.holding import arrive, release_overdue
from scheduler.measures import Measures
from scheduler.placement.choosing import Chooser
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.together import MAX_TRIES, Part, place_together
from tests.unit.scheduler.extended import ApiServer, Time, ask, bind_pod, deleted, pod, state_of, watched
from tests.unit.scheduler.fleets import T4, all_rows, fill, fleet_of, node

GANG_SECONDS = 30.0


def gang_of(count: int, name: str = "train") -> list[dict[str, Any]]:
    """The pods of a gang."""
    return [pod(f"{name}-{at}", core=100, gang=f"{name}/{count}") for at in range(count)]


def created(state: State, *items: dict[str, Any]) -> None:
    """The watch shows pods that are not bound."""
    for item in items:
        state.put_pod(read_note(item))


def answer(state: State, item: dict[str, Any], names: list[str] | None = None, now: float = 1000.0) -> str:
    """The node of a pod, else the one text why not."""
    result = ask(state, item, now, names)
    if result.node_names:
        return result.node_names[0]
    [text] = {*result.failed_nodes.values(), *result.failed_and_unresolvable_nodes.values()}
    return text


def running_gang() -> tuple[State, ApiServer, list[str]]:
    """Returns the state with a gang of three bound pods, its API server, and the pods' nodes in order."""
    items = gang_of(3)
    state, api = state_of("n0", "n1", "n2"), ApiServer(*copy.deepcopy(items))
    created(state, *items)
    nodes = [answer(state, item) for item in items]
    for item, name in zip(items, nodes, strict=True):
        arrive(state, item["metadata"]["uid"], name, 1000.0)
    for item, name in zip(items, nodes, strict=True):
        bind_pod(state, api, item, name)
        watched(state, api, item["metadata"]["name"])
    return state, api, nodes


def test_no_pod_of_a_gang_is_placed_before_all_of_them_are_there() -> None:
    state, pods = state_of("n0", "n1", "n2"), gang_of(3)
    created(state, *pods[:2])
    assert [answer(state, item) for item in pods[:2]] == ["gang: 2 of 3 pods are there"] * 2
    created(state, pods[2])
    assert sorted(answer(state, item) for item in pods) == ["n0", "n1", "n2"]


def test_a_pod_that_kube_scheduler_has_seen_before_the_watch_shows_it_counts() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, pods[0])
    assert answer(state, pods[1]) == "n0"


def test_a_pod_behind_a_scheduling_gate_is_not_there_yet() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    pods[1]["spec"]["schedulingGates"] = [{"name": "fairgpu.io/budget"}]
    created(state, *pods)
    assert answer(state, pods[0]) == "gang: 1 of 2 pods are there"
    del pods[1]["spec"]["schedulingGates"]
    created(state, *pods)
    assert answer(state, pods[0]) == "n0"


def test_no_pod_of_a_gang_is_placed_before_all_of_them_fit() -> None:
    state, pods = state_of("n0", "n1"), gang_of(3)
    created(state, *pods)
    assert [answer(state, item) for item in pods] == ["gang: 2 of 3 fit"] * 3
    assert answer(state, pod("alone", core=100)) == "n0"


def test_a_gang_that_does_not_fit_keeps_the_answers_to_all_other_pods_known() -> None:
    state, one, other = state_of("n0", "n1"), gang_of(3, "one"), gang_of(3, "other")
    single = pod("single", core=100, gpus=2)
    created(state, *one, *other, single)
    texts = [answer(state, item) for item in (one[0], single, other[0])]
    refusal, searched = state.refusals.of(read_waiting(single).request, np.array([0, 1])), state.fleet.version
    assert [answer(state, item) for item in (one[1], single, other[1])] == texts
    assert state.refusals.of(read_waiting(single).request, np.array([0, 1])) is refusal
    assert state.fleet.version == searched


def test_gangs_of_one_kind_have_one_forecast_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def noted(chooser: Chooser, parts: Sequence[Part]) -> Any:
        tried.append(len(parts))
        return place_together(chooser, parts)

    monkeypatch.setattr(holding, "place_together", noted)
    state, gangs = state_of("n0", "n1"), [gang_of(3, "one"), gang_of(3, "other"), gang_of(4, "larger")]
    created(state, *chain(*gangs))
    waiting = [read_waiting(item) for item in chain(*gangs)]
    texts = [explain_pod(state, one, None) for one in waiting]
    assert texts == ["gang: 2 of 3 fit"] * 6 + ["gang: 2 of 4 fit"] * 4
    assert tried == [3, 4]
    state.put_node(node("n2", 1))
    assert [explain_pod(state, one, None) for one in waiting] == [FITS] * 6 + ["gang: 3 of 4 fit"] * 4
    assert tried == [3, 4, 3, 4]


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_gang_holds_nothing_where_a_pod_may_not_go_though_another_of_its_pods_may(*, asked_before: bool) -> None:
    state, free, bound = state_of("n0", gpus=2), pod("a", gang="train/2"), pod("b", gang="train/2")
    state.put_node(node("n1", 1))
    fill(state.fleet, "n1-0", core=80)
    for name in ("n0", "n1"):
        state.put_site(Site(name, {"name": name}, pods=10))
    bound["spec"]["nodeSelector"] = {"name": "n1"}
    created(state, free, bound)
    if asked_before:
        assert answer(state, bound, ["n1"]) == "gang: 0 of 2 fit"
    assert answer(state, free, ["n0"]) == "gang: 1 of 2 fit"
    assert state.reserved() == set()


def test_a_gang_holds_nothing_for_a_pod_with_a_volume_but_where_kube_scheduler_named_it() -> None:
    claim = [{"persistentVolumeClaim": {"claimName": "c"}}]
    state, pods = state_of("n0", gpus=2), [pod(name, gang="train/2", volumes=claim) for name in ("a", "b")]
    state.put_node(node("n1", 1))
    fill(state.fleet, "n1-0", core=80)
    created(state, *pods)
    assert answer(state, pods[1], ["n1"]) == "gang: 0 of 2 fit"
    assert answer(state, pods[0], ["n0"]) == "gang: 1 of 2 fit"
    assert state.reserved() == set()


def test_a_gang_is_tried_again_once_kube_scheduler_names_other_nodes_for_one_of_its_pods() -> None:
    state, small, large = state_of("n0", "n1"), pod("a", core=30, gang="train/2"), pod("b", core=60, gang="train/2")
    created(state, small, large)
    fill(state.fleet, "n1-0", core=50)
    assert answer(state, large, ["n1"]) == "gang: 0 of 2 fit"
    assert answer(state, small, ["n0"]) == "gang: 1 of 2 fit"
    assert answer(state, large, ["n0"]) == "n0"


def test_while_a_gang_is_held_its_devices_are_nobody_elses() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods)
    assert answer(state, pods[0]) == "n0"
    assert "at most 0 free" in answer(state, pod("alone", core=100))
    assert answer(state, pods[1]) == "n1"


def test_the_nodes_that_were_named_for_a_gang_are_kept_until_it_runs() -> None:
    """They take a bit a node for each pod, and a gang may run for weeks."""
    state, pods = state_of("n0"), gang_of(2)
    created(state, *pods)
    assert [answer(state, item) for item in pods] == ["gang: 1 of 2 fit"] * 2
    gang = state.gangs.of(GangKey("team", "train", 2))
    assert gang.refusal is not None
    state.put_node(node("n1", 1))
    api, nodes = ApiServer(*pods), [answer(state, item) for item in pods]
    assert set(gang.nodes) == {item["metadata"]["uid"] for item in pods}
    for item, name in zip(pods, nodes, strict=True):
        arrive(state, item["metadata"]["uid"], name, 1000.0)
    for item, name in zip(pods, nodes, strict=True):
        bind_pod(state, api, item, name)
        watched(state, api, item["metadata"]["name"])
    assert (gang.nodes, gang.refusal, gang.forecast) == ({}, None, None)


def test_metrics_say_how_many_gangs_wait_hold_were_placed_and_released() -> None:
    state, registry = state_of("n0", "n1", "n2"), CollectorRegistry()
    measures = Measures(registry)

    def shown() -> tuple[float | None, ...]:
        measures.show(state.figures(), acting=True)
        gangs = [registry.get_sample_value("fairgpu_scheduler_gangs", {"state": one}) for one in ("waiting", "held")]
        holds = [
            registry.get_sample_value("fairgpu_scheduler_gang_holds_total", {"outcome": one})
            for one in ("placed", "released")
        ]
        return *gangs, *holds

    first, second = gang_of(2, name="first"), gang_of(2, name="second")
    created(state, *first, *second)
    assert shown() == (2, 0, 0, 0)
    for item in (*first, second[0]):
        answer(state, item)
    assert shown() == (1, 1, 0, 0)
    release_overdue(state, 1000.0 + GANG_SECONDS)
    assert shown() == (2, 0, 0, 1)
    answer(state, first[0], now=2000.0)
    nodes = [answer(state, item, now=2000.0) for item in reversed(first)][::-1]
    for item, name in zip(first, nodes, strict=True):
        arrive(state, item["metadata"]["uid"], name, 2000.0)
    assert shown() == (1, 0, 1, 1)
    assert shown() == (1, 0, 1, 1)


def test_one_of_two_gangs_that_do_not_fit_together_holds_all_and_the_other_nothing() -> None:
    state = state_of("n0", "n1", "n2")
    first, second = gang_of(2, name="first"), gang_of(2, name="second")
    created(state, *first, *second)
    assert answer(state, first[0]) == "n0"
    assert [answer(state, item) for item in second] == ["gang: 1 of 2 fit"] * 2
    assert answer(state, first[1]) == "n1"
    assert answer(state, pod("alone", core=100)) == "n2"


def test_a_no_to_a_gang_is_tried_again_only_once_something_has_changed() -> None:
    state, pods = state_of("n0", "n1"), gang_of(3)
    created(state, *pods)
    assert answer(state, pods[0]) == "gang: 2 of 3 fit"
    version = state.fleet.version
    assert [answer(state, item) for item in pods] == ["gang: 2 of 3 fit"] * 3
    assert state.fleet.version == version
    state.put_node(node("n2", 1))
    assert answer(state, pods[0]) == "n0"


def test_a_bind_waits_until_all_of_the_gang_are_about_to_be_bound() -> None:
    items = gang_of(2)
    state, api = state_of("n0", "n1"), ApiServer(*copy.deepcopy(items))
    created(state, *items)
    nodes = [answer(state, item) for item in items]
    routes = Routes(state, api, Time().clock, lambda _=0.0: True, Measures(CollectorRegistry()))  # type: ignore[arg-type]

    async def bind_both() -> list[Any]:
        first = asyncio.create_task(routes.bind(_bind(items[0], nodes[0])))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        assert api.posted == []
        return await asyncio.gather(first, routes.bind(_bind(items[1], nodes[1])))

    answers = asyncio.run(bind_both())
    assert [json.loads(one.body)["Error"] for one in answers] == ["", ""]
    assert sorted(item["spec"]["nodeName"] for item in api.pods.values()) == ["n0", "n1"]


def test_a_gang_whose_replica_stops_leading_while_its_binds_wait_is_not_bound() -> None:
    items = gang_of(2)
    state, api = state_of("n0", "n1"), ApiServer(*copy.deepcopy(items))
    created(state, *items)
    nodes = [answer(state, item) for item in items]
    # Its Lease is not over yet, and does not last for an attempt.
    routes = Routes(state, api, Time().clock, lambda seconds=0.0: seconds == 0, Measures(CollectorRegistry()))  # type: ignore[arg-type]

    async def bind_both() -> list[Any]:
        return await asyncio.gather(*(routes.bind(_bind(item, node)) for item, node in zip(items, nodes, strict=True)))

    answers = asyncio.run(bind_both())
    assert all("does not lead" in json.loads(one.body)["Error"] for one in answers)
    assert api.posted == []


def test_a_gang_with_a_pod_for_a_node_that_was_cordoned_meanwhile_is_not_bound_at_all() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    for name in ("n0", "n1"):
        state.put_site(Site(name))
    created(state, *pods)
    nodes = [answer(state, item) for item in pods]
    first = arrive(state, "uid-train-0", nodes[0], 1000.0)
    state.put_site(Site(nodes[0], unschedulable=True))
    second = arrive(state, "uid-train-1", nodes[1], 1000.0)
    assert first is second is not None
    assert first.outcome.result().startswith(f"gang: since the nodes were chosen: {nodes[0]} was cordoned")
    assert [state.reservation(f"uid-train-{at}") for at in range(2)] == [None, None]


def test_a_hold_that_lasts_too_long_is_released_as_a_whole_with_the_cause() -> None:
    state, pods = state_of("n0", "n1", "n2"), gang_of(3)
    created(state, *pods)
    nodes = [answer(state, item, now=0.0) for item in pods[:2]]
    holds = [arrive(state, f"uid-train-{at}", nodes[at], 1.0) for at in range(2)]
    release_overdue(state, GANG_SECONDS - 1)
    assert state.reservation("uid-train-2") is not None
    release_overdue(state, GANG_SECONDS)
    assert [hold.outcome.result() for hold in holds if hold] == ["gang: 2 of 3 fit"] * 2
    assert [state.fleet.held_by(f"uid-train-{at}") for at in range(3)] == [None] * 3


def test_a_gang_that_was_released_is_held_again_once_those_that_did_not_come_are_asked_about() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods)
    arrive(state, "uid-train-0", answer(state, pods[0], now=0.0), 0.0)
    assert answer(state, pods[0], now=GANG_SECONDS) == "gang: 1 of 2 fit"
    assert answer(state, pod("alone", core=100), now=GANG_SECONDS) == "n0"
    state.remove_pod("uid-alone")
    state.forget("uid-alone")
    assert answer(state, pods[1], now=GANG_SECONDS) == "n0"
    assert explain_pod(state, read_waiting(pods[0]), None) == FITS


def test_a_bind_of_a_pod_whose_gang_was_released_is_refused() -> None:
    items = gang_of(2)
    state, api = state_of("n0", "n1"), ApiServer(*items)
    created(state, *items)
    name = answer(state, items[0], now=0.0)
    release_overdue(state, GANG_SECONDS)
    assert arrive(state, "uid-train-0", name, GANG_SECONDS) is None
    with pytest.raises(BindError, match="free again"):
        bind_pod(state, api, items[0], name)
    assert api.posted == []


def test_a_pod_whose_node_is_taken_from_it_gets_another_and_the_rest_stay() -> None:
    state, pods = state_of("n0", "n1", "n2"), gang_of(2)
    created(state, *pods)
    assert answer(state, pods[0]) == "n0"
    assert answer(state, pods[1], names=["n2"]) == "n2"
    assert answer(state, pods[0]) == "n0"


def test_pods_that_have_not_arrived_make_room_for_one_that_may_go_to_fewer_nodes() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods)
    assert answer(state, pods[0]) == "n0"
    assert answer(state, pods[1], names=["n0"]) == "n0"
    assert answer(state, pods[0]) == "n1"


def test_a_pod_that_is_made_anew_takes_the_place_of_the_one_that_is_gone() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods)
    first = arrive(state, "uid-train-0", answer(state, pods[0]), 1000.0)
    state.remove_pod("uid-train-1")
    anew = pod("train-1", uid="anew", core=100, gang="train/2")
    second = arrive(state, "anew", answer(state, anew), 1000.0)
    assert first is second
    assert first is not None
    assert first.outcome.result(0) == ""


def test_a_node_that_takes_the_place_of_one_that_was_named_for_a_pod_was_not_named_itself() -> None:
    state, pods = state_of("n0", "n1", "n2"), gang_of(2)
    pods[1] = pod("train-1", core=90, gang="train/2")
    assert answer(state, pods[1], names=["n1", "n2"]) == "gang: 1 of 2 pods are there"
    ask(state, pod("other", core=100), names=["n1"])
    state.remove_node("n2")
    state.put_node(node("n3", 1))
    assert answer(state, pods[0], names=["n0"]) == "gang: 1 of 2 fit"
    assert answer(state, pods[1], names=["n3"]) == "n3"


def test_a_deleted_pod_that_a_finalizer_keeps_is_no_pod_of_its_gang() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods, deleted(pods[1]))
    assert answer(state, pods[0]) == "gang: 1 of 2 pods are there"
    anew = pod("train-1", uid="anew", core=100, gang="train/2")
    created(state, anew)
    assert {answer(state, pods[0]), answer(state, anew)} == {"n0", "n1"}


@pytest.mark.parametrize("end", ["before kube-scheduler asks", "while its devices are held"])
def test_a_pod_that_was_deleted_does_not_come_back_to_its_gang(end: str) -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    created(state, *pods)
    if end == "while its devices are held":
        answer(state, pods[1])
    state.remove_pod("uid-train-1")
    # kube-scheduler sees the end later.
    assert answer(state, pods[1]) == GONE
    if end == "while its devices are held":
        with pytest.raises(BindError, match="the pod was deleted, or has ended"):
            bind_pod(state, ApiServer(), pods[1], "n0")
    state.expire(2000.0)
    release_overdue(state, 2000.0)
    assert answer(state, pods[0], now=2000.0) == "gang: 1 of 2 pods are there"


def test_a_pod_of_a_gang_that_runs_is_placed_as_soon_as_it_fits() -> None:
    state, _, nodes = running_gang()
    state.remove_pod("uid-train-1")
    anew = pod("train-1", uid="anew", core=100, gang="train/3")
    assert answer(state, anew) == nodes[1]
    hold = arrive(state, "anew", nodes[1], 1000.0)
    assert hold is not None
    assert hold.outcome.result(0) == ""


def test_a_pod_that_replaces_one_of_a_gang_that_runs_waits_for_none_that_has_done_its_work() -> None:
    state, api, nodes = running_gang()
    api.pods["train-0"]["status"] = {"phase": "Succeeded"}
    watched(state, api, "train-0")
    state.remove_pod("uid-train-1")
    ask(state, pod("other", core=100), names=[nodes[1]])
    anew = pod("train-1", uid="anew", core=100, gang="train/3")
    assert answer(state, anew, names=[nodes[1]]) == "gang: 1 of 2 fit"
    assert answer(state, anew) == nodes[0]
    hold = arrive(state, "anew", nodes[0], 1000.0)
    assert hold is not None
    assert hold.outcome.result(0) == ""


def test_a_gang_that_has_ended_is_no_part_of_the_next_one_of_its_name() -> None:
    state, pods = state_of("n0", "n1"), gang_of(2)
    done = [copy.deepcopy(item) | {"status": {"phase": "Succeeded"}} for item in pods]
    for item, name in zip(done, ("n0", "n1"), strict=True):
        item["spec"]["nodeName"] = name
    created(state, *done)
    anew = [pod(f"train-{at}", uid=f"anew-{at}", core=100, gang="train/2") for at in range(2)]
    assert answer(state, anew[0]) == "gang: 1 of 2 pods are there"


def test_a_pod_beyond_the_number_of_its_gang_waits_until_that_many_are_placed() -> None:
    state = state_of("n0", "n1", "n2")
    items = [pod(f"train-{at}", core=100, gang="train/2") for at in range(3)]
    created(state, *items)
    assert answer(state, items[0]) == "n0"
    held = [item for item in items if state.reservation(item["metadata"]["uid"]) is not None]
    [extra] = [item for item in items if item not in held]
    assert answer(state, extra) == "gang: 2 of its pods are placed before any other"
    for item in held:
        arrive(state, item["metadata"]["uid"], answer(state, item), 1000.0)
    assert answer(state, extra) == "n2"


def test_pods_that_name_another_number_are_of_another_gang() -> None:
    state = state_of("n0", "n1")
    items = [pod("a", gang="train/2"), pod("b", gang="train/1")]
    created(state, *items)
    assert answer(state, items[0]) == "gang: 1 of 2 pods are there"
    assert answer(state, items[1]) == "n0"


def test_a_gang_whose_bindings_were_all_refused_is_held_as_a_whole_again() -> None:
    items = gang_of(2)
    state = state_of("n0", "n1")
    created(state, *items)
    for item in items:
        arrive(state, item["metadata"]["uid"], answer(state, item), 1000.0)
    for item in items:
        state.forget(item["metadata"]["uid"])
    assert answer(state, pod("alone", core=100)) == "n0"
    assert [answer(state, item) for item in items] == ["gang: 1 of 2 fit"] * 2


def test_a_bound_pod_changes_nothing_when_kube_scheduler_asks_again() -> None:
    item = pod("a", core=100)
    state, api = state_of("n0", "n1"), ApiServer(copy.deepcopy(item))
    bind_pod(state, api, item, answer(state, item))
    watched(state, api, "a")
    assert answer(state, item, names=["n1"]) == "gpu: the pod is bound already"
    assert answer(state, pod("b", core=100)) == "n1"


def _bind(item: dict[str, Any], name: str) -> HTTPRequest:
    metadata = item["metadata"]
    named = {"PodName": metadata["name"], "PodNamespace": "team", "PodUID": metadata["uid"], "Node": name}
    return HTTPRequest({}, json.dumps(named).encode())


containers = st.tuples(st.integers(1, 3), st.sampled_from([20, 50, 70, 100]))


@settings(max_examples=60, deadline=None)
@given(st.lists(containers, min_size=1, max_size=6), st.integers(1, 3))
def test_places_together_hold_no_device_beyond_what_it_has_and_leave_nothing_held(
    asked: list[tuple[int, int]], count: int
) -> None:
    fleet = fleet_of(*(node(f"n{at}", 3) for at in range(count)))
    parts = [
        Part(str(at), Request((Need(gpus, core, memory_percent=core),)), all_rows(fleet))
        for at, (gpus, core) in enumerate(asked)
    ]
    places, fitting = place_together(Chooser(fleet), parts)
    assert (len(places) == len(parts)) == (fitting == len(parts))
    assert np.all(fleet.core[: fleet.size, :3] == 100)
    held: dict[str, int] = {}
    for part in parts:
        for share in places[part.uid].shares[0] if places else ():
            held[share.uuid] = held.get(share.uuid, 0) + share.core_percent
    assert max(held.values(), default=0) <= 100


unequal = st.lists(
    st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([20, 30, 40, 50, 60]), st.sampled_from([10, 60])),
    min_size=2,
    max_size=5,
)
filled = st.lists(st.lists(st.sampled_from([0, 40, 60, 70]), min_size=1, max_size=2), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(unequal, filled, st.sets(st.integers(0, 4), max_size=2))
@example([(1, 40, 10), (1, 30, 10), (1, 30, 10)], [[40], [60]], set())
@example([(1, 20, 10), (1, 20, 10)], [[60], [60]], {1})
def test_unequal_pods_are_placed_together_wherever_all_of_them_fit(
    asked: list[tuple[int, int, int]], held: list[list[int]], on_the_first_node: set[int]
) -> None:
    fleet = fleet_of(*(node(f"n{at}", len(devices)) for at, devices in enumerate(held)))
    for at, devices in enumerate(held):
        for device, core in enumerate(devices):
            fill(fleet, f"n{at}-{device}", core=core)
    rows = [all_rows(fleet)[:1] if at in on_the_first_node else all_rows(fleet) for at in range(len(asked))]
    parts = [
        Part(str(at), Request((Need(gpus, core, memory_percent=memory),)), rows[at])
        for at, (gpus, core, memory) in enumerate(asked)
    ]
    before = fleet.core.copy()
    places, _ = place_together(Chooser(fleet), parts)
    assert np.array_equal(fleet.core, before)
    room = [[(100 - core, 100) for core in devices] for devices in held]
    assert bool(places) == _all_fit(room, list(zip(asked, map(len, rows), strict=True)))


def _all_fit(room: list[list[tuple[int, int]]], asked: list[tuple[tuple[int, int, int], int]]) -> bool:
    """Whether some choice of devices, each on so many of the first nodes, has room for all: every choice is tried."""
    if not asked:
        return True
    ((gpus, core, memory), nodes), *others = asked
    for at in range(nodes):
        for chosen in combinations(range(len(room[at])), gpus):
            if all(room[at][device][0] >= core and room[at][device][1] >= memory for device in chosen):
                left = copy.deepcopy(room)
                for device in chosen:
                    left[at][device] = room[at][device][0] - core, room[at][device][1] - memory
                if _all_fit(left, others):
                    return True
    return False


@pytest.mark.parametrize("wanted", [Wanted(use_models=("A100",)), Wanted(use_uuids=("n0-0",))])
def test_equally_free_devices_of_which_a_pod_may_use_one_alone_are_both_tried_for_the_other_pods(
    wanted: Wanted,
) -> None:
    one = node("n0", 2)
    devices = (one.inventory.devices[0], replace(one.inventory.devices[1], model=T4))
    fleet = fleet_of(replace(one, inventory=replace(one.inventory, devices=devices)))
    several = Request((Need(1, 40, 10), Need(1, 40, 10), Need(2, 10, 10)))
    requests = (several, Request((Need(1, 90, 10),), wanted=wanted))
    parts = [Part(str(at), request, all_rows(fleet)) for at, request in enumerate(requests)]
    places, fitting = place_together(Chooser(fleet), parts)
    assert fitting == 2
    assert places["1"].shares[0][0].uuid == "n0-0"


def test_a_search_ends_after_its_limit_and_leaves_nothing_held() -> None:
    """One pod more than there are GPUs, each of which has room for one: no choice of places is the last to fail."""
    fleet = fleet_of(*(node(f"n{at}", 8) for at in range(4)))
    for at in range(32):
        fill(fleet, f"n{at // 8}-{at % 8}", core=20 + at)
    parts = [Part(str(at), Request((Need(1, 45 + at % 4, memory_percent=1),)), all_rows(fleet)) for at in range(33)]
    before, version = fleet.core.copy(), fleet.version
    assert place_together(Chooser(fleet), parts) == ({}, 32)
    assert np.array_equal(fleet.core, before)
    # Each place that is tried is held and released.
    assert 2 * MAX_TRIES <= fleet.version - version <= 2 * MAX_TRIES + 4 * len(parts)


def test_equal_containers_of_several_gpus_all_find_room_wherever_they_can() -> None:
    """The fullest two of three devices would leave one pair where there is room for two."""
    fleet = fleet_of(node("n0", 3))
    chooser = Chooser(fleet)
    half = Request((Need(2, 50, memory_percent=50),))
    fill(fleet, "n0-1", core=50, memory=500)
    fill(fleet, "n0-2", core=50, memory=500)
    parts = [Part(str(at), half, all_rows(fleet)) for at in range(2)]
    assert place_together(chooser, parts)[1] == 2


class TwoGangs(RuleBasedStateMachine):
    """Two gangs of four on six GPUs: kube-scheduler asks about their pods and binds them in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.items = {item["metadata"]["uid"]: item for name in ("a", "b") for item in gang_of(4, name=name)}
        self.api = ApiServer(*copy.deepcopy(list(self.items.values())))
        self.state = state_of(*(f"n{at}" for at in range(6)))
        self.binding: dict[str, tuple[str, Hold]] = {}

    def settle(self) -> None:
        """Binds that need not wait any more go on, or end."""
        for uid, (name, hold) in list(self.binding.items()):
            if hold.outcome.done():
                del self.binding[uid]
                if not hold.outcome.result():
                    bind_pod(self.state, self.api, self.items[uid], name, self.time)

    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        created(self.state, self.items[data.draw(st.sampled_from(sorted(self.items)))])

    @precondition(lambda self: len(self.binding) < len(self.items))
    @rule(data=st.data(), names=st.sets(st.integers(0, 5), min_size=3))
    def schedule(self, data: st.DataObject, names: set[int]) -> None:
        uid = data.draw(st.sampled_from(sorted(self.items.keys() - self.binding.keys())))
        found = ask(self.state, self.items[uid], self.time.now, [f"n{at}" for at in sorted(names)]).node_names
        hold = arrive(self.state, uid, found[0], self.time.now) if found else None
        if hold is not None:
            self.binding[uid] = found[0], hold
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.time.now += seconds
        release_overdue(self.state, self.time.now)
        self.settle()

    @rule()
    def hear(self) -> None:
        """The watch shows what is bound."""
        for name, item in self.api.pods.items():
            if item["spec"].get("nodeName"):
                watched(self.state, self.api, name)

    @invariant()
    def a_gang_holds_devices_for_all_of_its_pods_or_for_none(self) -> None:
        held = {
            gang: [uid for uid in self.items if f"uid-{gang}" in uid and self.state.fleet.held_by(uid)] for gang in "ab"
        }
        assert {len(uids) for uids in held.values()} in ({0}, {0, 4})

    @invariant()
    def a_gang_is_bound_as_a_whole_or_not_at_all(self) -> None:
        bound = [name[0] for name, item in self.api.pods.items() if item["spec"].get("nodeName")]
        assert (bound.count("a"), bound.count("b")) in ((0, 0), (4, 0), (0, 4))


TwoGangs.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestTwoGangs = TwoGangs.TestCase


def test_no_device_is_held_on_a_node_that_a_pods_rules_exclude_before_kube_scheduler_asks_about_it() -> None:
    state = state_of("n0", "n1")
    state.put_site(Site("n1", unschedulable=True, pods=10))
    created(state, pod("second", core=90, gang="train/2"))
    assert answer(state, pod("first", core=100, gang="train/2"), ["n0"]) == "gang: 1 of 2 fit"
    state.put_site(Site("n1", pods=10))
    assert answer(state, pod("first", core=100, gang="train/2"), ["n0"]) == "n0"


def test_a_gang_whose_pods_were_all_deleted_while_devices_were_held_leaves_nothing() -> None:
    state = state_of("n0", "n1")
    members = gang_of(2)
    for item in members:
        assert answer(state, item) != ""
    for item in members:
        state.remove_pod(item["metadata"]["uid"])
    release_overdue(state, 2000.0)
    assert not state.gangs._gangs
