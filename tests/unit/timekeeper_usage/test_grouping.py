"""Use added up by time and by what it is attributed to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain import usage
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import (
    IDLE,
    UNKNOWN,
    Dimensions,
    FoldedHoursError,
    Group,
    Place,
    Steps,
    TooManySumsError,
    UsageFigures,
    UsageRow,
    UsageSums,
    Use,
    key_order,
    keys_of,
    of_values,
    values_of,
)
from timekeeper.domain.usage_folding import fold, pack, read_folded
from timekeeper.domain.windows import Window

FIRST = 20_000 * 24
STEPS = Steps(Window((FIRST + 24 * day) * HOUR, (FIRST + 24 * day + 24) * HOUR) for day in range(3))
TO = (
    Dimensions("team-a"),
    Dimensions("team-a", "n1", "A100", "Job/x", "alice", (("team", "vision"),)),
    Dimensions("team-a", "n1", "A100", "Job/y", "bob"),
    Dimensions("team-b", "n2", "T4", "Job/x", "alice"),
    Dimensions("", "n2"),
)
amounts = st.integers(-(10**20), 10**20)
stretches = st.lists(
    st.tuples(
        st.integers(FIRST - 3, FIRST + 75),
        st.just(1),
        st.integers(0, len(TO) - 1),
        amounts,
        amounts,
        amounts,
        st.none() | amounts,
    ),
    max_size=30,
)
names = st.lists(st.sampled_from(["namespace", "budget", "model", "node", "owner", "user", "label:team"]), unique=True)


def use(found: list[UsageRow]) -> Use:
    return Use([values_of(to) for to in TO], found)


def value(to: Dimensions, name: str) -> str:
    if name == "budget":
        return "a"
    found = dict(to.labels).get("team", "") if name == "label:team" else str(getattr(to, name))
    return found or UNKNOWN


def expected(found: list[UsageRow], aggregate: list[str], only: frozenset[str] | None) -> dict[Place, UsageFigures]:
    result: dict[Place, UsageFigures] = {}
    for row in use(found).rows():
        index = (row.hour - FIRST) // 24
        if 0 <= index < 3 and (only is None or value(row.dimensions, "namespace") in only):
            place = (index, tuple(value(row.dimensions, name) for name in aggregate))
            result[place] = result.get(place, UsageFigures()).plus(row.figures)
    return result


def everything(sums: UsageSums) -> dict[Place, UsageFigures]:
    return {(index, key): UsageFigures(*cell) for index, cells in enumerate(sums.cells) for key, cell in cells.items()}


@given(stretches, names, st.none() | st.frozensets(st.sampled_from(["team-a", UNKNOWN])))
def test_every_figure_goes_to_its_step_and_its_key(
    found: list[UsageRow], aggregate: list[str], only: frozenset[str] | None
) -> None:
    sums = UsageSums(STEPS, aggregate)
    sums.add("a", use(found[:7]), only)
    sums.add("a", use(found[7:]), only)
    assert everything(sums) == expected(found, aggregate, only)


@given(stretches, st.lists(st.sampled_from(["namespace", "budget", "model"]), unique=True))
def test_use_folded_without_details_answers_every_question_that_does_not_ask_for_them(
    found: list[UsageRow], aggregate: list[str]
) -> None:
    days = fold(use(found).rows(), [])
    sums = UsageSums(STEPS, aggregate)
    folded = Use()
    read_folded(pack(days), folded, details=False)
    sums.add("a", folded)
    assert everything(sums) == expected(found, aggregate, None)


@given(stretches, st.integers(1, 5))
def test_pages_follow_each_other_in_order_and_leave_nothing_out(found: list[UsageRow], limit: int) -> None:
    sums = UsageSums(STEPS, ["namespace", "user"])
    sums.add("a", use(found))
    items: list[Group] = []
    after = None
    while True:
        page, following = sums.page(after, limit)
        assert sums.count(after) == len(everything(sums)) - len(items)
        items += page
        if following is None:
            break
        assert len(page) == limit
        after = following
    places = [(item.step.start, key_order(item.key)) for item in items]
    assert places == sorted(places)
    assert len(items) == len(everything(sums))


def test_idle_capacity_makes_core_and_memory_up_to_the_capacity() -> None:
    sums = UsageSums(STEPS, ["model", "node"])
    sums.add("a", use([(FIRST, 1, 1, 5, 30, 10, None), (FIRST + 24, 1, 1, 5, 300, 10, None)]))
    sums.add_idle([100, 100, 0], sums)
    idle = {place: found for place, found in everything(sums).items() if place[1] == (IDLE, IDLE)}
    assert idle == {(0, (IDLE, IDLE)): UsageFigures(0, 70, 90), (1, (IDLE, IDLE)): UsageFigures(0, 0, 90)}


def test_idle_capacity_of_a_model_is_what_no_use_of_that_model_held_and_never_below_0() -> None:
    one_step = Steps([STEPS.windows[0]])
    held = UsageSums(one_step, ("model",))
    held.cells[0] |= {("A100",): [9, 30, 10, None], ("A100,T4",): [9, 10, 10, None], (UNKNOWN,): [9, 5, 5, None]}
    sums = UsageSums(one_step, ("namespace", "model"))
    sums.add_idle_of_models({"A100": [100], "T4": [4], "": [10], "H100": [0]}, held)

    assert sums.cells[0] == {
        (IDLE, f"{IDLE} A100"): [0, 65, 85, None],
        (IDLE, f"{IDLE} T4"): [0, 0, 0, None],
        (IDLE, f"{IDLE} *"): [0, 5, 5, None],
    }


def test_hours_that_a_step_would_cut_are_refused() -> None:
    sums = UsageSums(Steps([Window(FIRST * HOUR, FIRST * HOUR + DAY // 2)]), ["model"])
    with pytest.raises(FoldedHoursError):
        sums.add("a", use([(FIRST, 24, 1, 1, 1, 1, None)]))


def test_dimensions_of_later_writers_are_read_as_far_as_they_are_known() -> None:
    later = ["team-a", "n1", "A100", "Job/x", "alice", {"team": "vision"}, "of later"]
    assert keys_of(["label:team", "namespace", "budget"], "b", [later]) == [("vision", "team-a", "b")]
    assert keys_of(["label:team", "model"], "b", [["team-a"]]) == [(UNKNOWN, UNKNOWN)]
    assert of_values(later) == TO[1]


def test_more_sums_than_a_worker_has_memory_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_SUMS", 3)
    use = Use([values_of(to) for to in TO[1:4]], [(FIRST + 24 * place, 1, place, 1, 1, 1, None) for place in range(3)])
    sums = UsageSums(STEPS, ("owner", "user"))
    sums.add("a", use)
    sums.add("b", use)
    with pytest.raises(TooManySumsError):
        sums.add("a", Use([values_of(TO[0])], [(FIRST, 1, 0, 1, 1, 1, None)]))
