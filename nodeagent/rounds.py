"""Computes one writing of a schedule page from the last: the active containers, balances, and the turns that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from nodeagent import turns
from nodeagent.driver_figures import Figure
from nodeagent.schedule_page import Activity, Page, PageSlot
from nodeagent.turns import PERIOD_NS

ACTIVE_FOR_NS = 2 * PERIOD_NS
"""The time for which a container counts as active after it last had or wanted work."""


@dataclass(frozen=True)
class LastCounters:
    """A container's counters at the last look, in ns of GPU time, and the time of that look."""

    busy_ns: int
    overrun_ns: int
    at_ns: int


def is_active(activity: Activity, now_ns: int) -> bool:
    """Whether the container has or wants work; a time in the future counts as now."""
    return activity.activity_ns != 0 and now_ns - min(activity.activity_ns, now_ns) < ACTIVE_FOR_NS


def wants_more(activity: Activity, now_ns: int) -> bool:
    """Whether a launch of the container was delayed lately: with more time, it would have used more."""
    return activity.waiting_ns != 0 and now_ns - min(activity.waiting_ns, now_ns) < ACTIVE_FOR_NS


def growth(before: int, now: int, elapsed_ns: int) -> int:
    """Returns the growth of a counter of GPU time.

    A counter that runs backwards (of a new ledger) has not grown; none runs faster than the clock.
    """
    return min(max(now - before, 0), elapsed_ns)


NO_FIGURE = Figure()


@dataclass(frozen=True)
class Container:
    """A container on this GPU: its slot and key on the page, its share, and its ledger.

    The memory limit is in bytes, 0 for that of its configuration; notice_ns is when it will be evicted, on
    CLOCK_MONOTONIC, 0 where it will not. The cgroup is its folder in the host's hierarchy; without one the driver's
    figures for it stay unknown. start_ns is where its turn begins in the period (turns.starts), None for anywhere.
    """

    slot: int
    key: int
    core_percent: int
    policy: turns.Policy
    ledger: Path
    device: int = 0
    memory_limit_bytes: int = 0
    notice_ns: int = 0
    cgroup: Path | None = None
    start_ns: int | None = None


@dataclass(frozen=True)
class State:
    """The state that the writer keeps between writes. Times are ns of CLOCK_MONOTONIC."""

    epoch_ns: int
    round_number: int = 0
    opening: Mapping[int, int] = field(default_factory=dict)
    """The balances at the beginning of the period."""
    plan: turns.Plan | None = None
    active: frozenset[int] = frozenset()
    overruns: Mapping[int, int] = field(default_factory=dict)
    """The GPU time outside their turns that the slots had in this period, as far as observed."""
    used: Mapping[int, int] = field(default_factory=dict)
    """All GPU time that the slots had in this period."""
    wanting: frozenset[int] = frozenset()
    """The slots that would have used more."""
    lacked: Mapping[int, int] = field(default_factory=dict)
    """The time of their own turns that slots lacked in the period before."""
    seen: Mapping[int, LastCounters] = field(default_factory=dict)


