from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.charges import amounts, rate_now, segment_cost, segments
from timekeeper.domain.money import SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.pods import PodFacts, asks_for_the_same, read_pod
from timekeeper.domain.reservations import Reservation
from timekeeper.domain.sessions import (
    EndProof,
    MeterFrom,
    Session,
    alive_until,
    end_at_deletion,
    end_at_terminal_phase,
    end_found_missing,
    start_of,
)

HELD = Reservation(containers=(None,))
SESSION = Session("u", "team-a", "p", "n1", 100, ((100, 10**6),))


def facts(**fields: Any) -> PodFacts:
    base: dict[str, Any] = {
        "uid": "u", "namespace": "team-a", "name": "p", "node": "n1", "created": 50, "scheduled": 100, "bound": True,
        "running": True, "terminal": False, "finished": None, "gated": False, "reservation": HELD,
    }  # fmt: skip
    return PodFacts(**(base | fields))


def test_the_meter_starts_when_the_api_server_stamped_the_binding() -> None:
    assert start_of(facts(scheduled=100), now=500) == 100


def test_a_start_lies_between_creation_and_first_sight() -> None:
    assert start_of(facts(scheduled=10), now=500) == 50
    assert start_of(facts(scheduled=900), now=500) == 500
    assert start_of(facts(scheduled=None), now=500) == 500


def test_a_pod_that_is_pending_gated_or_without_a_gpu_is_not_metered() -> None:
    assert start_of(facts(bound=False, node=""), now=500) is None
    assert start_of(facts(reservation=None), now=500) is None


def test_metering_from_running_starts_at_first_sight_of_the_running_pod() -> None:
    assert start_of(facts(running=False), 500, MeterFrom.RUNNING) is None
    assert start_of(facts(), 500, MeterFrom.RUNNING) == 500


@pytest.mark.parametrize(
    ("meter_from", "charged"),
    [
        pytest.param(MeterFrom.BIND, 60, id="from its binding to the refusal"),
        pytest.param(MeterFrom.RUNNING, 0, id="nothing: it never ran"),
    ],
)
def test_a_refused_pod_is_charged_up_to_the_refusal_or_nothing_where_running_starts_the_meter(
    meter_from: MeterFrom, charged: int
) -> None:
    refused = facts(terminal=True, changed=160)
    start = start_of(refused, 500, meter_from)
    assert start is not None
    done = end_at_terminal_phase(replace(SESSION, start=start), refused, 500)
    assert (done.end, done.proof) == (start + charged, EndProof.TERMINAL)


ASKS = {"resources": {"limits": {"fairgpu.io/gpu-core": "100"}}}
RUNS = {"state": {"running": {"startedAt": "1970-01-01T00:00:03Z"}}}
WAITS = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}


@pytest.mark.parametrize(
    ("init", "main", "started"),
    [
        pytest.param([], [WAITS], False, id="its image is pulled"),
        pytest.param([RUNS], [WAITS], False, id="an init container without a GPU works"),
        pytest.param([ASKS | RUNS], [WAITS], True, id="an init container works on a GPU"),
        pytest.param([ASKS | {**WAITS, "lastState": {"terminated": {}}}], [WAITS], True, id="one crashed on it"),
        pytest.param([], [ASKS | RUNS, WAITS], True, id="another container waits for an image that is not there"),
    ],
)
def test_metering_from_running_starts_once_a_container_works_on_a_gpu_though_the_pod_is_pending(
    init: list[dict[str, Any]], main: list[dict[str, Any]], *, started: bool
) -> None:
    lists = {"initContainers": init, "containers": [*main, ASKS | WAITS]}
    spec = {
        kind: [{"name": f"{kind}{at}"} | {"resources": one.get("resources")} for at, one in enumerate(items)]
        for kind, items in lists.items()
    }
    status = {
        status: [
            {"name": f"{kind}{at}"} | {key: one[key] for key in ("state", "lastState") if key in one}
            for at, one in enumerate(lists[kind])
        ]
        for kind, status in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))
    }
    pod = read_pod({"spec": {"nodeName": "n1", **spec}, "status": {"phase": "Pending", **status}})
    assert (start_of(pod, 500, MeterFrom.RUNNING) is not None) is started


UNALLOCATED = replace(HELD, placed=False)


@pytest.mark.parametrize("meter_from", MeterFrom)
@pytest.mark.parametrize(
    ("pod", "start"),
    [
        pytest.param({"running": False}, None, id="bound by somebody, its kubelet has not seen it"),
        pytest.param({"running": True}, None, id="its phase is past Pending, by a container without a GPU"),
        pytest.param({"terminal": True, "finished": 400}, None, id="its kubelet refused it: nothing was started"),
        pytest.param({"started": True}, 500, id="a container on a GPU was started: from when that is seen"),
        pytest.param({"started": True, "terminal": True, "finished": 400}, 500, id="and ended before it was seen"),
        pytest.param({"started": True, "bound": False, "node": ""}, None, id="it has no node"),
    ],
)
def test_a_bound_pod_without_an_allocation_is_not_metered_before_a_gpu_container_of_it_starts(
    meter_from: MeterFrom, pod: dict[str, Any], start: int | None
) -> None:
    assert start_of(facts(reservation=UNALLOCATED, **pod), 500, meter_from) == start


