"""Assigns namespaces to payers, opens periods and closes balances, before the sessions of a reconciliation are settled.

It also computes the instants at which coming periods may begin: reports from before and after such an instant are kept
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any

import structlog

from timekeeper.controller.reconcile.context import ReconcileContext, checked, raise_if_general
from timekeeper.controller.state.accounts import Account, Restored, reassigned
from timekeeper.controller.state.books import Books, due_openings
from timekeeper.controller.state.sessions import MeteredSession
from timekeeper.domain.budgets import parse_budget, payers
from timekeeper.domain.charges import charged
from timekeeper.domain.credits import OWN, Credit, carried, expiring, rolled_over
from timekeeper.domain.periods import Period, PeriodRule, boundary_after
from timekeeper.domain.pricing import FOREVER, Bill
from timekeeper.domain.reports import QUARTER, Marks
from timekeeper.domain.timestamps import Instant, format_instant
from timekeeper.ledger import reading, shared
from timekeeper.ledger.client import StoreError, isolate_failures
from timekeeper.ledger.reports import close_and_read
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import ClosingBalance, CreditEntry, Kind, close_balances, open_periods


def assign(context: ReconcileContext, now: Instant) -> set[str]:
    """Assigns each namespace to the account that pays for it from now on, in the store and in memory.

    The store holds an assignment before any session is charged according to it. The assignment of a namespace stays as
    it is while its stored payers, or the budget that pays, cannot be read.

    Args:
        context: the leader's state, the store and the clocks.

    Returns:
        The accounts whose namespaces or budget changed, and new accounts.

    Raises:
        StoreError: the store refused a write, or does not answer.
        redis.RedisError: the store does not answer.
    """
    books = context.books
    budgets = tuple(books.budgets.budgets.values())
    if budgets != books.paying:
        books.payers, books.conflicts = payers(budgets)
        books.paying = budgets
    sessions = books.pods.sessions
    metered = sessions.namespaces() | books.pods.namespaces
    moved_payers = reassigned(books.assignments, books.payers, metered, now, context.perhaps_past(now))
    changed = {namespace: known for namespace, known in moved_payers.items() if not _is_undecided(books, namespace)}
    again = {name: books.assignments[name] for name in books.unanswered & books.assignments.keys() - changed.keys()}
    kept = books.budgets.not_stored()
    ruled = _open_by_last_rules(context, now, kept)
    _mark_reports(context, now, {name for name, known in changed.items() if len(known) > 1}, ruled)
    shared.write_budgets(context.client, context.fencing_token, kept)
    books.budgets.stored.update(kept)
    books.unanswered |= changed.keys()
    shared.write_assignments(context.client, context.fencing_token, {**again, **changed})
    books.unanswered.clear()
    books.assignments.update(changed)
    before = set(books.accounts)
    books.ensure_accounts(books.budgets.budgets)
    books.ensure_accounts(account for known in changed.values() for _, account in known)
    books.ensure_accounts(map(books.payer_named, books.payers_unreadable))
    shared.write_accounts(context.client, context.fencing_token, sorted(books.accounts.keys() - before))
    moved = {account for known in changed.values() for _, account in known[-2:]}
    return moved | books.refresh_budgets() | (books.accounts.keys() - before)


def _open_by_last_rules(context: ReconcileContext, now: Instant, kept: dict[str, Json]) -> set[str]:
    """Opens, by their old rules, the due periods of accounts whose rule for periods has changed.

    A changed rule holds from the next period on, because reports in earlier periods were separated by the old rule.

    Args:
        kept: keyed by name, the valid budgets that the store does not hold yet. A budget whose period the store refuses
            is taken out, and keeps its old rule until a later reconciliation.

    Returns:
        The accounts whose rule has changed.
    """
    books, changed = context.books, set[str]()
    for name in kept.keys() & books.budgets.stored.keys() & books.accounts.keys():
        rule, account = parse_budget(books.budgets.stored[name]).period, books.accounts[name]
        if account.periods and rule != parse_budget(kept[name]).period:
            account.budget = replace(account.budget, period=rule)
            changed.add(name)
    for name in isolate_failures(changed, lambda names: open_due_periods(context, now, names)):
        del kept[name]
    return changed


def _mark_reports(context: ReconcileContext, now: Instant, moved: set[str], ruled: set[str]) -> None:
    """Makes the store keep reports from before and after an instant apart, for instants at which a segment may begin.

    A segment of a session begins with another period or another payer. The reports of running sessions are then kept
    apart even if this leader ends before it settles.

    Args:
        context: the reconciliation's store and state.
        moved: the namespaces that another account pays for from now on.
        ruled: the accounts whose coming periods another rule sets.
    """
    if not moved and not ruled:
        return
    books, wanted = context.books, list[tuple[str, Marks]]()
    for namespace in moved | {name for name in books.assignments if books.account_of(name) in ruled}:
        payer = books.payer_named(namespace)
        rule = (books.payers.get(namespace) or books.rules.template).period
        period = books.accounts[payer].period_at(now) if payer in books.accounts else None
        phases = _phases_after(rule, boundary_after(rule, now) if period is None else period.end)
        marks = Marks(context.surely_past(now) if namespace in moved else 0, 0, phases)
        running = [each for each in books.pods.sessions.of_namespaces([namespace]) if each.session.end is None]
        for each, until in zip(running, context.charged_until(running, now), strict=True):
            known, _ = _phases_to_come(books, namespace, _final_until(each, until))
            wanted.append((each.session.uid, marks._replace(phases=tuple(sorted({*phases, *known})))))
    if wanted:
        close_and_read(context.client, context.fencing_token, wanted)


def coming_phases(books: Books, cases: Iterable[tuple[MeteredSession, int]]) -> list[tuple[int, ...]]:
    """Returns for each session the nanoseconds after a full quarter of an hour at which its coming periods start.

    Coming periods are those after the instant up to which the session's own periods are final. A session on a silent
    node may still be in a period that other sessions have left, and its reports must be kept apart at the end of that
    period.

    Args:
        books: the leader's state.
        cases: the sessions, each with the instant after which periods are coming, in nanoseconds since 1970.
    """
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    phases = list[tuple[int, ...]]()
    for metered, until in cases:
        at = metered.session.namespace, _final_until(metered, until)
        if at not in found:
            found[at] = _phases_of(books, *at)
        phases.append(found[at])
    return phases


def _phases_of(books: Books, namespace: str, since: Instant) -> tuple[int, ...]:
    payer = books.accounts[books.assignments[namespace][-1][1]]
    known, coming = _phases_to_come(books, namespace, since)
    following = _phases_after(payer.budget.period, coming[-1].end) if coming else (0,)
    return tuple(sorted({*known, *following}))


@lru_cache(maxsize=4096)
def _phases_after(rule: PeriodRule, end: Instant) -> tuple[int, ...]:
    """Returns the nanoseconds after a full quarter of an hour at which a period and the period after it end.

    The two may differ: a changed rule holds from the next period on.

    Args:
        rule: the rule for the budget's periods.
        end: the end of the first period.

    Returns:
        One number if both are equal, otherwise both, sorted.
    """
    return tuple(sorted({end % QUARTER, boundary_after(rule, end) % QUARTER}))


def _final_until(metered: MeteredSession, until: Instant) -> Instant:
    """Returns the instant up to which a session's periods are final.

    The caller keeps the session's reports apart at the end of each later period.

    Args:
        until: the instant up to which it is charged. On a silent node the session may be settled further than that.
    """
    return max(metered.session.start, min(until, metered.acknowledged.settled_until))


def _phases_to_come(books: Books, namespace: str, since: Instant) -> tuple[set[int], Sequence[Period]]:
    """Returns the nanoseconds after a full quarter of an hour at which a session may enter another segment.

    These are the ends of the open periods of each account that has paid for its namespace since an instant, and the
    changes of payer since then. Reports are kept apart at these instants until all the segments are settled: the store
    may refuse a settlement, and a leader may end before it settles.

    Args:
        books: the leader's state.
        namespace: the session's namespace.
        since: the instant up to which the session's periods are final.

    Returns:
        These nanoseconds; then the open periods, of the account that pays for the namespace now, that end after
            `since`.
    """
    assigned, found = books.assignments[namespace], set[int]()
    ends = [begun for begun, _ in assigned[1:]] + [FOREVER]
    coming: Sequence[Period] = ()
    for (begun, name), end in zip(assigned, ends, strict=True):
        if begun > since:
            found.add(begun % QUARTER)
        coming = books.accounts[name].periods_after(since) if end > since and name in books.accounts else ()
        found.update([period.end % QUARTER for period in coming])
    return found, coming


def _is_undecided(books: Books, namespace: str) -> bool:
    """Whether the payer of a namespace is unknown: its stored payers, or the budget that pays, cannot be read."""
    payer = books.account_of(namespace)
    lost = payer in books.budgets.objects and payer in books.budgets.unknown() and payer not in books.budgets.budgets
    return namespace in books.payers_unreadable or lost


def open_due_periods(context: ReconcileContext, now: Instant, names: Iterable[str]) -> None:
    """Opens in the ledger the periods of these accounts that have begun by `now`.

    Raises:
        StoreError: the store refused a period. The periods that it opened are in memory; the next call opens the rest.
    """
    openings = due_openings(context.books, names, now)
    if not openings:
        return
    shared.note_restored(
        context.client, context.fencing_token, [opening.account for *_, opening in openings if opening.checkpoint]
    )
    answers = open_periods(context.client, context.fencing_token, now, [opening for _, _, opening in openings])
    refused: dict[str, StoreError] = {}
    opened = []
    for due, answer in zip(openings, answers, strict=True):
        account, period, opening = due
        if isinstance(answer, StoreError):
            refused.setdefault(account.name, answer)
        elif account.name not in refused:
            if answer.new and opening.version:
                account.restoring = 0  # the script has noted that
            account.period_totals[period.start] = answer
            account.periods.append(period)
            opened.append(due)
    restore_credits(context, now, [account for account, period, _ in opened if _is_described(account, period)])
    for error in refused.values():
        raise error


def _is_described(account: Account, period: Period) -> bool:
    return account.checkpoint is not None and account.checkpoint.period.start == period.start


def restore_credits(context: ReconcileContext, now: Instant, accounts: Iterable[Account]) -> None:
    """Restores the credits of each account from its checkpoint, in the period that the checkpoint describes.

    Accounts without a checkpoint stay as they are.

    Raises:
        StoreError: the store refused the change, or does not answer.
    """
    balances = []
    for account in accounts:
        known = account.checkpoint
        if known is not None and (known.credits or known.previous_spent is not None):
            entries = [CreditEntry(credit, Kind.CARRY, "the store had been lost") for credit in known.credits]
            balances.append((account, ClosingBalance(account.name, known.period.start, entries, known.previous_spent)))
    answers = close_balances(context.client, context.fencing_token, now, [change for _, change in balances])
    for (account, change), answer in zip(balances, answers, strict=True):
        take(account, change, checked(answer))
        if account.period_before(change.period) is not None and change.previous_spent is not None:
            corrected = None if account.checkpoint is None else account.checkpoint.previous_corrected
            account.restored = Restored(change.period, change.previous_spent, corrected)


Json = dict[str, Any]
SpentBy = Callable[[Account, Period, int], int]
"""A function of an account, one of its periods and an instant: the microGPU-seconds spent in the period by that
instant.
"""
GrantedAfter = Callable[[Account, Period, Instant], int]
"""A function of an account, one of its periods and an instant: the microGPU-seconds of the period's grants that end
with it and were made after the instant.
"""

_log = structlog.get_logger()


def close_due_balances(context: ReconcileContext, now: Instant, names: Iterable[str]) -> None:
    """Closes the balances of ended periods of these accounts and expires their due credits, the earliest first.

    If the store refuses a closing balance, that is logged, and its account gets no further one in this call.

    Raises:
        StoreError: the store does not answer, was emptied, or refuses this leader's term.
        redis.RedisError: the store does not answer.
    """
    accounts = [context.books.accounts[name] for name in sorted(names)]
    spent_by, granted_after = spending(context, now), partial(_granted_after, context.books)
    while accounts:
        due = [(account, due_closing(account, now, spent_by, granted_after)) for account in accounts]
        balances = [(account, change) for account, change in due if change is not None]
        if not balances:
            return
        answers = close_balances(context.client, context.fencing_token, now, [change for _, change in balances])
        accounts = []
        for (account, change), answer in zip(balances, answers, strict=True):
            if isinstance(answer, PeriodTotals):
                take(account, change, answer)
                accounts.append(account)
            else:
                raise_if_general(answer)
                _log.error("closing balance refused", account=account.name, period=change.period, error=str(answer))


def take(account: Account, change: ClosingBalance, answer: PeriodTotals) -> None:
    """Updates an account in memory after the store accepted a closing balance: the totals and credits of a period.

    Args:
        change: the closing balance that was sent.
        answer: the totals of its period after the change, as the store answered them.
    """
    account.period_totals[change.period] = answer
    account.credits.setdefault(change.period, {}).update({entry.credit.name: entry.credit for entry in change.credits})


def due_closing(
    account: Account, now: Instant, spent_by: SpentBy, granted_after: GrantedAfter
) -> ClosingBalance | None:
    """Returns an account's earliest closing balance that is due: it expires a credit or carries money over.

    The result is None if no closing balance is due, or if the budget has no allowance.

    If a clock was ahead, a period may have been opened before the preceding one ended. The balance of the preceding
    period is then carried over again when that period has ended.

    Args:
        spent_by: returns the amount that an account had spent in a period by an instant.
        granted_after: returns the amount of the period's grants that were made after an instant.
    """
    if account.budget.allowance is None:
        return None
    latest = account.periods[-len(account.period_totals) :]
    for period, following in zip_longest(latest, latest[1:]):
        if period.start not in account.period_totals or _is_incomplete(account, period):
            continue
        closing = _expire(account, period, now, spent_by, granted_after)
        is_next_read = following is not None and following.start in account.period_totals
        if closing is None and following is not None and is_next_read and period.end <= now:
            closing = _carry(account, period, following, spent_by)
        if closing is not None:
            return closing
    return None


def _is_incomplete(account: Account, period: Period) -> bool:
    """Whether a period still lacks spending that the checkpoint of the period after it has."""
    return account.restored is not None and account.restored.start == period.end


def spending(context: ReconcileContext, now: Instant) -> SpentBy:
    """Returns a function that computes the amount that an account had spent in a period by an instant.

    The function's arguments are the account, the period and the instant (nanoseconds since 1970). Its result is in
    microGPU-seconds. For an instant before the period's end, corrections that were made after the instant do not count.
    The result is exact if reservations are billed. If usage is billed, the result is the amount at the last settlement,
    since reports do not state when usage happened.
    """
    books = context.books
    by_account: dict[str, list[MeteredSession]] = {}

    def spent_by(account: Account, period: Period, instant: int) -> int:
        known = account.period_totals.get(period.start) or reading.period_totals(
            context.client, account.name, period.start
        )
        settled = known.total if known is not None else 0
        if instant < period.end:  # a correction that is made after the period's end changes what is carried over
            settled -= _corrected_after(books, account, period, instant)
        if books.rules.bill is not Bill.RESERVED:
            return settled
        if not by_account:
            by_account.update(_sessions_by_account(books))
        sessions = [each for each in by_account.get(account.name, ()) if _is_unsettled(each, period)]
        instants = [min(until, instant) for until in context.charged_until(sessions, now)]
        return settled + sum(map(partial(_since_settled, books, account, period), sessions, instants))

    return spent_by


def _corrected_after(books: Books, account: Account, period: Period, instant: Instant) -> int:
    """Returns the sum of the corrections of a period that were made after an instant and that the store holds.

    The result is in microGPU-seconds. Corrections whose objects are deleted are left out.
    """
    made = [each for each in books.budgets.corrections.values() if each.budget == account.name]
    later = [account.corrections.get(each.name) for each in made if each.created > instant]
    return sum(entry.amount for entry in later if entry is not None and entry.period == period.start)


def _is_unsettled(metered: MeteredSession, period: Period) -> bool:
    """Whether a session's amount in a period may still grow."""
    return not metered.acknowledged.closed and period.end > metered.acknowledged.settled_until


