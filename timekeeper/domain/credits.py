"""Credits: grants that outlive periods, and the order in which spending uses them up.

A grant that states when it expires is a credit. Spending always burns the available credit that expires first. A
period's own money expires with the period: its allowance, grants without an expiry, and what was rolled over into it.
Spending that finds no money left is a debt, which the next money to arrive pays first.

The remainder of a credit therefore depends on the amount that had been spent when the credit arrived. A credit's
arrival is recorded as that amount, and not as an instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from timekeeper.domain.timestamps import Instant

OWN = ""
"""The name of the period's own money; no grant can have it."""


@dataclass(frozen=True, slots=True)
class Credit:
    """One period's share of a grant that outlives periods. Amounts are microGPU-seconds.

    Attributes:
        name: the grant's name.
        amount: the money that it brought into the period; once it has expired, the part that was spent.
        expires: the instant at which it expires.
        since: the amount that the period had spent when the grant arrived; 0 if the period began with it.
        expired: whether it has expired within the period.
    """

    name: str
    amount: int
    expires: Instant
    since: int = 0
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Burned:
    """The unspent money of a period. Amounts are microGPU-seconds.

    Attributes:
        own: the unspent part of the money that ends with the period.
        credits: the unspent part of each credit, keyed by name.
        debt: the spending that no money paid for.
    """

    own: int
    credits: Mapping[str, int]
    debt: int


def burn(own: int, period_credits: Iterable[Credit], end: Instant, spent: int) -> Burned:
    """Returns the unspent money of a period. Amounts are microGPU-seconds.

    Spending uses up first the money that expires first. Of two credits that expire at once, the one whose name sorts
    first is used up first. A credit that expires at the period's end is used up after the money that ends with the
    period.

    Args:
        own: the money that ends with the period: its allowance, grants without an expiry, and what was rolled over into
            it; below 0 it is a debt from the start.
        period_credits: the period's credits. Of an expired credit, only the part that was spent counts.
        end: the period's end.
        spent: the amount that was spent in the period; below 0 it adds to `own`.
    """
    own, spent = own - min(spent, 0), max(spent, 0)
    arriving = sorted(period_credits, key=lambda credit: (credit.since, credit.expires, credit.name))
    order = [
        credit.name
        for credit in sorted(arriving, key=lambda credit: (credit.expires, credit.name))
        if credit.expires < end
    ]
    order += [OWN]
    order += [
        credit.name
        for credit in sorted(arriving, key=lambda credit: (credit.expires, credit.name))
        if credit.expires >= end
    ]
    left, debt, burned = {OWN: max(own, 0)}, max(-own, 0), 0
    for credit in arriving:
        until = max(burned, min(credit.since, spent))
        debt += _take(left, order, until - burned)
        burned = until
        paid = min(debt, credit.amount)
        left[credit.name], debt = credit.amount - paid, debt - paid
    debt += _take(left, order, spent - burned)
    return Burned(left.pop(OWN), left, debt)


def expiring(own: int, period_credits: Mapping[str, Credit], name: str, end: Instant, spent: int) -> Credit:
    """Returns a credit as it is after its expiry within a period: it keeps the part that was spent and loses the rest.

    Amounts are microGPU-seconds.

    Args:
        own: the money that ends with the period.
        period_credits: the period's credits, keyed by name. Those that expired earlier have `expired` set, so that only
            their spent part counts.
        name: the name of the credit that expires.
        end: the period's end.
        spent: the amount that the period had spent when the credit expired.
    """
    left = burn(own, period_credits.values(), end, spent).credits[name]
    credit = period_credits[name]
    return Credit(name, credit.amount - left, credit.expires, credit.since, expired=True)


def carried(own: int, period_credits: Mapping[str, Credit], end: Instant, spent: int) -> Sequence[Credit]:
    """Returns the credits that the next period begins with, each with the amount that is left of it.

    Spending uses up money in the order that `burn` states: what expires first is used first. Credits that expire by the
    end of the ending period, and credits that are used up, are left out. Amounts are microGPU-seconds.

    Args:
        own: the money that ends with the ending period.
        period_credits: the ending period's credits, keyed by name.
        end: the period's end.
        spent: the amount that was spent in the period.
    """
    left = burn(own, period_credits.values(), end, spent).credits
    return [
        Credit(name, left[name], credit.expires)
        for name, credit in sorted(period_credits.items())
        if credit.expires > end and not credit.expired and left[name] > 0
    ]


def rolled_over(cap: int, own: int, period_credits: Iterable[Credit], end: Instant, spent: int, lasting: int) -> int:
    """Returns the amount of a period's own money that rolls over into the next one. Amounts are microGPU-seconds.

    Args:
        cap: the most that may be rolled over.
        own: the money that ends with the ending period.
        period_credits: the ending period's credits.
        end: the period's end.
        spent: the amount that was spent in the period.
        lasting: the part of `own` that may roll over: the allowance, and what was rolled over into the period. Grants
            without an expiry end with their period, so they are used up first.
    """
    return max(0, min(cap, lasting, burn(own, period_credits, end, spent).own))


def _take(left: dict[str, int], order: Sequence[str], amount: int) -> int:
    """Subtracts an amount from the money in `left`, in the order of the names; returns the part that no money paid for.

    Amounts are microGPU-seconds. `left` is keyed by the credit's name, and is changed.
    """
    for name in order:
        burned = min(left.get(name, 0), amount)
        if burned > 0:
            left[name] -= burned
            amount -= burned
    return amount
