"""Filter, prioritize and bind over a state, with an API server that refuses, falls silent and forgets to answer."""

from __future__ import annotations

import copy
import json
import threading
import tracemalloc
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.cluster.api import ApiError
from scheduler import application
from scheduler.application import LEARN_AT, LEARN_LOOK_SECONDS, LEARN_PAUSE_SECONDS, keep_worth_current
from scheduler.cluster.earmarks import Earmark
from scheduler.cluster.eligible import Site
from scheduler.cluster.objects import PodError, read_note, read_waiting
from scheduler.cluster.refusals import MAX_ENCODED
from scheduler.cluster.state import EARMARKED, HOLD_SECONDS, SETTLE_SECONDS, State
from scheduler.extender.binding import BindError, settle
from scheduler.extender.filtering import GONE, prioritize_nodes
from scheduler.extender.wire import (
    MAX_RECOGNISED_BYTES,
    ArgumentsError,
    decode_bind,
    decode_filter,
    encode_scores,
    key_of_names,
)
from scheduler.placement.holding import Holding, Piece
from scheduler.placement.learning import DRAWN_AT_ONCE, GPUS, LOAD_PERCENT, ROUNDS
from scheduler.placement.mix import MixCounter
from scheduler.placement.request import Need, Request
from scheduler.placement.worth import Worth, learn
from tests.support.waiting import LIMIT_S
from tests.unit.scheduler.extended import (
    ApiServer,
    Time,
    arguments,
    ask,
    bind_pod,
    device_of,
    pod,
    state_of,
    watched,
)
from tests.unit.scheduler.fleets import node


def scores_of(state: State, item: dict[str, Any], names: list[str]) -> dict[str, int]:
    """Prioritize's answer, by the names of nodes."""
    asked = arguments(item, names)
    answer = json.loads(encode_scores(asked.names_text, prioritize_nodes(state, asked)))
    assert [one["Host"] for one in answer] == names
    return {one["Host"]: one["Score"] for one in answer}


SILENT = ApiError(0, "Unanswered", "read timed out")


def test_filter_answers_the_best_node_alone_and_keeps_its_devices_for_the_pod() -> None:
    state = state_of("n0", "n1")
    assert ask(state, pod("a", core=100)).node_names == ["n0"]
    assert ask(state, pod("b", core=100)).node_names == ["n1"]
    assert ask(state, pod("c", core=100)).node_names == []


def test_a_pod_that_is_asked_about_again_gives_back_what_was_kept_for_it() -> None:
    state = state_of("n0", "n1")
    ask(state, pod("a", core=100))
    assert ask(state, pod("a", core=100), names=["n1"]).node_names == ["n1"]
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_devices_that_nobody_binds_are_free_again_after_a_while() -> None:
    state = state_of("n0")
    ask(state, pod("a", core=100), now=0)
    assert ask(state, pod("b", core=100), now=HOLD_SECONDS - 1).node_names == []
    assert ask(state, pod("b", core=100), now=HOLD_SECONDS).node_names == ["n0"]


