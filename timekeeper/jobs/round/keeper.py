"""One round of the leading timekeeper: look, open periods, apply what was ordered, strike balances, settle, publish.

Every step may be repeated: what the store has acknowledged is remembered here, and what it has not is sent again. A
round that fails leaves nothing behind but work for the next one. An account whose data a step cannot work with is left
out of the steps that follow and tried again by the next round; the others are settled and published without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from functools import partial

import redis
import structlog

from timekeeper.jobs.memory.books import Books, KeeperRules
from timekeeper.jobs.memory.observing import Clocks, nodes_that_are_silent
from timekeeper.jobs.round.capacity import note_capacity
from timekeeper.jobs.round.correcting import apply_due_corrections
from timekeeper.jobs.round.desk import Desk, Step
from timekeeper.jobs.round.granting import apply_due_grants
from timekeeper.jobs.round.paying import assign, open_due_periods
from timekeeper.jobs.round.publishing import publish
from timekeeper.jobs.round.recovering import take_over
from timekeeper.jobs.round.settlement import settle_accounts
from timekeeper.jobs.round.striking import strike_due
from timekeeper.rules.money import SECOND
from timekeeper.sources.source import Source
from timekeeper.store import book
from timekeeper.store.calls import StoreEmptyError, StoreError, StoreUnavailableError, described
from timekeeper.store.isolation import each_apart
from timekeeper.store.memory import is_full_for_pods
from timekeeper.store.servers import identity, store_clock

READ_AGAIN = 600 * SECOND
"""The time after which accounts that could not be read are read again; mending one by hand needs no new leader."""

_log = structlog.get_logger()


class NotReadyError(RuntimeError):
    """The world has not been seen whole yet."""


class Keeper:
    """Keeps the books for one term of leadership. Used by one thread."""

    def __init__(
        self,
        client: redis.Redis,
        source: Source,
        rules: KeeperRules,
        epoch: int,
        step: Step = lambda _name: None,
        clocks: Clocks | None = None,
    ) -> None:
        """Names the store (whose client gives bytes), the world, what the admin decided, and the term's epoch.

        Where no clocks are named, ours stands still during a round, and the witness is the store's.
        """
        self.books = Books(rules)
        self.epoch = epoch
        clocks = clocks or Clocks(lambda: 0, partial(store_clock, client))
        self._desk = Desk(client, source, self.books, epoch, step, clocks)
        self._loaded = False
        self._fresh = False
        """Whether this round has read the store anew."""
        self._lost: StoreEmptyError | None = None
        """Says that the store turned out to have lost something in this round."""
        self._unread_until = 0
        """When accounts that could not be read are read again."""
        self._repriced = False

    @property
    def held_back(self) -> int:
        """The number of sessions that wait for room in the store."""
        return len(self._desk.held_back & self.books.pods.facts.keys())

    def round(self, now: int, *, full: bool = True) -> set[str]:
        """Brings the store up to an instant: everything, or what has changed and what is due.

        Args:
            now: nanoseconds since 1970.
            full: whether to settle every session.

        Returns:
            The accounts that were brought up to date.

        Raises:
            NotReadyError: a collection has not been seen yet.
            StoreError: the store refused or does not answer; the next round does what is missing.
            FencedError: another leader has followed this one.
        """
        mirrors = self._desk.source.mirrors
        if any(getattr(mirrors, name).confirmed_at is None for name in mirrors.__slots__):
            raise NotReadyError("not every collection has been seen yet")
        try:
            self._lost = None
            self._look_at_the_store()
            if full and self.books.unreadable and now >= self._unread_until:
                self._loaded = False
            self._fresh = self._load(now)
            if self._fresh:
                full, now = True, max(now, self.books.pods.as_of)
            self._desk.full = is_full_for_pods(self._desk.client)
            touched = self._observe(now)
            now = max(now, self.books.pods.as_of)
            if full:
                touched = set(self.books.accounts)
            self._settle(now, touched, full=full)
            if full:
                self._desk.step("watched")
                book.write_watched(self._desk.client, min(now, mirrors.pods.confirmed_at or 0))
                note_capacity(self._desk, now)
            if self._lost is not None:
                raise self._lost
        except redis.RedisError as error:
            raise StoreUnavailableError(f"Redis does not answer: {error}") from error
        except StoreEmptyError:
            self._loaded = False
            raise
        return touched - self.books.failed.keys()

    def _settle(self, now: int, touched: set[str], *, full: bool) -> None:
        """Brings accounts up to an instant; those that get or lose money on the way are added to them."""
        desk, books = self._desk, self.books
        suspects = touched & books.not_settled.keys()
        books.failed = {name: why for name, why in books.failed.items() if name not in touched} | books.unreadable
        books.not_settled = {name: why for name, why in books.not_settled.items() if name not in touched}
        books.not_settled |= books.unreadable

        def step(what: str, names: AbstractSet[str], act: Callable[[Collection[str]], object]) -> None:
            self._step(what, names - books.failed.keys(), suspects, act)

        gained, everyone = set[str](), books.accounts.keys()
        step("open", touched, lambda names: open_due_periods(desk, now, names))
        step("grant", everyone, lambda names: gained.update(apply_due_grants(desk, now, set(names))))
        step(
            "correct", books.accounts.keys(), lambda names: gained.update(apply_due_corrections(desk, now, set(names)))
        )
        touched |= gained
        step("strike", touched, lambda names: strike_due(desk, now, names))
        step("settle", touched, lambda names: settle_accounts(desk, now, set(names)))
        if full and self._repriced:
            desk.step("prices")
            book.write_prices(desk.client, self.books.prices)
            self._repriced = False
        desk.step("publish")
        step("publish", touched, lambda names: publish(desk, now, names))
        for name in touched:
            self.books.accounts[name].forget_what_is_over(now)

    def _step(
        self, what: str, names: AbstractSet[str], suspects: AbstractSet[str], act: Callable[[Collection[str]], object]
    ) -> None:
        """Takes a step for accounts; those that were not settled the last time do not slow the others down.

        An account that the store has lost makes the next round read everything anew, but not where that was done just
        now or has not helped before.
        """
        failed = each_apart(names - suspects, act)
        if names & suspects:
            failed |= each_apart(names & suspects, act)
        for name, error in failed.items():
            if isinstance(error, StoreEmptyError) and name not in suspects and not self._fresh:
                self._lost = error
            unforeseen = not isinstance(error, StoreError)
            if unforeseen and name not in suspects:
                self._loaded = False  # its part of the memory may be half changed
            why = str(error) if not unforeseen else described(error)
            self.books.failed[name] = self.books.not_settled[name] = why
            _log.error("not settled", account=name, step=what, error=why, exc_info=error if unforeseen else None)

    def _look_at_the_store(self) -> None:
        """Begins anew with a Redis that was restarted or replaced.

        Under appendfsync everysec a killed one forgets up to two seconds of what it had acknowledged, wherever its disk
        was slow (its documentation calls the write postponed); a promoted replica what had not reached it. Whatever is
        missing is written again then.
        """
        server, led = identity(self._desk.client)
        if not led and self._loaded:
            book.write_epoch(self._desk.client, self.epoch)
            raise StoreEmptyError("the store was emptied")
        if server != self._desk.servers:
            self._loaded, self._desk.servers = False, server

    def _load(self, now: int) -> bool:
        if self._loaded:
            return False
        self._desk.step("load")
        self._repriced = take_over(self._desk, now)
        self._unread_until = now + READ_AGAIN
        self._loaded = True
        return True

    def _observe(self, now: int) -> set[str]:
        """Looks at what has changed in the world; the accounts that it concerns, and those that are due."""
        desk, books, mirrors = self._desk, self.books, self._desk.source.mirrors
        books.budgets.refresh(mirrors)
        for name in mirrors.__slots__:
            if name != "pods":
                getattr(mirrors, name).take_departures()  # nobody asks who else left
        desk.silent = nodes_that_are_silent(mirrors)
        changed = books.pods.refresh(mirrors.pods, desk.meter_rules(), desk.silent, desk.reported, now, desk.clocks)
        touched = assign(desk, now) | books.concerned(changed)
        touched |= {books.account_of(namespace) for namespace in books.pods.take_stirred()} & books.accounts.keys()
        return touched | {name for name, found in books.figures.items() if found.due <= now}
