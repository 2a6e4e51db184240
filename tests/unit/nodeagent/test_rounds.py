"""From one look at the containers to the next."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.rounds import (
    ACTIVE_FOR_NS,
    Container,
    State,
    active_since_ns,
    describe,
    first_state,
    rest,
    rests_until_ns,
    step,
)
from nodeagent.schedule_page import Activity
from nodeagent.turns import PERIOD_NS, Policy

MS = 1_000_000
NOW = 1_000 * PERIOD_NS

THIRTY = Container(0, 11, 30, Policy.HARD, "thirty")
SEVENTY = Container(1, 22, 70, Policy.HARD, "seventy")
ELASTIC = Container(1, 22, 70, Policy.ELASTIC, "seventy")
BOTH = (THIRTY, SEVENTY)


def busy(at_ns: int, overrun_ns: int = 0, busy_ns: int = 0) -> Activity:
    return Activity(activity_ns=at_ns, waiting_ns=at_ns, overrun_ns=overrun_ns, busy_ns=busy_ns)


def test_a_container_counts_as_active_for_two_periods_after_it_last_had_work() -> None:
    state, _ = step(State(NOW), (THIRTY,), {0: busy(NOW)}, NOW)
    assert state.active == {0}
    state, _ = step(state, (THIRTY,), {0: busy(NOW)}, NOW + 2 * PERIOD_NS - 1)
    assert state.active == {0}
    state, _ = step(state, (THIRTY,), {0: busy(NOW)}, NOW + 2 * PERIOD_NS)
    assert not state.active


def test_a_container_that_wakes_gets_its_time_back_at_the_next_look() -> None:
    state, made = step(State(NOW), (THIRTY, ELASTIC), {1: busy(NOW)}, NOW)
    assert made.granted_ns(1) == PERIOD_NS
    _, made = step(state, (THIRTY, ELASTIC), {0: busy(NOW), 1: busy(NOW)}, NOW + 10 * MS)
    assert (made.granted_ns(0), made.granted_ns(1)) == (15 * MS, 35 * MS)


def test_turns_stay_within_a_period_in_which_nothing_changes() -> None:
    both = {0: busy(NOW), 1: busy(NOW)}
    state, made = step(State(NOW), (THIRTY, SEVENTY), both, NOW)
    _, again = step(state, (THIRTY, SEVENTY), both, NOW + 20 * MS)
    assert again is made


@pytest.mark.parametrize("containers", [(THIRTY, SEVENTY), (THIRTY, ELASTIC)])
def test_turns_stay_from_period_to_period_while_nobody_owes_time(containers: tuple[Container, ...]) -> None:
    both = {0: busy(NOW + PERIOD_NS), 1: busy(NOW + PERIOD_NS)}
    state, _ = step(State(NOW), containers, both, NOW)
    state, made = step(state, containers, both, NOW + PERIOD_NS)
    state, again = step(state, containers, both, NOW + 2 * PERIOD_NS)
    assert state.period_number == 2
    assert again is made


def test_best_effort_containers_take_turns_in_what_is_idle_from_period_to_period() -> None:
    lenders = tuple(Container(slot, slot + 1, 0, Policy.BEST_EFFORT, f"{slot}") for slot in range(2))
    activities = {slot: busy(NOW + PERIOD_NS) for slot in range(2)}
    state, _ = step(State(NOW), lenders, activities, NOW)
    granted = []
    for period in (1, 2):
        state, made = step(state, lenders, activities, NOW + period * PERIOD_NS)
        granted.append([made.granted_ns(slot) for slot in range(2)])
    assert granted[0] == granted[1][::-1]
    assert sorted(granted[0]) == [0, PERIOD_NS]


def test_a_container_that_takes_an_ended_ones_slot_has_turns_of_its_own_share_at_the_next_look() -> None:
    state, _ = step(State(NOW), (THIRTY, SEVENTY), {}, NOW)
    state, _ = step(state, (THIRTY, SEVENTY), {}, NOW + PERIOD_NS)
    ten = Container(1, 33, 10, Policy.HARD, "ten")
    _, made = step(state, (THIRTY, ten), {}, NOW + PERIOD_NS + 20 * MS)
    assert made.granted_ns(1) == PERIOD_NS // 10


@pytest.mark.parametrize("late_ns", [0, 1, 7_000_000, PERIOD_NS - 1])
def test_writers_that_begin_at_different_moments_begin_their_periods_at_the_same(late_ns: int) -> None:
    first, second = first_state(NOW), first_state(NOW + 3 * PERIOD_NS + late_ns)
    assert (second.period_start_ns - first.period_start_ns) % PERIOD_NS == 0
    assert 0 <= NOW - first.period_start_ns < PERIOD_NS


def test_the_epoch_moves_by_whole_periods() -> None:
    state, _ = step(State(NOW), (THIRTY,), {}, NOW + 3 * PERIOD_NS + 7)
    assert state.period_start_ns == NOW + 3 * PERIOD_NS
    assert state.period_number == 3


def test_overruns_of_a_period_are_paid_back_in_the_next() -> None:
    containers = (THIRTY, SEVENTY)
    end = NOW + PERIOD_NS
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: busy(NOW)}, NOW)
    seen = {0: busy(end, 4 * MS, 19 * MS), 1: busy(end, 0, 31 * MS)}
    state, made = step(state, containers, seen, end)
    assert (made.granted_ns(0), made.granted_ns(1)) == (11 * MS, 39 * MS)
    state, made = step(state, containers, seen, end + PERIOD_NS - 1)
    assert made.granted_ns(0) == 11 * MS
    later = end + PERIOD_NS
    seen = {0: busy(later, 4 * MS, 30 * MS), 1: busy(later, 0, 70 * MS)}
    _, made = step(state, containers, seen, later)
    assert (made.granted_ns(0), made.granted_ns(1)) == (15 * MS, 35 * MS)


def test_a_container_that_used_less_than_its_turns_and_waited_for_nothing_is_owed_nothing() -> None:
    containers = (THIRTY, SEVENTY)
    end = NOW + PERIOD_NS
    idle = Activity(activity_ns=end, busy_ns=10 * MS)
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: Activity(activity_ns=NOW)}, NOW)
    state, _ = step(state, containers, {0: busy(end, 4 * MS, 19 * MS), 1: idle}, end)
    assert state.opening == {0: 0, 1: 0}


def test_work_reported_too_late_for_its_period_gains_nothing() -> None:
    containers = (THIRTY, SEVENTY)
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: busy(NOW)}, NOW)
    over, had, owed = 0, 0, []
    for period, measured in enumerate([33 * MS, 37 * MS] * 10, start=1):
        end = NOW + period * PERIOD_NS
        over, had = over + 4 * MS, had + measured
        state, _ = step(state, containers, {0: busy(end, over, 15 * MS * period), 1: busy(end, 0, had)}, end)
        owed.append(state.opening[1])
    assert max(owed) <= 2 * MS
    assert state.opening[1] == owed[1]


def test_an_overrun_that_is_noticed_a_period_late_counts_again_in_the_one_after() -> None:
    containers = (THIRTY, SEVENTY)
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: busy(NOW)}, NOW)
    had = 0
    for period, (measured, over) in enumerate([(31 * MS, 0), (39 * MS, 0), (31 * MS, 4 * MS)], start=1):
        end, had = NOW + period * PERIOD_NS, had + measured
        state, _ = step(state, containers, {0: busy(end, over, 15 * MS * period), 1: busy(end, 0, had)}, end)
    assert state.opening == {0: 0, 1: 0}


def test_time_used_beyond_all_turns_counts_as_overrun_whatever_the_container_says() -> None:
    containers = (THIRTY, SEVENTY)
    end = NOW + PERIOD_NS
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: busy(NOW)}, NOW)
    _, made = step(state, containers, {0: busy(end, 0, 20 * MS), 1: busy(end, 0, 30 * MS)}, end)
    assert made.granted_ns(0) == 10 * MS


def test_time_used_after_the_period_and_before_a_late_look_is_not_beyond_its_turns() -> None:
    """The first container's turn begins the next period, which the look that settles the last one finds begun."""
    containers = (THIRTY, SEVENTY)
    end = NOW + PERIOD_NS
    late = end + 3 * MS
    state, _ = step(State(NOW), containers, {0: busy(NOW), 1: busy(NOW)}, NOW)
    state, made = step(state, containers, {0: busy(late, 0, 18 * MS), 1: busy(end, 0, 33 * MS)}, late)
    assert made.granted_ns(0) == 15 * MS
    _, made = step(state, containers, {0: busy(late, 0, 38 * MS), 1: busy(late, 0, 63 * MS)}, late + PERIOD_NS)
    assert made.granted_ns(0) == 10 * MS, "33 ms of its turns had begun by then"


