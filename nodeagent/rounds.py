"""From one look at the containers to the next: who is active, what the last period left, and the turns that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodeagent import turns
from nodeagent.observations import Seen, is_active, new_overrun_ns
from nodeagent.schedule_page import Activity, Page, PageSlot


@dataclass(frozen=True)
class Container:
    """A container on this GPU: its slot and key on the page, its share, and where its ledger is."""

    slot: int
    key: int
    core_percent: int
    policy: turns.Policy
    ledger: Path
    device: int = 0


@dataclass(frozen=True)
class State:
    """What the writer remembers from one writing to the next. Times are ns of CLOCK_MONOTONIC."""

    epoch_ns: int
    round_number: int = 0
    opening: Mapping[int, int] = field(default_factory=dict)
    """Balances at the beginning of the period."""
    plan: turns.Plan | None = None
    active: frozenset[int] = frozenset()
    overruns: Mapping[int, int] = field(default_factory=dict)
    """Overruns seen in this period, by slot."""
    seen: Mapping[int, Seen] = field(default_factory=dict)


def step(
    state: State, containers: tuple[Container, ...], activities: Mapping[int, Activity], now_ns: int
) -> tuple[State, turns.Plan]:
    """The state and the turns after one look at what the containers (by slot) do.

    A new period settles the overruns of the last one. Within a period turns change only when somebody became active or
    idle, came or went.

    Raises:
        OvercommittedError: the containers' shares sum to more than 100 percent.
    """
    active = frozenset(slot for slot, activity in activities.items() if is_active(activity, now_ns))
    overruns = dict(state.overruns)
    for slot, activity in activities.items():
        overruns[slot] = overruns.get(slot, 0) + new_overrun_ns(activity, state.seen.get(slot), now_ns)
    seen = {slot: Seen(activity.overrun_ns, now_ns) for slot, activity in activities.items()}
    state = replace(state, overruns=overruns, seen=seen)
    passed = (now_ns - state.epoch_ns) // turns.PERIOD_NS
    if passed > 0:
        state = _begin_period(state, passed)
    tenants = [
        turns.Tenant(each.slot, each.core_percent, each.policy, each.slot in active, state.opening.get(each.slot, 0))
        for each in containers
    ]
    made = state.plan
    if made is None or active != state.active or set(made.balances) != {each.slot for each in containers}:
        made = turns.plan(tenants, turns.PERIOD_NS, state.round_number)
    return replace(state, plan=made, active=active), made


def _begin_period(state: State, passed: int) -> State:
    """Charges the overruns of the period that is over, and opens the next."""
    balances: Mapping[int, int] = state.opening
    if state.plan is not None:
        balances = state.plan.balances
        for slot, overrun_ns in state.overruns.items():
            if slot in balances:
                balances = turns.charge(replace(state.plan, balances=balances), slot, overrun_ns)
    return replace(
        state,
        epoch_ns=state.epoch_ns + passed * turns.PERIOD_NS,
        round_number=state.round_number + passed,
        opening=balances,
        plan=None,
        overruns={},
    )


def describe(uuid: str, containers: tuple[Container, ...], state: State, made: turns.Plan, now_ns: int) -> Page:
    """The page that says so."""
    slots = tuple(
        PageSlot(
            each.slot,
            each.key,
            each.core_percent,
            each.policy,
            each.slot in state.active,
            made.granted_ns(each.slot) * 1000 // made.period_ns,
        )
        for each in containers
    )
    listed = tuple((turn.slot, turn.start_ns, turn.length_ns) for turn in made.turns)
    return Page(uuid, now_ns, state.epoch_ns, made.period_ns, slots, listed)
