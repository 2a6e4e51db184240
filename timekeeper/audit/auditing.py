"""One audit: every account's period is read, recomputed and compared; what may lag behind is looked at twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import redis

from timekeeper.audit.charging import Changes, payer_at
from timekeeper.audit.checking import check
from timekeeper.audit.difference import FOLLOWING, Difference, Figure
from timekeeper.audit.pods import unmetered
from timekeeper.audit.rates import read_price_list
from timekeeper.audit.sight import RESERVED, Sight
from timekeeper.audit.snapshot import Snapshot, read_session
from timekeeper.audit.taking import metered_uids, payers_of, present_periods, prices, states_of, take
from timekeeper.audit.world import Look, World
from timekeeper.store import reading

ACCOUNTS_PER_STEP = 50
"""Accounts that are held in memory at once."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be audited.

    Attributes:
        accounts: the accounts; empty for all of them.
        period: the start of a period, in nanoseconds since 1970; None for each account's latest one.
        bill: what is billed: reserved, used, or max, the larger of the two.
        from_binding: whether pods are metered from their binding on.
        patience_seconds: how long a figure that follows others may lag behind them before it counts as different.
    """

    accounts: tuple[str, ...] = ()
    period: int | None = None
    bill: str = RESERVED
    from_binding: bool = True
    patience_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an audit works with.

    Attributes:
        client: the store; its answers are bytes.
        look: the API server's objects, or None where they cannot be seen.
        now: nanoseconds since 1970.
        wait: waits so many seconds; says whether everything is to end.
    """

    client: redis.Redis
    look: Look
    now: Callable[[], int]
    wait: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        at: when it began, in nanoseconds since 1970.
        accounts: how many accounts it looked at.
        sessions: how many sessions.
        entries: how many ledger entries.
        differences: every figure that is not what it must be.
        missing: accounts that were asked for and that have no such period.
        saw_pods: whether budgets and pods could be compared, too.
    """

    at: int
    accounts: int
    sessions: int
    entries: int
    differences: tuple[Difference, ...]
    missing: tuple[str, ...] = ()
    saw_pods: bool = False


@dataclass(slots=True)
class _Pass:
    """One look at a set of periods."""

    accounts: set[str] = field(default_factory=set)
    sessions: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)


def audit(around: Surroundings, question: Question) -> Audit:
    """Audits the store. Reads alone: nothing is changed, and nothing waits for it.

    Raises:
        redis.RedisError, StoreError: the store does not answer.
    """
    began = around.now()
    world = around.look()
    names = question.accounts or tuple(reading.account_names(around.client))
    wanted = present_periods(around.client, names)
    if question.period is not None:
        wanted = dict.fromkeys(wanted, question.period)
    first = _pass(around, question, wanted, world)
    differences = [found for found in first.differences if found.figure not in FOLLOWING]
    doubtful = [found for found in first.differences if found.figure in FOLLOWING]
    if doubtful:
        _wait_for_what_follows(around, question, doubtful)
        again = {found.account: wanted[found.account] for found in doubtful if found.account in wanted}
        second = _pass(around, question, again, around.look() if world is not None else None)
        kept = {_identity(found) for found in doubtful}
        differences += [found for found in second.differences if found.figure in FOLLOWING and _identity(found) in kept]
    missing = tuple(sorted(set(question.accounts) - first.accounts))
    return Audit(
        began, len(first.accounts), first.sessions, first.entries, tuple(differences), missing, world is not None
    )


def _pass(around: Surroundings, question: Question, wanted: Mapping[str, int], world: World | None) -> _Pass:
    result = _Pass()
    for chunk in _chunks(list(wanted)):
        found = _look(around, question, {name: wanted[name] for name in chunk}, world)
        again = {each.account: each.period for _, differences in found for each in differences if each.period}
        if again:  # perhaps the clocks disagree about where the period's entries begin
            repeated = _look(around, question, again, world, whole_ledger=True)
            found = [item for item in found if item[0].account not in again] + repeated
        for snapshot, differences in found:
            result.differences += differences
            result.accounts.add(snapshot.account)
            result.sessions += len(snapshot.amounts)
            result.entries += len(snapshot.entries)
    if world is not None and question.period is None:
        result.differences += _unmetered(around, question, world)
    return result


def _look(
    around: Surroundings, question: Question, wanted: Mapping[str, int], world: World | None, **options: bool
) -> list[tuple[Snapshot, list[Difference]]]:
    client = around.client
    settled = reading.watched(client)
    snapshots = [found for found in take(client, wanted, **options) if found.exists]
    namespaces = {name for snapshot in snapshots for name in _namespaces(snapshot)}
    states = states_of(client, sorted(namespaces))
    sight = Sight(
        payers=payers_of(client, sorted(namespaces)),
        states=states,
        prices=read_price_list(prices(client)),
        world=world,
        settled=settled,
        now=around.now(),
        bill=question.bill,
        from_binding=question.from_binding,
    )
    return [(snapshot, check(snapshot, sight)) for snapshot in snapshots]


def _unmetered(around: Surroundings, question: Question, world: World) -> Iterator[Difference]:
    settled = reading.watched(around.client)
    if settled is None:
        return
    found = list(unmetered(world.pods, metered_uids(around.client), settled))
    payers: Mapping[str, Changes] = payers_of(around.client, sorted({namespace for namespace, _ in found}))
    for namespace, uid in found:
        account = payer_at(payers[namespace], around.now()) if namespace in payers else f"namespace:{namespace}"
        if not question.accounts or account in question.accounts:
            reason = "its pod holds a GPU"
            yield Difference(account, None, Figure.SESSION, uid, "nothing", "an open session", reason)


def _wait_for_what_follows(around: Surroundings, question: Question, doubtful: list[Difference]) -> None:
    """Waits until the leader has gone once through all its books after now, but not forever."""
    asked, waited = around.now(), 0.0
    shows_status = any(found.figure is Figure.STATUS for found in doubtful)
    while waited < question.patience_seconds:
        settled = reading.watched(around.client)
        if settled is not None and settled > asked and not shows_status:
            return
        if around.wait(POLL_SECONDS):
            return
        waited += POLL_SECONDS


def _identity(found: Difference) -> tuple[object, ...]:
    """What makes two findings the same: what is expected may have moved on."""
    return found.account, found.period, found.figure, found.subject, found.stored


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[first : first + ACCOUNTS_PER_STEP] for first in range(0, len(names), ACCOUNTS_PER_STEP))


def _namespaces(snapshot: Snapshot) -> Iterator[str]:
    """The namespaces that an account pays for, or has sessions of."""
    for text in (*snapshot.sessions.values(), *snapshot.ended.values()):
        record = read_session(text)
        if record is not None:
            yield record.namespace
    yield from snapshot.namespaces
