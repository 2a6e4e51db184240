"""The least that a correction may be, in the words that refuse one that is less."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.money import GPU_HOUR, MAX_GPU_HOURS, from_signed_gpu_hours
from timekeeper.domain.orders import no_less_than


@given(st.integers(GPU_HOUR // 1_000_000, MAX_GPU_HOURS * GPU_HOUR))
def test_a_correction_as_the_refusal_says_takes_back_no_more_than_was_spent_and_next_to_all_of_it(
    spent: int,
) -> None:
    found = re.match(r"no less than (-\S+),", no_less_than(spent))
    assert found
    assert 0 <= spent + from_signed_gpu_hours(found[1]) < GPU_HOUR // 1_000_000


def test_where_nothing_was_spent_nothing_is_to_be_taken_back() -> None:
    assert no_less_than(0).startswith("no less than 0,")
    assert no_less_than(-5).startswith("no less than 0,")
