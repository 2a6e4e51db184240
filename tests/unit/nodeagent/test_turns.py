"""Turns on one GPU, as tables and as invariants."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.turns import (
    LARGEST_BALANCE_NS,
    MOST_TURNS,
    PERIOD_NS,
    OvercommittedError,
    Plan,
    Policy,
    Tenant,
    plan,
    settle,
    starts,
)

MS = 1_000_000


def hard(slot: int, core: int, *, active: bool = True, balance_ms: int = 0) -> Tenant:
    return Tenant(slot, core, Policy.HARD, active, balance_ms * MS)


def elastic(slot: int, core: int, *, active: bool = True) -> Tenant:
    return Tenant(slot, core, Policy.ELASTIC, active)


def best_effort(slot: int, *, active: bool = True) -> Tenant:
    return Tenant(slot, 0, Policy.BEST_EFFORT, active)


def windows(made: Plan) -> list[tuple[int, int, int]]:
    return [(turn.slot, turn.start_ns // MS, turn.end_ns // MS) for turn in made.turns]


@st.composite
def gpus(draw: st.DrawFn) -> list[Tenant]:
    """Any set of containers that a scheduler could place on one GPU, with any history."""
    left = 100
    tenants = []
    for slot in draw(st.lists(st.integers(0, 63), unique=True, max_size=12)):
        policy = draw(st.sampled_from(Policy)) if left > 0 else Policy.BEST_EFFORT
        core = 0 if policy is Policy.BEST_EFFORT else draw(st.integers(1, left))
        left -= core
        balance = draw(st.just(0) | st.integers(-LARGEST_BALANCE_NS, LARGEST_BALANCE_NS))
        tenants.append(Tenant(slot, core, policy, draw(st.booleans()), balance))
    return tenants


def with_balances(tenants: list[Tenant], balances: Mapping[int, int]) -> list[Tenant]:
    """The tenants with the balances of a plan or a settlement."""
    return [tenant._replace(balance_ns=balances.get(tenant.slot, 0)) for tenant in tenants]


def without_history(tenants: list[Tenant]) -> list[Tenant]:
    return with_balances(tenants, {})


def test_two_busy_containers_get_their_shares_side_by_side() -> None:
    assert windows(plan([hard(0, 30), hard(1, 70)])) == [(0, 0, 15), (1, 15, 50)]


def test_a_hard_container_alone_gets_its_share_and_no_more() -> None:
    assert windows(plan([hard(0, 30)])) == [(0, 0, 15)]


def test_an_elastic_container_alone_gets_all() -> None:
    assert windows(plan([elastic(0, 30), hard(1, 70, active=False)])) == [(0, 0, 50), (1, 15, 50)]


def test_best_effort_gets_what_is_idle_while_the_owner_keeps_its_turn() -> None:
    assert windows(plan([hard(0, 70), hard(1, 20, active=False), best_effort(2)])) == [
        (0, 0, 35),
        (1, 35, 45),
        (2, 35, 50),
    ]


def test_best_effort_gets_nothing_where_nothing_is_idle() -> None:
    assert plan([hard(0, 70), hard(1, 30), best_effort(2)]).granted_ns(2) == 0


def test_those_who_borrow_do_so_by_weight() -> None:
    made = plan([hard(0, 60, active=False), elastic(1, 30), best_effort(2)])
    assert made.granted_ns(2) * 3 == pytest.approx(made.granted_ns(1) - 15 * MS, abs=8)


def test_an_idle_elastic_container_may_start_anywhere_in_idle_time() -> None:
    assert windows(plan([hard(0, 50), elastic(1, 20, active=False)])) == [(0, 0, 25), (1, 25, 50)]


def test_many_who_borrow_get_useful_pieces_round_by_round() -> None:
    tenants = [hard(0, 90), *(best_effort(slot) for slot in range(1, 9))]
    totals: dict[int, int] = defaultdict(int)
    for period_number in range(40):
        for turn in plan(tenants, period_number=period_number).turns:
            assert turn.length_ns >= 2 * MS
            totals[turn.slot] += turn.length_ns
    assert {totals[slot] for slot in range(1, 9)} == {40 * 5 * MS // 8}


def test_shares_above_the_whole_gpu_are_refused() -> None:
    with pytest.raises(OvercommittedError, match="110 percent"):
        plan([hard(0, 60), hard(1, 50)])


def test_an_overrun_is_owed_to_those_who_lacked_time() -> None:
    made = plan([hard(0, 10), hard(1, 20), hard(2, 70)])
    assert settle(made, {0: 3 * MS}, {1: 7 * MS, 2: 35 * MS}) == {0: -3 * MS, 1: 3 * MS, 2: 0}
    assert settle(made, {0: 3 * MS, 1: 1 * MS}, {2: 33 * MS}) == {0: -1_500_000, 1: -500_000, 2: 2 * MS}


def test_an_overrun_that_nobody_missed_is_owed_to_nobody() -> None:
    made = plan([hard(0, 50), hard(1, 30, active=False), hard(2, 20)])
    assert settle(made, {0: 15 * MS}, {2: 10 * MS}) == {0: 0, 1: 0, 2: 0}


def test_a_container_that_did_not_want_more_lacks_nothing() -> None:
    made = plan([hard(0, 50), hard(1, 50)])
    assert settle(made, {0: 5 * MS}, {}) == {0: 0, 1: 0}


def test_a_debt_beyond_the_largest_balance_is_forgotten() -> None:
    most = LARGEST_BALANCE_NS // MS
    made = plan([hard(0, 50, balance_ms=-most), hard(1, 50, balance_ms=most)])
    assert settle(made, {0: 50 * MS}, {1: 0}) == {0: -LARGEST_BALANCE_NS, 1: LARGEST_BALANCE_NS}


def test_borrowed_time_is_owed_to_nobody() -> None:
    made = plan([hard(0, 50), best_effort(1)])
    assert settle(made, {0: 5 * MS}, {1: 20 * MS}) == {0: 0, 1: 0}


def test_an_overrun_is_paid_back_in_the_next_period() -> None:
    made = plan([hard(0, 50, balance_ms=-3), hard(1, 50, balance_ms=3)])
    assert windows(made) == [(0, 0, 22), (1, 22, 50)]
    assert made.balances == {0: 0, 1: 0}


def test_a_debt_below_a_whole_turn_takes_at_most_half_of_one() -> None:
    made = plan([hard(0, 50, balance_ms=-20), hard(1, 50, balance_ms=20)])
    assert made.granted_ns(0) == 12_500_000
    assert made.balances == {0: -7_500_000, 1: 7_500_000}


def test_a_container_that_owes_a_whole_turn_gives_it_every_other_period() -> None:
    tenants = [hard(0, 50, balance_ms=-90), hard(1, 50, balance_ms=90)]
    assert [plan(tenants, period_number=number).granted_ns(0) for number in range(4)] == [0, 12_500_000] * 2


def test_no_container_pays_while_no_active_one_is_owed() -> None:
    made = plan([hard(0, 50, balance_ms=-3), hard(1, 50, active=False, balance_ms=3)])
    assert made.granted_ns(0) == 25 * MS


@given(gpus(), st.integers(0, 1000))
def test_every_share_is_met_where_nobody_owes_anything(tenants: list[Tenant], period_number: int) -> None:
    made = plan(without_history(tenants), period_number=period_number)
    for tenant in tenants:
        assert made.granted_ns(tenant.slot) >= PERIOD_NS * tenant.core_percent // 100


@given(gpus(), st.integers(0, 1000))
def test_active_containers_never_have_the_same_time(tenants: list[Tenant], period_number: int) -> None:
    made = plan(tenants, period_number=period_number)
    active = {tenant.slot for tenant in tenants if tenant.active}
    at = 0
    for turn in made.turns:
        if turn.slot in active:
            assert turn.start_ns >= at
            at = turn.end_ns
    assert at <= PERIOD_NS


@given(st.lists(st.tuples(st.sampled_from(Policy), st.booleans()), max_size=64), st.integers(0, 1000))
def test_a_full_page_has_room_for_every_turn(kinds: list[tuple[Policy, bool]], period_number: int) -> None:
    tenants = [
        Tenant(slot, 0 if policy is Policy.BEST_EFFORT else 1, policy, active)
        for slot, (policy, active) in enumerate(kinds)
    ]
    assert len(plan(tenants, period_number=period_number).turns) <= MOST_TURNS


def test_a_full_page_has_room_also_where_many_may_start_between_many_who_work() -> None:
    tenants = [Tenant(slot, 1, Policy.HARD if slot % 2 else Policy.ELASTIC, slot % 2 == 1) for slot in range(64)]
    assert len(plan(tenants).turns) <= MOST_TURNS


@pytest.mark.parametrize("gpu", range(4))
@pytest.mark.parametrize("idle_one_in", [2, 3, 4])
def test_a_full_page_has_room_also_where_turns_of_several_gpus_leave_gaps(gpu: int, idle_one_in: int) -> None:
    on = {f"c{number:02}": frozenset(str((number + next_to) % 4) for next_to in range(3)) for number in range(85)}
    placed = starts({name: (1, gpus) for name, gpus in on.items()})
    tenants = [
        Tenant(slot, 1, Policy(1 + slot % 2), slot % idle_one_in != 0, start_ns=placed.get(name))
        for slot, name in enumerate(name for name, gpus in on.items() if str(gpu) in gpus)
    ]
    made = plan(tenants)
    assert len(made.turns) <= MOST_TURNS
    assert all(made.granted_ns(tenant.slot) >= PERIOD_NS // 100 for tenant in tenants if tenant.active)


@given(gpus(), st.integers(0, 1000))
def test_every_turn_lies_within_the_period_and_has_a_length(tenants: list[Tenant], period_number: int) -> None:
    for turn in plan(tenants, period_number=period_number).turns:
        assert 0 <= turn.start_ns < turn.end_ns <= PERIOD_NS


@given(gpus(), st.integers(0, 1000))
def test_a_hard_container_never_gets_more_than_its_share_and_what_it_is_owed(
    tenants: list[Tenant], period_number: int
) -> None:
    made = plan(tenants, period_number=period_number)
    for tenant in tenants:
        if tenant.policy is Policy.HARD:
            bound = PERIOD_NS * tenant.core_percent // 100 + max(0, tenant.balance_ns)
            assert made.granted_ns(tenant.slot) <= bound


@given(gpus(), st.integers(0, 1000))
def test_all_idle_time_is_lent_as_long_as_somebody_borrows(tenants: list[Tenant], period_number: int) -> None:
    made = plan(without_history(tenants), period_number=period_number)
    active = [tenant for tenant in tenants if tenant.active]
    if any(tenant.borrows for tenant in active):
        granted = sum(made.granted_ns(tenant.slot) for tenant in active)
        assert PERIOD_NS - granted <= len(tenants)


@given(gpus(), st.integers(0, 1000))
def test_best_effort_never_has_time_that_an_active_container_owns(tenants: list[Tenant], period_number: int) -> None:
    made = plan(tenants, period_number=period_number)
    for tenant in tenants:
        if tenant.policy is Policy.BEST_EFFORT:
            for turn in made.turns:
                if turn.slot == tenant.slot:
                    assert all(turn.end_ns <= own.start_ns or own.end_ns <= turn.start_ns for own in made.owned)


@given(
    gpus(),
    st.integers(0, 1000),
    st.dictionaries(st.integers(0, 63), st.integers(0, PERIOD_NS)),
    st.dictionaries(st.integers(0, 63), st.integers(0, PERIOD_NS)),
)
def test_a_debt_on_one_side_is_due_on_the_other(
    tenants: list[Tenant], period_number: int, overruns: dict[int, int], used: dict[int, int]
) -> None:
    made = plan(without_history(tenants), period_number=period_number)
    assert sum(settle(made, overruns, used).values()) == 0
    paying = plan(tenants, period_number=period_number)
    assert sum(paying.balances.values()) == sum(tenant.balance_ns for tenant in tenants)


@given(st.lists(st.integers(1, 33), min_size=2, max_size=3), st.lists(st.integers(0, 5 * MS), max_size=30))
def test_busy_containers_end_at_their_shares_whatever_ran_over(cores: list[int], overruns: list[int]) -> None:
    """Slot 0 runs over in some periods, at the cost of slot 1; then there is time to pay it back."""
    tenants = [hard(slot, core) for slot, core in enumerate(cores)]
    had = dict.fromkeys(range(len(cores)), 0)
    periods = len(overruns) + 60
    for number in range(periods):
        made = plan(tenants, period_number=number)
        granted = {tenant.slot: made.granted_ns(tenant.slot) for tenant in tenants}
        over = min(overruns[number], granted[1]) if number < len(overruns) else 0
        used = granted | {0: granted[0] + over, 1: granted[1] - over}
        for slot, time_ns in used.items():
            had[slot] += time_ns
        tenants = with_balances(tenants, settle(made, {0: over}, used))
    for slot, core in enumerate(cores):
        promised = periods * (PERIOD_NS * core // 100)
        assert abs(had[slot] - promised) <= abs(tenants[slot].balance_ns) + periods * len(cores)


def several(slot: int, core: int, start_ms: int) -> Tenant:
    return Tenant(slot, core, Policy.HARD, True, 0, start_ms * MS)


@pytest.mark.parametrize(
    ("containers", "expected_ms"),
    [
        ({"a": (50, {"0", "1"})}, {"a": 0}),
        ({"a": (50, {"0"})}, {}),
        ({"a": (50, {"0", "1"}), "b": (50, {"0", "1"})}, {"a": 0, "b": 25}),
        ({"a": (50, {"0", "1"}), "b": (50, {"2", "3"})}, {"a": 0, "b": 0}),
        ({"a": (40, {"0", "1"}), "b": (40, {"1", "2"}), "c": (20, {"0", "2"})}, {"a": 0, "b": 20, "c": 40}),
        ({"a": (60, {"0", "1"}), "b": (60, {"1", "2"}), "c": (30, {"0", "2"})}, {"a": 0, "c": 30}),
    ],
)
def test_a_container_with_several_gpus_begins_at_the_same_place_on_each(
    containers: dict[str, tuple[int, set[str]]], expected_ms: dict[str, int]
) -> None:
    found = starts({name: (core, frozenset(gpus)) for name, (core, gpus) in containers.items()})
    assert {name: start // MS for name, start in found.items()} == expected_ms


def test_a_placed_container_has_its_place_whatever_else_is_on_the_gpu_and_others_fill_what_is_left() -> None:
    placed = several(3, 40, 10)
    for others in ([], [hard(0, 30)], [hard(0, 30), hard(5, 30)], [hard(0, 60, active=False)]):
        made = plan([placed, *others])
        assert (3, 10, 30) in windows(made)
        assert all(made.granted_ns(each.slot) == PERIOD_NS * each.core_percent // 100 for each in others)


def test_one_that_was_given_more_has_it_behind_its_place() -> None:
    made = plan([Tenant(0, 40, Policy.HARD, True, 5 * MS, 10 * MS), Tenant(1, 40, Policy.HARD, True, -5 * MS)])
    assert (0, 10, 35) in windows(made)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.booleans(), st.none() | st.integers(0, 49)), min_size=1, max_size=8
    ).filter(lambda all_of_them: sum(core for core, _, _ in all_of_them) <= 100)
)
def test_turns_of_placed_and_others_never_overlap_and_are_as_long_as_was_promised(
    given_to: list[tuple[int, bool, int | None]],
) -> None:
    tenants = [
        Tenant(slot, core, Policy.HARD, active, 0, None if start is None else start * MS)
        for slot, (core, active, start) in enumerate(given_to)
    ]
    made = plan(tenants)
    for one, other in pairwise(made.turns):
        assert one.end_ns <= other.start_ns
    assert all(made.granted_ns(each.slot) == PERIOD_NS * each.core_percent // 100 for each in tenants)
