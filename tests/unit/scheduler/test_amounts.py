"""Amounts of processor time and memory that no node has, which the API server admits, stop no part of the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.application import LEARN_LOOK_SECONDS, keep_worth_current
from scheduler.cluster.earmarks import EarmarkError, decode
from scheduler.cluster.objects import MOST
from scheduler.cluster.state import State
from scheduler.cluster.watches import NODES, PODS, NodesView, PodsView
from tests.unit.scheduler.extended import ALLOCATION, ApiServer, api_node, ask, bind_pod, pod, state_of

HUGE = [("cpu", "9E"), ("cpu", "9223372036854775807"), ("memory", "9E"), ("memory", "1e30")]
huge = pytest.mark.parametrize(("resource", "amount"), HUGE)


def asking(name: str, resource: str, amount: str, *, containers: int = 1, **changes: Any) -> dict[str, Any]:
    """A GPU pod that asks for an amount of its node's own resources as well."""
    item = pod(name, **changes)
    [main] = item["spec"]["containers"]
    main["resources"]["requests"] |= {resource: amount}
    beside = [{"name": f"beside-{at}", "resources": {"requests": {resource: amount}}} for at in range(containers - 1)]
    item["spec"]["containers"] += beside
    return item


@huge
def test_a_bound_pod_keeps_no_other_pod_from_being_read(resource: str, amount: str) -> None:
    state, other = state_of("n0", "n1"), pod("other", core=100)
    bind_pod(state, ApiServer(other), other, "n1")
    items = [asking("a", resource, amount, containers=100, nodeName="n0"), other]
    read_by = State()
    NodesView(read_by).replaced([NODES.read(api_node(name)) or {} for name in ("n0", "n1")])
    PodsView(read_by).replaced([PODS.read(item) or {} for item in items])
    assert read_by.missing() == ()
    assert other["metadata"]["annotations"][ALLOCATION]
    assert ask(read_by, pod("next", core=100)).node_names == ["n0"]
    assert ask(read_by, pod("one-more", core=100)).node_names == []


@huge
def test_a_node_that_offers_so_much_is_used(resource: str, amount: str) -> None:
    state, item = State(), api_node("n0")
    item["status"]["allocatable"] |= {resource: amount, "pods": amount}
    NodesView(state).replaced([NODES.read(item) or {}])
    assert ask(state, pod("a", core=100)).node_names == ["n0"]
    assert state.spare_pods().tolist()[0] == MOST - 1


@huge
def test_a_pod_that_asks_for_so_much_keeps_the_scheduler_from_learning_of_no_other(resource: str, amount: str) -> None:
    state, looks = state_of("n0"), iter((False, True))
    for number in range(100):
        ask(state, asking(f"a-{number}", resource, amount))
        state.forget(f"uid-a-{number}")
    keep_worth_current(state, lambda seconds: seconds == LEARN_LOOK_SECONDS and next(looks))
    assert state.chooser.worth is not None
    assert ask(state, pod("b")).node_names == ["n0"]


def test_an_earmark_of_more_than_any_device_has_is_refused() -> None:
    text = '{"v":1,"node":"n0","devices":[{"uuid":"n0-0","core":%d,"memoryMiB":0}],"victims":[],"until":0}'
    assert decode(text % 100).node == "n0"
    with pytest.raises(EarmarkError, match="no device has"):
        decode(text % 10**30)


def test_an_earmark_of_lists_that_are_nested_without_end_is_refused() -> None:
    with pytest.raises(EarmarkError, match="recursion"):
        decode('{"v":1,"a":' + "[" * 30_000)
