"""The scheduler reads of any allocation what `fairgpu.allocation` reads of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu import allocation
from fairgpu.allocation import AllocationError
from scheduler.cluster.objects import read_note
from scheduler.placement.holding import Piece
from tests.unit.scheduler.extended import pod

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1, 30, 100, 101, -1, 1.0, 30.0, 2**53 - 1, 2**53, 2**70, "", "a", "b", "n0", "\ud800", [], {}]
)


def device(**changes: Any) -> dict[str, Any]:
    return {"uuid": "a", "model": "A100", "totalMiB": 100, "core": 30, "memoryMiB": 50} | changes


def allocated(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"v": 1, "node": "n0", "containers": [{"name": "main", "devices": list(devices)}]}


@st.composite
def documents(draw: st.DrawFn) -> str:
    """An allocation of which a field or two are odd or missing."""
    devices = [device(uuid=f"g{at}") for at in range(draw(st.integers(0, 2)))]
    containers = [{"name": name, "devices": devices} for name in draw(st.sampled_from([["main"], ["main", "b"], []]))]
    document: dict[str, Any] = {"v": 1, "node": "n0", "containers": containers}
    for _ in range(draw(st.integers(0, 2))):
        found = draw(st.sampled_from([document, *containers, *devices]))
        key = draw(st.sampled_from([*sorted(found), "later"]))
        if draw(st.booleans()):
            found[key] = draw(ODD)
        else:
            found.pop(key, None)
    return json.dumps(document)


def outcome(text: str) -> tuple[dict[str, Piece], str]:
    """Returns what a pod on n0 holds by that annotation, and the annotation's fault."""
    item = pod("p", nodeName="n0", containers=[{"name": "main"}, {"name": "b"}])
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    note = read_note(item)
    assert note.holding is not None
    return {piece.uuid: piece for piece in note.holding.pieces}, note.fault


def expected(text: str) -> tuple[dict[str, Piece], str]:
    """The same by `fairgpu.allocation`: the sum of main containers, and nothing of an allocation with a fault."""
    try:
        found = allocation.decode(text)
    except AllocationError as error:
        return {}, str(error)
    if found.node != "n0":
        return {}, f"the allocation is of node {found.node}, and the pod is bound to n0"
    if unknown := {one.name for one in found.containers} - {"main", "b"}:
        return {}, f"the allocation is of the container {min(unknown)}, which the pod does not have"
    held: dict[str, Piece] = {}
    for one in (device for container in found.containers for device in container.devices):
        _, core, memory, slots = held.get(one.uuid, Piece(one.uuid, 0, 0, 0))
        held[one.uuid] = Piece(one.uuid, core + one.core_percent, memory + one.memory_mib, slots + 1)
    return held, ""


@given(documents())
def test_an_odd_allocation_holds_and_says_what_the_other_services_read_of_it(text: str) -> None:
    assert outcome(text) == expected(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"v":1,"a":' + "[" * 30_000,
        "[1]",
        '{"v":1,"v":2,"node":"n0","containers":[]}',
        '{"v":1.0,"node":"n0","containers":[]}',
        json.dumps({"v": 1, "node": "n0", "containers": [], "later": "x" * allocation.MAX_ENCODED_BYTES}),
        json.dumps(allocated(device(memoryMiB=101))),
        json.dumps({"v": 1, "node": "n0", "containers": [{"name": "main", "devices": []}] * 2}),
        json.dumps(allocated(device())).replace("30,", "3e1,"),
    ],
)
def test_a_text_that_is_hard_to_read_is_read_alike(text: str) -> None:
    assert outcome(text) == expected(text)
