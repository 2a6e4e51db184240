from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.metering.pods import read_pod
from timekeeper.sources.metered import is_metered, metered_pod
from timekeeper.sources.mirror import Departure, DepartureProof, Mirror

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
    whole = {
        "metadata": {"uid": "u", "name": "p", "namespace": "n", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"nodeName": "n1", "containers": [main], "initContainers": [step], "volumes": [{"name": "data"}]},
        "status": status,
    }
    kept = metered_pod(whole)
    assert kept is not None
    assert read_pod(kept) == read_pod(whole)
    assert all(word not in str(kept) for word in ("managedFields", "volumes", "volumeMounts", "env"))


def test_a_pod_is_metered_if_it_asks_or_holds() -> None:
    asking = {"spec": {"containers": [{"resources": {"limits": {"fairgpu.io/gpu": "1"}}}]}}
    starting = {"spec": {"initContainers": [{"resources": {"limits": {"fairgpu.io/gpu-core": "1"}}}]}}
    holding = {"metadata": {"annotations": {"fairgpu.io/allocation": "broken"}}, "spec": {}}
    assert [is_metered(item) for item in (asking, starting, holding, {"spec": {"containers": [{}]}})] == [
        True,
        True,
        True,
        False,
    ]
