"""What the pods that were let in may still spend from accounts whose admission is safe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from timekeeper.jobs.books import Books
from timekeeper.metering.pods import PodFacts
from timekeeper.metering.reservations import rate_at
from timekeeper.metering.segments import rate_now
from timekeeper.rules.commitments import commitment
from timekeeper.rules.state import Admission


def committed(books: Books, names: Iterable[str], now: int) -> dict[str, int]:
    """For each account with safe admission, the sum of its pods' commitments, in microGPU-seconds.

    Running pods count as far as they still may run. Pods that were let in and wait for a node count whole: the money
    was promised to them. Gated ones were promised nothing, and neither were those that came in as over budget.
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
    for facts in _waiting(books):
        name = books.account_of(facts.namespace)
        if name in sums:
            sums[name] += commitment_of(books, facts, now)
    return sums


def commitment_of(books: Books, facts: PodFacts, now: int) -> int:
    """What a pod that has not begun yet may spend, at the dearest price: nobody knows its devices."""
    if facts.reservation is None:
        return 0
    rate = rate_at(facts.reservation, books.prices, now, books.rules.charge)
    budget = books.accounts[books.account_of(facts.namespace)].budget
    return commitment(rate, facts.deadline, 0, budget.default_commit)


def _waiting(books: Books) -> Iterator[PodFacts]:
    for facts in books.pods.facts.values():
        if not (facts.bound or facts.terminal or facts.gated or facts.came_over):
            yield facts