@pytest.mark.parametrize("late_ms", [1, 3, 7])
def test_looks_late_in_every_period_settle_what_punctual_ones_do(late_ms: int) -> None:
    """The first container has the GPU for 18 ms from the beginning of each period, of which it was given 15 at most."""

    def openings(late_ms: int) -> list[int]:
        state, _ = step(State(NOW), BOTH, {0: busy(NOW), 1: busy(NOW)}, NOW)
        found = []
        for period in range(1, 7):
            now_ns = NOW + period * PERIOD_NS + late_ms * MS
            seen = {0: busy(now_ns, 0, (18 * period + late_ms) * MS), 1: busy(now_ns, 0, 32 * period * MS)}
            state, _ = step(state, BOTH, seen, now_ns)
            found.append(state.opening[0])
        return found

    assert openings(0)[0] == -3 * MS
    assert openings(late_ms) == openings(0)


@pytest.mark.parametrize(("late_ms", "reading_ms"), [(0, 0), (3, 0), (0, 153), (53, 100)])
def test_a_look_three_periods_late_bills_no_container_that_stayed_in_its_turns(late_ms: int, reading_ms: int) -> None:
    state, _ = step(State(NOW), BOTH, {0: busy(NOW), 1: busy(NOW)}, NOW)
    now_ns = NOW + 3 * PERIOD_NS + late_ms * MS
    read_ns = now_ns + reading_ms * MS
    for _ in range(2):
        periods, phase_ns = divmod(read_ns - NOW, PERIOD_NS)
        seen = {0: busy(read_ns, 0, periods * 15 * MS + min(phase_ns, 15 * MS)), 1: busy(read_ns, 0, 30 * MS)}
        state, _ = step(state, BOTH, seen, now_ns, read_ns)
        assert state.opening == {0: 0, 1: 0}
        now_ns = read_ns = NOW + (periods + 1) * PERIOD_NS


