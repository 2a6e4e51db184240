"""Everything that is checked of one period, in the order in which one figure rests on another."""

from __future__ import annotations

from collections.abc import Iterator

from timekeeper.audit.difference import Difference
from timekeeper.audit.hours import check_hours
from timekeeper.audit.periods import check_period
from timekeeper.audit.pods import check_against_pods
from timekeeper.audit.published import check_published
from timekeeper.audit.sessions import Moment, check_sessions
from timekeeper.audit.sight import RESERVED, Sight
from timekeeper.audit.snapshot import Snapshot
from timekeeper.audit.statuses import check_status
from timekeeper.audit.sums import Sums, check_closing_balance, check_sums, recompute
from timekeeper.audit.use import check_use


def check(snapshot: Snapshot, sight: Sight) -> list[Difference]:
    """What differs in one period."""
    periods = list(check_period(snapshot))
    sums = recompute(snapshot)
    found = [*check_sums(snapshot, sums), *check_hours(snapshot)]
    if periods:
        return [*periods, *found]  # without its bounds nothing can be said of what a session cost in it
    return [*found, *_check_sessions(snapshot, sight), *_check_told(snapshot, sums, sight)]


def _check_sessions(snapshot: Snapshot, sight: Sight) -> Iterator[Difference]:
    world = sight.world
    # Who does not see the nodes cannot tell a session that is behind from one behind a silent node.
    settled = sight.settled if world is not None else None
    silent = world.silent if world is not None else frozenset()
    yield from check_sessions(snapshot, sight.payers, Moment(settled, sight.now, sight.bill, silent))
    if world is not None and sight.bill != RESERVED:
        yield from check_use(snapshot, sight, Moment(settled, sight.now, sight.bill, silent), world.pods)
    if world is not None and snapshot.latest:
        yield from check_against_pods(snapshot, world.pods, sight.prices, sight.now, from_binding=sight.from_binding)


def _check_told(snapshot: Snapshot, sums: Sums, sight: Sight) -> Iterator[Difference]:
    world = sight.world
    limits = world.limits_of(snapshot.account) if world is not None else None
    yield from check_published(snapshot, sums, limits, sight)
    if limits is not None and limits.allowance is not None:
        yield from check_closing_balance(snapshot)
    if world is not None and snapshot.account in world.budgets:
        item = world.budgets[snapshot.account]
        yield from check_status(snapshot, sums, item, limits, sight)
