"""Puts the GPU time that pods report down to the hours that are about to be written. It is no money: it shows waste.

Reports count from a pod's start on. What they had come to when a period began is part of the session's record, so that
each period gets its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import redis

from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.jobs.round.settling import Plan
from timekeeper.jobs.round.using import read_use
from timekeeper.metering.cuts import with_used
from timekeeper.store import reading


def with_reports(client: redis.Redis, plans: Sequence[Plan]) -> list[Plan]:
    """The plans, their cuts with what the sessions' latest reports tell of.

    Raises:
        redis.RedisError: the store does not answer.
    """
    cutting = [
        index for index, plan in enumerate(plans) if not plan.plain and any(item.cuts for item in plan.items.values())
    ]
    bodies = reading.reports(client, [plans[index].metered.session.uid for index in cutting])
    result = list(plans)
    for index, body in zip(cutting, bodies, strict=True):
        if body is not None:
            result[index] = _with_report(plans[index], body)
    return result


def _with_report(plan: Plan, body: bytes | str) -> Plan:
    metered = plan.metered
    busy = sum(counters.busy_ns for counters in read_use(body).values()) // 1000
    metered.reported = max(metered.reported or 0, busy)
    used = _used(metered, list(plan.items))
    items = {
        key: item._replace(cuts=tuple(with_used(item.cuts, metered.cut_at.get(key), metered.session.start, used[key])))
        for key, item in plan.items.items()
    }
    return plan._replace(items=items)


def _used(metered: Metered, keys: Sequence[Key]) -> dict[Key, int]:
    """What was used in each of these periods so far, by the reports."""
    reported = metered.reported or 0
    bases = {(account, period): base for account, period, base in metered.session.report_bases}
    ordered = sorted({*keys, *metered.written}, key=lambda key: key[1])
    for key in ordered:
        bases.setdefault(key, reported if bases else 0)
    used = {}
    for key, following in zip(ordered, [*ordered[1:], None], strict=True):
        until = reported if following is None else bases[following]
        used[key] = max(until - bases[key], 0)
    kept = tuple((*key, bases[key]) for key in ordered)
    if kept != metered.session.report_bases and any(base for *_, base in kept):
        metered.session = replace(metered.session, report_bases=kept)
        metered.record_stale = True
    return used
