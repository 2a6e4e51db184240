"""Tests how slots, the kubelet's list and the pod identify the container that the kubelet is about to start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fairgpu import names
from nodeagent.containers.refusal import Cause, PlacementRefusedError
from nodeagent.containers.resolving import Listed, claim, container_of, holder, live_pod

A, B, C = frozenset({"slot-1"}), frozenset({"slot-2"}), frozenset({"slot-3"})


def container(name: str, gpus: int = 1, **fields: Any) -> dict[str, Any]:
    amounts = {"gpu": gpus, "gpu-core": 30 * gpus, "gpu-memory": 100 * gpus}
    limits = {f"fairgpu.io/{resource}": str(amount) for resource, amount in amounts.items()}
    return {"name": name, "resources": {"limits": limits}, **fields}


def pod(
    containers: Sequence[dict[str, Any]],
    init: Sequence[dict[str, Any]] = (),
    completed: Sequence[str] = (),
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    statuses = [{"name": name, "state": {"terminated": {"exitCode": 0}}} for name in completed]
    return {
        "metadata": {"namespace": "team", "name": "train", "uid": "u1", "annotations": annotations or {}},
        "spec": {"containers": list(containers), "initContainers": list(init)},
        "status": {"phase": "Pending", "initContainerStatuses": statuses},
    }


def listed(container: str, slots: frozenset[str], pod: str = "train") -> Listed:
    return Listed("team", pod, container, slots)


def allocation(*devices: str, name: str = "main", node: str = "n1") -> dict[str, str]:
    given = [{"uuid": uuid, "model": "A100", "totalMiB": 1000, "core": 30, "memoryMiB": 100} for uuid in devices]
    return {names.ALLOCATION: json.dumps({"v": 1, "node": node, "containers": [{"name": name, "devices": given}]})}


def test_the_pod_is_the_one_for_which_the_kubelet_lists_the_slots() -> None:
    assert holder([listed("main", A), listed("main", B, pod="other")], B, []) == ("team", "other")


def test_slots_that_passed_on_to_two_containers_of_a_pod_still_name_it() -> None:
    assert holder([listed("one", A), listed("two", B)], A | B, []) == ("team", "train")


@pytest.mark.parametrize(
    ("listing", "cause"),
    [
        ([], Cause.UNKNOWN_CONTAINER),
        ([listed("main", B)], Cause.UNKNOWN_CONTAINER),
        ([listed("main", A), listed("main", A, pod="other")], Cause.AMBIGUOUS),
    ],
)
def test_slots_of_no_pod_or_of_two_are_refused(listing: list[Listed], cause: Cause) -> None:
    with pytest.raises(PlacementRefusedError) as refused:
        holder(listing, A, [])
    assert refused.value.cause is cause


def test_two_live_pods_of_one_name_are_refused() -> None:
    first, second = pod([container("main")]), pod([container("main")])
    second["metadata"]["uid"] = "u2"
    with pytest.raises(PlacementRefusedError, match="u1, u2"):
        live_pod([first, second], "team", "train")


def test_a_pod_that_ended_leaves_its_name_to_the_next() -> None:
    first, second = pod([container("main")]), pod([container("main")])
    second["metadata"]["uid"] = "u2"
    first["status"]["phase"] = "Failed"
    assert live_pod([first, second], "team", "train") is second


SHARED = pod([container("main")], [container("init")])
AFTER = pod([container("main")], [container("init")], completed=["init"])
SECOND = pod([container("main")], [container("init"), container("next")], completed=["init"])
LARGER = pod([container("main", 2)], [container("init", 1)])
SIDECAR = pod([container("main")], [container("side", restartPolicy="Always"), container("init")])
PLAIN = pod([container("main")], [{"name": "init"}])


@pytest.mark.parametrize(
    ("given", "listing", "slots", "expected"),
    [
        (pod([container("one"), container("two")]), [listed("one", A), listed("two", B)], B, "two"),
        (SHARED, [listed("main", A)], A, "init"),
        (AFTER, [listed("main", A)], A, "main"),
        (SECOND, [listed("main", A)], A, "next"),
        (LARGER, [listed("main", A | B)], A, "init"),
        (SIDECAR, [listed("side", A), listed("main", B)], A, "side"),
        (SIDECAR, [listed("side", A), listed("main", B)], B, "init"),
        (PLAIN, [listed("main", A)], A, "main"),
    ],
    ids=[
        "main",
        "init first",
        "after init",
        "second init",
        "init with fewer",
        "sidecar",
        "init after it",
        "plain init",
    ],
)
def test_the_container_is_the_first_that_can_hold_the_slots(
    given: dict[str, Any], listing: list[Listed], slots: frozenset[str], expected: str
) -> None:
    assert container_of(given, listing, slots) == expected


def test_a_container_whose_slots_are_not_those_listed_is_refused() -> None:
    with pytest.raises(PlacementRefusedError) as refused:
        container_of(pod([container("main", 2)]), [listed("main", A | B)], B | C)
    assert refused.value.cause is Cause.UNKNOWN_CONTAINER
    assert refused.value.pods == (("team", "train", "u1"),)


def test_a_container_is_given_what_the_allocation_says() -> None:
    given = claim(pod([container("main", 2)], annotations=allocation("GPU-1", "GPU-2")), "main", A | B, "n1")
    assert (given.identity, [device.uuid for device in given.allocation.devices]) == (
        ("team", "train", "u1"),
        ["GPU-1", "GPU-2"],
    )


SEVENTEEN = tuple(f"GPU-{number}" for number in range(17))


@pytest.mark.parametrize(
    ("annotations", "asked", "slots", "cause"),
    [
        ({}, 1, A, Cause.NO_ALLOCATION),
        (allocation("GPU-1", name="other"), 1, A, Cause.NO_ALLOCATION),
        ({names.ALLOCATION: "{"}, 1, A, Cause.BAD_ALLOCATION),
        (allocation("GPU-1", node="n2"), 1, A, Cause.ANOTHER_NODE),
        (allocation("GPU-1", "GPU-2"), 1, A, Cause.BAD_ALLOCATION),
        (allocation("GPU-1"), 2, A | B, Cause.BAD_ALLOCATION),
        (allocation("GPU-1", "GPU-1"), 2, A | B, Cause.BAD_ALLOCATION),
        (allocation(*SEVENTEEN), 17, frozenset(SEVENTEEN), Cause.BAD_ALLOCATION),
    ],
    ids=["none", "none for it", "no JSON", "other node", "one too many", "one too few", "one twice", "seventeen"],
)
def test_an_allocation_that_is_not_this_containers_is_refused(
    annotations: dict[str, str], asked: int, slots: frozenset[str], cause: Cause
) -> None:
    with pytest.raises(PlacementRefusedError) as refused:
        claim(pod([container("main", asked)], annotations=annotations), "main", slots, "n1")
    assert refused.value.cause is cause


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"gpu-core": "60", "gpu-memory": "200"}, True),
        ({"gpu-core": "60", "gpu-memory-percentage": "20"}, True),
        ({"gpu-core": "59", "gpu-memory": "200"}, False),
        ({"gpu-core": "60", "gpu-memory": "198"}, False),
        ({"gpu-core": "60", "gpu-memory-percentage": "22"}, False),
        ({"gpu-memory": "200"}, False),
        ({"gpu-core": "60"}, False),
        ({"gpu-core": "much", "gpu-memory": "200"}, False),
    ],
)
def test_an_allocation_gives_of_each_gpu_what_the_limits_say(limits: dict[str, str], *, fits: bool) -> None:
    amounts = {f"fairgpu.io/{resource}": amount for resource, amount in {"gpu": "2", **limits}.items()}
    forged = pod([{"name": "main", "resources": {"limits": amounts}}], annotations=allocation("GPU-1", "GPU-2"))
    if fits:
        assert len(claim(forged, "main", A | B, "n1").allocation.devices) == 2
    else:
        with pytest.raises(PlacementRefusedError, match="30 percent and 100 MiB of GPU GPU-1") as refused:
            claim(forged, "main", A | B, "n1")
        assert refused.value.cause is Cause.BAD_ALLOCATION
