from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.other_stacks import STACKS, Asking, Stack
from timekeeper.domain.holdings.deciding import decide
from timekeeper.domain.holdings.holding import NOTHING, read_bound_pod, read_host_node
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.pods import read_pod
from timekeeper.domain.timestamps import parse_instant
from timekeeper.sources.base import Departure, DepartureProof, Mirror, Mirrors
from timekeeper.sources.kubernetes import is_metered, metered_pod, slim

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


def test_a_fact_that_a_later_list_shows_may_hold_since_the_mirror_was_last_current() -> None:
    mirror = ticking()
    mirror.replaced([pod("a")])
    assert mirror.take_by_uid()[1] is None
    mirror.confirmed()
    known_at = mirror.confirmed_at
    mirror.changed("MODIFIED", pod("a"))
    assert mirror.take_by_uid()[1] is None
    mirror.replaced([pod("a")])
    mirror.confirmed()
    mirror.replaced([pod("a")])
    assert mirror.take_by_uid() == ({"a": pod("a")}, known_at)
    assert mirror.take_by_uid()[1] is None


def test_a_deletion_that_is_received_counts_from_then() -> None:
    mirror = ticking()
    mirror.replaced([pod("a")])
    mirror.confirmed()
    mirror.changed("DELETED", pod("a"))
    [departure] = mirror.take_departures()
    assert departure.proof is DepartureProof.DELETED
    assert mirror.confirmed_at is not None
    assert departure.at > mirror.confirmed_at


def test_a_change_that_comes_as_a_wait_ends_is_found_by_the_next_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = ticking()
    changes = [pod("a")]

    class Late(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            found = super().wait(timeout)
            while changes:
                mirror.changed("ADDED", changes.pop())
            return found

    monkeypatch.setattr(mirror, "_changed", Late())
    assert not mirror.wait_for_change(0)
    assert mirror.wait_for_change(0)
    assert not mirror.wait_for_change(0)


def test_an_object_that_was_held_is_held_until_it_is_deleted() -> None:
    mirror = Mirror("pods", lambda: 1, lambda item: "kept" in item)
    mirror.replaced([{**pod("a"), "kept": True}, {**pod("b"), "kept": True}, pod("c")])
    mirror.replaced([pod("a"), {**pod("b"), "kept": True}, pod("c")])
    mirror.changed("MODIFIED", pod("b"))

    assert mirror.by_uid().keys() == {"a", "b"}
    assert mirror.take_departures() == []
    mirror.changed("DELETED", pod("b"))
    assert [departure.item for departure in mirror.take_departures()] == [pod("b")]


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
def test_a_pod_can_be_asked_whether_it_is_metered_whatever_it_looks_like(item: dict[str, object]) -> None:
    assert is_metered(item) in (True, False)
    assert (metered_pod(item) is not None) == is_metered(item)


def test_the_meter_reads_the_same_of_what_is_kept_of_a_pod_as_of_all_of_it() -> None:
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "60"}
    step = {"name": "sidecar", "restartPolicy": "Always", "resources": {"limits": limits}, "env": [{"name": "A"}]}
    main = {"name": "main", "resources": {"limits": limits}, "volumeMounts": [{"name": "data"}], "image": "x"}
    began, ended = "2026-01-01T00:00:01Z", "2026-01-01T00:00:07Z"
    states = [{"state": {"running": {"startedAt": ended}}, "lastState": {"terminated": {"startedAt": began}}}]
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": began, "message": "x"},
        {"type": "Ready", "status": "False", "lastTransitionTime": ended},
        {"type": "Initialized", "status": "True", "lastTransitionTime": began},
    ]
    status = {
        "phase": "Running",
        "conditions": conditions,
        "images": ["none"],
        "startTime": ended,
        "containerStatuses": [{"name": "main", "imageID": "x", **states[0]}],
        "initContainerStatuses": [{"name": "sidecar", "state": {"terminated": {"finishedAt": ended, "reason": "x"}}}],
    }
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
    assert (read_pod(kept).changed, read_pod(kept).begun) == (parse_instant(ended), parse_instant(began))
    assert read_pod(kept).finished is None  # one container runs
    over = metered_pod({**whole, "status": {**status, "containerStatuses": []}}, ["team"])
    assert over is not None
    assert read_pod(over).finished == parse_instant(ended)
    assert all(word not in str(kept) for word in ("managedFields", "volumes", "volumeMounts", "env", "imageID"))