def begun(now_ns: int) -> State:
    """Returns the state of a writer that begins now.

    Its periods begin at multiples of the period, as those of all GPUs of the node do: kernels that wait for one another
    on several GPUs meet only while all of them have their turn.
    """
    return State(epoch_ns=now_ns // turns.PERIOD_NS * turns.PERIOD_NS)


def step(
    state: State, containers: tuple[Container, ...], activities: Mapping[int, Activity], now_ns: int
) -> tuple[State, turns.Plan]:
    """Returns the state and the turns after one look at the containers' activity, by slot.

    A new period settles the overruns of the last one. Within a period, turns change only when a container becomes
    active or idle, starts or ends.

    Raises:
        OvercommittedError: the containers' shares sum to more than 100 percent.
    """
    active = frozenset(slot for slot, activity in activities.items() if is_active(activity, now_ns))
    state = _observe(state, activities, now_ns)
    passed = (now_ns - state.epoch_ns) // turns.PERIOD_NS
    if passed > 0:
        state = _begin_period(state, passed)
    tenants = [
        turns.Tenant(
            each.slot,
            each.core_percent,
            each.policy,
            each.slot in active,
            state.opening.get(each.slot, 0),
            each.start_ns,
        )
        for each in containers
    ]
    made = state.plan
    if made is None or active != state.active or set(made.balances) != {each.slot for each in containers}:
        made = turns.plan(tenants, turns.PERIOD_NS, state.round_number)
    return replace(state, plan=made, active=active), made


def _observe(state: State, activities: Mapping[int, Activity], now_ns: int) -> State:
    """Adds the growth of the containers' counters since the last look."""
    overruns = dict(state.overruns)
    used = dict(state.used)
    for slot, activity in activities.items():
        before = state.seen.get(slot)
        if before is not None:
            elapsed_ns = now_ns - before.at_ns
            overruns[slot] = overruns.get(slot, 0) + growth(before.overrun_ns, activity.overrun_ns, elapsed_ns)
            used[slot] = used.get(slot, 0) + growth(before.busy_ns, activity.busy_ns, elapsed_ns)
    wanting = state.wanting | {slot for slot, activity in activities.items() if wants_more(activity, now_ns)}
    seen = {slot: LastCounters(activity.busy_ns, activity.overrun_ns, now_ns) for slot, activity in activities.items()}
    return replace(state, overruns=overruns, used=used, wanting=wanting, seen=seen)


def _begin_period(state: State, passed: int) -> State:
    """Settles the period that ended, and opens the next.

    A shim that divides its overrun among all active containers counts too little where few of them worked; the time
    that a container used beyond all its turns counts, too. Work that was reported too late for its period leaves its
    container with less than its turn in one period and more in the next; the surplus counts for the period after, so
    that a late report gains nothing.
    """
    balances: Mapping[int, int] = state.opening
    lacked: dict[int, int] = {}
    told_late: dict[int, int] = {}
    if state.plan is not None:
        used = {slot: had for slot, had in state.used.items() if slot in state.wanting}
        made = state.plan
        beyond = {
            slot: max(ran, state.used.get(slot, 0) - made.granted_ns(slot)) for slot, ran in state.overruns.items()
        }
        balances = turns.settle(made, beyond, used)
        for slot, had in used.items():
            lacked[slot] = max(0, made.owned_ns(slot) - had)
            told_late[slot] = min(max(0, had - made.owned_ns(slot)), state.lacked.get(slot, 0))
    return replace(
        state,
        epoch_ns=state.epoch_ns + passed * turns.PERIOD_NS,
        round_number=state.round_number + passed,
        opening=balances,
        plan=None,
        overruns={},
        used=told_late,
        wanting=frozenset(),
        lacked=lacked,
    )


def describe(
    uuid: str,
    containers: tuple[Container, ...],
    state: State,
    made: turns.Plan,
    now_ns: int,
    figures: Mapping[int, Figure] = MappingProxyType({}),
) -> Page:
    """Returns the page with these turns, and with the driver's figures by slot."""
    slots = tuple(
        PageSlot(
            each.slot,
            each.key,
            each.core_percent,
            each.policy,
            each.slot in state.active,
            made.granted_ns(each.slot) * 1000 // made.period_ns,
            memory_limit_bytes=each.memory_limit_bytes,
            driver_bytes=figures.get(each.slot, NO_FIGURE).driver_bytes,
            driver_sampled_ns=figures.get(each.slot, NO_FIGURE).sampled_ns,
            notice_ns=each.notice_ns,
            trim_permille=figures.get(each.slot, NO_FIGURE).trim_permille,
        )
        for each in containers
    )
    listed = tuple((turn.slot, turn.start_ns, turn.length_ns) for turn in made.turns)
    return Page(uuid, now_ns, state.epoch_ns, made.period_ns, slots, listed)
