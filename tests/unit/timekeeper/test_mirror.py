from __future__ import annotations

import json
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.pods import read_pod
from timekeeper.sources.base import Departure, DepartureProof, Mirror
from timekeeper.sources.kubernetes import is_metered, metered_pod

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def pod(uid: str) -> dict[str, object]:
    return {"metadata": {"uid": uid, "name": uid}}


def ticking() -> Mirror:
    clock = iter(range(1, 10**6))
    return Mirror("pods", lambda: next(clock))


def test_an_object_missing_from_a_later_list_left_after_it_was_last_known_to_be_there() -> None:
    mirror = ticking()
    mirror.replaced([pod("a"), pod("b")])
    mirror.confirmed()
    known_at = mirror.confirmed_at
    assert known_at is not None
    mirror.replaced([pod("b")])
    assert mirror.take_departures() == [Departure(pod("a"), DepartureProof.MISSED, known_at)]


def test_a_deletion_that_is_received_counts_from_then() -> None:
    mirror = ticking()
    mirror.replaced([pod("a")])
    mirror.confirmed()
    mirror.changed("DELETED", pod("a"))
    [departure] = mirror.take_departures()
    assert departure.proof is DepartureProof.DELETED
    assert mirror.confirmed_at is not None
    assert departure.at > mirror.confirmed_at


def test_departures_that_were_given_back_come_first() -> None:
    mirror = ticking()
    mirror.replaced([pod("a"), pod("b")])
    mirror.changed("DELETED", pod("a"))
    taken = mirror.take_departures()
    mirror.changed("DELETED", pod("b"))
    mirror.return_departures(taken)
    assert [departure.item for departure in mirror.take_departures()] == [pod("a"), pod("b")]
    assert mirror.take_departures() == []


def test_a_recreated_object_of_the_same_name_is_another_one() -> None:
    mirror = ticking()
    mirror.replaced([{"metadata": {"uid": "1", "name": "job"}}])
    mirror.confirmed()
    mirror.replaced([{"metadata": {"uid": "2", "name": "job"}}])
    assert [departure.item["metadata"]["uid"] for departure in mirror.take_departures()] == ["1"]
    assert mirror.get("2") is not None


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "containers"]), JSON, max_size=3))
def test_whatever_a_pod_looks_like_it_can_be_asked_whether_it_is_metered(item: dict[str, object]) -> None:
    assert is_metered(item) in (True, False)
    assert (metered_pod(item) is not None) == is_metered(item)


def test_the_meter_reads_the_same_of_what_is_kept_of_a_pod_as_of_all_of_it() -> None:
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "60"}
    step = {"name": "sidecar", "restartPolicy": "Always", "resources": {"limits": limits}, "env": [{"name": "A"}]}
    main = {"name": "main", "resources": {"limits": limits}, "volumeMounts": [{"name": "data"}], "image": "x"}
    status = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}], "images": ["none"]}
    annotations = {"fairgpu.io/created-by": "Job/p", "fairgpu.io/eviction-at": "2026-01-01T00:00:00Z"}
    whole = {
        "metadata": {
            "uid": "u",
            "name": "p",
            "namespace": "n",
            "labels": {"team": "a", "fairgpu.io/pod": "gpu"},
            "annotations": annotations,
            "finalizers": ["example.org/own", "fairgpu.io/meter"],
            "ownerReferences": [{"kind": "X", "name": "x"}, {"kind": "Job", "name": "p", "controller": True}],
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [main],
            "initContainers": [step],
            "volumes": [{"name": "data"}],
            "schedulingGates": [{"name": "example.org/own"}, {"name": "fairgpu.io/budget"}],
            "activeDeadlineSeconds": 60,
        },
        "status": status,
    }
    kept = metered_pod(whole, ["team"])
    assert kept is not None
    assert read_pod(kept) == read_pod(whole)
    assert (read_pod(kept).held, read_pod(kept).gated, read_pod(kept).origin.owner) == (True, True, "Job/p")
    assert kept["metadata"]["finalizers"].index("fairgpu.io/meter") == 1
    assert kept["spec"]["schedulingGates"].index({"name": "fairgpu.io/budget"}) == 1
    assert all(word not in str(kept) for word in ("managedFields", "volumes", "volumeMounts", "env"))


def held_bytes(value: Any, seen: set[int]) -> int:
    if id(value) in seen:
        return 0
    seen.add(id(value))
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(held_bytes(item, seen) for item in inner)


def test_of_a_pod_nothing_is_kept_that_is_as_large_as_its_author_likes() -> None:
    """Pods that wait behind a gate cost nobody anything, and the leader holds all of them in memory."""
    many = [f"example.org/x{number}" for number in range(10_000)]
    texts = dict.fromkeys(many, "")
    asking = {
        "name": "main",
        "env": texts,
        "resources": {"limits": {"fairgpu.io/gpu": "1", **texts}, "requests": texts},
    }
    pod = {
        "metadata": {
            "labels": texts,
            "annotations": {f"fairgpu.io/{key}": "" for key in many},
            "finalizers": many,
            "ownerReferences": [{"kind": "Job", "name": key, "uid": key} for key in many],
        },
        "spec": {
            "containers": [asking],
            "ephemeralContainers": [{"name": key} for key in many],
            "hostAliases": many,
            "nodeSelector": texts,
            "schedulingGates": [{"name": key} for key in many],
        },
    }
    kept = metered_pod(pod, ["team"])
    assert held_bytes(kept, set()) < len(json.dumps(pod)) / 8


def test_a_pod_is_metered_if_it_asks() -> None:
    asking = {"spec": {"containers": [{"resources": {"limits": {"fairgpu.io/gpu": "1"}}}]}}
    starting = {"spec": {"initContainers": [{"resources": {"limits": {"fairgpu.io/gpu-core": "1"}}}]}}
    written = {"annotations": {"fairgpu.io/allocation": "{}"}, "finalizers": ["fairgpu.io/meter"]}
    marked = {"metadata": written, "spec": {"containers": [{}]}}
    assert [is_metered(item) for item in (asking, starting, marked)] == [True, True, False]


def test_a_gpu_pod_without_the_label_is_metered_and_its_annotations_are_not_believed() -> None:
    limits = {"fairgpu.io/gpu": "1"}
    metadata = {"uid": "u", "name": "p", "annotations": {"fairgpu.io/allocation": "{}", "fairgpu.io/created-by": "bob"}}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    kept = metered_pod(pod)
    assert kept is not None
    assert kept["metadata"]["annotations"] == {}
    labelled = metered_pod({**pod, "metadata": {**metadata, "labels": {"fairgpu.io/pod": "gpu"}}})
    assert labelled is not None
    assert labelled["metadata"]["annotations"] == metadata["annotations"]
    assert labelled["metadata"]["labels"] == {"fairgpu.io/pod": "gpu"}