@given(JSON, JSON)
def test_the_kept_part_of_a_status_reads_the_same_whatever_the_rest_looks_like(conditions: Any, states: Any) -> None:
    stamp = {"lastTransitionTime": "2026-01-01T00:00:01Z", "type": "PodScheduled", "status": "True"}
    for found in (conditions, [conditions, stamp]):
        status = {"phase": "Running", "conditions": found, "containerStatuses": [{"state": states}]}
        limits = {"fairgpu.io/gpu": "1"}
        spec = {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": limits}}]}
        whole = {"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": spec, "status": status}
        kept = metered_pod(whole)
        assert kept is not None
        assert read_pod(kept) == read_pod(whole)


def held_bytes(value: Any, seen: set[int]) -> int:
    if id(value) in seen:
        return 0
    seen.add(id(value))
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(held_bytes(item, seen) for item in inner)


def test_no_field_of_a_pod_is_kept_that_is_as_large_as_its_author_likes() -> None:
    """Pods that wait behind a gate cost nothing, and the leader holds all of them in memory."""
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


@pytest.mark.parametrize(("stack", "asking"), [(stack, asking) for stack in STACKS for asking in stack.pods.values()])
def test_the_kept_fields_of_a_pod_decide_the_same_as_all_of_it(stack: Stack, asking: Asking) -> None:
    own = {"example.com/npu": Listed("own", 4, model_labels=("example.com/npu.product",))}
    labels, annotations = dict(asking.labels), dict(asking.annotations)
    whole = {
        "metadata": {"uid": "a", "namespace": "team", "labels": labels, "annotations": annotations},
        "spec": {"containers": [{"resources": {"limits": limits, "requests": limits}} for limits in asking.limits]},
    }
    node = {
        "metadata": {"labels": stack.labels, "annotations": stack.annotations},
        "status": {"capacity": stack.capacity},
    }
    kept = metered_pod(whole, own=own)
    assert kept is not None
    decided = decide(read_bound_pod(kept), read_host_node(slim(node)), own)

    assert decided == decide(read_bound_pod(whole), read_host_node(node), own)
    assert sum(part.count * max(part.time, part.memory) for part in decided.holdings) == asking.gpus


def test_the_memory_of_a_container_by_kai_is_kept_and_other_annotations_of_containers_are_not() -> None:
    memory = {"nvidia.com/container.main.gpu-memory.request": "40Gi"}
    annotations = {**memory, "nvidia.com/container.main.gpus.devices": "0"}
    bound = {"metadata": {"annotations": annotations}, "spec": {"schedulerName": "kai-scheduler"}}
    kept = metered_pod(bound, own={})

    assert kept is not None
    assert kept["metadata"]["annotations"] == memory


def test_a_pod_that_asks_for_the_memory_of_a_container_may_hold_it_whatever_its_scheduler_is_named() -> None:
    annotations = {"nvidia.com/container.main.gpu-memory.limit": "40Gi"}

    assert metered_pod({"metadata": {"annotations": annotations}, "spec": {"schedulerName": "our-kai"}}, own={})


def test_annotations_for_containers_that_a_pod_does_not_have_hide_no_memory_that_it_holds() -> None:
    """The API server sorts annotations, so that an author may place others in front of the one that counts."""
    others = {f"nvidia.com/container.a{number:03}.gpu-memory.request": "1Mi" for number in range(100)}
    annotations = {**others, "nvidia.com/container.main.gpu-memory.request": "40Gi"}
    labels = {"runai-gpu-group": "g"}
    kept = metered_pod({"metadata": {"annotations": annotations, "labels": labels}, "spec": {"nodeName": "n"}}, own={})

    assert kept is not None
    (held,) = decide(read_bound_pod(kept), read_host_node({"metadata": {"labels": {}}}), {}).holdings
    assert (held.count, held.memory) == (1, 1)


def test_a_pod_that_has_an_extended_resource_by_a_claim_is_read_whatever_the_resource_is_named() -> None:
    """A DeviceClass names it, which no settings list; the claim that kube-scheduler made is charged, and labels it."""
    mapped = [{"containerName": "main", "requestName": "container-0-request-0", "resourceName": "example.org/gpu"}]
    by_claim = {"resourceClaimName": "made", "requestMappings": mapped}
    asking = {"name": "main", "resources": {"limits": {"example.org/gpu": "1"}}}
    pod = {"metadata": {"uid": "a", "namespace": "team"}, "spec": {"containers": [asking], "nodeName": "n1"}}

    assert metered_pod(pod, own={}) is None
    read = metered_pod({**pod, "status": {"extendedResourceClaimStatus": by_claim}}, own={})
    assert read is not None
    assert read["status"] == {"extendedResourceClaimStatus": by_claim}
    assert decide(read_bound_pod(read), read_host_node({"metadata": {}}), {}) == NOTHING


def test_a_pod_that_was_metered_is_read_without_its_annotations_too() -> None:
    bare = {"metadata": {"uid": "a", "annotations": {"more": "x"}}, "spec": {"nodeName": "n", "volumes": [1]}}

    assert metered_pod(bare, own={}) is None
    read = metered_pod(bare, own={}, known=True)
    assert read is not None
    assert (read["metadata"], read["spec"]) == ({"uid": "a", "annotations": {}}, {"nodeName": "n"})


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


@pytest.mark.parametrize("lacking", Mirrors.__slots__)
def test_bills_wait_for_each_collection_that_they_depend_on_and_for_no_quota(lacking: str) -> None:
    mirrors = Mirrors(**{name: Mirror(name, lambda: 1) for name in Mirrors.__slots__})
    for name in Mirrors.__slots__:
        if name != lacking:
            getattr(mirrors, name).confirmed()

    assert mirrors.all_read == (lacking == "quotas")
