"""Compacts old records and deletes those past retention: hours become days, ledger entries become segments.

Accounts of namespaces that no longer exist are deleted with their last record. A run compacts at most AT_ONCE accounts,
so that it delays no settlement.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import structlog

from timekeeper.controller.state.accounts import DEFAULT_PREFIX, Account
from timekeeper.controller.state.books import Books
from timekeeper.domain.charges import Assignments
from timekeeper.domain.timestamps import DAY, HOUR, Instant
from timekeeper.domain.usage_folding import edges_of
from timekeeper.domain.windows import Retention, month_start, parse_month
from timekeeper.ledger import shared
from timekeeper.ledger.client import FencingToken, Store, isolate_failures
from timekeeper.ledger.compaction import (
    Cutoffs,
    drop_account,
    due_for_compaction,
    fold_amounts,
    fold_hours,
    forget_payer,
    pack_hours,
    prune,
    with_amounts,
)
from timekeeper.ledger.entries import pack_ledger
from timekeeper.ledger.exports import folded_months, load
from timekeeper.ledger.reading import orders_of, unmetered
from timekeeper.sources.base import Source

AT_ONCE = 50
"""The most accounts of one run."""
MOST_STEPS = 200
"""The most steps of compaction that an account gets in an hour; the rest waits for the next hour."""
PACKED_AT_ONCE = DAY // 2
"""The time, in nanoseconds, whose hours of use are packed together. An hour that is not packed takes ten times as much
of the store.

