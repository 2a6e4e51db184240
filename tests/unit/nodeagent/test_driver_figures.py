"""The driver's figures of each container, from its list of processes."""

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.driver_figures import LEAST_TRIM_PERMILLE, DriverSample, Figure, Placed, figures, place, trimmed

MIB = 1 << 20


def sample(*held: tuple[int, int], used: int | None = None, at_ns: int = 7) -> DriverSample:
    by_pid = {pid: mib * MIB for pid, mib in held}
    return DriverSample(at_ns, sum(by_pid.values()) if used is None else used * MIB, by_pid)


def placed(made: DriverSample, members: dict[int, int], alive: set[int], before: Placed | None = None) -> Placed:
    return place(made, members, frozenset(alive), before or Placed())


def test_a_containers_figure_is_the_sum_of_its_processes_and_of_nobody_elses() -> None:
    made = sample((1, 100), (2, 200), (9, 400))
    where = placed(made, {1: 0, 2: 0, 5: 1}, {1, 2, 9})
    found = figures(made, where, {0: 300 * MIB, 1: 0}, {}, {})
    assert [found[0].driver_bytes, found[1].driver_bytes] == [300 * MIB, 0]
    assert found[0].sampled_ns == 7


def test_a_process_that_ended_unseen_counts_for_each_container_that_is_charged_for_it() -> None:
    made = sample((1, 100), (3, 50))
    where = placed(made, {1: 0}, {1})
    found = figures(made, where, {0: 100 * MIB, 1: 50 * MIB, 2: 10 * MIB, 3: 0}, {}, {})
    assert [found[slot].driver_bytes // MIB for slot in range(4)] == [100, 50, 10, 0]


@given(st.lists(st.tuples(st.integers(0, 500), st.sampled_from([0, 1, None]), st.booleans()), max_size=6))
def test_no_figure_is_below_what_the_driver_holds_of_what_the_container_is_charged_for(
    processes: list[tuple[int, int | None, bool]],
) -> None:
    """Each process: its MiB, its container, and whether it was ever seen there."""
    made = sample(*((pid, mib) for pid, (mib, _, _) in enumerate(processes)))
    members = {pid: slot for pid, (_, slot, seen) in enumerate(processes) if seen and slot is not None}
    alive = {pid for pid, (_, _, seen) in enumerate(processes) if seen}
    charged = {slot: sum(mib * MIB for mib, owner, _ in processes if owner == slot) for slot in (0, 1)}
    found = figures(made, placed(made, members, alive), charged, {}, {})
    assert {slot: found[slot].driver_bytes for slot in (0, 1)} == charged


def test_a_process_whose_memory_the_driver_does_not_give_stops_its_own_containers_figure_alone() -> None:
    made = DriverSample(7, 400 * MIB, {1: 100 * MIB}, {}, frozenset({2, 9}))
    where = placed(made, {1: 0, 2: 1}, {1, 2, 9}, Placed(unclaimed_bytes=50 * MIB))
    last = Figure(30 * MIB, 5)
    found = figures(made, where, {0: 100 * MIB, 1: 200 * MIB}, {}, {1: last})
    assert (found[0].driver_bytes, found[0].sampled_ns) == (100 * MIB, 7)
    assert found[1] == last
    assert where.unclaimed_bytes == 50 * MIB, "what it has is not taken for the driver's own"


def test_a_process_that_ended_stays_where_it_was_as_long_as_the_driver_knows_it() -> None:
    first = placed(sample((3, 50)), {3: 0}, {3})
    made = sample((3, 50))
    where = placed(made, {}, set(), first)
    assert figures(made, where, {0: 50 * MIB}, {}, {})[0].driver_bytes == 50 * MIB


def test_memory_that_outlived_its_process_stays_with_who_is_charged_for_it() -> None:
    first = placed(sample((1, 100), used=110), {1: 0}, {1})
    made = sample((1, 100), used=174)
    where = placed(made, {1: 0}, {1}, first)
    found = figures(made, where, {0: 164 * MIB, 1: 0}, {}, {})
    assert found[0].driver_bytes == 164 * MIB, "10 MiB were the driver's own from the beginning"
    assert found[1].driver_bytes == 0


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 2000))
def test_a_value_held_on_never_makes_a_figure_larger_than_what_is_charged(own: int, beyond: int, charged: int) -> None:
    made = sample((1, own), used=own + beyond)
    where = Placed({1: 0}, 0)
    figure = figures(made, where, {0: charged * MIB}, {}, {})[0].driver_bytes
    assert own * MIB <= figure <= max(own, charged) * MIB
    assert figure <= (own + beyond) * MIB, "nor larger than what the GPU holds"


def test_turns_are_trimmed_slowly_and_given_back_slowly() -> None:
    permille, busy = 1000, 40.0
    for _ in range(10):
        permille = trimmed(permille, busy, 30.0)
    assert permille == 950
    for _ in range(10):
        permille = trimmed(permille, 29.0, 30.0)
    assert permille == 1000


def test_no_container_is_trimmed_below_the_least_nor_without_a_share_to_be_held_to() -> None:
    permille = 1000
    for _ in range(1000):
        permille = trimmed(permille, 99.0, 30.0)
    assert permille == LEAST_TRIM_PERMILLE
    assert trimmed(1000, 99.0, None) == 1000


def test_a_container_a_little_busier_than_its_share_is_not_trimmed() -> None:
    assert [trimmed(1000, busy, 30.0) for busy in (30.1, 31.9, 32.1)] == [1000, 1000, 995]


def test_utilisation_is_smoothed_before_it_is_believed() -> None:
    made = DriverSample(7, 0, {1: 0}, {1: 100.0})
    figure = figures(made, Placed({1: 0}, 0), {0: 0}, {0: 30.0}, {0: Figure(busy_percent=20.0)})[0]
    assert figure.busy_percent == 28.0
    assert figure.trim_permille == 1000


def test_a_figure_says_since_when_the_driver_names_no_dead_process_of_the_container() -> None:
    made = sample((1, 100), (2, 50), (3, 20), at_ns=70)
    where = placed(made, {1: 0, 2: 1, 3: 1}, {1, 2, 3})
    charged = {0: 100 * MIB, 1: 70 * MIB, 2: 5 * MIB}
    found = figures(made, where, charged, {}, {1: Figure(dead_gone_ns=4)}, living={1, 2})
    assert {slot: found[slot].dead_gone_ns for slot in charged} == {0: 70, 1: 4, 2: 70}, "3 is dead by its ledger"


def test_a_process_of_no_known_container_may_be_dead_in_any() -> None:
    made = sample((1, 100), (9, 50), at_ns=70)
    where = placed(made, {1: 0}, {1})
    assert figures(made, where, {0: 100 * MIB}, {}, {}, living={1})[0].dead_gone_ns == 0


def test_samples_that_were_asked_for_trim_no_faster_than_the_others() -> None:
    held, found = Placed({1: 0}, 0), {0: Figure(busy_percent=99.0)}
    for at_ms in (1000, 1250, 1300, 1500, 2000):
        made = DriverSample(at_ms * 1_000_000, 0, {1: 0}, {1: 99.0})
        found = figures(made, held, {0: 0}, {0: 30.0}, found)
    assert found[0].trim_permille == 1000 - 5 * 3, "by those of 1000, 1500 and 2000 ms"
    before = Figure(busy_percent=20.0, sampled_ns=1_000_000_000)
    made = DriverSample(1_250_000_000, 0, {1: 0}, {1: 100.0})
    assert figures(made, held, {0: 0}, {0: 30.0}, {0: before})[0].busy_percent == 22.0