def _since_settled(books: Books, account: Account, period: Period, metered: MeteredSession, until: int) -> int:
    """Returns the cost of a session's reservation in one period up to `until`, less the session's stored amount there.

    The result is in microGPU-seconds, and below 0 if the store holds an amount up to an instant after `until`, which is
    in nanoseconds since 1970.
    """
    session, key = metered.session, (account.name, period.start)
    payers = books.assignments[session.namespace]

    def only(name: str) -> tuple[Period, ...]:
        return (period,) if name == account.name else ()

    return charged(session.tariff, payers, only, session.start, until)[1].get(key, 0) - metered.acknowledged.amount(key)


def _sessions_by_account(books: Books) -> dict[str, list[MeteredSession]]:
    by_account: dict[str, list[MeteredSession]] = {}
    for namespace in books.pods.sessions.namespaces():
        for name in {name for _, name in books.assignments.get(namespace, ())}:
            by_account.setdefault(name, []).extend(books.pods.sessions.of_namespaces([namespace]))
    return by_account


def _granted_after(books: Books, account: Account, period: Period, instant: Instant) -> int:
    """Returns the amount of a period's grants that end with it and were made after an instant, in microGPU-seconds.

    A leader that was away reads such a grant before it expires a credit, and the credit expires as if it had not come.
    """
    made_later = {
        grant.name
        for grant in books.budgets.grants.values()
        if grant.budget == account.name and grant.expires is None and grant.created > instant
    }
    orders = [order for name, order in account.grants.items() if name in made_later]
    return sum(order.amount for order in orders if order is not None and order.period == period.start)


