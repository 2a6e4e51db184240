"""What an audit sees beside the snapshots of accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timekeeper.audit.charging import Changes
from timekeeper.audit.rates import PriceList
from timekeeper.audit.world import World

RESERVED, MAX = "reserved", "max"
"""What is billed; the third is "used"."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen beside the snapshots that are checked.

    Attributes:
        payers: who pays for each namespace from when on, read after the snapshots.
        states: the published state of each namespace, as JSON.
        prices: as they were charged.
        world: budgets and pods, read before the snapshots; None where they cannot be seen.
        settled: until when the books had surely come before the snapshots; None where that is unknown.
        now: nanoseconds since 1970, after the snapshots.
        bill: what is billed: reserved, used, or max, the larger of the two.
        from_binding: whether pods are metered from their binding on.
    """

    payers: Mapping[str, Changes]
    states: Mapping[str, str]
    prices: PriceList
    world: World | None
    settled: int | None
    now: int
    bill: str = RESERVED
    from_binding: bool = True
