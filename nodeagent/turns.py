"""Plans the turns on one GPU: each container's time to launch in the coming period, from its share and activity.

Every container with a share owns a turn in every period, as long as its share of the period. Turns that must begin at a
given place (see `starts`) are laid out first, then the other turns in the order of their slots, so that they move as
little as possible. Time that no active container owns (turns of inactive containers, and time that was promised to no
container) is lent to elastic and best-effort containers.

Work that runs past the end of its turn takes time from other containers, and its container then owes them this time. A
container's `balance_ns` is above 0 if other containers owe it time, and below 0 if it owes time. A balance does not say
to which container. In each period, active debtors give time from their turns and loans, and active creditors get it.

Everything here is a pure function; times are nanoseconds, all of them whole.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

PERIOD_NS = 50_000_000
"""The length of a period: long against a GPU's own time slices (about 2 ms), short against what users notice."""
SHORTEST_LOAN_NS = 2_000_000
"""The shortest loan; a shorter one would end before the GPU has changed to the borrower."""
BEST_EFFORT_WEIGHT = 10
"""The weight of a best-effort container among borrowers, in percent; the weight of an elastic container is its
share."""
MOST_TURNS = 128
"""The most turns that fit into a schedule page. 64 containers would have more where turns of containers with several
GPUs leave gaps (see `starts`)."""
LARGEST_BALANCE_NS = 2 * PERIOD_NS
"""The largest balance, in either direction; the rest is dropped, so that no container loses the GPU for overruns long
past."""


class Policy(enum.IntEnum):
    """The ways in which a container may use GPU time beyond its share, with the numbers of its configuration file."""

    HARD = 0
    ELASTIC = 1
    BEST_EFFORT = 2


class OvercommittedError(ValueError):
    """Raised if the shares of the containers on one GPU sum to more than 100 percent."""


class Tenant(NamedTuple):
    """A container on a GPU whose turns are planned.

    Attributes:
        slot: its place on the GPU's schedule page.
        core_percent: its share of GPU time, in percent.
        policy: how it may use GPU time beyond its share.
        active: whether it had or wanted work within the last two periods.
        balance_ns: the GPU time that other containers owe to it, in ns; below 0 if it owes them.
        start_ns: where its turn must begin in the period, in ns, the same on each of its GPUs (see `starts`); None for
            any place.
    """

    slot: int
    core_percent: int
    policy: Policy
    active: bool
    balance_ns: int = 0
    start_ns: int | None = None

    @property
    def borrows(self) -> bool:
        """Whether the container may use GPU time that others leave idle; False with a hard limit."""
        return self.policy is not Policy.HARD

    @property
    def weight(self) -> int:
        """The container's part of the idle GPU time that is lent, in relation to the weights of other containers."""
        return BEST_EFFORT_WEIGHT if self.policy is Policy.BEST_EFFORT else self.core_percent


class Turn(NamedTuple):
    """A part of the period in which one container may launch kernels.

    Attributes:
        start_ns: where it begins, in ns from the beginning of the period.
        length_ns: its length in ns.
        slot: the container's place on the GPU's schedule page.
    """

    start_ns: int
    length_ns: int
    slot: int

    @property
    def end_ns(self) -> int:
        """The end of the turn, in ns from the beginning of the period."""
        return self.start_ns + self.length_ns


@dataclass(frozen=True)
class Plan:
    """The turns of one period on one GPU. Containers are given by their slot on the GPU's schedule page.

    Attributes:
        period_ns: the length of the period, in ns.
        turns: all turns, sorted by their start.
        owned: the turns that active containers have by their own shares, without borrowed time. A turn is shorter if
            the container pays back time in this period, and longer if it is paid.
        balances: the GPU time in ns that other containers owe to each container after the time that is paid back in the
            period; below 0 if it owes them. Overruns of the period are not in it (see `settle`).
        rotates: whether the next period may have other turns even if the containers stay the same: idle time is then
            lent to other borrowers, or time is paid back.
    """

    period_ns: int
    turns: tuple[Turn, ...]
    owned: tuple[Turn, ...]
    balances: Mapping[int, int]
    rotates: bool = False

    def granted_ns(self, slot: int) -> int:
        """Returns the time of the period, in ns, in which a container may launch kernels, with borrowed time.

        Args:
            slot: the container's place on the GPU's schedule page.
        """
        return self._granted.get(slot, 0)

    def owned_ns(self, slot: int) -> int:
        """Returns the time of the period, in ns, that a container gets for its share, without borrowed time.

        It is the time after what debtors give to creditors. It is 0 for a container that is not active.

        Args:
            slot: the container's place on the GPU's schedule page.
        """
        return self._owned.get(slot, 0)

    # Each is computed once for all slots, since the methods above are called several times for each.
    @cached_property
    def _granted(self) -> Mapping[int, int]:
        return _lengths(self.turns)

    @cached_property
    def _owned(self) -> Mapping[int, int]:
        return _lengths(self.owned)