def _expire(
    account: Account, period: Period, now: Instant, spent_by: SpentBy, granted_after: GrantedAfter
) -> ClosingBalance | None:
    period_credits = account.expiring(period)
    expired = [
        credit
        for credit in period_credits.values()
        if not credit.expired and credit.expires <= now and credit.expires < period.end
    ]
    if not expired:
        return None
    first = min(expired, key=lambda credit: (credit.expires, credit.name))
    spent = spent_by(account, period, first.expires)
    own = account.own_money(period) - granted_after(account, period, first.expires)
    credit = expiring(own, period_credits, first.name, period.end, spent)
    return ClosingBalance(
        account.name, period.start, [CreditEntry(credit, Kind.EXPIRY, f"expired {format_instant(credit.expires)}")]
    )


def _carry(account: Account, period: Period, following: Period, spent_by: SpentBy) -> ClosingBalance | None:
    """Returns the closing balance that carries a period's money over to the following one; None if none is due.

    A closing balance is due once, and again if a correction has changed the amount that the period had spent. The
    period's own allowance counts, not the budget's present one.

    Args:
        spent_by: returns the amount that an account had spent in a period by an instant.
    """
    previous_spent = account.period_totals[following.start].previous_spent
    if previous_spent is not None and previous_spent == account.period_totals[period.start].total:
        return None
    spent = spent_by(account, period, period.end)
    if spent == previous_spent:
        return None
    allowance, rollover = terms = account.terms_before(following)
    own, period_credits = account.own_money(period, allowance), account.expiring(period)
    there = account.expiring(following)
    expired = {name for name, known in there.items() if known.expired}  # the store changes these no more
    left = {each.name: each for each in carried(own, period_credits, period.end, spent) if each.name not in expired}
    for name in sorted((there.keys() & period_credits.keys()) - expired):
        left.setdefault(name, Credit(name, 0, there[name].expires))
    entries = [CreditEntry(credit, Kind.CARRY, f"left of {format_instant(period.start)}") for credit in left.values()]
    before = account.credits.get(period.start, {}).get(OWN)
    lasting = allowance + (before.amount if before is not None else 0)
    rolled = rolled_over(rollover, own, period_credits.values(), period.end, spent, lasting)
    if rolled or OWN in account.credits.get(following.start, {}):
        note = f"rolled over from {format_instant(period.start)}"
        entries.append(CreditEntry(Credit(OWN, rolled, following.end), Kind.CARRY, note))
    return ClosingBalance(account.name, following.start, entries, previous_spent=spent, terms=terms)
