"""The amounts that pods may still spend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.controller.state.commitments import commitment, left_to_run
from timekeeper.domain.charges import cost
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import HOUR

times = st.integers(0, 1000 * HOUR)


@given(times, times, times)
def test_a_pod_with_a_deadline_has_spent_and_is_committed_to_the_same_all_along(
    deadline: int, ran: int, default: int
) -> None:
    ran = min(ran, deadline)
    whole = commitment(GPU_SECOND, deadline, 0, default)
    assert abs(whole - commitment(GPU_SECOND, deadline, ran, default) - cost(GPU_SECOND, ran)) <= 1


@given(times, times)
def test_a_pod_without_a_deadline_may_always_go_on_for_the_default(ran: int, default: int) -> None:
    assert left_to_run(None, ran, default) == default


def test_a_pod_past_its_deadline_is_committed_to_nothing() -> None:
    assert commitment(GPU_SECOND, HOUR, 2 * HOUR, HOUR) == 0
    assert commitment(GPU_SECOND // 2, 4 * HOUR, HOUR, HOUR) == 3 * GPU_HOUR // 2
