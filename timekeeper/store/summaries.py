"""An account's figures for readers: what the leader writes down at each settlement, and REST tells.

In the store it is JSON whose amounts are whole numbers; nothing computes with it there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fairgpu.states import BudgetState
from timekeeper.rules.burn import Burns, burns_at_last_sample
from timekeeper.rules.pots import Pot, burn
from timekeeper.store.records import RecordError, decode_burn

_encode = json.JSONEncoder(separators=(",", ":")).encode


class SummaryError(ValueError):
    """What stands in the store is no summary."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An account in its present period. Amounts are microGPU-seconds, instants nanoseconds since 1970.

    Attributes:
        name: the budget's name, or the account's where no budget pays.
        namespaces: who spends from it, sorted.
        state: what the next pod meets, as published.
        enforcement: observe, enforce or evict; empty where no budget pays.
        period_start: start of the period, inclusive.
        period_end: its end, exclusive.
        granted: what grants added to the period.
        available: allowance and grants; None for no limit.
        spent: spent in the period.
        rate: what running reservations spend, a second.
        exhausted_at: when spending first reached what was available; None while it has not.
        computed: what the state would be if it were enforced; None where nobody wrote it down.
        admission: simple or safe.
        committed: what pods that were let in may still spend, where admission is safe.
        own: the money of the period beside its pots.
        pots: the grants that expire on their own.
        grace_amount: how far spending may pass what is available; None sets no limit.
        grace_duration: for how long after running out, nanoseconds; None sets no limit.
        burns: what was spent lately; read, and never written down here.
    """

    name: str
    namespaces: tuple[str, ...]
    state: BudgetState
    enforcement: str
    period_start: int
    period_end: int
    granted: int
    available: int | None
    spent: int
    rate: int
    exhausted_at: int | None
    computed: BudgetState | None = None
    admission: str = "simple"
    committed: int = 0
    own: int = 0
    pots: tuple[Pot, ...] = ()
    grace_amount: int | None = None
    grace_duration: int | None = None
    burns: Burns = field(default_factory=Burns)

    @property
    def expiring(self) -> list[tuple[Pot, int]]:
        """The grants that expire on their own and have not, the soonest first, each with what is left of it."""
        if not self.pots:
            return []
        left = burn(self.own, self.pots, self.period_end, self.spent).pots
        there = (pot for pot in self.pots if not pot.lapsed)
        return [(pot, left[pot.name]) for pot in sorted(there, key=lambda pot: (pot.expires, pot.name))]


def encode_summary(summary: Summary) -> str:
    """A summary as JSON."""
    # Not dataclasses.asdict, which copies deeply: ten thousand of these are written in one sweep.
    document = {name: getattr(summary, name) for name in Summary.__slots__ if name not in {"burns", "pots"}}
    document["pots"] = [(pot.name, pot.amount, pot.expires, pot.since, pot.lapsed) for pot in summary.pots]
    return _encode(document)


def decode_summary(text: str | bytes) -> Summary:
    """Reads a summary; fields of later writers are passed over.

    Raises:
        SummaryError: it is none.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        return Summary(
            name=document["name"],
            namespaces=tuple(document["namespaces"]),
            state=BudgetState(document["state"]),
            enforcement=document["enforcement"],
            period_start=document["period_start"],
            period_end=document["period_end"],
            granted=document["granted"],
            available=document["available"],
            spent=document["spent"],
            rate=document["rate"],
            exhausted_at=document["exhausted_at"],
            computed=BudgetState(document["computed"]) if document.get("computed") else None,
            admission=document.get("admission", "simple"),
            committed=document.get("committed", 0),
            own=document.get("own", 0),
            pots=tuple(Pot(*found) for found in document.get("pots", ())),
            grace_amount=document.get("grace_amount"),
            grace_duration=document.get("grace_duration"),
            burns=burns_at_last_sample(decode_burn(document["burn"]) if document.get("burn") else None),
        )
    except (RecordError, ValueError, KeyError, TypeError) as error:
        raise SummaryError(f"no summary: {error!r}") from error
