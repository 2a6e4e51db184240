"""In a cluster whose answers get lost, no GPU is given twice, and no pod waits beside room that it can use."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scheduler.cluster.objects import read_waiting
from scheduler.extender.filtering import budget_block
from scheduler.placement.together import Part, place_together
from tests.unit.scheduler.simulated import EARMARK, Item, Simulated, runs, waits

RECLAIM_AT = "fairgpu.io/reclaim-at"
TROUBLED_TICKS = 120
ENDING_TICKS, SETTLING_TICKS, QUIET_TICKS = 200, 500, 60
"""Calm times: pods end; then none ends, for longer than all deadlines of binds, gangs and reclaim; then nothing may
change any more."""
EXAMPLES = 8


def lives(cluster: Simulated) -> Iterator[None]:
    """Troubled times, and calm ones after them."""
    for _ in range(TROUBLED_TICKS):
        for _ in range(cluster.random.choice([0, 0, 1, 1, 2])):
            cluster.act()
        yield from passes(cluster, 1)
    cluster.calm()
    yield from passes(cluster, ENDING_TICKS)
    cluster.stay()
    yield from passes(cluster, SETTLING_TICKS)
    changes = len(cluster.api.log)
    yield from passes(cluster, QUIET_TICKS)
    assert cluster.api.log[changes:] == []


def passes(cluster: Simulated, ticks: int) -> Iterator[None]:
    """Time passes, in which no GPU is given twice, and no pod is evicted in vain twice."""
    for _ in range(ticks):
        cluster.tick()
        cluster.check_devices()
        cluster.check_plans()
        yield


def has_room(cluster: Simulated, item: Item) -> bool:
    """Whether a waiting pod, and its gang with it, could be placed now, and no budget keeps it back."""
    state, waiting = cluster.state, read_waiting(item)
    if budget_block(state, waiting) is not None:
        return False
    with state.without(state.lifted_for(waiting)):
        if waiting.gang is None:
            named = set(cluster.kube_scheduler.with_room(item))
            rows = state.fitting(waiting, state.allowed(waiting.rules))
            return any(state.fleet.names[row] in named for row in rows)
        together = state.gangs.together_with(waiting)
        parts = [Part(one.uid, one.request, state.allowed(one.rules)) for one in together]
        return bool(parts and place_together(state.chooser, parts)[0])


@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32 - 1))
def test_each_pod_is_placed_once_there_is_room_for_it_and_nothing_stays_held(seed: int) -> None:
    cluster = Simulated(Random(seed))
    cluster.run(lives(cluster))
    state, pods = cluster.state, list(cluster.api.pods.values())
    assert [item["metadata"]["name"] for item in pods if waits(item) and has_room(cluster, item)] == []
    assert state.reserved() == set()
    assert list(state.gangs.held()) == []
    holding = {item["metadata"]["uid"] for item in pods if runs(item)}
    assert {uid for name in cluster.machines.gpus for uid in state.fleet.holders(name)} == holding | {
        f"earmark/{uid}" for uid in state.earmarks
    }
    victims = {uid for _, earmark in state.earmarks.values() for uid in earmark.victims}
    noticed = {item["metadata"]["uid"] for item in pods if runs(item) and RECLAIM_AT in item["metadata"]["annotations"]}
    assert noticed <= victims
    kept = {item["metadata"]["uid"] for item in pods if waits(item) and EARMARK in item["metadata"]["annotations"]}
    assert state.earmarks.keys() <= kept
    assert state.waiting.uids() <= {item["metadata"]["uid"] for item in pods if waits(item)}
