"""The burn rate of a budget, compared with a truth that is computed apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.forecast import (
    FINE,
    Burn,
    BurnRecord,
    Burns,
    burns,
    burns_at_last_sample,
    lasts_until,
    runs_out_early,
    sampled,
)
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE

START = 20_000 * DAY
ONE_PERIOD = {START: 0}


class Ledger:
    """An account that is settled now and then: its record as kept, and what it really spent by when."""

    def __init__(self, period_length: int = 30 * DAY) -> None:
        self.now = START
        self.length = period_length
        self.totals = {START: 0}
        self.truth = {START: 0}
        self.record: BurnRecord | None = sampled(None, START, START, self.totals)

    @property
    def period(self) -> int:
        return max(self.totals)

    def settle(self, nanoseconds: int, spent: int) -> None:
        """So much later so much more is spent, all of it in the period that is present then."""
        self.now += nanoseconds
        while self.now >= self.period + self.length:
            self.totals[self.period + self.length] = 0
        self.totals[self.period] += spent
        self.truth[self.now] = sum(self.totals.values())
        self.record = sampled(self.record, self.now, self.period, self.totals)

    def burns(self) -> Burns:
        return burns(self.record, self.now, self.period, self.totals)

    def spent_between(self, since: int, until: int) -> int:
        """The truth; between two settlements nothing is known but where nothing was spent."""
        return self.at(until) - self.at(since)

    def at(self, instant: int) -> int:
        return self.truth[max(moment for moment in self.truth if moment <= instant)]


settlements = st.lists(
    st.tuples(st.integers(SECOND, 4 * HOUR), st.sampled_from([0, 0, 1, GPU_SECOND, 3 * GPU_HOUR])), max_size=120
)


@given(settlements, st.sampled_from([HOUR, DAY, 30 * DAY]))
def test_a_burn_is_what_was_settled_in_its_stretch_to_the_last_unit(
    steps: list[tuple[int, int]], period_length: int
) -> None:
    ledger = Ledger(period_length)
    for nanoseconds, spent in steps:
        ledger.settle(nanoseconds, spent)
        for burn in (ledger.burns().hour, ledger.burns().day):
            if burn is not None:
                assert burn.until == ledger.now
                assert burn.spent == ledger.spent_between(burn.since, burn.until)


@given(st.lists(st.sampled_from([0, 1, GPU_SECOND]), min_size=1, max_size=400), st.integers(5, 600))
def test_with_settlements_in_time_the_stretches_are_an_hour_and_a_day_and_little_more(
    amounts: list[int], seconds: int
) -> None:
    ledger = Ledger()
    for amount in amounts:
        ledger.settle(seconds * SECOND, amount)
    age = ledger.now - START
    for burn, wanted, more in ((ledger.burns().hour, HOUR, FINE), (ledger.burns().day, DAY, HOUR + FINE)):
        assert burn is not None
        length = burn.until - burn.since
        assert min(age, wanted) <= length <= wanted + more + seconds * SECOND


@given(settlements)
def test_a_record_stays_small(steps: list[tuple[int, int]]) -> None:
    ledger = Ledger()
    for nanoseconds, spent in steps:
        ledger.settle(nanoseconds, spent)
    assert ledger.record is not None
    assert len(ledger.record.samples) <= 12 + 2 + 25 + 2


@given(settlements)
def test_figures_for_readers_are_exact_up_to_the_last_sample(steps: list[tuple[int, int]]) -> None:
    ledger = Ledger()
    for nanoseconds, spent in steps:
        ledger.settle(nanoseconds, spent)
    assert ledger.record is not None
    found = burns_at_last_sample(ledger.record)
    for burn in (found.hour, found.day):
        if burn is not None:
            assert burn.until == ledger.record.samples[-1].at
            assert burn.spent == ledger.spent_between(burn.since, burn.until)


def test_a_day_of_nothing_is_two_samples() -> None:
    ledger = Ledger()
    for _ in range(300):
        ledger.settle(5 * MINUTE, 0)
    assert ledger.record is not None
    assert len(ledger.record.samples) <= 3
    hour = ledger.burns().hour
    assert hour is not None
    assert (hour.until - hour.since, hour.spent) == (HOUR, 0)


def test_the_rate_goes_on_across_the_end_of_a_period() -> None:
    ledger = Ledger(period_length=HOUR)
    for _ in range(30):
        ledger.settle(6 * MINUTE, 360 * GPU_SECOND)
    found = ledger.burns()
    assert found.hour is not None
    assert found.day is not None
    assert (found.hour.rate, found.day.rate) == (GPU_SECOND, GPU_SECOND)


def test_a_period_that_nobody_knows_begins_a_new_record() -> None:
    record = sampled(None, START, START, {START: 5})
    later = START + 3 * DAY
    assert burns(record, later, START + 2 * DAY, {START + 2 * DAY: 7}) == Burns()
    assert sampled(record, later, START + 2 * DAY, {START + 2 * DAY: 7}) == BurnRecord(
        sampled(None, later, START, {START: 0}).samples, START + 2 * DAY, 7
    )


def test_a_clock_that_was_set_back_for_a_moment_changes_nothing() -> None:
    record = sampled(None, START, START, ONE_PERIOD)
    assert sampled(record, START - SECOND, START, ONE_PERIOD) is record


def test_a_correction_that_takes_back_is_no_rate_below_nothing() -> None:
    burn = Burn(0, HOUR, -GPU_HOUR)
    assert burn.rate == 0
    assert lasts_until(GPU_HOUR, burn, HOUR, DAY) is None


def test_money_that_is_left_lasts_as_long_as_the_stretch_says() -> None:
    burn = Burn(START, START + HOUR, 2 * GPU_HOUR)
    assert lasts_until(10 * GPU_HOUR, burn, START + HOUR, START + DAY) == START + 6 * HOUR
    assert lasts_until(10 * GPU_HOUR, burn, START + HOUR, START + 6 * HOUR) is None
    assert lasts_until(0, burn, START + HOUR, START + DAY) is None
    assert lasts_until(10 * GPU_HOUR, None, START, START + DAY) is None


def test_it_runs_out_early_only_where_the_hour_and_the_day_both_say_so() -> None:
    fast, slow = Burn(0, HOUR, 10 * GPU_HOUR), Burn(-DAY + HOUR, HOUR, GPU_HOUR)
    assert runs_out_early(20 * GPU_HOUR, Burns(fast, fast), HOUR, DAY)
    assert not runs_out_early(20 * GPU_HOUR, Burns(fast, slow), HOUR, DAY)
    assert not runs_out_early(20 * GPU_HOUR, Burns(Burn(0, HOUR, 0), fast), HOUR, DAY)
    assert not runs_out_early(20 * GPU_HOUR, Burns(None, fast), HOUR, DAY)


def test_the_first_minutes_of_a_budget_foretell_nothing() -> None:
    short = Burn(0, 9 * MINUTE, 10 * GPU_HOUR)
    assert not runs_out_early(20 * GPU_HOUR, Burns(short, short), HOUR, DAY)