@pytest.mark.parametrize(("had_ms", "owed_ms"), [(32, 3), (35, 0), (64, 0)])
def test_after_periods_without_a_look_only_who_had_less_than_the_turns_of_one_is_owed_time(
    had_ms: int, owed_ms: int
) -> None:
    state, _ = step(State(NOW), BOTH, {0: busy(NOW), 1: busy(NOW)}, NOW)
    late = NOW + 2 * PERIOD_NS
    state, _ = step(state, BOTH, {0: busy(late, 0, 36 * MS), 1: busy(late, 0, had_ms * MS)}, late)
    assert state.opening == {0: -owed_ms * MS, 1: owed_ms * MS}


@given(
    st.lists(st.tuples(st.integers(8, 15), st.integers(0, 12)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 170), st.integers(0, 70)), min_size=1, max_size=20),
)
def test_no_container_that_stays_in_its_turns_owes_time_whenever_the_looks_come(
    worked: list[tuple[int, int]], looks: list[tuple[int, int]]
) -> None:
    """No balance is below zero after any look.

    Args:
        worked: for each period, the ms that each of the two containers works in its turn.
        looks: for each look, the ms since the last one ended, and the ms that it takes.
    """

    def busy_ms(slot: int, at_ms: int) -> int:
        periods, phase_ms = divmod(at_ms - slot * 15, PERIOD_NS // MS)
        worked_ms = [worked[period % len(worked)][slot] for period in range(periods + 1)]
        return sum(worked_ms) - max(0, worked_ms[-1] - phase_ms) if worked_ms else 0

    state, _ = step(State(NOW), BOTH, {0: busy(NOW), 1: busy(NOW)}, NOW)
    read_ms = 0
    for since_ms, reading_ms in looks:
        now_ms = read_ms + since_ms
        read_ms = now_ms + reading_ms
        seen = {slot: busy(NOW + read_ms * MS, 0, busy_ms(slot, read_ms) * MS) for slot in (0, 1)}
        state, _ = step(state, BOTH, seen, NOW + now_ms * MS, NOW + read_ms * MS)
        assert not any(state.opening.values())


def test_a_counter_that_runs_backwards_or_faster_than_the_clock_is_not_believed() -> None:
    containers = (THIRTY, SEVENTY)
    state, _ = step(State(NOW), containers, {0: busy(NOW, 5 * MS), 1: busy(NOW)}, NOW)
    state, _ = step(state, containers, {0: busy(NOW, 0), 1: busy(NOW)}, NOW + MS)
    assert state.overruns[0] == 0
    state, _ = step(state, containers, {0: busy(NOW, 900 * MS), 1: busy(NOW)}, NOW + 3 * MS)
    assert state.overruns[0] == 2 * MS


@pytest.mark.parametrize(("before_ms", "between_ms"), [(0, 20), (20, 0), (20, 20)])
def test_a_writer_that_is_stopped_while_it_reads_loses_no_use(before_ms: int, between_ms: int) -> None:
    def look(state: State, start_ns: int, stopped_ms: int) -> State:
        end_ns = start_ns + stopped_ms * MS
        return step(state, (THIRTY,), {0: busy(end_ns, busy_ns=end_ns)}, start_ns, end_ns)[0]

    first = look(State(NOW), NOW, before_ms)
    second = look(first, NOW + before_ms * MS + 10 * MS, between_ms)
    assert second.used[0] == (10 + between_ms) * MS


def test_an_activity_in_the_future_gains_nothing() -> None:
    state, made = step(State(NOW), (THIRTY,), {0: busy(NOW + 10**15)}, NOW)
    assert state.active == {0}
    assert made.granted_ns(0) == 15 * MS


def test_a_container_that_leaves_takes_its_debts_along() -> None:
    state = State(NOW, opening={0: -4 * MS, 1: 4 * MS})
    state, _ = step(state, (THIRTY, SEVENTY), {0: busy(NOW), 1: busy(NOW)}, NOW)
    _, made = step(state, (SEVENTY,), {1: busy(NOW)}, NOW + MS)
    assert made.granted_ns(1) == 35 * MS


@pytest.mark.parametrize("balance_ns", [-60 * MS, 4 * MS])
@pytest.mark.parametrize("at_ns", [NOW + MS, NOW + PERIOD_NS])
def test_a_container_that_takes_an_ended_ones_slot_takes_neither_its_debt_nor_its_claim(
    balance_ns: int, at_ns: int
) -> None:
    state = State(NOW, opening={0: balance_ns, 1: -balance_ns})
    state, _ = step(state, (THIRTY, SEVENTY), {0: busy(at_ns, 5 * MS, 5 * MS), 1: busy(at_ns)}, NOW)
    following = replace(THIRTY, key=33, name="other/main")
    state, made = step(state, (following, SEVENTY), {0: busy(at_ns, 9 * MS, 9 * MS), 1: busy(at_ns)}, at_ns)
    assert (made.granted_ns(0), made.granted_ns(1)) == (15 * MS, 35 * MS)
    assert made.balances[0] == 0
    assert (state.overruns.get(0, 0), state.used.get(0, 0)) == (0, 0), "the new ledger's counters begin with it"


def restarted(container: Container) -> Container:
    """The container's next start: in the same slot, with another key and a new ledger."""
    return replace(container, key=container.key + 100, ledger="new")


def test_a_container_that_starts_again_keeps_its_debt_and_counts_in_its_new_ledger_from_there() -> None:
    thirty = replace(THIRTY, name="uid/main")
    state = State(NOW, opening={0: -10 * MS, 1: 10 * MS})
    state, _ = step(state, (thirty, SEVENTY), {0: busy(NOW, 5 * MS, 5 * MS), 1: busy(NOW)}, NOW)
    again = (restarted(thirty), SEVENTY)
    state, made = step(state, again, {0: busy(NOW, 9 * MS, 9 * MS), 1: busy(NOW)}, NOW + MS)
    assert made.granted_ns(0) == 15 * MS // 2, "a debt is paid by half a turn at a time"
    assert (state.overruns.get(0, 0), state.used.get(0, 0)) == (0, 0), "the new ledger's counters begin with it"


def test_time_that_a_container_overran_before_it_started_again_in_the_same_period_is_paid_back() -> None:
    thirty = replace(THIRTY, name="uid/main")
    end = NOW + PERIOD_NS
    state, _ = step(State(NOW), (thirty, SEVENTY), {0: busy(NOW), 1: busy(NOW)}, NOW)
    seen = {0: busy(end, 4 * MS, 19 * MS), 1: busy(end, 0, 31 * MS)}
    state, _ = step(state, (thirty, SEVENTY), seen, end - 1)
    _, made = step(state, (restarted(thirty), SEVENTY), {0: busy(end), 1: busy(end, 0, 31 * MS)}, end)
    assert (made.granted_ns(0), made.granted_ns(1)) == (11 * MS, 39 * MS)


def test_containers_without_a_name_are_not_taken_for_starts_of_one_another() -> None:
    state, _ = step(State(NOW, opening={0: -60 * MS, 1: 60 * MS}), (THIRTY, SEVENTY), {1: busy(NOW)}, NOW)
    _, made = step(state, (restarted(THIRTY), SEVENTY), {0: busy(NOW), 1: busy(NOW)}, NOW + MS)
    assert made.balances[0] == 0


def test_a_slot_that_is_empty_for_one_look_keeps_no_debt_for_the_next_container() -> None:
    state, _ = step(State(NOW, opening={0: -60 * MS, 1: 60 * MS}), (THIRTY, SEVENTY), {1: busy(NOW)}, NOW)
    state, _ = step(state, (SEVENTY,), {1: busy(NOW)}, NOW + MS)
    following = replace(THIRTY, key=33)
    _, made = step(state, (following, SEVENTY), {0: busy(NOW), 1: busy(NOW)}, NOW + 2 * MS)
    assert (made.granted_ns(0), made.granted_ns(1)) == (15 * MS, 35 * MS)


def test_a_container_whose_share_is_changed_keeps_its_balance() -> None:
    state, _ = step(State(NOW, opening={0: -4 * MS, 1: 4 * MS}), (THIRTY, SEVENTY), {}, NOW)
    state, made = step(state, (replace(THIRTY, core_percent=20), SEVENTY), {}, NOW + MS)
    assert made.balances == {0: -4 * MS, 1: 4 * MS}


def test_the_page_shows_each_containers_effective_share() -> None:
    state, made = step(State(NOW), (THIRTY, ELASTIC), {1: busy(NOW)}, NOW)
    page = describe("GPU-1", (THIRTY, ELASTIC), state, made, NOW + 5)
    assert [(slot.slot, slot.active, slot.effective_permille) for slot in page.slots] == [
        (0, False, 300),
        (1, True, 1000),
    ]
    assert (page.heartbeat_ns, page.epoch_ns) == (NOW + 5, NOW)


def test_limits_and_notices_changed_live_reach_the_page() -> None:
    warned = replace(THIRTY, memory_limit_bytes=7 << 30, notice_ns=NOW + 30_000 * MS)
    state, made = step(State(NOW), (warned,), {}, NOW)
    (slot,) = describe("GPU-1", (warned,), state, made, NOW).slots
    assert (slot.memory_limit_bytes, slot.notice_ns) == (7 << 30, NOW + 30_000 * MS)


def test_the_state_is_not_changed_in_place() -> None:
    state = State(NOW)
    kept = state._replace()
    step(state, (THIRTY,), {0: busy(NOW)}, NOW)
    assert state == kept


def test_a_look_within_a_period_reads_no_active_container_and_changes_no_turn() -> None:
    state, made = step(State(NOW), BOTH, {0: busy(NOW)}, NOW)
    assert rest(state, BOTH, NOW + PERIOD_NS - 1) == (state, made)


def test_each_container_is_read_where_a_period_begins_or_what_it_is_given_may_have_changed() -> None:
    state, _ = step(State(NOW), BOTH, {0: busy(NOW)}, NOW)
    assert rest(state, BOTH, NOW + PERIOD_NS) is None
    assert rest(state, (THIRTY,), NOW + 20 * MS) is None
    assert rest(State(NOW), (), NOW) is None


def test_each_container_is_read_at_the_look_at_which_one_may_have_become_idle() -> None:
    last_ns = NOW - 80 * MS
    state, _ = step(State(NOW), BOTH, {0: busy(last_ns), 1: busy(NOW)}, NOW)
    assert rest(state, BOTH, last_ns + ACTIVE_FOR_NS - 1) is not None
    assert rest(state, BOTH, last_ns + ACTIVE_FOR_NS) is None


def test_a_wait_shortly_before_a_period_counts_in_it_though_no_active_container_is_read() -> None:
    begins = NOW + PERIOD_NS
    state, _ = step(State(NOW), BOTH, {0: busy(NOW)}, NOW)
    state, _ = step(state, BOTH, {0: Activity(activity_ns=begins, waiting_ns=begins - 60 * MS)}, begins)
    assert not state.wanting
    rested = rest(state, BOTH, begins + 20 * MS)
    assert rested is not None
    assert rested[0].wanting == {0}
    late = rest(state, BOTH, begins + 45 * MS)
    assert late is not None
    assert not late[0].wanting


LOOKS = st.lists(st.tuples(*[st.tuples(st.booleans(), st.booleans(), st.integers(0, 20))] * 2), min_size=1, max_size=40)
"""Looks at two containers: whether each works and waits, and the ms by which its counters grew since the last look."""


@given(LOOKS, st.sampled_from([BOTH, (THIRTY, ELASTIC)]))
def test_turns_are_those_of_a_writer_that_reads_every_container_at_every_look(
    looks: list[tuple[tuple[bool, bool, int], ...]], containers: tuple[Container, ...]
) -> None:
    often, seldom = first_state(NOW), first_state(NOW)
    said = {0: Activity(), 1: Activity()}
    for number, look in enumerate(looks, 1):
        now_ns = NOW + number * 20 * MS
        for slot, (works, waits, grown) in enumerate(look):
            before = said[slot]
            said[slot] = Activity(
                activity_ns=now_ns if works or waits else before.activity_ns,
                waiting_ns=now_ns if waits else before.waiting_ns,
                busy_ns=before.busy_ns + grown * MS,
                overrun_ns=before.overrun_ns + grown // 2 * MS,
            )
        often, expected = step(often, containers, dict(said), now_ns)
        rested = rest(seldom, containers, now_ns)
        if now_ns < rests_until_ns(seldom):
            assert rested == (seldom, seldom.plan)
        if rested is None or any(said[slot].activity_ns > active_since_ns(now_ns) for slot in {0, 1} - seldom.active):
            rested = step(seldom, containers, dict(said), now_ns)
        seldom, made = rested
        assert made == expected
        assert seldom.active == often.active
