"""The message to a pod that fits nowhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement.causes import explain
from scheduler.placement.choosing import NONE, Chooser
from scheduler.placement.fleet import Fleet, Node
from scheduler.placement.request import Need, Request, Wanted
from tests.unit.scheduler.fleets import T4, all_rows, fill, fleet_of, node, nodes, place, requests


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
