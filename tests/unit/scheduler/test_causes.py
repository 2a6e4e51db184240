"""The message to a pod that fits nowhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairgpu.choices import MAX_LISTED
from scheduler.cluster.state import State
from scheduler.extender.filtering import UNKNOWN_NODE
from scheduler.placement.causes import LASTING, Cause, Shortage, explain
from scheduler.placement.choosing import NONE, Chooser
from scheduler.placement.fleet import Fleet, Node
from scheduler.placement.request import Need, Request, Wanted
from tests.unit.scheduler.extended import ask, pod
from tests.unit.scheduler.fleets import T4, all_rows, fill, fleet_of, node, nodes, place, requests

MESSAGE_BYTES = 1024
"""The most bytes of an event's note, by which kube-scheduler cuts its message
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/apis/core/validation/events.go)."""
choices = st.lists(st.text("aW-._", min_size=1, max_size=63), max_size=MAX_LISTED, unique=True).map(tuple)
longest = st.integers(0, MAX_LISTED).map(lambda count: tuple(f"{at:063}" for at in range(count)))


def used_fleet() -> Fleet:
    """Two nodes of two GPUs: of n0-0 half is free, n0-1 has no memory left, n1 has no GPU time left."""
    fleet = fleet_of(node("n0", 2), node("n1", 2, model=T4, memory_mib=500))
    fill(fleet, "n0-0", core=50, memory=500)
    fill(fleet, "n0-1", memory=1000)
    fill(fleet, "n1-0", core=95)
    fill(fleet, "n1-1", core=100)
    return fleet


@pytest.mark.parametrize(
    ("request_", "texts"),
    [
        (
            Request((Need(4, 10, 10),)),
            {"gpu: 4 GPUs asked, a node offers at most 2": ["n0", "n1"]},
        ),
        (
            Request((Need(3, 10, 10), Need(4, 10, 10))),
            {"gpu: 4 GPUs asked, a node offers at most 2": ["n0", "n1"]},
        ),
        (
            Request((Need(1, 10, 10),), wanted=Wanted(use_models=("H100", "L4"), avoid_models=("T4",))),
            {"gpu-model: 1 GPU of H100 or L4 not of T4 asked, at most 0 there": ["n0", "n1"]},
        ),
        (
            Request((Need(2, 10, 10),), wanted=Wanted(use_uuids=("n0-0",))),
            {"gpu-uuid: 2 GPUs of n0-0 asked, at most 1 there": ["n0", "n1"]},
        ),
        (
            Request((Need(1, 10, 600),)),
            {
                "gpu-memory: 600 MiB on one GPU asked, at most 500 free": ["n0"],
                "gpu-size: 600 MiB on one GPU asked, the largest has 500": ["n1"],
            },
        ),
        (
            Request((Need(1, 60, memory_percent=20),)),
            {
                "gpu-core: 60 percent of one GPU asked, at most 5 free": ["n1"],
                "gpu: enough is free of each resource, but not on the same GPUs; 1 node has it in sum": ["n0"],
            },
        ),
        (
            Request((Need(2, 10, memory_percent=10),)),
            {
                "gpu-memory: 10 percent on each of 2 GPUs asked, at most 0 free; 1 node has it in sum": ["n0"],
                "gpu-core: 10 percent of each of 2 GPUs asked, at most 0 free": ["n1"],
            },
        ),
        (
            Request((Need(1, 40, 100), Need(1, 40, 100))),
            {
                "gpu-core: 40 percent of one GPU asked, at most 5 free": ["n1"],
                "gpu: enough is free of each resource, but not on the same GPUs; 1 node has it in sum": ["n0"],
            },
        ),
    ],
    ids=lambda value: next(iter(value)).partition(":")[0] if isinstance(value, dict) else "",
)
def test_a_cause_is_said_in_one_text_for_all_its_nodes(request_: Request, texts: dict[str, list[str]]) -> None:
    chooser = Chooser(used_fleet())
    names = list(chooser.fleet.rows)
    shown = {
        explain(shortage, request_): [names[row] for row in rows]
        for shortage, rows in chooser.why(request_, all_rows(chooser.fleet))
    }
    assert shown == texts


def test_a_gpu_with_64_containers_says_so() -> None:
    fleet = fleet_of(node("n0", 1))
    fill(fleet, "n0-0", slots=64)
    request = Request((Need(1, 1, 1),))
    [(shortage, _)] = Chooser(fleet).why(request, all_rows(fleet))
    assert explain(shortage, request) == "gpu-containers: room for one more on one GPU asked, 0 GPUs have it"


@given(nodes, st.lists(requests, max_size=6), requests)
def test_every_node_on_which_a_request_does_not_fit_has_one_cause(
    fleet_nodes: list[Node], before: list[Request], request: Request
) -> None:
    chooser = Chooser(fleet_of(*fleet_nodes))
    for number, other in enumerate(before):
        place(chooser, str(number), other)
    rows = np.flatnonzero(chooser.gains(request) == NONE)
    if len(rows):
        shown = chooser.why(request, rows)
        assert sorted(row for _, found in shown for row in found.tolist()) == rows.tolist()
        assert len(shown) <= 8
        assert sum(len(explain(shortage, request)) for shortage, _ in shown) < 1024


def test_the_amounts_of_a_cause_are_of_the_container_that_most_nodes_lack_room_for() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    fill(fleet, "n0-0", memory=1000)
    fill(fleet, "n1-0", memory=500)
    request = Request((Need(1, 10, 100), Need(1, 10, 900)))
    [(shortage, short)] = Chooser(fleet).why(request, all_rows(fleet))
    assert explain(shortage, request) == "gpu-memory: 900 MiB on one GPU asked, at most 500 free"
    assert len(short) == 2


def test_a_cause_that_lasts_comes_before_one_that_ends_whichever_container_each_keeps_away() -> None:
    fleet = fleet_of(node("n0", 2))
    fill(fleet, "n0-0", core=50)
    request = Request((Need(2, 60, 100), Need(1, 10, 5000)))
    [(shortage, _)] = Chooser(fleet).why(request, all_rows(fleet))
    assert explain(shortage, request) == "gpu-size: 5000 MiB on one GPU asked, the largest has 1000"


def test_a_percentage_that_fits_by_whole_mib_is_no_cause() -> None:
    fleet = fleet_of(node("n0", 1, memory_mib=1001))
    fill(fleet, "n0-0", core=95, memory=671)  # 330 MiB are free, the whole MiB of 33 percent
    request = Request((Need(1, 10, memory_percent=33),))
    [(shortage, _)] = Chooser(fleet).why(request, all_rows(fleet))
    assert explain(shortage, request) == "gpu-core: 10 percent of one GPU asked, at most 5 free"


def test_an_amount_is_the_largest_of_the_nodes_with_that_cause() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    fill(fleet, "n0-0", core=70, memory=950)  # counts under memory, which comes first
    fill(fleet, "n1-0", core=90)
    request = Request((Need(1, 40, 100),))
    texts = [explain(shortage, request) for shortage, _ in Chooser(fleet).why(request, all_rows(fleet))]
    assert texts == [
        "gpu-memory: 100 MiB on one GPU asked, at most 50 free",
        "gpu-core: 40 percent of one GPU asked, at most 10 free",
    ]


def test_a_text_says_on_how_many_nodes_only_fragmentation_is_in_the_way() -> None:
    fleet = fleet_of(*(node(f"n{at}", 2) for at in range(3)))
    for uuid in ("n0-0", "n0-1", "n1-0", "n1-1", "n2-0", "n2-1"):
        fill(fleet, uuid, core=90 if uuid.startswith("n2") else 60)
    request = Request((Need(1, 70, memory_percent=10),))
    [(shortage, short)] = Chooser(fleet).why(request, all_rows(fleet))
    assert (
        explain(shortage, request) == "gpu-core: 70 percent of one GPU asked, at most 40 free; 2 nodes have it in sum"
    )
    assert len(short) == 3


def test_a_model_that_may_not_be_used_counts_in_no_sum() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 2, model=T4))
    fill(fleet, "n0-0", core=60)
    chosen = Wanted(use_models=("A100",))
    for core, in_sum in ((50, 0), (40, 1)):
        assert Chooser(fleet).in_sum(Request((Need(1, core, 10),), wanted=chosen), all_rows(fleet)).sum() == in_sum


def message(texts: list[str]) -> str:
    """The message of kube-scheduler for texts against 100,000 nodes: FitError.Error()
    (https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/framework/types.go)."""
    return f"0/100000 nodes are available: {', '.join(f'100000 {text}' for text in sorted(texts))}."


@given(st.builds(Wanted, *4 * [choices | longest]))
@example(Wanted(*4 * [tuple(f"{at:063}" for at in range(MAX_LISTED))]))
def test_all_causes_of_a_request_fit_into_one_message_of_kube_scheduler(wanted: Wanted) -> None:
    request, most = Request((Need(16, 100, 1),), wanted=wanted), 10**10 - 1
    texts = [
        explain(Shortage(cause, 16, asked, most=asked, in_sum=100_000 * (cause not in LASTING)), request)
        for cause, asked in zip(Cause, (16, 16, 16, most, most, 100, 16, 0), strict=True)
    ]
    texts[Cause.TOGETHER] = explain(Shortage(Cause.TOGETHER, 0, 0, 0, in_sum=100_000, cut=100_000), request)
    assert len(message(texts).encode()) <= MESSAGE_BYTES
    for names in wanted[:4]:
        assert not names or any(names[0][:40] in text for text in texts), "the first name of each list is there"


@pytest.mark.parametrize(
    ("use", "avoid", "text"),
    [
        (("A100", "H100"), (), "of A100 or H100"),
        (("A100", "H100", "H200", "L4", "L40S", "T4"), ("A10",), "of A100 or H100 or H200 or L4 or 2 more not of A10"),
        (tuple(f"{at}{'x' * 39}" for at in range(9)), (), f"of 0{'x' * 39} or 1{'x' * 39} or 7 more"),
        (("x" * 63,), ("y" * 63, "z"), f"of {'x' * 57}... not of {'y' * 43}... or 1 more"),
        (("x" * 63,), (), f"of {'x' * 63}"),
    ],
    ids=["all named", "four named", "two uuids named", "long names cut", "one long name"],
)
def test_a_text_names_as_many_of_the_chosen_as_leave_room_for_other_causes(
    use: tuple[str, ...], avoid: tuple[str, ...], text: str
) -> None:
    request = Request((Need(1, 10, 10),), wanted=Wanted(use_models=use, avoid_models=avoid))
    assert explain(Shortage(Cause.MODEL, 1, 1, 0), request) == f"gpu-model: 1 GPU {text} asked, at most 0 there"


def test_one_answer_has_at_most_eight_texts_with_a_node_that_offers_no_devices() -> None:
    state = State()
    for one in (
        node("devices", 1),
        node("model", 2, model=T4),
        node("uuid", 2),
        node("size", 2, memory_mib=300),
        *(node(name, 3) for name in ("memory", "core", "slots", "together")),
    ):
        state.put_node(one)
    for at in range(2):
        fill(state.fleet, f"memory-{at}", memory=900)
        fill(state.fleet, f"core-{at}", core=90)
        fill(state.fleet, f"slots-{at}", slots=64)
    fill(state.fleet, "together-0", memory=900)
    fill(state.fleet, "together-1", core=90)
    state.listed("nodes")
    state.listed("pods")
    item = pod("a", gpus=2)
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "100", "fairgpu.io/gpu-memory": "800"}
    item["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    item["metadata"]["annotations"] = {"fairgpu.io/use-gpu-model": "A100", "fairgpu.io/avoid-gpu-uuid": "uuid-0"}
    answer = ask(state, item, names=[*state.fleet.rows, "cpu"])
    assert set(answer.failed_nodes) == {"memory", "core", "slots", "together"}
    assert set(answer.failed_and_unresolvable_nodes) == {"devices", "model", "uuid", "size", "cpu"}
    texts = {**answer.failed_nodes, **answer.failed_and_unresolvable_nodes}
    assert len(set(texts.values())) == len(Cause) == 8
    assert texts["cpu"] == texts["devices"] == "gpu: 2 GPUs asked, a node offers at most 1"
    without = ask(state, item, names=[*(set(state.fleet.rows) - {"core"}), "cpu"])
    assert without.failed_and_unresolvable_nodes["cpu"] == UNKNOWN_NODE
