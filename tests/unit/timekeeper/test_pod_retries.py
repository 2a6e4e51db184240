from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.controller.pod_writes import (
    LONGEST_SECONDS,
    Failure,
    PodWrite,
    Step,
    Trouble,
    after_failure,
    due_write,
    failure_of,
)
from timekeeper.sources.base import BlockedError, ChangedMeanwhileError, NotWrittenError, RefusedError, SourceError

NOTICE = PodWrite(
    "u", "team-a", "p", "a", Step.NOTICE, instead=PodWrite("u", "team-a", "p", "a", Step.EVICT), instead_seconds=600
)


def pauses(failures: list[Failure]) -> list[float]:
    """Returns the pause after each failure, if each try fails as soon as it may."""
    found, now, trouble = list[float](), 100.0, None
    for failure in failures:
        trouble = after_failure(trouble, Step.EVICT, failure, now)
        found.append(trouble.until - now)
        now = trouble.until
    return found


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure.FAILED, [5, 10, 20, 40, 80, 120, 120]),
        (Failure.REFUSED, [5, 10, 20, 40, 80, 120, 120]),
        (Failure.CHANGED, [1, 2, 4, 8, 16, 32, 64, 120]),
        (Failure.BLOCKED, [10, 10, 10, 10, 10, 10, 10]),
    ],
)
def test_each_failure_of_a_pod_is_waited_out_longer_up_to_two_minutes(failure: Failure, expected: list[float]) -> None:
    assert pauses([failure] * len(expected)) == expected


@given(st.lists(st.sampled_from(Failure), min_size=1, max_size=2000))
def test_no_pod_waits_longer_than_the_longest_pause_whatever_fails(failures: list[Failure]) -> None:
    assert all(0 < pause <= LONGEST_SECONDS for pause in pauses(failures))


def test_three_failures_in_a_row_are_a_fault_of_the_pod_and_a_disruption_budget_is_none() -> None:
    trouble: Trouble | None = None
    failing = []
    for failure in (Failure.FAILED, Failure.BLOCKED, Failure.BLOCKED, Failure.CHANGED, Failure.REFUSED):
        trouble = after_failure(trouble, Step.EVICT, failure, 0)
        failing.append(trouble.failing)
    assert failing == [False, False, False, False, True]


def test_another_write_to_the_pod_begins_anew() -> None:
    trouble = after_failure(None, Step.NOTICE, Failure.FAILED, 10)
    assert after_failure(trouble, Step.EVICT, Failure.FAILED, 700) == Trouble(Step.EVICT, 700, 705, 1)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ChangedMeanwhileError("404"), Failure.CHANGED),
        (BlockedError("429"), Failure.BLOCKED),
        (RefusedError("403"), Failure.REFUSED),
        (NotWrittenError("500"), Failure.FAILED),
        (SourceError("503"), None),
    ],
)
def test_only_what_every_write_would_meet_is_no_pods_failure(error: SourceError, failure: Failure | None) -> None:
    assert failure_of(error) is failure


@pytest.mark.parametrize(
    ("trouble", "now", "step"),
    [
        pytest.param(None, 10_000, Step.NOTICE, id="it never failed"),
        pytest.param(Trouble(Step.NOTICE, 100, 0), 699, Step.NOTICE, id="not for long enough"),
        pytest.param(Trouble(Step.NOTICE, 100, 0), 700, Step.EVICT, id="for ten minutes"),
        pytest.param(Trouble(Step.CALL_OFF, 100, 0), 900, Step.NOTICE, id="something else failed"),
    ],
)
def test_a_notice_that_fails_for_too_long_gives_way_to_the_eviction(
    trouble: Trouble | None, now: float, step: Step
) -> None:
    assert due_write(NOTICE, trouble, now).step is step


def test_an_eviction_is_tried_for_ever() -> None:
    eviction = PodWrite("u", "team-a", "p", "a", Step.EVICT)
    assert due_write(eviction, Trouble(Step.EVICT, 0, 0, 50), 10**6) is eviction