@pytest.mark.parametrize(
    ("gates", "ours", "elsewhere"),
    [
        (None, False, False),
        ([], False, False),
        ([{"name": "fairgpu.io/budget"}], True, False),
        ([{"name": "kueue.x-k8s.io/admission"}], False, True),
        ([{"name": ""}, {"name": "fairgpu.io/budget"}], True, True),
    ],
)
def test_gates_of_others_are_distinguished_from_ours(gates: Any, *, ours: bool, elsewhere: bool) -> None:
    found = read_pod({"spec": {"schedulingGates": gates}})
    assert (found.gated, found.gated_elsewhere) == (ours, elsewhere)


def test_a_terminal_pod_ended_when_its_last_container_did() -> None:
    done = end_at_terminal_phase(SESSION, facts(terminal=True, finished=400), now=900)
    assert (done.end, done.proof) == (400, EndProof.FINISHED)


@pytest.mark.parametrize(("finished", "end"), [(20, 100), (5000, 900)])
def test_a_node_clock_that_is_off_moves_no_end_outside_what_was_seen(finished: int, end: int) -> None:
    assert end_at_terminal_phase(SESSION, facts(terminal=True, finished=finished), now=900).end == end


@pytest.mark.parametrize(
    ("bound", "begun", "finished", "end"),
    [
        pytest.param(100, 105, 400, 400, id="the node's clock is right"),
        pytest.param(100, 91, 391, 391, id="a few seconds behind, as clocks are"),
        pytest.param(
            100, 40, 340, 400, id="a minute behind, so that the pod seems to have been there before it was bound"
        ),
        pytest.param(10_000, 100, 500, 10_400, id="hours behind, so that it seems to have ended before it was bound"),
        pytest.param(100, 5000, 5300, 900, id="ahead"),
    ],
)
def test_a_node_that_says_that_it_had_a_pod_before_it_was_bound_has_its_clock_set_right(
    bound: int, begun: int, finished: int, end: int
) -> None:
    session = replace(SESSION, start=bound * SECOND)
    pod = facts(
        terminal=True,
        created=bound * SECOND,
        scheduled=bound * SECOND,
        begun=begun * SECOND,
        finished=finished * SECOND,
    )
    seen_at = max(900, bound + 900) * SECOND if bound > 900 else 900 * SECOND
    assert end_at_terminal_phase(session, pod, now=seen_at).end == end * SECOND


@pytest.mark.parametrize(("changed", "end"), [(None, 700), (300, 700), (800, 800), (1000, 900)])
def test_a_terminal_pod_without_finish_times_ended_at_its_last_change_after_it_was_seen_alive(
    changed: int | None, end: int
) -> None:
    done = end_at_terminal_phase(SESSION, facts(terminal=True, changed=changed), now=900, seen=700)
    assert (done.end, done.proof) == (end, EndProof.TERMINAL)


@pytest.mark.parametrize(("silent", "end", "proof"), [(300, 300, EndProof.LAST_SEEN), (900, 900, EndProof.TERMINAL)])
def test_a_pod_that_is_collected_from_a_lost_node_ended_at_its_last_sign_of_life(
    silent: int, end: int, proof: EndProof
) -> None:
    done = end_at_terminal_phase(SESSION, facts(terminal=True), now=900, seen=900, silent_since=silent)
    assert (done.end, done.proof) == (end, proof)
    assert end_at_terminal_phase(SESSION, facts(terminal=True, finished=400), now=900, silent_since=silent).end == 400


def test_a_deleted_pod_ended_at_receipt_unless_it_had_finished_before() -> None:
    assert end_at_deletion(SESSION, facts(), 900, None).end == 900
    assert end_at_deletion(SESSION, facts(terminal=True, finished=400), 900, None).end == 400
    assert end_at_deletion(SESSION, None, 900, None).proof is EndProof.DELETED


def test_a_pod_deleted_behind_a_silent_node_ended_at_its_last_sign_of_life() -> None:
    done = end_at_deletion(SESSION, facts(), 900, silent_since=300)
    assert (done.end, done.proof) == (300, EndProof.LAST_SEEN)


def test_a_pod_gone_unwatched_ended_when_it_was_last_seen() -> None:
    assert end_found_missing(SESSION, 700, 900).end == 700
    assert end_found_missing(SESSION, 10, 900).end == 100


