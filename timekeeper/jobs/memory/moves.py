"""Who paid for a namespace before it moved, as the checkpoints of the budgets concerned tell it.

The store knows of every move. Where it was emptied and nobody remembers, a session that began before a move would be
charged to the later payer from its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from timekeeper.metering.segments import Assignments
from timekeeper.rules.timestamps import TimeError, format_exact, parse_instant

Json = dict[str, Any]


def moves_by_account(assignments: Mapping[str, Assignments]) -> dict[str, dict[str, Assignments]]:
    """The namespaces that have moved, under each account that paid for them."""
    found: dict[str, dict[str, Assignments]] = {}
    for namespace, known in assignments.items():
        if len(known) > 1:
            for _, account in known:
                found.setdefault(account, {})[namespace] = known
    return found


def told(moves: Mapping[str, Assignments], since: int) -> list[Json]:
    """The moves after an instant, as a checkpoint tells them; earlier ones change no figure of a period since then."""
    return [
        {"namespace": namespace, "payers": [{"account": name, "from": format_exact(at)} for at, name in known]}
        for namespace, known in sorted(moves.items())
        if known[-1][0] > since
    ]


def read_moves(budgets: Iterable[Json]) -> dict[str, Assignments]:
    """Who paid for namespaces by the checkpoints of budgets; the one that knows of the latest move counts."""
    found: dict[str, Assignments] = {}
    for item in budgets:
        for move in ((item.get("status") or {}).get("checkpoint") or {}).get("moves") or ():
            try:
                known = tuple((parse_instant(payer["from"]), str(payer["account"])) for payer in move["payers"])
                namespace = str(move["namespace"])
            except (TimeError, KeyError, TypeError):
                continue
            if known and (namespace not in found or known[-1] > found[namespace][-1]):
                found[namespace] = known
    return found
