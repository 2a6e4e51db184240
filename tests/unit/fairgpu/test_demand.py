"""The demand of a whole pod."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from fairgpu.demand import Demand, is_native_sidecar, peak, pod_demand
from fairgpu.request import GPURequest

AMOUNTS = st.integers(0, 1000)
STEPS = st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=6)
FIGURES = (st.integers(1, 8), st.integers(0, 800), st.integers(1, 9999) | st.none(), st.integers(1, 800) | st.none())
REQUESTS = st.none() | st.builds(GPURequest, *FIGURES)


def moments(containers: list[int], steps: list[tuple[int, bool]]) -> Iterator[int]:
    """Returns the held amount at each moment of the pod's life, played step by step."""
    running: list[int] = []
    for amount, keeps_running in steps:
        yield sum(running) + amount
        if keeps_running:
            running.append(amount)
    yield sum(running) + sum(containers)


@given(st.lists(AMOUNTS, max_size=6), STEPS)
def test_the_peak_is_the_most_held_at_any_moment_of_a_pod_that_is_played_through(
    containers: list[int], steps: list[tuple[int, bool]]
) -> None:
    assert peak(containers, steps) == max(moments(containers, steps))


@given(st.lists(REQUESTS, max_size=4), st.lists(st.tuples(REQUESTS, st.booleans()), max_size=4))
def test_each_figure_has_a_peak_of_its_own(
    containers: list[GPURequest | None], steps: list[tuple[GPURequest | None, bool]]
) -> None:
    demand = pod_demand(containers, steps)
    for figure in ("gpus", "core_percent", "memory_mib", "memory_percentage"):
        amounts = [(getattr(request, figure) or 0) if request else 0 for request in containers]
        ordered = [((getattr(request, figure) or 0) if request else 0, keeps) for request, keeps in steps]
        assert getattr(demand, figure) == peak(amounts, ordered)


def test_a_large_init_step_outweighs_small_containers() -> None:
    small, large = GPURequest(1, 20, memory_mib=1024), GPURequest(2, 150, memory_mib=8192)
    assert pod_demand([small, small], [(large, False)]) == Demand(2, 150, 8192, 0)


def test_a_native_sidecar_counts_beside_the_containers_and_the_steps_after_it() -> None:
    sidecar, step, main = GPURequest(1, 10), GPURequest(1, 50), GPURequest(1, 30)
    assert pod_demand([main], [(sidecar, True), (step, False)]).core_percent == 60
    assert pod_demand([main], [(step, False), (sidecar, True)]).core_percent == 50


def test_only_restart_policy_always_makes_a_native_sidecar() -> None:
    assert is_native_sidecar({"restartPolicy": "Always"})
    assert not is_native_sidecar({"restartPolicy": "OnFailure"})
    assert not is_native_sidecar({"restartPolicy": ["Always"]})
    assert not is_native_sidecar({})
