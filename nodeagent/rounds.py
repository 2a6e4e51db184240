"""Computes what a GPU's schedule page says next, from its last state and the containers' activity: the turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from nodeagent import turns
from nodeagent.driver_figures import Figure
from nodeagent.schedule_page import Activity, Page, PageSlot
from nodeagent.turns import PERIOD_NS

Value = TypeVar("Value")

ACTIVE_FOR_NS = 2 * PERIOD_NS
"""The time for which a container counts as active after it last had or wanted work."""


def active_since_ns(now_ns: int) -> int:
    """Returns the time after which a container must have had or wanted work to count as active.

    Args:
        now_ns: the present time, in ns of CLOCK_MONOTONIC, as is the answer.
    """
    return max(now_ns - ACTIVE_FOR_NS, 0)


def growth(before: int, now: int, elapsed_ns: int) -> int:
    """Returns the ns by which a counter of GPU time has grown between two looks, at most `elapsed_ns`.

    It is 0 for a counter that has fallen, since the ledger file is new.

    Args:
        before: the counter at the last look, in ns.
        now: the counter at this look, in ns.
        elapsed_ns: the longest time that can have passed between the two looks.
    """
    return min(now - before, elapsed_ns) if now > before else 0


NO_FIGURE = Figure()
NOTHING: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Container:
    """A container that shares one GPU, as the writer of the GPU's schedule page needs it.

    Attributes:
        slot: its place on the page, from 0 to 63.
        key: a random number that marks this start of the container in that place.
        core_percent: its share of GPU time, in percent.
        policy: how it may use GPU time beyond its share.
        ledger: the path of the file in which its shim accounts for its GPU use, as text, whose hash is computed once.
        device: the GPU's index among the container's GPUs.
        memory_limit_bytes: its limit of GPU memory; 0 if the limit in its configuration file holds.
        notice_ns: when it will be evicted, in ns of CLOCK_MONOTONIC; 0 if it will not.
        cgroup: its folder in the host's cgroup hierarchy; None if the folder is not known. The driver's figures of the
            container are then not known either.
        start_ns: where its turn begins in the period, in ns (turns.starts); None for any place.
        name: a name that stays the same when the container starts again, whereas its key changes; empty if it does
            not start again.
    """

    slot: int
    key: int
    core_percent: int
    policy: turns.Policy
    ledger: str
    device: int = 0
    memory_limit_bytes: int = 0
    notice_ns: int = 0
    cgroup: Path | None = None
    start_ns: int | None = None
    name: str = ""


class State(NamedTuple):
    """The state that the writer of a schedule page keeps between writes.

    Times are ns of CLOCK_MONOTONIC, and containers are given by their slot on the page.

    Attributes:
        period_start_ns: when the present period began.
        period_number: the number of the present period, which decides on the order of borrowers.
        opening: the GPU time in ns that other containers owe to each container at the beginning of the period; below 0
            if it owes them.
        plan: the turns of the present period; None before the first.
        containers: the containers that the plan is for.
        active: the containers that had or wanted work at the last look.
        overruns: the ns of GPU time that each container had outside its turns in this period, as far as observed.
        used: the ns of GPU time that count against each container in this period: those used since it began, as far as
            observed, and the surplus that was reported too late for the period before.
        wanting: the containers that would have used more GPU time in this period.
        lacked: the ns by which each container's use in the period before was below its own turns. A container that
            wanted no more time then is not in it.
        seen: the containers' activities at the last look.
        seen_ns: the time before the last look.
        active_until_ns: until when every active container counts as active, if it does nothing more.
        last_wait_ns: when a container that is not in `wanting` last waited, by the activities at the last look; 0 for
            never.
    """

    period_start_ns: int
    period_number: int = 0
    opening: Mapping[int, int] = NOTHING
    plan: turns.Plan | None = None
    containers: tuple[Container, ...] = ()
    active: frozenset[int] = frozenset()
    overruns: Mapping[int, int] = NOTHING
    used: Mapping[int, int] = NOTHING
    wanting: frozenset[int] = frozenset()
    lacked: Mapping[int, int] = NOTHING
    seen: Mapping[int, Activity] = NOTHING
    seen_ns: int = 0
    active_until_ns: int = 0
    last_wait_ns: int = 0


def first_state(now_ns: int) -> State:
    """Returns the state of a page writer that begins now.

    Its periods begin at multiples of the period's length, as those of all GPUs of the node do: kernels that wait for
    one another on several GPUs meet only while all of them have their turn.

    Args:
        now_ns: the present time, in ns of CLOCK_MONOTONIC.
    """
    return State(period_start_ns=now_ns // turns.PERIOD_NS * turns.PERIOD_NS)


def step(
    state: State,
    containers: tuple[Container, ...],
    activities: Mapping[int, Activity],
    now_ns: int,
    read_ns: int | None = None,
) -> tuple[State, turns.Plan]:
    """Returns the page writer's state and the containers' turns after one look at the containers' activity.

    The first look of a new period settles the time that containers used outside their turns in the last one. Such a
    look comes late, and also finds use of the new period. So the time that a container used beyond its turns of the
    last period counts in the new one, up to the time that its turns in the new one have granted by then. The rest is an
    overrun of the last period.

    Within a period, turns change only when a container becomes active or idle, starts or ends. The balance of a
    container that ends is dropped, so that the next container in its slot owes nothing. A container that starts again
    keeps its balance, since it would otherwise be rid of its debt at each start.

    Args:
        state: the state after the last look.
        containers: the containers that share the GPU now.
        activities: the activity of each container, keyed by its slot. The state keeps it, so the caller must not change
            it.
        now_ns: the time before the first activity was read, in ns of CLOCK_MONOTONIC.
        read_ns: the time after the last activity was read; None for `now_ns`. If the writer is stopped between the two,
            the counters have grown by more than the time between two of its rounds.

    Raises:
        OvercommittedError: the containers' shares sum to more than 100 percent.
    """
    if containers is not state.containers:
        state = _without_ended(state, containers)
    since_ns, read_ns = active_since_ns(now_ns), now_ns if read_ns is None else read_ns
    look = _count(state, activities, read_ns - state.seen_ns, since_ns)
    active, passed = look.active, max((now_ns - state.period_start_ns) // turns.PERIOD_NS, 0)
    if passed > 0:
        period = _next_period(state, look, passed, read_ns - state.period_start_ns - passed * turns.PERIOD_NS)
    else:
        period = _Period(state.opening, state.plan, look.overruns, look.used, look.wanting, state.lacked)
    made = period.plan
    if made is None or active != state.active or containers != state.containers:
        tenants = [
            turns.Tenant(
                each.slot,
                each.core_percent,
                each.policy,
                each.slot in active,
                period.opening.get(each.slot, 0),
                each.start_ns,
            )
            for each in containers
        ]
        made = turns.plan(tenants, turns.PERIOD_NS, state.period_number + passed)
    wanting = period.wanting
    waits = [waiting_ns for slot, waiting_ns in look.waits.items() if slot not in wanting]
    # One new state instead of several changed ones, each of which costs as much as a third of this function.
    after = State(
        period_start_ns=state.period_start_ns + passed * turns.PERIOD_NS,
        period_number=state.period_number + passed,
        opening=period.opening,
        plan=made,
        containers=containers,  # equal ones may have been read anew: the next comparison is of identities again
        active=active,
        overruns=period.overruns,
        used=period.used,
        wanting=wanting,
        lacked=period.lacked,
        seen=activities,
        seen_ns=now_ns,
        active_until_ns=(now_ns if look.idlest_ns is None else look.idlest_ns) + ACTIVE_FOR_NS,
        last_wait_ns=max(waits, default=0),
    )
    return after, made


def rests_until_ns(state: State) -> int:
    """Returns the time until which `rest` returns this state unchanged, if no container comes or goes; 0 for no time.

    Until then the turns stay, and a write of the page changes only its times.

    Args:
        state: the state after the last look.

    Returns:
        A time in ns of CLOCK_MONOTONIC.
    """
    if state.plan is None or state.last_wait_ns:
        return 0
    return _limit_ns(state)


def rest(state: State, containers: tuple[Container, ...], now_ns: int) -> tuple[State, turns.Plan] | None:
    """Returns the page writer's state and the containers' turns, without reading the active containers' activity.

    Turns stay within a period in which no container becomes active or idle, starts or ends. The use of active
    containers is settled as the period ends, and need not be known before. The caller must read the activity of idle
    containers, and call `step` if one of them has become active.

    Args:
        state: the state after the last look.
        containers: the containers that share the GPU now.
        now_ns: the present time, in ns of CLOCK_MONOTONIC.

    Returns:
        The state and the turns; None if `step` must be called.
    """
    made = state.plan
    if made is None or containers is not state.containers or now_ns >= _limit_ns(state):
        return None
    since_ns = active_since_ns(now_ns)
    if state.last_wait_ns > since_ns:
        wanting = [slot for slot, activity in state.seen.items() if activity.waiting_ns > since_ns]
        # Those that waited longer ago count at no later look either.
        state = state._replace(wanting=state.wanting.union(wanting), last_wait_ns=0)
    return state, made


def _limit_ns(state: State) -> int:
    """Returns the first time, in ns of CLOCK_MONOTONIC, at which the period ends or an active container may be idle."""
    return min(state.period_start_ns + turns.PERIOD_NS, state.active_until_ns)


def _without_ended(state: State, containers: tuple[Container, ...]) -> State:
    """Returns the state without the figures of containers that are not among `containers`.

    A new container may have the slot of an ended one, and must not get its figures. A container that has started
    again keeps its figures, such as its balance, but not its last activity: its new ledger file counts from 0.
    """
    present = {(each.slot, each.key) for each in containers}
    named = {(each.slot, each.name) for each in containers if each.name}
    over = [each for each in state.containers if (each.slot, each.key) not in present]
    if not over:
        return state
    gone = frozenset([each.slot for each in over if (each.slot, each.name) not in named])
    made = state.plan
    return state._replace(
        opening=_of_others(state.opening, gone),
        plan=None if made is None else replace(made, balances=_of_others(made.balances, gone)),
        overruns=_of_others(state.overruns, gone),
        used=_of_others(state.used, gone),
        wanting=state.wanting - gone,
        lacked=_of_others(state.lacked, gone),
        seen=_of_others(state.seen, frozenset([each.slot for each in over])),
    )


def _of_others(by_slot: Mapping[int, Value], gone: frozenset[int]) -> dict[int, Value]:
    return {slot: value for slot, value in by_slot.items() if slot not in gone}


class _Period(NamedTuple):
    """The fields of `State` that begin anew with each period."""

    opening: Mapping[int, int]
    plan: turns.Plan | None
    overruns: Mapping[int, int]
    used: Mapping[int, int]
    wanting: frozenset[int]
    lacked: Mapping[int, int]


class _Counted(NamedTuple):
    """The figures of the present period after one look at the containers' activities.

    Containers are given by their slot, and times are ns of CLOCK_MONOTONIC.

    Attributes:
        active: the containers that had or wanted work within the last ACTIVE_FOR_NS.
        idlest_ns: the earliest of the times at which each active container last had or wanted work; None if no
            container is active.
        waits: when each container last waited for its turn; a container that never did is left out.
        overruns, used, wanting: the fields of `State` of these names, with the use and the waits since the last look.
    """

    active: frozenset[int]
    idlest_ns: int | None
    waits: Mapping[int, int]
    overruns: Mapping[int, int]
    used: Mapping[int, int]
    wanting: frozenset[int]


def _count(state: State, activities: Mapping[int, Activity], elapsed_ns: int, since_ns: int) -> _Counted:
    """Returns the figures of the present period after one look, from the state and the containers' activities.

    A container that last waited after `since_ns` wants more time. `elapsed_ns` is the longest time that can have passed
    since the last look. One loop reads all activities, since this takes most of a round's time.
    """
    active: dict[int, int] = {}
    waits: dict[int, int] = {}
    overruns, used, seen = dict(state.overruns), dict(state.used), state.seen
    for slot, (active_ns, waiting_ns, busy_ns, overrun_ns, _, _, _) in activities.items():
        if active_ns > since_ns:
            active[slot] = active_ns
        if waiting_ns:
            waits[slot] = waiting_ns
        before = seen.get(slot)
        if before is not None:
            overruns[slot] = overruns.get(slot, 0) + growth(before.overrun_ns, overrun_ns, elapsed_ns)
            used[slot] = used.get(slot, 0) + growth(before.busy_ns, busy_ns, elapsed_ns)
    wanting = state.wanting.union([slot for slot, waiting_ns in waits.items() if waiting_ns > since_ns])
    return _Counted(frozenset(active), min(active.values(), default=None), waits, overruns, used, wanting)


def _next_period(state: State, ended: _Counted, passed: int, late_ns: int) -> _Period:
    """Settles the period that ended; returns the fields of the state with which the next period begins.

    A container's overrun is the larger of two times: the one that its shim reports, which may be too low, and the time
    that the container used beyond all its turns. If a shim reports work too late, the use is less than the container's
    turn in one period and more in the next. That surplus counts in the period after, so that a late report gains
    nothing.

    Turns repeat until the page is written again. So if a look comes periods late, the use that it finds is compared to
    the turns of all periods that have passed. The time that a container used beyond these turns counts in the next
    period, as far as turns were granted between that period's beginning and the look; that part is no overrun. It is
    not known in which of the passed periods a container wanted more. So the container is owed time only if all its use
    is less than its turns of one period.

    Args:
        state: the state after the last look of the period that ended.
        ended: the look that settles the period.
        passed: the number of periods that have ended since `state.period_start_ns`; at least 1.
        late_ns: the ns from the end of the last of these periods to the end of the look that settles them.
    """
    made = state.plan
    if made is None:
        return _Period(state.opening, None, NOTHING, NOTHING, frozenset(), NOTHING)
    begun_ns = NOTHING
    beyond, used = dict(ended.overruns), {}
    lacked: dict[int, int] = {}
    next_used: dict[int, int] = {}
    for slot, observed_ns in ended.used.items():
        surplus_ns = observed_ns - passed * made.granted_ns(slot)
        early_ns = 0
        if surplus_ns > 0:
            begun_ns = begun_ns or _granted_before(made, late_ns)
            early_ns = min(surplus_ns, begun_ns.get(slot, 0))
            beyond[slot] = max(surplus_ns - early_ns, beyond.get(slot, 0))
        next_used[slot], had = early_ns, observed_ns - early_ns
        if slot in ended.wanting:
            owned_ns = made.owned_ns(slot)
            used[slot] = had
            lacked[slot] = max(0, owned_ns - had)
            next_used[slot] += min(max(0, had - passed * owned_ns), state.lacked.get(slot, 0))
    balances = turns.settle(made, beyond, used)
    # Another period with the same balances has the same turns.
    kept = made if balances == state.opening and not made.rotates else None
    return _Period(balances, kept, NOTHING, next_used, frozenset(), lacked)


def _granted_before(made: turns.Plan, until_ns: int) -> dict[int, int]:
    """Returns the ns of each container's turns from a period's beginning to `until_ns` after it, keyed by slot.

    The turns repeat in each period of that time. A container without a turn in it is left out.
    """
    periods, rest_ns = divmod(until_ns, made.period_ns)
    granted_ns = {turn.slot: periods * made.granted_ns(turn.slot) for turn in made.turns} if periods else {}
    for turn in made.turns:
        if turn.start_ns < rest_ns:
            begun_ns = min(turn.end_ns, rest_ns) - turn.start_ns
            granted_ns[turn.slot] = granted_ns.get(turn.slot, 0) + begun_ns
    return granted_ns


def describe(
    uuid: str,
    containers: tuple[Container, ...],
    state: State,
    made: turns.Plan,
    now_ns: int,
    figures: Mapping[int, Figure] = MappingProxyType({}),
) -> Page:
    """Returns the content of a GPU's schedule page.

    Args:
        containers: the containers that share the GPU.
        state: the page writer's state.
        made: the turns of the present period.
        now_ns: the present time, in ns of CLOCK_MONOTONIC.
        figures: the driver's figures of each container, keyed by its slot.
    """
    slots = tuple(_slot(each, state, made, figures.get(each.slot, NO_FIGURE)) for each in containers)
    listed = tuple((turn.slot, turn.start_ns, turn.length_ns) for turn in made.turns)
    return Page(uuid, now_ns, state.period_start_ns, made.period_ns, slots, listed)


def _slot(container: Container, state: State, made: turns.Plan, figure: Figure) -> PageSlot:
    return PageSlot(
        container.slot,
        container.key,
        container.core_percent,
        container.policy,
        container.slot in state.active,
        made.granted_ns(container.slot) * 1000 // made.period_ns,
        container.memory_limit_bytes,
        figure.driver_bytes,
        figure.sampled_ns,
        container.notice_ns,
        figure.trim_permille,
        figure.dead_gone_ns,
    )
