"""Puts the GPU time that pods report down to the hours that are about to be written. It is no money: it shows waste.

Reports count from a pod's start on, and what they tell of between two looks at them belongs to the period that the
session was in. So the session's record holds, for each period, at what count it began there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import redis

from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.jobs.round.settlement_plans import Plan
from timekeeper.metering.cuts import used_since, with_used
from timekeeper.store import reading
from timekeeper.store.ledger import Action, Item, Kind
from timekeeper.store.records import encode_session


def with_reports(client: redis.Redis, plans: Sequence[Plan]) -> list[Plan]:
    """The plans, their cuts with what the sessions' reports tell of.

    Raises:
        redis.RedisError: the store does not answer.
    """
    cutting = [
        index for index, plan in enumerate(plans) if not plan.plain and any(item.cuts for item in plan.items.values())
    ]
    counts = reading.used(client, [plans[index].metered.session.uid for index in cutting])
    result = list(plans)
    for index, count in zip(cutting, counts, strict=True):
        metered = plans[index].metered
        if count is not None:
            metered.reported = max(metered.reported or 0, count)
        if metered.reported is not None:
            result[index] = _with_count(plans[index], metered.reported)
    return result


def _with_count(plan: Plan, reported: int) -> Plan:
    metered = plan.metered
    before = _until_now(metered, plan.items)
    present = _from_now(metered, plan.items, before)
    used = _put_down(metered, plan.items, before, reported)
    begun = present != before
    if begun:
        _begin(metered, plan.items, present, reported - (used[present] or 0))
    start = metered.session.start
    items = {}
    for key, item in plan.items.items():
        total = used[key]
        known = item.cuts if total is None else with_used(item.cuts, metered.cut_at.get(key), max(start, key[1]), total)
        items[key] = item._replace(cuts=tuple(known))
        if item.record or (begun and key == present):
            # In the same step, so that whoever reads the record and the amount finds both of the same moment.
            action = Action.OPEN if item.action is Action.HOLD else item.action
            items[key] = items[key]._replace(action=action, record=encode_session(metered.session))
    return plan._replace(items=items)


def _put_down(metered: Metered, items: Mapping[Key, Item], before: Key, reported: int) -> dict[Key, int | None]:
    """What was used in each of these periods so far: what is new, in the one that the session was in until now.

    None where that is not known here, as of periods that had ended before this leader began: what stands of them in
    the store is to stay.
    """
    used = {key: _taken(metered, key) for key in items}
    if before in used and not metered.closed:
        bases = {(account, period): base for account, period, base in metered.session.report_bases}
        used[before] = used_since(reported, bases.get(before, 0), used[before] or 0)
    return used


def _begin(metered: Metered, items: Mapping[Key, Item], present: Key, base: int) -> None:
    """Notes in a session's record at what count a period began for it."""
    known = {(account, period): each for account, period, each in metered.session.report_bases}
    bases = {key: each for key, each in known.items() if key in items or key in metered.written} | {present: base}
    if any(bases.values()):
        kept = tuple((*key, each) for key, each in sorted(bases.items()))
        metered.session, metered.record_stale = replace(metered.session, report_bases=kept), True


def _taken(metered: Metered, key: Key) -> int | None:
    cut = metered.cut_at.get(key)
    return None if cut is None else cut.used or 0


def _until_now(metered: Metered, items: Mapping[Key, Item]) -> Key:
    """The period that a session was in when it was last told of; where none is known, the first of those given."""
    recorded = [key for key in metered.written if key[0] == metered.recorded_in]
    cut = [key for key in metered.written if key in metered.cut_at]
    known = recorded or cut
    return max(known, key=_period) if known else min(items, key=_period)


def _from_now(metered: Metered, items: Mapping[Key, Item], before: Key) -> Key:
    """The period that a session goes on in, or in which it ended."""
    told = (key for key, item in items.items() if item.action is Action.OPEN or item.kind is Kind.CLOSE)
    recorded = (key for key in items if key[0] == metered.recorded_in)
    return next(told, None) or max((before, *recorded), key=_period)


def _period(key: Key) -> int:
    return key[1]
