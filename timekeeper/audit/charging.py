"""What a session must have cost in a period, from its record and who paid when: computed instant by instant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from timekeeper.audit.snapshot import SessionRecord

NANOSECONDS = 1_000_000_000

Changes = Sequence[tuple[int, str]]
"""(from, account): who pays for a namespace from when on; the first holds for all time before, too."""


def charge(record: SessionRecord, payers: Changes, account: str, period: tuple[int, int], until: int) -> int:
    """What a session has cost an account in a period [start, end) up to an instant, in microGPU-seconds.

    Between two instants at which nothing changes - who pays, at what rate - it is rate x time, rounded down.
    """
    low, high = max(record.start, period[0]), min(until, period[1])
    if low >= high:
        return 0
    changes = {moment for moment, _ in (*payers, *record.tariff) if low < moment < high}
    moments = [low, *sorted(changes), high]
    return sum(
        _at(record.tariff, begin) * (end - begin) // NANOSECONDS
        for begin, end in pairwise(moments)
        if _at(payers, begin) == account
    )


def rate_at(record: SessionRecord, instant: int) -> int:
    """What a session costs at an instant, in microGPU-seconds a second."""
    rate: int = _at(record.tariff, instant)
    return rate


def payer_at(payers: Changes, instant: int) -> str:
    """The account that pays at an instant."""
    account: str = _at(payers, instant)
    return account


def _at(changes: Sequence[tuple[int, Any]], instant: int) -> Any:
    """What holds at an instant: the last change up to it, and before all of them the first."""
    found = changes[0][1]
    for since, value in changes:
        if since > instant:
            break
        found = value
    return found
