"""The cache of closed days, and its size."""

from __future__ import annotations

from timekeeper.api.usage import PARTS, ClosedDays, Part, closed_before, divided
from timekeeper.domain.timestamps import HOUR, parse_instant
from timekeeper.domain.usage import Cells


def part(keys: int) -> Part:
    cells: Cells = {(f"key-{number}",): [1, 1, 1, None] for number in range(keys)}
    return Part(0, 24, {}, [cells])


def test_the_parts_that_nobody_asked_for_the_longest_are_forgotten_first() -> None:
    closed = ClosedDays(most_cells=8 * PARTS)
    for number in range(PARTS):
        closed.remember((number, ("model",)), part(8))
    closed.find((0, ("model",)))
    closed.remember((0, ("user",)), part(8))
    assert closed.find((0, ("model",))) is not None
    assert closed.find((1, ("model",))) is None
    assert closed.find((0, ("user",))) is not None


def test_a_part_that_takes_the_room_of_others_is_not_remembered() -> None:
    closed = ClosedDays(most_cells=8 * PARTS)
    closed.remember((0, ("user",)), part(8))
    closed.remember((0, ("user",)), part(9))
    found = closed.find((0, ("user",)))
    assert found is not None
    assert found.cells == 8


def test_an_account_is_always_of_the_same_part() -> None:
    names = [f"team-{number}" for number in range(100)]
    parts = divided(names)
    assert sorted(name for found in parts.values() for name in found) == sorted(names)
    assert all(set(divided(names[::3])[number]) <= set(parts[number]) for number in divided(names[::3]))


def test_a_day_is_closed_once_two_more_days_have_passed() -> None:
    assert closed_before(parse_instant("2026-01-15T00:00:00Z")) * HOUR == parse_instant("2026-01-13T00:00:00Z")
    assert closed_before(parse_instant("2026-01-14T23:59:59Z")) * HOUR == parse_instant("2026-01-12T00:00:00Z")
