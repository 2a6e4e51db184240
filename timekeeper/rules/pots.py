"""Money that outlives a period, and in which order spending burns it.

Each grant that states when it expires is a pot. At every moment spending burns the pot that expires soonest among
those that are there; the period's own money (allowance, grants that lapse with it, what was rolled over) expires with
the period. Spending that finds every pot empty is a debt, which the next money to come pays first.

What a pot has left therefore depends on how much was spent when, and on nothing else; the instants at which money comes
are told as how much the period had spent by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OWN = ""
"""The name of the period's own money; no grant can be called so."""


@dataclass(frozen=True, slots=True)
class Pot:
    """A grant that outlives periods, within one of them. Amounts are microGPU-seconds.

    Attributes:
        name: the grant's.
        amount: what it brought into the period; what was burned of it once it has lapsed.
        expires: when it expires, in nanoseconds since 1970.
        since: what the period had spent when the grant came; 0 where the period began with it.
        lapsed: whether it has expired within the period.
    """

    name: str
    amount: int
    expires: int
    since: int = 0
    lapsed: bool = False


@dataclass(frozen=True, slots=True)
class Burned:
    """What spending has left: of the period's own money, of each pot by name, and what nothing was there to pay for."""

    own: int
    pots: Mapping[str, int]
    debt: int


def burn(own: int, pots: Iterable[Pot], end: int, spent: int) -> Burned:
    """What is left of a period's money.

    Args:
        own: the period's own money; a negative one is a debt from the start.
        pots: what came with an expiry. A lapsed one holds no more than was burned of it.
        end: the period's end, when its own money expires.
        spent: what was spent in the period; below 0 it is money beside its own.

    Of two pots that expire at once, the first by name burns first; one that expires at the period's end, after the
    period's own money.
    """
    own, spent = own - min(spent, 0), max(spent, 0)
    arriving = sorted(pots, key=lambda pot: (pot.since, pot.expires, pot.name))
    order = [pot.name for pot in sorted(arriving, key=lambda pot: (pot.expires, pot.name)) if pot.expires < end]
    order += [OWN]
    order += [pot.name for pot in sorted(arriving, key=lambda pot: (pot.expires, pot.name)) if pot.expires >= end]
    left, debt, burned = {OWN: max(own, 0)}, max(-own, 0), 0
    for pot in arriving:
        until = max(burned, min(pot.since, spent))
        debt += _take(left, order, until - burned)
        burned = until
        paid = min(debt, pot.amount)
        left[pot.name], debt = pot.amount - paid, debt - paid
    debt += _take(left, order, spent - burned)
    return Burned(left.pop(OWN), left, debt)


def lapsing(own: int, pots: Mapping[str, Pot], name: str, end: int, spent: int) -> Pot:
    """A pot once it has expired within a period: what was burned of it stays, the rest is gone.

    Args:
        own: the period's own money.
        pots: the period's pots, those lapsed that expired before.
        name: which one expires.
        end: the period's end.
        spent: what the period had spent when it expired.
    """
    left = burn(own, pots.values(), end, spent).pots[name]
    pot = pots[name]
    return Pot(name, pot.amount - left, pot.expires, pot.since, lapsed=True)


def carried(own: int, pots: Mapping[str, Pot], end: int, spent: int) -> Sequence[Pot]:
    """The pots that the next period begins with: what is left of those that expire after this one's end.

    Args:
        own: the ending period's own money.
        pots: its pots.
        end: its end.
        spent: what was spent in it.
    """
    left = burn(own, pots.values(), end, spent).pots
    return [
        Pot(name, left[name], pot.expires)
        for name, pot in sorted(pots.items())
        if pot.expires > end and not pot.lapsed and left[name] > 0
    ]


def rolled_over(cap: int, own: int, pots: Iterable[Pot], end: int, spent: int, lasting: int) -> int:
    """How much of a period's own money the next one begins with.

    Args:
        cap: the most that may be rolled over.
        own: the ending period's own money.
        pots: its pots.
        end: its end.
        spent: what was spent in it.
        lasting: the part of its own money that may be: allowance and what was rolled over into it. Grants lapse with
            their period, so that they burn before it.
    """
    return max(0, min(cap, lasting, burn(own, pots, end, spent).own))


def _take(left: dict[str, int], order: Sequence[str], amount: int) -> int:
    """Burns an amount, soonest expiry first; what nothing was there to pay for."""
    for name in order:
        taken = min(left.get(name, 0), amount)
        if taken > 0:
            left[name] -= taken
            amount -= taken
    return amount
