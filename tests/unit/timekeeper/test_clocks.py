from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.controller.state.observing import latest_believed, present_by_ends
from timekeeper.domain.money import SECOND
from timekeeper.domain.sessions import LONGEST_UNNOTICED, silent_nodes
from timekeeper.domain.timestamps import HOUR, MINUTE, SKEW, format_exact, format_instant, parse_instant

NOON = parse_instant("2026-01-15T12:00:00Z")
moments = st.integers(NOON - 48 * HOUR, NOON + 48 * HOUR)


@given(st.lists(moments, min_size=1), moments)
def test_no_stamp_counts_that_is_further_ahead_of_two_clocks_than_clocks_differ(stamps: list[int], store: int) -> None:
    found = latest_believed(stamps, NOON, lambda: store)
    assert found <= max(NOON, store) + SKEW
    believed = [stamp for stamp in stamps if stamp <= NOON + SKEW]
    assert found >= max(believed, default=0)


@given(st.lists(st.integers(NOON - 48 * HOUR, NOON + SKEW), min_size=1))
def test_the_store_is_not_asked_what_time_it_is_as_long_as_nothing_is_strange(stamps: list[int]) -> None:
    def no_stamp() -> int:
        raise AssertionError

    assert latest_believed(stamps, NOON, no_stamp) == max(stamps)


@given(st.lists(moments), moments)
def test_the_present_by_pods_ends_is_not_before_our_clock_nor_after_both(ends: list[int], store: int) -> None:
    found = present_by_ends(ends, NOON, lambda: store)
    assert NOON <= found <= max(NOON, store)


@given(st.lists(moments), moments)
def test_the_present_is_not_before_an_end_that_is_past_by_the_stores_clock(ends: list[int], store: int) -> None:
    past = [end for end in ends if end <= store]
    assert present_by_ends(past, NOON, lambda: store) == max([NOON, *past])


@given(st.lists(st.integers(NOON - 48 * HOUR, NOON)))
def test_the_store_is_not_asked_what_time_it_is_as_long_as_every_end_is_past_by_ours(ends: list[int]) -> None:
    def store() -> int:
        raise AssertionError

    assert present_by_ends(ends, NOON, store) == NOON


def node(**condition: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", **condition}]}}


def lease(renewed: int) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": format_exact(renewed)}}


@pytest.mark.parametrize(
    ("renewed", "heard_of"),
    [
        pytest.param(NOON - 40 * SECOND, NOON - 40 * SECOND, id="its clock is right"),
        pytest.param(NOON - 10 * HOUR, NOON - LONGEST_UNNOTICED, id="its clock is hours behind"),
        pytest.param(NOON + 10 * HOUR, NOON, id="its clock is hours ahead"),
        pytest.param(None, NOON - LONGEST_UNNOTICED, id="it has no Lease"),
    ],
)
def test_a_silent_nodes_own_clock_is_held_to_when_it_was_found_silent(renewed: int | None, heard_of: int) -> None:
    leases = {} if renewed is None else {"n1": lease(renewed)}
    found = node(status="Unknown", lastTransitionTime=format_instant(NOON))
    assert silent_nodes([found], lambda: leases) == {"n1": heard_of}


def test_where_nobody_says_when_a_node_was_found_silent_its_lease_counts() -> None:
    leases = {"n1": lease(NOON - MINUTE)}
    assert silent_nodes([node(status="Unknown")], lambda: leases) == {"n1": NOON - MINUTE}
    assert silent_nodes([node(status="True"), node(status="False")], lambda: leases) == {}
