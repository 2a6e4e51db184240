"""Holds what is told of grants that outlive periods to the order in which money burns: what expires soonest goes first.

It is played through from one arrival of money to the next, and not by the rules that keep the books.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import Snapshot, whole
from timekeeper.audit.sums import difference

_NO_NAME = ""
"""Of what was rolled over, which expires with the period like its own money."""

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Purse:
    """Money with an expiry: what is left of it, in microGPU-seconds, and what was spent when it came."""

    name: str
    left: int
    rank: tuple[int, int, str]
    since: int
    expires: int
    lapsed: bool


def check_burning(snapshot: Snapshot, item: Json) -> Iterator[Difference]:
    """What a budget's status says is left of each grant that outlives its period.

    Args:
        snapshot: the period.
        item: the GPUBudget.
    """
    status = _mapping(item.get("status"))
    spent, available, granted = (_money(status, name) for name in ("spent", "available", "granted"))
    purses = _purses(snapshot)
    told = _told(status)
    pots = _list(_mapping(status.get("checkpoint")).get("pots"))
    known = {(pot.get("grant"), bool(pot.get("lapsed"))) for pot in pots if pot.get("grant")}
    if spent is None or purses is None or known != {(purse.name, purse.lapsed) for purse in purses}:
        return  # it was written before the last of them came or lapsed
    own = (granted or 0 if available is None else available) - sum(purse.left for purse in purses)
    expected = {name: left for name, left in burned(own, purses, snapshot.end or 0, spent).items() if left is not None}
    for name in sorted(told.keys() | expected.keys()):
        if told.get(name) != expected.get(name):
            stored, left = told.get(name, "nothing"), expected.get(name, "nothing")
            reason = "what was spent burns what expires soonest first"
            yield difference(snapshot, Figure.BURNED, f"status.expiring {name}", str(stored), str(left), reason)


def burned(own: int, purses: list[_Purse], end: int, spent: int) -> dict[str, int | None]:
    """What is left of each purse once so much is spent; None for one that has lapsed.

    Args:
        own: the period's own money, which expires at its end; less than nothing is owed.
        purses: money with an expiry of its own.
        end: the period's end, in nanoseconds since 1970.
        spent: what the period has spent.
    """
    mine = _Purse(_NO_NAME, max(own, 0), (end, 0, _NO_NAME), 0, end, lapsed=False)
    owed, here, gone = max(-own, 0), [mine], 0
    for coming in [*sorted(purses, key=lambda purse: (purse.since, purse.expires, purse.name)), None]:
        until = spent if coming is None else max(gone, min(coming.since, spent))
        wanted, gone = until - gone, until
        for purse in sorted(here, key=lambda purse: purse.rank):
            taken = min(purse.left, wanted)
            purse.left, wanted = purse.left - taken, wanted - taken
        owed += wanted
        if coming is not None:
            paid = min(owed, coming.left)
            coming.left, owed = coming.left - paid, owed - paid
            here.append(coming)
    return {purse.name: None if purse.lapsed else purse.left for purse in here if purse is not mine}


def _purses(snapshot: Snapshot) -> list[_Purse] | None:
    """The period's money with an expiry; None where it cannot be read."""
    found = []
    for name, text in snapshot.pots.items():
        amount, expires, since, flag, *_ = [*text.split(" "), "", "", "", ""]
        numbers = whole(amount), whole(expires), whole(since)
        if None in numbers:
            return None
        if name != _NO_NAME:
            left, until, came = (number or 0 for number in numbers)
            found.append(_Purse(name, left, (until, 1, name), came, until, flag == "l"))
    return found


def _money(status: Json, field: str) -> int | None:
    return whole(str(_mapping(status.get(field)).get("microGPUSeconds")))


def _told(status: Json) -> dict[str, int | None]:
    rows = _list(status.get("expiring"))
    return {str(row.get("grant")): whole(str(row.get("microGPUSeconds"))) for row in rows}


def _list(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
