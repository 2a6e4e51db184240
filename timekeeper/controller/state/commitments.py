"""Commitments: the amounts that admitted pods may still spend, which safe admission reserves.

The rule is Slurm's. With AccountingStorageEnforce=safe, Slurm starts a job only if the account's limit of GPU time
suffices for the job's whole run (https://slurm.schedmd.com/resource_limits.html). A job's time limit corresponds to a
pod's activeDeadlineSeconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from timekeeper.controller.state.books import Books
from timekeeper.domain.charges import cost, rate_now
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.reservations import rate_at
from timekeeper.domain.state import Admission
from timekeeper.domain.timestamps import Instant


def left_to_run(deadline: int | None, ran: int, default: int) -> int:
    """Returns the time that a pod may still run, in nanoseconds.

    Args:
        deadline: the pod's activeDeadlineSeconds in nanoseconds; None if it has none.
        ran: how long it has run, in nanoseconds; 0 while it waits.
        default: the time that a pod without a deadline is assumed to run from now on, in nanoseconds, however long it
            has run.
    """
    return default if deadline is None else max(deadline - ran, 0)


def commitment(rate: int, deadline: int | None, ran: int, default: int) -> int:
    """Returns the amount that a pod may still spend, in microGPU-seconds.

    Args:
        rate: the pod's rate, in microGPU-seconds a second.
        deadline: its activeDeadlineSeconds in nanoseconds; None if it has none.
        ran: how long it has run, in nanoseconds; 0 while it waits.
        default: the time that a pod without a deadline is assumed to run from now on, in nanoseconds.
    """
    return cost(rate, left_to_run(deadline, ran, default))


def committed(books: Books, names: Iterable[str], now: Instant) -> dict[str, int]:
    """Returns the microGPU-seconds that admitted pods may still spend, for each account with safe admission.

    Safe admission admits a pod only if the budget's money pays for its whole run. A running pod counts for the time
    that it may still run. An admitted pod that waits for a node counts in full, but only for the budget's
    `pending_commit`: a pod that fits no node must not reserve money for ever. A pod that waits behind a scheduling gate
    does not count, nor does a waiting pod that was admitted over budget.

    Args:
        names: the accounts; those without safe admission are left out.
    """
    sums = {name: 0 for name in names if books.accounts[name].budget.admission is Admission.SAFE}
    if not sums:
        return sums
    for metered in books.sessions_under(sums):
        session, name = metered.session, books.account_of(metered.session.namespace)
        if name in sums and session.end is None:
            facts = books.pods.facts.get(session.uid)
            deadline = None if facts is None else facts.deadline
            default = books.accounts[name].budget.default_commit
            sums[name] += commitment(rate_now(session.tariff, now), deadline, now - session.start, default)
    for facts in books.pods.facts.values():
        name = books.account_of(facts.namespace)
        if name in sums and _promised(facts) and not _is_overdue(books, facts, now):
            sums[name] += commitment_of(books, facts, now)
    return sums


def overdue(books: Books, names: Iterable[str], now: Instant) -> dict[str, int]:
    """Returns the number of pods that have waited for a node for longer than their budget's `pending_commit`.

    Safe admission keeps no money for such pods any more.

    Args:
        names: the accounts; those without safe admission are left out.

    Returns:
        Keyed by account, the number of such pods.
    """
    counts = {name: 0 for name in names if books.accounts[name].budget.admission is Admission.SAFE}
    for facts in books.pods.facts.values() if counts else ():
        name = books.account_of(facts.namespace)
        if name in counts and _promised(facts) and _is_overdue(books, facts, now):
            counts[name] += 1
    return counts


def queued(books: Books, names: Iterable[str], now: Instant) -> dict[str, int]:
    """Returns the microGPU-seconds that pods behind the scheduling gate need, for each account with safe admission.

    These pods precede new ones. A pod that costs more than a whole period's money waits for a grant, and is not
    counted. The result is 0 for a budget without a limit.

    Args:
        names: the accounts; those without safe admission are left out.
    """
    sums = {name: 0 for name in names if books.accounts[name].budget.admission is Admission.SAFE}
    if not sums:
        return sums
    for facts in books.pods.facts.values():
        name = books.account_of(facts.namespace)
        if name in sums and _waits(facts) and facts.gated:
            account = books.accounts[name]
            available = account.budget.limits(account.period_totals[account.present(now).start].granted).available
            needed = commitment_of(books, facts, now)
            sums[name] += needed if available is not None and needed <= available else 0
    return sums


def commitment_of(books: Books, facts: PodFacts, now: Instant) -> int:
    """Returns the amount that a pod which has no devices yet may spend in its whole run, in microGPU-seconds.

    Its devices are not chosen yet, so the dearest price that may apply counts.

    Args:
        books: the leader's state, with the prices and the budget that pays.
        facts: the pod; without a reservation it spends 0.
        now: the instant of the prices.
    """
    if facts.reservation is None:
        return 0
    rate = rate_at(facts.reservation, books.prices, now, books.rules.charge)
    budget = books.accounts[books.account_of(facts.namespace)].budget
    return commitment(rate, facts.deadline, 0, budget.default_commit)


def _promised(facts: PodFacts) -> bool:
    return facts.reservation is not None and _waits(facts) and not facts.gated and not facts.admitted_over_budget


def _is_overdue(books: Books, facts: PodFacts, now: Instant) -> bool:
    since = books.pods.ungated_at.get(facts.uid, facts.created)
    return now - since >= books.accounts[books.account_of(facts.namespace)].budget.pending_commit


def _waits(facts: PodFacts) -> bool:
    """Whether a pod waits for a node or behind FairGPU's own scheduling gate.

    False for a pod that is bound, has ended, or is behind another controller's gate, where it may wait for weeks.
    """
    return not facts.bound and not facts.terminal and not facts.gated_elsewhere