def _lengths(turns: Iterable[Turn]) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for turn in turns:
        lengths[turn.slot] = lengths.get(turn.slot, 0) + turn.length_ns
    return lengths


def plan(tenants: Sequence[Tenant], period_ns: int = PERIOD_NS, period_number: int = 0) -> Plan:
    """Returns the turns of the coming period on one GPU, and the containers' balances after it.

    Args:
        tenants: the containers on the GPU.
        period_ns: the length of the period, in ns.
        period_number: the number of the period, which changes the order of borrowers from one period to the next.

    Raises:
        OvercommittedError: the shares sum to more than 100 percent.
    """
    promised = sum(tenant.core_percent for tenant in tenants)
    if promised > 100:
        raise OvercommittedError(f"shares on one GPU sum to {promised} percent; 100 is all there is")
    ordered = sorted(tenants, key=lambda tenant: tenant.slot)
    shares = {tenant.slot: period_ns * tenant.core_percent // 100 for tenant in ordered if tenant.core_percent > 0}
    idle_ns = period_ns - sum(shares[tenant.slot] for tenant in ordered if tenant.active and tenant.slot in shares)
    loans = _loans(ordered, idle_ns, period_number)
    paid, received = _payments(ordered, shares, loans, period_number)
    lengths = {slot: share + received.get(slot, 0) for slot, share in shares.items()}
    for slot, amount in paid.items():
        from_loan = min(amount, loans.get(slot, 0))
        if from_loan:
            loans[slot] -= from_loan
        if slot in lengths:
            lengths[slot] -= amount - from_loan
    owned, free = _lay_out(ordered, lengths, period_ns)
    turns = _fitting(owned, [*_idle_turns(free), *_lend(ordered, loans, free)])
    balances = {
        tenant.slot: tenant.balance_ns + paid.get(tenant.slot, 0) - received.get(tenant.slot, 0) for tenant in ordered
    }
    lends_in_turn = any(tenant.slot in loans for tenant in ordered if tenant.policy is Policy.BEST_EFFORT)
    return Plan(period_ns, turns, tuple(owned), balances, rotates=lends_in_turn or bool(paid))


def starts(containers: Mapping[str, tuple[int, frozenset[str]]], period_ns: int = PERIOD_NS) -> dict[str, int]:
    """Returns where in the period the turn of each container with several GPUs begins, the same on all of its GPUs.

    Kernels that wait for one another on several GPUs meet only while the container has its turn on all of these. A
    container gets the first part of the period that is free on all of its GPUs; a container for which there is none is
    left out. Containers with one GPU or without a share are never in the answer: their turns may begin anywhere.

    Args:
        containers: for each container, keyed by its name, its share in percent and the uuids of its GPUs.
        period_ns: the length of the period, in ns.

    Returns:
        The beginning in ns from the beginning of the period, keyed by the container's name.
    """
    taken: dict[str, list[tuple[int, int]]] = {}
    found: dict[str, int] = {}
    several = {name: given for name, given in containers.items() if len(given[1]) > 1 and given[0] > 0}
    for name, (percent, gpus) in sorted(several.items(), key=lambda item: (-len(item[1][1]), -item[1][0], item[0])):
        length = period_ns * percent // 100
        others = sorted(stretch for gpu in gpus for stretch in taken.get(gpu, []))
        place = 0
        for start, end in others:
            if start - place >= length:
                break
            place = max(place, end)
        if place + length <= period_ns:
            found[name] = place
            for gpu in gpus:
                taken.setdefault(gpu, []).append((place, place + length))
    return found


def settle(made: Plan, overruns: Mapping[int, int], used: Mapping[int, int]) -> dict[int, int]:
    """Returns each container's balance after a period in which work ran past the end of turns, keyed by slot.

    A positive balance is GPU time in nanoseconds that the other containers owe to this one. An overrun moves no balance
    beyond LARGEST_BALANCE_NS in either direction. Containers that ran over owe those that had less than their turns and
    wanted more, in proportion on both sides. No time is owed for an overrun that took nothing from others. If two
    containers have turns of 15 and 35 ms, and work of the first takes 20 ms, the second is owed 5 ms.

    Containers report these figures: one that understates its use gains no more than the overruns that others report.

    Args:
        made: the turns of the period, and the balances before it is settled.
        overruns: the GPU time that each container's work took outside its turns, in ns, keyed by slot.
        used: the GPU time of each container that still wanted more, in ns, keyed by slot.
    """
    balances = dict(made.balances)
    over = {slot: overrun_ns for slot, overrun_ns in overruns.items() if overrun_ns > 0 and slot in balances}
    if not over:  # as in most periods
        return balances
    lacking = {slot: max(0, made.owned_ns(slot) - had) for slot, had in used.items() if slot in balances}
    amount = min(sum(lacking.values()), sum(over.values()))
    if not amount:
        return balances
    for slot, owed in _divide(amount, over).items():
        balances[slot] = max(balances[slot] - owed, -LARGEST_BALANCE_NS)
    for slot, due in _divide(amount, lacking).items():
        balances[slot] = min(balances[slot] + due, LARGEST_BALANCE_NS)
    return balances


def _loans(ordered: Sequence[Tenant], idle_ns: int, period_number: int) -> dict[int, int]:
    """Returns the idle time, in ns, that each active borrower gets in this period, keyed by slot.

    The time is divided in proportion to `Tenant.weight`. A borrower without a loan is not in the answer. In each period
    only one half of the best-effort containers shares the time that is lent to them, so that a loan is long enough for
    a kernel and no container waits for more than one period. Fewer than half share it if a loan would be shorter than
    SHORTEST_LOAN_NS. The period's number decides which containers these are.

    Args:
        ordered: the containers on the GPU, sorted by slot.
        idle_ns: the time of the period, in ns, that no active container owns.
        period_number: the number of the period.
    """
    elastic = [tenant for tenant in ordered if tenant.active and tenant.policy is Policy.ELASTIC]
    best_effort = [tenant for tenant in ordered if tenant.active and tenant.policy is Policy.BEST_EFFORT]
    total = sum(tenant.weight for tenant in elastic + best_effort)
    if not total or not idle_ns:
        return {}
    loans = {tenant.slot: idle_ns * tenant.weight // total for tenant in elastic}
    if best_effort:
        left = idle_ns - sum(loans.values())
        places = max(1, min((len(best_effort) + 1) // 2, left // SHORTEST_LOAN_NS))
        first = period_number * places % len(best_effort)
        for tenant in (best_effort + best_effort)[first : first + places]:
            loans[tenant.slot] = left // places
    return {slot: loan for slot, loan in loans.items() if loan}


def _payments(
    ordered: Sequence[Tenant], shares: Mapping[int, int], loans: Mapping[int, int], period_number: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the ns that each debtor gives in this period, and that each creditor gets, keyed by slot.

    The two sums are equal. A debtor gives all that it borrows and up to half of its own turn. A debtor that owes a
    whole turn gives that turn in every other period: a kernel longer than half a turn would run over a shortened one.

    Args:
        ordered: the containers on the GPU, sorted by slot.
        shares: the time of the period that each container owns, in ns, keyed by slot.
        loans: the time that each container borrows, in ns, keyed by slot.
        period_number: the number of the period.
    """
    debts: dict[int, int] = {}
    claims: dict[int, int] = {}
    for tenant in ordered:
        share = shares.get(tenant.slot, 0)
        if tenant.active and tenant.balance_ns < 0:
            skips = -tenant.balance_ns >= share and (period_number + tenant.slot) % 2 == 0
            debts[tenant.slot] = min(-tenant.balance_ns, (share if skips else share // 2) + loans.get(tenant.slot, 0))
        elif tenant.active and tenant.balance_ns > 0:
            claims[tenant.slot] = min(tenant.balance_ns, share)
    amount = min(sum(debts.values()), sum(claims.values()))
    return _divide(amount, debts), _divide(amount, claims)


def _divide(amount: int, parts: Mapping[int, int]) -> dict[int, int]:
    """Returns each slot's part of an amount, in ns, in proportion to `parts`; the sum is the amount.

    The caller gives an amount of at most the sum of `parts`, so that no slot gets more than its part.
    """
    total = sum(parts.values())
    divided = {}
    passed = 0
    given = 0
    for slot, part in parts.items():
        passed += part
        upto = amount * passed // total if total else 0
        divided[slot] = upto - given
        given = upto
    return divided


def _lay_out(
    ordered: Sequence[Tenant], lengths: Mapping[int, int], period_ns: int
) -> tuple[list[Turn], list[tuple[Turn, bool]]]:
    """Returns the turns of the active containers, and the free time of the period; both are sorted by start.

    Each part of the free time is a turn with a flag: True if an inactive container owns it, False if none does (its
    slot is then -1). If the turns of the active containers leave too little time for those of the inactive ones, the
    latter are shortened in proportion.

    Args:
        ordered: the containers on the GPU, sorted by slot.
        lengths: the length of each container's turn in this period, in ns, after what debtors give to creditors; keyed
            by slot.
        period_ns: the length of the period, in ns.
    """
    active_ns = sum(lengths[tenant.slot] for tenant in ordered if tenant.active and tenant.slot in lengths)
    idle_ns = sum(lengths[tenant.slot] for tenant in ordered if not tenant.active and tenant.slot in lengths)
    room = period_ns - active_ns
    owned: list[Turn] = []
    free: list[tuple[Turn, bool]] = []
    gaps = [(0, period_ns)]
    placed = sorted(
        (tenant for tenant in ordered if tenant.start_ns is not None), key=lambda tenant: tenant.start_ns or 0
    )
    for tenant in [*placed, *(tenant for tenant in ordered if tenant.start_ns is None)]:
        length = lengths.get(tenant.slot, 0)
        if not tenant.active and idle_ns > room:
            length = length * room // idle_ns
        turns, gaps = _take(gaps, tenant.start_ns or 0, length)
        for start, end in turns:
            turn = Turn(start, end - start, tenant.slot)
            if tenant.active:
                owned.append(turn)
            else:
                free.append((turn, True))
    free.extend((Turn(start, end - start, -1), False) for start, end in gaps)
    return sorted(owned), sorted(free)


def _take(
    gaps: Sequence[tuple[int, int]], start_ns: int, length: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Takes stretches of `length` ns in all out of the gaps; returns these stretches and the rest of the gaps.

    Stretches and gaps are pairs of start and end, in ns from the beginning of the period. The gaps from `start_ns` on
    are used first, then those from the beginning of the period. If all gaps are shorter together, all are taken.
    """
    if gaps and gaps[0][0] >= start_ns and gaps[0][1] - gaps[0][0] > length > 0:  # as nearly always
        start, end = gaps[0]
        return [(start, start + length)], [(start + length, end), *gaps[1:]]
    cut = [
        piece
        for start, end in gaps
        for piece in ((start, min(end, start_ns)), (max(start, start_ns), end))
        if piece[0] < piece[1]
    ]
    taken: list[tuple[int, int]] = []
    left: list[tuple[int, int]] = []
    for start, end in [
        *(piece for piece in cut if piece[0] >= start_ns),
        *(piece for piece in cut if piece[0] < start_ns),
    ]:
        until = min(end, start + length)
        length -= until - start
        if start < until:
            taken.append((start, until))
        if until < end:
            left.append((until, end))
    return taken, sorted(left)


def _idle_turns(free: Iterable[tuple[Turn, bool]]) -> list[Turn]:
    """Returns the turns that inactive containers own: the parts of the free time with True (see `_lay_out`).

    The plan keeps these turns even where their time is lent, so that a container that wakes can launch at once.
    """
    return [turn for turn, is_owned in free if is_owned]


def _lend(ordered: Sequence[Tenant], loans: Mapping[int, int], free: Sequence[tuple[Turn, bool]]) -> list[Turn]:
    """Returns turns in the free time (see `_lay_out`) for the containers that borrow, by their loans (see `_loans`).

    The turns of one container are together as long as its loan. If no active container borrows, every inactive
    container that may borrow gets all of the free time as turns, as far as a page has room for them. Such a container
    can then start at any moment, and the next plan counts it as active.
    """
    stretches = _stretches(free)
    if not loans:
        waiting = [tenant.slot for tenant in ordered if tenant.borrows and not tenant.active]
        everywhere = [Turn(start, end - start, slot) for start, end in stretches for slot in waiting]
        return everywhere[: MOST_TURNS - len(ordered)]
    lent = []
    for slot, amount in loans.items():
        left = amount
        while left > 0 and stretches:
            start, end = stretches.pop(0)
            length = min(left, end - start)
            lent.append(Turn(start, length, slot))
            left -= length
            if start + length < end:
                stretches.insert(0, (start + length, end))
    return lent


def _fitting(owned: Sequence[Turn], others: Sequence[Turn]) -> tuple[Turn, ...]:
    """Returns the turns of a period: those that active containers own, and as many others as a page has room for.

    The shortest of the others are left out. An idle container whose turn is left out gets it in the plan that is made
    once the container wants work.
    """
    turns = _merge([*owned, *others])
    if len(turns) <= MOST_TURNS:  # as nearly always
        return turns
    longest = sorted(_merge(others), key=lambda turn: -turn.length_ns)
    return _merge([*owned, *longest[: MOST_TURNS - len(owned)]])


def _stretches(free: Iterable[tuple[Turn, bool]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for turn, _ in free:
        if joined and joined[-1][1] == turn.start_ns:
            joined[-1] = (joined[-1][0], turn.end_ns)
        else:
            joined.append((turn.start_ns, turn.end_ns))
    return joined


def _merge(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Joins turns of one slot that touch or overlap, and sorts all by their start."""
    merged: list[Turn] = []
    for turn in sorted(turns, key=lambda turn: (turn.slot, turn.start_ns)):
        last = merged[-1] if merged else None
        if last is not None and last.slot == turn.slot and turn.start_ns <= last.end_ns:
            merged[-1] = Turn(last.start_ns, max(last.end_ns, turn.end_ns) - last.start_ns, turn.slot)
        else:
            merged.append(turn)
    return tuple(sorted(merged))
