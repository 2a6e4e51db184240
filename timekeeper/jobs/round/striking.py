"""Strikes the balance of money that expires: when a grant does, and at the end of each period.

All is computed as of that instant, whenever it comes to be done, and before the sessions are settled beyond it: so it
does not matter who watched then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.round.desk import Desk, raise_if_general
from timekeeper.metering.bill import Bill
from timekeeper.metering.segments import amounts, spans
from timekeeper.rules.periods import Period
from timekeeper.rules.pots import OWN, Pot, carried, lapsing, rolled_over
from timekeeper.rules.timestamps import format_instant
from timekeeper.store import reading
from timekeeper.store.ledger import Kind
from timekeeper.store.money import PotEntry, Strike, strike
from timekeeper.store.standing import Standing

SpentBy = Callable[[Account, Period, int], int]
"""What an account had spent in one of its periods by an instant."""

_log = structlog.get_logger()


def strike_due(desk: Desk, now: int, names: Iterable[str]) -> None:
    """Strikes what is due of these accounts, the earliest first.

    Raises:
        StoreError: the store does not answer, or shuts this term out.
    """
    accounts = [desk.books.accounts[name] for name in sorted(names)]
    spent_by = spending(desk, now)
    while accounts:
        due = [(account, due_strike(account, now, spent_by)) for account in accounts]
        strikes = [(account, change) for account, change in due if change is not None]
        if not strikes:
            return
        desk.step("strike")
        answers = strike(desk.client, desk.epoch, now, [change for _, change in strikes])
        accounts = []
        for (account, change), answer in zip(strikes, answers, strict=True):
            if isinstance(answer, Standing):
                take(account, change, answer)
                accounts.append(account)
            else:
                raise_if_general(answer)
                _log.error("balance not struck", account=account.name, period=change.period, error=str(answer))


def take(account: Account, change: Strike, answer: Standing) -> None:
    """Notes that the store holds it."""
    account.standings[change.period] = answer
    account.pots.setdefault(change.period, {}).update({entry.pot.name: entry.pot for entry in change.pots})


def due_strike(account: Account, now: int, spent_by: SpentBy) -> Strike | None:
    """The earliest thing that is due of an account: a grant that lapses, or what one period leaves to the next."""
    if account.budget.allowance is None:
        return None
    latest = account.periods[-len(account.standings) :]
    for period, following in zip_longest(latest, latest[1:]):
        if period.start not in account.standings:
            continue
        found = _lapse(account, period, now, spent_by)
        if found is None and following is not None and following.start in account.standings:
            found = _carry(account, period, following, spent_by)
        if found is not None:
            return found
    return None


def spending(desk: Desk, now: int) -> SpentBy:
    """What accounts had spent by an instant: to the last unit where reservations are billed.

    Where use is billed, nobody knows when it was used: what was settled last counts.
    """
    books = desk.books
    by_account: dict[str, list[Metered]] = {}

    def spent_by(account: Account, period: Period, instant: int) -> int:
        known = account.standings.get(period.start) or reading.standing(desk.client, account.name, period.start)
        settled = known.total if known is not None else 0
        if books.rules.bill is not Bill.RESERVED:
            return settled
        if not by_account:
            by_account.update(_sessions_by_account(books))
        sessions = by_account.get(account.name, ())
        return settled + sum(_since_settled(desk, metered, account, period, instant, now) for metered in sessions)

    return spent_by


def _since_settled(desk: Desk, metered: Metered, account: Account, period: Period, instant: int, now: int) -> int:
    """What a session has cost by an instant beyond what the store holds of it."""
    if period.end <= metered.acknowledged.settled_until:
        return 0
    session = metered.session
    assignments = desk.books.assignments[session.namespace]
    until = min(desk.until(metered, now), instant)
    stretches = spans(assignments, lambda name: (period,) if name == account.name else (), session.start, until)
    key = (account.name, period.start)
    return amounts(session.tariff, list(stretches)).get(key, 0) - metered.acknowledged.amount(key)


def _sessions_by_account(books: Books) -> dict[str, list[Metered]]:
    found: dict[str, list[Metered]] = {}
    for namespace in books.pods.sessions.namespaces():
        for name in {name for _, name in books.assignments.get(namespace, ())}:
            found.setdefault(name, []).extend(books.pods.sessions.of_namespace(namespace))
    return found


def _lapse(account: Account, period: Period, now: int, spent_by: SpentBy) -> Strike | None:
    pots = account.expiring(period)
    expired = [pot for pot in pots.values() if not pot.lapsed and pot.expires <= now and pot.expires < period.end]
    if not expired:
        return None
    first = min(expired, key=lambda pot: (pot.expires, pot.name))
    spent = spent_by(account, period, first.expires)
    pot = lapsing(account.own_money(period), pots, first.name, period.end, spent)
    return Strike(account.name, period.start, [PotEntry(pot, Kind.LAPSE, f"expired {format_instant(pot.expires)}")])


def _carry(account: Account, period: Period, following: Period, spent_by: SpentBy) -> Strike | None:
    """What a period leaves to the next; once more if what was spent in it was set right since.

    It is always of the allowance that it had, whatever the budget says by now.
    """
    struck = account.standings[following.start].struck
    if struck is not None and struck == account.standings[period.start].total:
        return None
    spent = spent_by(account, period, period.end)
    if spent == struck:
        return None
    allowance, rollover = terms = account.terms_before(following)
    own, pots = account.own_money(period, allowance), account.expiring(period)
    left = {pot.name: pot for pot in carried(own, pots, period.end, spent)}
    for name, known in account.expiring(following).items():
        if name in pots and not known.lapsed:
            left.setdefault(name, Pot(name, 0, known.expires))
    entries = [PotEntry(pot, Kind.CARRY, f"left of {format_instant(period.start)}") for pot in left.values()]
    before = account.pots.get(period.start, {}).get(OWN)
    lasting = allowance + (before.amount if before is not None else 0)
    rolled = rolled_over(rollover, own, pots.values(), period.end, spent, lasting)
    if rolled or OWN in account.pots.get(following.start, {}):
        note = f"rolled over from {format_instant(period.start)}"
        entries.append(PotEntry(Pot(OWN, rolled, following.end), Kind.CARRY, note))
    return Strike(account.name, following.start, entries, struck=spent, terms=terms)
