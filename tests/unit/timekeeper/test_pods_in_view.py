"""Tests the figures that the leader keeps about the pods that it sees, however they come and go."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from fairgpu.charging import ChargeRules
from timekeeper.controller.state.observing import Clocks, PodView
from timekeeper.controller.state.sessions import MeterRules
from timekeeper.domain.money import SECOND
from timekeeper.domain.sessions import MeterFrom
from timekeeper.domain.timestamps import format_instant
from timekeeper.sources.base import Mirror

START = 1_767_225_600 * SECOND

uids = st.sampled_from("abcd")
events = st.tuples(
    st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), uids, st.sampled_from(["x", "y"]), st.integers(-5, 50)
) | st.lists(
    st.tuples(uids, st.sampled_from(["x", "y"]), st.integers(-5, 50)), max_size=4, unique_by=lambda pod: pod[0]
)
"""A pod's event with its namespace and the seconds of its creation stamp, or a whole list of pods."""


def pod_of(uid: str, namespace: str, created: int) -> dict[str, Any]:
    stamp = format_instant(START + created * SECOND)
    return {"metadata": {"uid": uid, "name": uid, "namespace": namespace, "creationTimestamp": stamp}}


@example([(50, [("ADDED", "a", "x", 40)]), (-30, [("ADDED", "b", "y", 0)])])
@given(st.lists(st.tuples(st.integers(-30, 60), st.lists(events, max_size=3)), max_size=8))
def test_the_namespaces_and_the_lead_of_their_stamps_are_those_of_the_pods_that_are_there(
    rounds: list[tuple[int, list[Any]]],
) -> None:
    now = START

    def clock() -> int:
        return now

    mirror, view = Mirror("pods", clock), PodView()
    rules = MeterRules(ChargeRules(), MeterFrom.BIND, {}, lambda _: "")
    there: dict[str, tuple[str, int]] = {}
    for passed, happened in rounds:
        now += passed * SECOND
        for event in happened:
            if isinstance(event, list):
                mirror.replaced([pod_of(*each) for each in event])
                there = {uid: (namespace, created) for uid, namespace, created in event}
            else:
                kind, uid, namespace, created = event
                mirror.changed(kind, pod_of(uid, namespace, created))
                there.pop(uid, None)
                if kind != "DELETED":
                    there[uid] = namespace, created
        view.refresh(mirror, rules, {}, lambda _: None, now, Clocks(clock, clock))
        assert view.namespaces == {namespace for namespace, _ in there.values()}
        if happened:
            latest = max((START + created * SECOND for _, created in there.values()), default=0)
            assert view.ahead == max(latest - now, 0)
