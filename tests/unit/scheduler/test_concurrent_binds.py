"""Binds at once, with deletions, answers that are lost, and an extender that is killed in the middle."""

from __future__ import annotations

from tests.bench.binding import churn
from tests.support.randomness import chance


def test_no_device_is_beyond_its_capacity_and_none_is_held_for_nobody() -> None:
    assert churn(chance(13), pods=200, nodes=20) == (0, 0)
