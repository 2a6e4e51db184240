"""The pods that wait for a node, in their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster.objects import WaitingPod
from scheduler.cluster.waiting import WaitingPods
from scheduler.placement.request import Need, Request

ONE_GPU = Request((Need(1, 100, memory_percent=100),))
pods = st.builds(
    lambda uid, namespace, priority, created: WaitingPod(
        uid, namespace, uid, ONE_GPU, ("main",), priority=priority, created=created
    ),
    st.sampled_from("abcdef"),
    st.sampled_from(["rich", "spent"]),
    st.integers(0, 2),
    st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
)


@given(st.lists(pods | st.sampled_from("abcdef"), max_size=20))
def test_waiting_pods_are_in_order_whatever_comes_changes_and_goes(changes: list[WaitingPod | str]) -> None:
    waiting, there = WaitingPods(), dict[str, WaitingPod]()
    for change in changes:
        if isinstance(change, str):
            waiting.remove(change)
            there.pop(change, None)
        else:
            waiting.add(change)
            there[change.uid] = change
    in_order = sorted(there.values(), key=lambda pod: (-pod.priority, pod.created, pod.uid))
    assert [one.pod for one in waiting.in_order()] == in_order
    rich = [pod for pod in reversed(in_order) if pod.namespace == "rich"]
    assert list(waiting.lowest_first(lambda namespace: namespace == "rich")) == rich