With fewer hours the leader packs a value more often: by quarters of a day it took 6.1 ms for an account with 100 pods a
day, by halves 4.5 and by days 3.0.
"""
LATE = 2 * HOUR
"""The time for which an hour of use may still change after its end: running sessions are posted once an hour."""
MOST_PERIODS = 400
"""The number of an account's latest periods in which sessions' amounts are folded."""
KEPT_PERIODS = 2
"""The number of an account's latest periods that are never deleted, however old, as a new leader reads them."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the archivist: its instant, its end, and its work.

    Attributes:
        now: nanoseconds since 1970.
        ends: returns True once the run's time is up.
        unfolded: the uids of the sessions whose amounts are not folded: those in `Books.finalized`, and
            sessions that ended because their pods are not observed, since such a session may be metered again.
        cutoffs: the instants before which hours and entries are compacted.
        due: the accounts that hold hours or entries from before the cutoffs.
    """

    now: Instant
    ends: Callable[[], bool]
    unfolded: Container[str]
    cutoffs: Cutoffs
    due: Container[str]


class Archivist:
    """Compacts old records in the store and deletes those past retention, once an hour. For one thread alone."""

    def __init__(
        self,
        client: Store,
        source: Source,
        books: Books,
        fencing_token: FencingToken,
        retention: Retention,
        time_is_up: Callable[[], Callable[[], bool]] = lambda: lambda: False,
    ) -> None:
        """Makes an archivist of one term, from the store, the cluster, the leader's state and the retention.

        `fencing_token` is the term's. `time_is_up` is called as a run begins and returns a function, which is called
        after each step. The run ends once that function returns True.
        """
        self._client = client
        self._source = source
        self._books = books
        self._fencing_token = fencing_token
        self._retention = retention
        self._pruned: dict[str, int] = {}
        self._capacity_pruned = 0
        self._time_is_up = time_is_up
        self._steps = 0
        self._amounts_folded: dict[str, int] = {}
        self._hour = 0
        self._after = ""

    def archive(self, now: Instant) -> None:
        """Compacts and deletes old records of the next few accounts, at most AT_ONCE.

        Further calls go on with the next accounts. Once all are done, calls do nothing until the next hour. An account
        that fails by an error of its own is logged and left until then. After an error of the store, the next call goes
        on with the same account.

        Raises:
            StoreError: the store refused or does not answer.
            redis.RedisError: the store does not answer.
        """
        hour = now // HOUR
        if not self._after and not self._steps and self._hour == hour:
            return
        names = sorted(name for name in self._books.accounts if name > self._after)
        ends, done = self._time_is_up(), 0
        today = now // DAY * DAY
        late = now - LATE
        cutoffs = Cutoffs(
            folded=today - self._retention.hourly_days * DAY,
            packed=late // PACKED_AT_ONCE * PACKED_AT_ONCE,
            ledger=late // DAY * DAY,
        )
        due = due_for_compaction(self._client, names[:AT_ONCE], cutoffs)
        unseen = unmetered(self._client)
        unfolded = {metered.session.uid for _, metered in self._books.finalized} | unseen.keys()
        run = _Run(now, ends, unfolded, cutoffs, due)
        for name in names[:AT_ONCE]:
            failed = isolate_failures([name], lambda chosen: self._archive(self._books.accounts[chosen[0]], run))
            if failed:
                _log.error("account not archived", account=name, error=repr(failed[name]))
            elif ends() and 0 < self._steps < MOST_STEPS:
                return  # the next run goes on with this account
            self._after, self._steps, done = name, 0, done + 1
            if ends():
                break
        if done == len(names):
            self._after, self._hour = "", hour
            self._prune_capacity(month_start(now, -self._retention.months))
            self._forget_unmetered(unseen)

    def _archive(self, account: Account, run: _Run) -> None:
        if not account.periods or (account.name in run.due and not self._compact(account, run)):
            return
        self._steps = 0
        self._fold_amounts(account, run.now, run.unfolded)
        self._prune(account, month_start(run.now, -self._retention.months))

    def _compact(self, account: Account, run: _Run) -> bool:
        """Compacts an account's hours and ledger entries in steps; returns False if some remain for the next run."""
        client, fencing_token, name, cutoffs = self._client, self._fencing_token, account.name, run.cutoffs
        edges = edges_of((period.start, period.end) for period in account.periods)
        steps: tuple[Callable[[], bool], ...] = (
            lambda: fold_hours(client, fencing_token, name, cutoffs.folded, edges),
            lambda: pack_hours(client, fencing_token, name, cutoffs.packed),
            lambda: pack_ledger(client, fencing_token, name, cutoffs.ledger),
        )
        return all(self._step_by_step(step, run.ends) for step in steps)

    def _prune(self, account: Account, due: int) -> None:
        """Deletes an account's records past retention, once a month; then drops the account if it is empty and unused.

        `due` is the instant before which records are past retention, in nanoseconds since 1970. Records of a month
        whose export is not confirmed stay, and so do all later ones; each later call then tries again.
        """
        if self._pruned.get(account.name) == due:
            return
        before = self._exported_until(account, due) if self._retention.exported else due
        old = [period for period in account.periods[:-KEPT_PERIODS] if period.end <= before]
        earliest = account.periods[len(old)].start
        prune(self._client, self._fencing_token, account.name, before, [period.start for period in old], earliest)
        for period in old:
            account.period_totals.pop(period.start, None)
            account.credits.pop(period.start, None)
        account.periods = account.periods[len(old) :]
        if before < due:
            return
        grants, account.corrections = orders_of(self._client, account.name)
        account.grants = dict(grants)
        self._pruned[account.name] = due
        if self._is_unused(account):
            self._drop(account)

    def _prune_capacity(self, before: int) -> None:
        """Deletes the records of the cluster's capacity from before an instant (nanoseconds since 1970), once a month.

        If months are exported, a few records of each day stay: queries for use by the day may ask for months whose use
        only the exported files hold, and their answers state the capacity, too.
        """
        if self._capacity_pruned == before:
            return
        if self._retention.exported:
            shared.thin_capacity(self._client, before)
        else:
            shared.prune_capacity(self._client, before)
        self._capacity_pruned = before

    def _forget_unmetered(self, unseen: Mapping[str, Instant]) -> None:
        """Deletes from the store the recorded ends of sessions that ended before every account's earliest period.

        An end is needed only as long as the store holds a period that the session can be charged in.

        Args:
            unseen: the ends of sessions whose pods are not observed, keyed by uid, in nanoseconds since 1970.
        """
        accounts = self._books.accounts.values()
        earliest = min((each.periods[0].start if each.periods else 0 for each in accounts), default=0)
        old = [uid for uid, end in unseen.items() if end <= earliest]
        shared.forget_unmetered(self._client, self._fencing_token, old)

    def _step_by_step(self, step: Callable[[], bool], ends: Callable[[], bool]) -> bool:
        """Repeats a step until its work is done, which the step's result True says; returns whether the work is done.

        The result is False if the account has used up its MOST_STEPS steps, or `ends` returns True, before that.
        """
        while not step():
            self._steps += 1
            if self._steps >= MOST_STEPS or ends():
                return False
        return True

    def _fold_amounts(self, account: Account, now: Instant, unfolded: Container[str]) -> None:
        """Adds amounts of sessions that the leader no longer knows to the sums of their periods, and deletes them.

        The first call that finds such an amount only notes the time. A call that comes a day later folds the amount. In
        a period that ended less than a day ago, or goes on, only amounts of finalized sessions are folded.

        The first call of a day looks at the latest MOST_PERIODS periods, any other call at the latest period alone. The
        sessions with uids in `unfolded` keep their amounts. `now` is nanoseconds since 1970.
        """
        sessions, today = self._books.pods.sessions, now // DAY

        def known(uid: str) -> bool:
            return uid in sessions or uid in unfolded

        first_today = self._amounts_folded.get(account.name) != today
        periods = account.periods[-MOST_PERIODS:] if first_today else account.periods[-1:]
        starts = [period.start for period in periods]
        held = with_amounts(self._client, account.name, starts) if len(starts) > 1 else starts
        for period in periods:
            if period.start in held:
                long_ended = period.end <= now - DAY
                fold_amounts(
                    self._client, self._fencing_token, now, (account.name, period.start), known, long_ended=long_ended
                )
        self._amounts_folded[account.name] = today

    def _exported_until(self, account: Account, due: int) -> int:
        """Returns the instant up to which an account's records are exported, at most `due`, in nanoseconds since 1970.

        It is the start of the first month with use whose file is missing or out of date; `due` if there is no such
        month before `due`. Only use that is folded into days counts: call this after `_compact` has folded the hours.
        Only this thread changes the use of closed months, so the answer stays true until the caller acts on it.

        Args:
            due: the instant before which records are past retention, in nanoseconds since 1970.
        """
        records = load(self._client)
        waiting = [month for month in folded_months(self._client, [account.name]) if not records.is_confirmed(month)]
        return min([due, *(parse_month(month) for month in waiting)])

    def _is_unused(self, account: Account) -> bool:
        """Whether the account can be dropped: no GPUBudget has its name, it has no session, and no namespace needs it.

        The account of a deleted budget is needed by each namespace that it still pays for. The default account of a
        namespace is needed while the namespace exists, or while a budget names it.
        """
        books, name = self._books, account.name
        if name in books.budgets.objects or any(books.sessions_under([name])):
            return False
        if not name.startswith(DEFAULT_PREFIX):
            return all(assigned[-1][1] != name for assigned in books.assignments.values())
        namespace = name.removeprefix(DEFAULT_PREFIX)
        there = {(item.get("metadata") or {}).get("name") for item in self._source.mirrors.namespaces.items()}
        return namespace not in there and namespace not in books.payers

    def _drop(self, account: Account) -> None:
        books, name = self._books, account.name
        if not drop_account(self._client, self._fencing_token, name, [period.start for period in account.periods]):
            return
        rest: dict[str, Assignments] = {
            namespace: tuple(entry for entry in assigned if entry[1] != name)
            for namespace, assigned in books.assignments.items()
            if any(payer == name for _, payer in assigned)
        }
        changed = {namespace: assigned for namespace, assigned in rest.items() if assigned}
        without_payer = [namespace for namespace, assigned in rest.items() if not assigned]
        forget_payer(self._client, self._fencing_token, changed, without_payer)
        books.assignments.update(changed)
        for namespace in without_payer:
            del books.assignments[namespace]
            books.published.pop(namespace, None)
        del books.accounts[name]
        books.figures.pop(name, None)
        books.budgets.forget(name)
        _log.info("account forgotten", account=name, namespaces=without_payer)