def test_a_silent_node_stops_the_meter_and_its_return_charges_the_gap() -> None:
    assert alive_until(900, node_silent_since=300, reported=None) == 300
    assert alive_until(900, node_silent_since=300, reported=350) == 350
    assert alive_until(900, node_silent_since=2000, reported=None) == 900
    assert alive_until(900, node_silent_since=None, reported=None) == 900


def test_facts_are_read_from_a_real_pods_status() -> None:
    pod = {
        "metadata": {"uid": "u", "namespace": "a", "name": "p", "creationTimestamp": "1970-01-01T00:00:01Z"},
        "spec": {"nodeName": "n1", "schedulingGates": [{"name": "fairgpu.io/budget"}], "containers": []},
        "status": {
            "phase": "Failed",
            "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:02Z"},
            ],
            "containerStatuses": [
                {"state": {"terminated": {"finishedAt": "1970-01-01T00:00:09Z"}}},
                {"state": {"terminated": {"finishedAt": None}}},
            ],
            "initContainerStatuses": [{"state": {"terminated": {"finishedAt": "1970-01-01T00:00:11Z"}}}],
        },
    }
    found = read_pod(pod)
    assert (found.created, found.scheduled, found.finished) == (SECOND, 2 * SECOND, 11 * SECOND)
    assert (found.terminal, found.running, found.bound, found.gated) == (True, True, True, True)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": [], "spec": None, "status": "x"},
        {"status": {"conditions": [None]}},
        {"spec": {"containers": [None, {"name": 1, "resources": 2}]}, "status": {"containerStatuses": [None, 1]}},
    ],
)
def test_no_shape_of_object_breaks_the_reader(pod: dict[str, Any]) -> None:
    assert not read_pod(pod).bound


instants = st.integers(0, 1000)
tariffs = st.lists(st.tuples(instants, st.integers(0, 10**9)), min_size=1, max_size=4, unique_by=lambda p: p[0]).map(
    lambda points: tuple(sorted(points))
)
edges = st.lists(instants, min_size=2, max_size=6, unique=True).map(sorted)


def periods_from(found: list[int]) -> list[Period]:
    return [Period(start, end) for start, end in pairwise(found)]


@given(
    st.lists(st.tuples(instants, st.sampled_from("ab")), min_size=1, max_size=4, unique_by=lambda p: p[0]),
    edges,
    edges,
    instants,
    instants,
)
def test_spans_cover_each_paid_instant_exactly_once(
    moves: list[tuple[int, str]], edges_a: list[int], edges_b: list[int], start: int, end: int
) -> None:
    assignments = tuple(sorted(moves))
    periods = {"a": periods_from(edges_a), "b": periods_from(edges_b)}
    covered = Counter(
        (span.account, span.period, instant)
        for span in segments(assignments, periods.__getitem__, start, end)
        for instant in range(span.start, span.end)
    )
    expected: Counter[tuple[str, int, int]] = Counter()
    for instant in range(start, end):
        payer = next((name for since, name in reversed(assignments) if since <= instant), assignments[0][1])
        for period in periods[payer]:
            if period.holds(instant):
                expected[payer, period.start, instant] += 1
    assert covered == expected


@given(tariffs, instants, instants)
def test_the_cost_of_a_span_is_the_sum_over_its_instants_rounded_down_per_rate(
    tariff: tuple[tuple[int, int], ...], start: int, end: int
) -> None:
    nanoseconds = Counter(rate_index(tariff, instant) for instant in range(start, end))
    expected = sum(tariff[index][1] * count // SECOND for index, count in nanoseconds.items())
    assert segment_cost(tariff, start, end) == expected
    assert rate_now(tariff, start) == tariff[rate_index(tariff, start)][1]


def rate_index(tariff: tuple[tuple[int, int], ...], instant: int) -> int:
    return max((index for index, (since, _) in enumerate(tariff) if since <= instant), default=0)


def test_amounts_beyond_two_to_the_53_are_exact() -> None:
    tariff = ((0, 2**53 + 1),)
    periods = [Period(0, 10 * SECOND)]
    stretches = segments(((0, "a"),), lambda _: periods, 0, 3 * SECOND)
    assert amounts(tariff, stretches) == {("a", 0): 3 * (2**53 + 1)}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"status": {"phase": "Running"}}, True),
        ({"metadata": {"annotations": {"fairgpu.io/core-policy": "elastic"}}}, False),
        ({"spec": {"nodeName": "n2"}}, False),
        ({"spec": None}, False),
    ],
)
def test_a_pod_asks_for_the_same_until_its_spec_or_annotations_change(change: dict[str, Any], *, same: bool) -> None:
    before = {"metadata": {"annotations": {}}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    assert asks_for_the_same(before, {**before, **change}) is same
    assert asks_for_the_same({}, {"status": {}})