@pytest.mark.parametrize("phase", ["", "Failed"])
def test_devices_of_a_pod_that_is_deleted_or_ends_before_its_bind_are_free_at_once(phase: str) -> None:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    if phase:
        state.put_pod(read_note(item | {"status": {"phase": phase}}))
    else:
        state.remove_pod("uid-a")
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_pods_are_placed_while_the_worth_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning takes 0.1 s, and begins at most once a look."""
    state, looks, free = state_of("n0"), iter([False, True]), list[bool]()
    for number in range(LEARN_AT[0]):
        ask(state, pod(f"p{number}", core=40))

    def ask_meanwhile() -> None:
        free.append(state.lock.acquire(blocking=False))
        if free[-1]:
            state.lock.release()

    def learning(*given: Any) -> Worth:
        thread = threading.Thread(target=ask_meanwhile)
        thread.start()
        thread.join(LIMIT_S)
        return learn(*given)

    monkeypatch.setattr(application, "learn", learning)
    keep_worth_current(state, lambda seconds: seconds == LEARN_LOOK_SECONDS and next(looks))
    assert free == [True]


def test_learning_pauses_after_each_millisecond_or_so_of_work() -> None:
    state, waits = state_of("n0"), list[float]()
    for number in range(LEARN_AT[0]):
        ask(state, pod(f"p{number}", core=40))

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return waits.count(LEARN_LOOK_SECONDS) == 2

    keep_worth_current(state, wait)
    drawn = ROUNDS * GPUS * LOAD_PERCENT / 40
    assert waits.count(LEARN_PAUSE_SECONDS) >= drawn / DRAWN_AT_ONCE
    assert LEARN_PAUSE_SECONDS > 0


def test_a_node_without_an_inventory_says_so_and_one_that_is_full_says_what_is_free() -> None:
    state = state_of("n0", "n1")
    ask(state, pod("a", core=70), names=["n0"])
    ask(state, pod("b", core=60), names=["n1"])
    result = ask(state, pod("c"), names=["n0", "n1", "cpu"])
    text = "gpu-memory: 50 percent on one GPU asked, at most 40 free"
    assert result.failed_nodes == {"n0": text, "n1": text}
    assert result.failed_and_unresolvable_nodes == {
        "cpu": "gpu: the node publishes no inventory of GPUs that can be used"
    }


def test_the_json_of_a_no_is_kept_for_those_asked_for_last_and_made_again_for_others() -> None:
    state = state_of("n0")
    kinds, rows = [Request((Need(2, percent, 1),)) for percent in range(1, MAX_ENCODED + 9)], np.array([0])
    first = [(no.passing, no.final) for no in (state.refusals.of(kind, rows) for kind in kinds)]
    kept = [state.refusals.of(kind, rows) for kind in kinds]
    assert [(bytes(no.passing), bytes(no.final)) for no in kept] == [(bytes(one), bytes(two)) for one, two in first]
    for kind in kinds:
        assert state.refusals.of(kind, rows).final
    assert sum("final" in vars(no) for no in kept) == MAX_ENCODED
    assert "final" in vars(kept[-1])


def test_a_no_is_given_again_only_while_nothing_changes() -> None:
    state = state_of("n0", "n1")
    ask(state, pod("a", core=70), names=["n0"])
    ask(state, pod("b", core=60), names=["n1"])
    first = ask(state, pod("c")).failed_nodes
    assert ask(state, pod("d")).failed_nodes == first
    assert set(ask(state, pod("d"), names=["n0"]).failed_nodes.values()) == {
        "gpu-memory: 50 percent on one GPU asked, at most 30 free"
    }
    state.remove_pod("uid-b")
    ask(state, pod("e", core=90), names=["n1"])
    assert ask(state, pod("c")).failed_nodes != first


def test_a_no_that_was_given_before_is_answered_without_a_look_at_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of("n0", "n1", "n2")
    first = ask(state, pod("a", gpus=2), names=["n0", "n1", "gone"])

    def looked(*_: Any) -> None:
        raise AssertionError("the nodes were looked at again")

    for name in ("why", "best"):
        monkeypatch.setattr(state.chooser, name, looked)
    monkeypatch.setattr(state, "rows_of", looked)
    assert ask(state, pod("b", gpus=2), names=["gone", "n1", "n0"]) == first
    assert first.failed_and_unresolvable_nodes.keys() == {"n0", "n1", "gone"}


def test_a_no_is_still_known_after_a_question_about_a_pod_for_which_devices_are_kept() -> None:
    state, kept, other = state_of("n0"), pod("kept", gpus=2), pod("other", core=100)
    state.earmark(read_waiting(kept), Earmark("n0", (Piece("n0-0", 50, 500, 1),), (), 0))
    ask(state, other)
    request = read_waiting(other).request
    refusal = state.refusals.of(request, np.array([0]))
    assert not ask(state, kept).node_names
    assert state.refusals.of(request, np.array([0])) is refusal
    state.drop_earmark("uid-kept")
    assert ask(state, other).node_names == ["n0"]


def test_a_fleet_in_which_kept_devices_stay_free_is_not_taken_for_the_one_before() -> None:
    """The reclaimer keeps devices before the watch shows the earmark, and the pod has others by then."""
    state = state_of("n0", "n1")
    new, earmark = read_waiting(pod("new")), Earmark("n0", (Piece("n0-0", 100, 1000, 1),), (), 0)
    state.fleet.hold(f"{EARMARKED}uid-new", earmark.holding(new.request))
    assert ask(state, pod("new"), names=["n0", "n1"]).node_names == ["n1"]
    state.earmark(new, earmark)
    before = state.fleet.contents
    with state.without(["uid-new"]):
        pass
    assert int(state.fleet.core[state.fleet.rows["n0"], 0]) == 100
    assert state.fleet.contents != before


def test_a_set_of_nodes_that_was_recognised_is_looked_up_again_once_one_offers_devices() -> None:
    state = state_of("n0")
    assert ask(state, pod("a", core=100), names=["n0", "n1"]).node_names == ["n0"]
    assert ask(state, pod("b", core=100), names=["n0", "n1"]).failed_and_unresolvable_nodes.keys() == {"n1"}
    state.put_node(node("n1", 1))
    assert ask(state, pod("b", core=100), names=["n1", "n0"]).node_names == ["n1"]


NODE_NAMES = st.lists(st.text("ab-.1", min_size=1, max_size=4), max_size=6, unique=True)


@given(NODE_NAMES, NODE_NAMES, st.randoms())
def test_lists_of_names_have_one_key_exactly_where_they_name_the_same_nodes(
    some: list[str], others: list[str], random: Random
) -> None:
    mixed = random.sample(some, len(some))
    keys = [key_of_names(json.dumps(names, separators=(",", ":")).encode()) for names in (some, mixed, others)]
    assert keys[0] == keys[1]
    assert (keys[0] == keys[2]) == (set(some) == set(others)) or keys[0] is None


def test_names_of_a_list_longer_than_any_before_are_recognised_in_any_order() -> None:
    names = [f"gpu-node-{number:05}.zone-{number % 7}.example.org" for number in range(3000)]
    keys = {key_of_names(json.dumps(found, separators=(",", ":")).encode()) for found in (names, names[::-1])}
    assert len(keys) == 1
    assert None not in keys


@pytest.mark.parametrize(
    "text", [b"[]", b'["a\\u0062"]', b'["' + b"a" * MAX_RECOGNISED_BYTES + b'"]'], ids=["no name", "an escape", "long"]
)
def test_a_list_that_may_be_mistaken_for_another_has_no_key(text: bytes) -> None:
    assert key_of_names(text) is None


@pytest.mark.parametrize("text", [b'[1,"n0"]', b'["n0",1]', b'["n0" ]', b'["n0"]x'])
def test_a_list_of_something_else_is_not_taken_for_one_of_names(text: bytes) -> None:
    assert key_of_names(text) != key_of_names(b'["n0"]')


def test_a_node_that_no_end_of_another_pod_helps_is_distinguished() -> None:
    result = ask(state_of("n0"), pod("a", gpus=2))
    assert result.failed_and_unresolvable_nodes == {"n0": "gpu: 2 GPUs asked, a node offers at most 1"}


@pytest.mark.parametrize(
    "changes",
    [
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
)
def test_a_pod_that_prefers_nodes_gets_all_that_fit_with_scores_by_rank(changes: dict[str, Any]) -> None:
    state = state_of("n0", "n1", "n2")
    ask(state, pod("a", core=100), names=["n1"])
    item = pod("b", **changes)
    assert ask(state, item).node_names == ["n0", "n2"]
    assert scores_of(state, item, ["n0", "n2", "gone"]) == {"n0": 0, "n2": 0, "gone": 0}


def test_scores_are_the_same_for_the_names_that_filter_answered_as_for_any_others() -> None:
    state = state_of("n0", "n1", "n2")
    ask(state, pod("a", core=30), names=["n1"])
    item = pod("b")
    item["metadata"]["annotations"] = {"fairgpu.io/placement": "spread"}
    answered = ask(state, item).node_names
    expected = {"n0": 10, "n1": 0, "n2": 10}
    assert scores_of(state, item, answered) == expected
    assert scores_of(state, item, ["n2", "gone", "n1", "n0"]) == expected | {"gone": 0}
    state.remove_node("n2")
    state.put_node(node("n3", 2))
    state.put_node(node("n2", 1))
    assert scores_of(state, item, answered) == expected


@pytest.mark.parametrize(
    "text", [b"[]", b'["n0"]', b'["n0","n1","n2"]', b'[ "n0" , "n1" ]', b'["a\\",\\"b","n1"]', b'["\xc3\xbc","n1"]']
)
def test_scores_are_encoded_as_kube_scheduler_reads_them(text: bytes) -> None:
    names = json.loads(text)
    scores = [10, 0, 7][: len(names)]
    expected = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    assert json.loads(encode_scores(text, np.array(scores, np.int64))) == expected


@cache
def learned() -> Worth:
    """Returns the worth of nodes of one GPU where all pods ask for a third or two of one."""
    counter, state = MixCounter(), state_of("n0")
    for core in (33, 66):
        counter.see(Request((Need(1, core, memory_percent=core),)))
    return learn(counter.mix(), state.fleet.classes, {1: 12}, np.random.default_rng(1))


@settings(max_examples=50)
@given(held=st.lists(st.integers(0, 100), min_size=12, max_size=12), named=st.sets(st.integers(0, 11), min_size=1))
def test_the_best_of_the_named_nodes_is_answered_wherever_it_ranks(held: list[int], named: set[int]) -> None:
    state = state_of(*(f"n{number}" for number in range(12)))
    for number, core in enumerate(held):
        state.fleet.hold(f"held-{number}", Holding(f"n{number}", (Piece(f"n{number}-0", core, 0, 1),)))
    state.learn(learned())
    asked = pod("a", core=40)
    rows = np.array(sorted(named))
    best = state.chooser.best(read_waiting(asked).request, rows)
    names = [f"n{number}" for number in named]
    assert ask(state, asked, names=names).node_names == ([] if best is None else [f"n{best}"])


def test_the_worth_is_learned_again_once_a_node_has_gpus_of_a_new_model() -> None:
    state = state_of("n0")
    for number in range(LEARN_AT[0]):
        ask(state, pod(f"p{number}", core=40))
    known: list[int] = []

    def looked(seconds: float) -> bool:
        if seconds != LEARN_LOOK_SECONDS:
            return False
        worth = state.chooser.worth
        known.append(worth.classes if worth else 0)
        if len(known) == 3:
            state.put_node(node("n1", 1, model="NVIDIA NEW"))
            assert ask(state, pod("after", core=40)).node_names
        return len(known) == 5

    keep_worth_current(state, looked)

    assert known == [0, 2, 2, 3, 3]


def test_a_pod_that_only_fragmentation_keeps_waiting_is_counted_until_it_is_placed() -> None:
    state = state_of("n0", gpus=2)
    for name in ("a", "b"):
        state.fleet.hold(name, Holding("n0", (Piece(f"n0-{'ab'.index(name)}", 60, 600, 1),)))
    [text] = ask(state, pod("c", core=70)).failed_nodes.values()
    assert text.endswith("; 1 node has it in sum")
    ask(state, pod("d", core=100))
    assert (state.figures().waiting, state.figures().fragmented) == (2, 1)
    state.fleet.release("a")
    assert ask(state, pod("c", core=70)).node_names == ["n0"]
    assert (state.figures().waiting, state.figures().fragmented) == (1, 0)


def test_a_node_is_not_taken_for_one_whose_name_begins_alike() -> None:
    state = state_of("n1", "n10")
    assert ask(state, pod("a"), names=["n10", "other-n1"]).node_names == ["n10"]


def test_a_pod_that_spreads_scores_the_emptier_node_higher() -> None:
    state = state_of("n0", "n1")
    ask(state, pod("a", core=30), names=["n0"])
    item = pod("b")
    item["metadata"]["annotations"] = {"fairgpu.io/placement": "spread"}
    assert scores_of(state, item, ["n0", "n1"]) == {"n0": 0, "n1": 10}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "the pod asks for no fairgpu.io/gpu"),
        ({"fairgpu.io/gpu-memory": "1", "fairgpu.io/gpu-memory-percentage": "1"}, "fairgpu.io/gpu-memory"),
        ({"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "3"}, "a multiple of 2"),
        ({"fairgpu.io/gpu": "17"}, "17"),
    ],
)
def test_a_pod_that_cannot_be_read_is_refused_on_every_node_with_what_is_wrong(
    limits: dict[str, str], said: str
) -> None:
    item = pod("a")
    item["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    with pytest.raises(PodError, match=said):
        read_waiting(item)
    result = ask(state_of("n0"), item)
    assert said in result.failed_and_unresolvable_nodes["n0"]


def test_bind_posts_one_binding_with_uid_and_allocation_and_the_watch_makes_it_lasting() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    ask(state, item)
    bind_pod(state, api, item, "n0")
    [binding] = api.posted
    assert binding["metadata"]["uid"] == "uid-a"
    assert json.loads(binding["metadata"]["annotations"]["fairgpu.io/allocation"]) == {
        "v": 1,
        "node": "n0",
        "containers": [
            {
                "name": "main",
                "devices": [
                    {"uuid": "n0-0", "model": "NVIDIA A100-SXM4-80GB", "totalMiB": 1000, "core": 100, "memoryMiB": 1000}
                ],
            }
        ],
    }
    watched(state, api, "a")
    assert ask(state, pod("b"), now=10**6).node_names == []
    state.remove_pod("uid-a")
    assert ask(state, pod("b"), now=10**6).node_names == ["n0"]


def test_a_second_bind_of_a_pod_gets_the_same_devices() -> None:
    state, item = state_of("n0", gpus=4), pod("a")
    api = ApiServer(item)
    ask(state, item)
    bind_pod(state, api, item, "n0")
    bind_pod(state, api, item, "n0")
    assert api.posted[0] == api.posted[1]


def test_bind_without_a_filter_before_it_chooses_devices_on_the_node_that_is_named() -> None:
    state, item = state_of("n0", "n1"), pod("a")
    api = ApiServer(item)
    bind_pod(state, api, item, "n1")
    assert device_of(item) == "n1-0"


def test_bind_fails_where_the_devices_are_gone() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, pod("b"))
    with pytest.raises(BindError, match="the devices on n0 were taken"):
        bind_pod(state, ApiServer(item), item, "n0")


def test_bind_fails_where_the_node_no_longer_offers_the_devices_that_were_chosen() -> None:
    state, item = state_of("n0"), pod("a")
    ask(state, item)
    state.put_node(node("n0", 0))
    with pytest.raises(BindError, match="n0 offers the chosen devices no more"):
        bind_pod(state, ApiServer(item), item, "n0")
    assert state.reservation("uid-a") is None


def test_bind_fails_where_the_devices_that_were_chosen_offer_less_than_pods_hold_of_them() -> None:
    state, first, second = state_of("n0"), pod("a"), pod("b")
    assert ask(state, first).node_names == ask(state, second).node_names == ["n0"]
    state.put_node(node("n0", 1, memory_mib=900))
    with pytest.raises(BindError, match="n0 offers less of the chosen devices than pods hold"):
        bind_pod(state, ApiServer(first), first, "n0")
    bind_pod(state, ApiServer(second), second, "n0")


def test_a_pod_of_higher_priority_is_bound_to_devices_that_are_kept_for_another() -> None:
    state, low, high = state_of("n0"), pod("low", core=100), pod("high", core=100, priority=10)
    kept = Earmark("n0", (Piece("n0-0", 100, 1000, 1),), (), 0)
    state.earmark(read_waiting(low), kept)
    assert ask(state, high).node_names == ["n0"]
    bind_pod(state, ApiServer(high), high, "n0")


def test_the_taint_that_kube_scheduler_knew_when_it_named_the_node_keeps_no_pod_from_it() -> None:
    state, item = state_of("n0"), pod("a")
    state.put_site(Site("n0", taints=({"key": "k", "effect": "NoSchedule"},)))
    ask(state, item)
    state.put_site(Site("n0", {"rack": "7"}, ({"key": "k", "effect": "NoSchedule"},)))
    bind_pod(state, ApiServer(item), item, "n0")
    assert item["spec"]["nodeName"] == "n0"


def test_a_pod_that_tolerates_the_cordon_is_bound_to_the_node_that_was_chosen() -> None:
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    state, item = state_of("n0"), pod("a", tolerations=[toleration])
    state.put_site(Site("n0"))
    ask(state, item)
    state.put_site(Site("n0", unschedulable=True))
    bind_pod(state, ApiServer(item), item, "n0")
    assert item["spec"]["nodeName"] == "n0"


def test_devices_of_a_binding_in_doubt_stay_held_where_one_of_them_is_lost() -> None:
    state, item, time = state_of("n0", gpus=2), pod("a", core=100, gpus=2), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, None), *[(SILENT, False)] * 50]
    ask(state, item)
    with pytest.raises(BindError, match="it is not known whether the pod is bound"):
        bind_pod(state, api, item, "n0", time)
    state.put_node(node("n0", 1))
    with pytest.raises(BindError, match="it is not known whether the pod is bound: n0 offers"):
        bind_pod(state, api, item, "n0", time)
    assert ask(state, pod("b", core=10), now=time.now).node_names == []
    api.finish()
    settle(state, api, time.now + SETTLE_SECONDS)
    assert ask(state, pod("b", core=10), now=time.now).node_names == []


def test_a_binding_in_doubt_is_posted_again_as_it_was_whatever_the_node_offers_now() -> None:
    state, item, time = state_of("n0"), pod("a"), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, True), *[(SILENT, False)] * 50]
    ask(state, item)
    with pytest.raises(BindError, match="it is not known whether the pod is bound"):
        bind_pod(state, api, item, "n0", time)
    api.answers = []
    state.put_node(node("n0", 1, memory_mib=2000))
    bind_pod(state, api, item, "n0", time)
    assert api.posted == [api.posted[0]] * len(api.posted)


def test_a_pods_holding_that_was_bound_in_another_way_counts_before_the_watch_shows_it() -> None:
    state, item = state_of("n0", gpus=2), pod("a", core=100)
    other = pod("a", core=100, gpus=2, nodeName="n0")
    devices = [{"uuid": f"n0-{at}", "model": "A100", "totalMiB": 1000, "core": 100, "memoryMiB": 1000} for at in (0, 1)]
    allocation = {"v": 1, "node": "n0", "containers": [{"name": "main", "devices": devices}]}
    other["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(allocation)
    ask(state, item)
    with pytest.raises(BindError, match="the Binding was not made"):
        bind_pod(state, ApiServer(other), item, "n0")
    assert ask(state, pod("b", core=10)).node_names == []


def test_a_binding_that_an_unknown_error_ends_is_settled() -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()

    class Broken(ApiServer):
        def create(self, *_: Any) -> dict[str, Any]:
            raise RuntimeError("an error that the scheduler does not know")

    ask(state, item)
    with pytest.raises(RuntimeError):
        bind_pod(state, Broken(item), item, "n0", time)
    assert ask(state, pod("b", core=100), now=time.now).node_names == []
    settle(state, ApiServer(item), time.now + SETTLE_SECONDS)
    assert ask(state, pod("b", core=100), now=time.now).node_names == ["n0"]


def test_a_refusal_frees_the_devices() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    api.answers = [(ApiError(403, "Forbidden", "by a policy"), False)]
    ask(state, item)
    with pytest.raises(BindError, match="by a policy"):
        bind_pod(state, api, item, "n0")
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_a_pod_that_was_made_anew_under_its_name_is_not_bound() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    with pytest.raises(BindError, match="the Binding was not made"):
        bind_pod(state, ApiServer(pod("a", uid="another")), item, "n0")
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize(
    "error", [SILENT, ApiError(500, "InternalError", "etcd"), ApiError(429, "TooManyRequests", "")]
)
def test_after_an_answer_that_leaves_it_open_the_same_binding_is_posted_until_it_is_known(
    error: ApiError,
    carried_out: bool,  # noqa: FBT001 - a parameter
) -> None:
    state, item = state_of("n0"), pod("a")
    api = ApiServer(item)
    api.answers = [(error, carried_out), (SILENT, False)]
    ask(state, item)
    bind_pod(state, api, item, "n0")
    assert item["spec"]["nodeName"] == "n0"
    assert api.posted == [api.posted[0]] * 3


def test_devices_stay_held_while_nobody_knows_whether_the_pod_is_bound() -> None:
    state, item, time = state_of("n0", "n1"), pod("a", core=100), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, False)] * 100
    ask(state, item)
    with pytest.raises(BindError, match="it is not known whether the pod is bound"):
        bind_pod(state, api, item, "n0", time)
    later = time.now + SETTLE_SECONDS
    settle(state, api, later - 1)
    assert ask(state, pod("b", core=100), now=later + 10**6).node_names == ["n1"]
    assert ask(state, item, now=later).node_names == ["n0"]
    assert "it is not known yet" in ask(state, item, now=later, names=["n1"]).failed_nodes["n1"]
    settle(state, api, later)
    assert ask(state, pod("c", core=100), now=later).node_names == ["n0"]


@pytest.mark.parametrize(("fate", "free"), [("bound", False), ("gone", True), ("made anew", True), ("silent", False)])
def test_a_pod_whose_binding_is_in_doubt_is_read(fate: str, *, free: bool) -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()
    api = ApiServer(item)
    ask(state, item)
    bind_pod(state, api, item, "n0", time)
    if fate in ("gone", "made anew"):
        api.pods = {"a": pod("a", uid="another")} if fate == "made anew" else {}
    if fate == "silent":
        api.unread = SILENT
    settle(state, api, time.now + SETTLE_SECONDS)
    assert (ask(state, pod("b", core=100), now=time.now + 10**6).node_names == ["n0"]) == free


def test_an_unknown_error_at_one_pod_whose_binding_is_in_doubt_keeps_no_other_from_being_read() -> None:
    state, items, time = state_of("n0", "n1"), [pod(name, core=100) for name in ("a", "b")], Time()

    class Broken(ApiServer):
        def get(self, path: str) -> dict[str, Any]:
            if path.endswith("/a"):
                raise RuntimeError("an error that the scheduler does not know, at a")
            return super().get(path)

    for item in items:
        [on] = ask(state, item).node_names
        bind_pod(state, ApiServer(item), item, on, time)
    failures = list[str]()
    settle(state, Broken(), time.now + SETTLE_SECONDS, lambda: failures.append("once"))
    assert failures == ["once"]
    assert state.reservation("uid-a") is not None
    assert state.reservation("uid-b") is None


def test_devices_stay_held_where_a_refused_pod_cannot_be_read() -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, True)]
    api.unread = SILENT
    ask(state, item)
    with pytest.raises(BindError, match="it is not known whether the pod is bound"):
        bind_pod(state, api, item, "n0", time)
    assert item["spec"]["nodeName"] == "n0"
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []


def test_devices_stay_held_where_a_refusal_follows_an_attempt_that_is_still_under_way() -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, None), (ApiError(403, "Forbidden", "by a policy"), False)]
    ask(state, item)
    with pytest.raises(BindError, match="it is not known whether the pod is bound"):
        bind_pod(state, api, item, "n0", time)
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []
    api.finish()
    settle(state, api, time.now + SETTLE_SECONDS)
    assert item["spec"]["nodeName"] == "n0"
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []


def test_a_refusal_of_the_next_bind_frees_nothing_while_an_attempt_of_the_one_before_is_under_way() -> None:
    state, item, time = state_of("n0", "n1"), pod("a", core=100), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, None), *[(SILENT, False)] * 50]
    ask(state, item)
    with pytest.raises(BindError):
        bind_pod(state, api, item, "n0", time)
    with pytest.raises(BindError, match="to n0"):
        bind_pod(state, api, item, "n1", time)
    api.answers = [(ApiError(403, "Forbidden", "by a policy"), False)]
    with pytest.raises(BindError):
        bind_pod(state, api, item, "n0", time)
    assert ask(state, pod("b", core=100), now=time.now + 10**6, names=["n0"]).node_names == []


def test_a_read_of_a_pod_in_doubt_counts_for_nothing_once_it_was_bound_anew() -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()
    api = ApiServer(item)
    api.answers = [(SILENT, False)] * 100
    ask(state, item)
    with pytest.raises(BindError):
        bind_pod(state, api, item, "n0", time)
    api.answers = []

    class Overtaken(ApiServer):
        def get(self, path: str) -> dict[str, Any]:
            read = copy.deepcopy(super().get(path))
            bind_pod(state, api, item, "n0", time)
            return read

    settle(state, Overtaken(item), time.now + SETTLE_SECONDS)
    assert item["spec"]["nodeName"] == "n0"
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []


def test_a_replica_that_stops_leading_posts_no_binding_more() -> None:
    state, item, time, answers = state_of("n0"), pod("a", core=100), Time(), [True, False, True]
    api = ApiServer(item)
    api.answers = [(SILENT, None)]
    ask(state, item)
    with pytest.raises(BindError, match="does not lead"):
        bind_pod(state, api, item, "n0", time, lambda: answers.pop(0))
    assert len(api.posted) == 1
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []


def test_a_replica_that_does_not_lead_any_more_frees_what_it_has_not_posted() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    ask(state, item)
    with pytest.raises(BindError, match="does not lead"):
        bind_pod(state, api, item, "n0", None, lambda: False)
    assert api.posted == []
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_a_watch_that_lags_behind_what_was_read_frees_nothing() -> None:
    state, item, time = state_of("n0"), pod("a", core=100), Time()
    api, before = ApiServer(item), read_note(item)
    ask(state, item)
    bind_pod(state, api, item, "n0", time)
    settle(state, api, time.now + SETTLE_SECONDS)
    state.put_pod(before)
    assert ask(state, pod("b", core=100), now=time.now + 10**6).node_names == []


def test_an_allocation_on_a_bound_pod_counts_whoever_wrote_it() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    bind_pod(state_of("n0"), api, item, "n0")
    watched(state, api, "a")
    assert ask(state, pod("b")).node_names == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "the allocation is no JSON"),
        ('{"v":1,"node":"n9","containers":[]}', "the allocation is of node n9, and the pod is bound to n0"),
        (
            '{"v":1,"node":"n0","containers":[{"name":"x","devices":[]}]}',
            "the container x, which the pod does not have",
        ),
    ],
)
def test_an_allocation_that_makes_no_sense_holds_nothing_and_says_why(text: str, fault: str) -> None:
    item = pod("a", nodeName="n0")
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    note = read_note(item)
    assert fault in note.fault
    assert note.holding is not None
    assert note.holding.pieces == ()


def test_a_pod_that_has_ended_holds_nothing() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    bind_pod(state, api, item, "n0")
    watched(state, api, "a")
    item["status"] = {"phase": "Succeeded"}
    watched(state, api, "a")
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_pods_that_are_gone_from_a_new_list_hold_nothing() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    api = ApiServer(item)
    bind_pod(state, api, item, "n0")
    watched(state, api, "a")
    state.replace_pods([])
    assert ask(state, pod("b", core=100)).node_names == ["n0"]


def test_a_pod_that_came_and_went_between_two_lists_waits_no_more() -> None:
    """No watch shows it: kube-scheduler asked about it while the pods were listed anew."""
    state = state_of("n0")
    ask(state, pod("a", gpus=2))
    ask(state, pod("b", gang="g/2"))
    assert (state.waiting.count, state.gangs.count()["waiting"]) == (2, 1)
    state.replace_pods([])
    assert (state.waiting.count, state.gangs.count()["waiting"]) == (0, 0)


def test_a_pod_that_kube_scheduler_asks_about_after_its_end_waits_no_more() -> None:
    state = state_of("n0")
    ask(state, pod("first", core=100))
    late = pod("late", core=100)
    state.put_pod(read_note(late))
    state.remove_pod("uid-late")
    assert [*ask(state, late).failed_and_unresolvable_nodes.values()] == [GONE]
    assert state.waiting.count == 0


def test_a_pod_that_came_after_the_list_keeps_its_devices_and_its_place_in_the_gang() -> None:
    state = state_of("n0", "n1")
    gang = [pod("a", core=100, gang="g/2"), pod("b", core=100, gang="g/2")]
    alone = pod("c", core=100)
    ask(state, gang[0])
    assert ask(state, gang[1]).node_names
    state.put_node(node("n2", 1))
    assert ask(state, alone, names=["n0", "n1", "n2"]).node_names == ["n2"]
    state.replace_pods([])
    assert state.gangs.count()["held"] == 1
    assert ask(state, pod("d", core=100), names=["n0", "n1", "n2"]).node_names == []


ON_A_VOLUME = {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}


@pytest.mark.parametrize("asked", [[f"n{number}" for number in range(500)], ["another"]], ids=["placed", "refused"])
def test_memory_kept_about_a_pod_grows_little_with_the_number_of_nodes(asked: list[str]) -> None:
    """Thousands of pods wait or run, on thousands of nodes."""
    state = state_of(*(f"n{number}" for number in range(1000)))
    assert bool(ask(state, pod("first", core=1, **ON_A_VOLUME), names=asked).node_names) == (len(asked) > 1)
    tracemalloc.start()
    try:
        for number in range(50):
            ask(state, pod(f"p{number}", core=1, **ON_A_VOLUME), names=asked)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / 50 < 8 * 1024


def test_the_nodes_that_were_named_for_a_pod_are_kept_until_it_is_bound() -> None:
    state, item = state_of("n0", "n1"), pod("a", **ON_A_VOLUME)
    api = ApiServer(item)
    ask(state, item, names=["n1"])
    assert state.eligible(read_waiting(item)).tolist() == [1]
    bind_pod(state, api, item, "n1")
    watched(state, api, "a")
    assert state.named("uid-a") == b""


def test_a_device_that_two_nodes_offer_takes_both_out_until_one_of_them_stops() -> None:
    state = state_of("n0")
    assert state.put_node(node("n1").__class__("n1", node("n0", 1).inventory)) == {"n0", "n1"}
    assert ask(state, pod("a"), names=["n0", "n1"]).node_names == []
    state.remove_node("n1")
    assert ask(state, pod("a"), names=["n0", "n1"]).node_names == ["n0"]


def test_the_node_of_running_pods_that_offers_fewer_devices_places_on_those_alone() -> None:
    state, item = state_of("n0", gpus=2), pod("a", core=100)
    api = ApiServer(item)
    bind_pod(state, api, item, "n0")
    watched(state, api, "a")
    state.put_node(node("n0", 1))
    assert ask(state, pod("b")).node_names == []
    state.put_node(node("n0", 2))
    assert ask(state, pod("b")).node_names == ["n0"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"Pod":1}', b'{"Pod":{},"NodeNames":null}', b"\xff", b"[" * 10_000])
def test_arguments_that_are_none_are_said_to_be_none(body: bytes) -> None:
    with pytest.raises(ArgumentsError):
        decode_filter(body)
    with pytest.raises(ArgumentsError):
        decode_bind(body)
