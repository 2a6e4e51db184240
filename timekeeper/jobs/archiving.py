"""Puts what is old into little room, hours into days and ledger entries into segments, and forgets what is older still.

With it go the accounts of namespaces long gone. A few accounts at a time: settling must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import redis
import structlog

from timekeeper.jobs.memory.accounts import DEFAULT_PREFIX, Account
from timekeeper.jobs.memory.books import Books
from timekeeper.metering.segments import Assignments
from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.sources.source import Source
from timekeeper.store.amounts_folding import fold_amounts, with_amounts
from timekeeper.store.exports import folded_months, load
from timekeeper.store.isolation import each_apart
from timekeeper.store.ledger_packing import pack_ledger
from timekeeper.store.pruning import drop_account, forget_payer, prune
from timekeeper.store.reading import orders_of
from timekeeper.store.usage_folding import fold_hours, pack_hours
from timekeeper.usage.retention import Retention
from timekeeper.usage.windows import month_start, parse_month

AT_ONCE = 50
"""Accounts that one run looks at."""
MOST_STEPS = 200
"""Steps in which an account is folded and packed in an hour; the rest waits for the next one."""
LATE = 2 * HOUR
"""Hours of a day change for as long after it: what runs is put down to them hourly."""
MOST_PERIODS = 400
"""The latest periods that are looked at for amounts to fold: sessions that run have one in each that they were in."""
KEPT_PERIODS = 2
"""The latest periods of an account, which are kept however old they are: a new leader reads them."""

_log = structlog.get_logger()


class Archivist:
    """Goes through all accounts, again from each hour on; used by one thread."""

    def __init__(
        self,
        client: redis.Redis,
        source: Source,
        books: Books,
        epoch: int,
        retention: Retention,
        time_is_up: Callable[[], Callable[[], bool]] = lambda: lambda: False,
    ) -> None:
        """Names the store, the world, the books, the term's epoch, and what the admin decided.

        `time_is_up` is called as a run begins; the run ends after the first step at which the answer to that says so.
        """
        self._client = client
        self._source = source
        self._books = books
        self._epoch = epoch
        self._retention = retention
        self._pruned: dict[str, int] = {}
        self._time_is_up = time_is_up
        self._steps = 0
        self._amounts_folded: dict[str, int] = {}
        self._hour = 0
        self._after = ""

    def archive(self, now: int) -> None:
        """Looks at the next accounts.

        Raises:
            StoreError: the store refused or does not answer; the next run goes on where this one stopped.
            redis.RedisError: as above.
        """
        if not self._after and not self._steps and self._hour == now // HOUR:
            return
        self._hour = now // HOUR
        names = sorted(name for name in self._books.accounts if name > self._after)
        ends, done = self._time_is_up(), 0
        for name in names[:AT_ONCE]:
            failed = each_apart([name], lambda chosen: self._archive(self._books.accounts[chosen[0]], now, ends))
            if failed:
                _log.error("account not archived", account=name, error=repr(failed[name]))
            elif ends() and 0 < self._steps < MOST_STEPS:
                return  # the next run goes on with this account
            self._after, self._steps, done = name, 0, done + 1
            if ends():
                break
        if done == len(names):
            self._after = ""

    def _archive(self, account: Account, now: int, ends: Callable[[], bool]) -> None:
        if not account.periods:
            return
        edges = [period.start for period in account.periods]
        hourly = now // DAY * DAY - self._retention.hourly_days * DAY
        if not self._step_by_step(lambda: fold_hours(self._client, self._epoch, account.name, hourly, edges), ends):
            return
        yesterday = (now - LATE) // DAY * DAY
        if not self._step_by_step(lambda: pack_hours(self._client, self._epoch, account.name, yesterday), ends):
            return
        unpacked = now // DAY * DAY - DAY
        if not self._step_by_step(lambda: pack_ledger(self._client, self._epoch, account.name, unpacked), ends):
            return
        self._steps = 0
        self._fold_amounts(account, now)
        due = month_start(now, -self._retention.months)
        if self._pruned.get(account.name) == due:
            return
        before = self._exported_until(account, due) if self._retention.exported else due
        old = [period for period in account.periods[:-KEPT_PERIODS] if period.end <= before]
        earliest = account.periods[len(old)].start
        prune(self._client, self._epoch, account.name, before, [period.start for period in old], earliest)
        for period in old:
            account.standings.pop(period.start, None)
            account.pots.pop(period.start, None)
        account.periods = account.periods[len(old) :]
        if before < due:
            return
        grants, account.corrections = orders_of(self._client, account.name)
        account.grants = dict(grants)
        self._pruned[account.name] = due
        if self._is_of_the_past(account):
            self._drop(account)

    def _step_by_step(self, step: Callable[[], bool], ends: Callable[[], bool]) -> bool:
        """Takes steps until nothing is left, the time is up, or there were too many; whether all is done."""
        while not step():
            self._steps += 1
            if self._steps >= MOST_STEPS or ends():
                return False
        return True

    def _fold_amounts(self, account: Account, now: int) -> None:
        """Folds amounts of sessions that are over for good: hourly in the open period, daily in those before it."""
        books, today = self._books, now // DAY
        left = {metered.session.uid for _, metered in books.left}

        def known(uid: str) -> bool:
            return uid in books.pods.sessions or uid in left

        first_today = self._amounts_folded.get(account.name) != today
        periods = account.periods[-MOST_PERIODS:] if first_today else account.periods[-1:]
        held = with_amounts(self._client, account.name, [period.start for period in periods])
        for period in periods:
            if period.start in held:
                over = period.end <= now - DAY
                fold_amounts(self._client, self._epoch, now, (account.name, period.start), known, over=over)
        self._amounts_folded[account.name] = today

    def _exported_until(self, account: Account, due: int) -> int:
        """The start of its first month that was not written outside as it is now; asked for once its hours are folded.

        Late changes come from this very thread: none can come between this answer and what is done with it.
        """
        known = load(self._client)
        waiting = [month for month in folded_months(self._client, [account.name]) if not known.is_confirmed(month)]
        return min([due, *(parse_month(month) for month in waiting)])

    def _is_of_the_past(self, account: Account) -> bool:
        """Whether nothing in the cluster is, or can be, put down to it."""
        books, name = self._books, account.name
        if name in books.budgets.objects or any(books.sessions_under([name])):
            return False
        if not name.startswith(DEFAULT_PREFIX):
            return all(known[-1][1] != name for known in books.assignments.values())
        namespace = name.removeprefix(DEFAULT_PREFIX)
        there = {(item.get("metadata") or {}).get("name") for item in self._source.mirrors.namespaces.items()}
        return namespace not in there and namespace not in books.payers

    def _drop(self, account: Account) -> None:
        books, name = self._books, account.name
        if not drop_account(self._client, self._epoch, name, [period.start for period in account.periods]):
            return
        rest: dict[str, Assignments] = {
            namespace: tuple(entry for entry in known if entry[1] != name)
            for namespace, known in books.assignments.items()
            if any(payer == name for _, payer in known)
        }
        changed = {namespace: known for namespace, known in rest.items() if known}
        gone = [namespace for namespace, known in rest.items() if not known]
        forget_payer(self._client, changed, gone)
        books.assignments.update(changed)
        for namespace in gone:
            del books.assignments[namespace]
            books.pods.namespaces.discard(namespace)
            books.told.pop(namespace, None)
        del books.accounts[name]
        books.figures.pop(name, None)
        books.budgets.forget(name)
        _log.info("account forgotten", account=name, namespaces=gone)
