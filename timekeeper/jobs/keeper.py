"""One round of the leading timekeeper: look, open periods, apply grants, settle, publish.

Every step may be repeated: what the store has acknowledged is remembered here, and what it has not is sent again. A
round that fails leaves nothing behind but work for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import redis
import structlog

from fairgpu.cluster.api import Json
from timekeeper.jobs.accounts import reassigned
from timekeeper.jobs.books import Books, KeeperRules
from timekeeper.jobs.due import due_grants, due_openings
from timekeeper.jobs.loading import bring_back, load, reprice, take_checkpoints
from timekeeper.jobs.metered import Key, Metered, MeterRules
from timekeeper.jobs.observing import namespace_uids, nodes_that_are_silent
from timekeeper.jobs.publishing import publish
from timekeeper.jobs.settling import Plan, acknowledge, plan
from timekeeper.jobs.using import billing, take_use
from timekeeper.metering.sessions import alive_until
from timekeeper.rules.budgets import payers
from timekeeper.sources.source import Notice, Source
from timekeeper.store import book, keys, reading
from timekeeper.store.calls import FencedError, StoreEmptyError, StoreError, StoreUnavailableError
from timekeeper.store.ledger import (
    Action,
    Item,
    Revision,
    Settlement,
    Standing,
    apply_grants,
    open_periods,
    settle,
)
from timekeeper.store.replicas import replicated

Step = Callable[[str], None]
"""Told of each step before it is taken; tests end the process there."""

MAX_NOTICES = 20
"""Accounts beside whose loss an event is written: where more are lost at once, all of them are."""

_log = structlog.get_logger()


class NotReadyError(RuntimeError):
    """The world has not been seen whole yet."""


class Keeper:
    """Keeps the books for one term of leadership. Used by one thread."""

    def __init__(
        self, client: redis.Redis, source: Source, rules: KeeperRules, epoch: int, step: Step = lambda _name: None
    ) -> None:
        """Names the store (whose client gives bytes), the world, what the admin decided, and the term's epoch."""
        self.books = Books(rules)
        self.epoch = epoch
        self._client = client
        self._source = source
        self._step = step
        self._counter = 0
        self._loaded = False
        self._repriced = False
        self._server = ""
        self._silent: dict[str, int] = {}

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
        mirrors = self._source.mirrors
        if any(getattr(mirrors, name).confirmed_at is None for name in mirrors.__slots__):
            raise NotReadyError("not every collection has been seen yet")
        try:
            self._look_at_the_store()
            full = self._load(now) or full
            touched = self._observe(now)
            if full:
                touched = set(self.books.accounts)
            self._open(now, touched)
            touched |= self._grant(now)
            self._settle(now, touched)
            if full and self._repriced:
                self._step("prices")
                book.write_prices(self._client, self.books.prices)
                self._repriced = False
            self._step("publish")
            publish(self._client, self.books, self.epoch, now, touched)
            if full:
                self._step("watched")
                book.write_watched(self._client, min(now, mirrors.pods.confirmed_at or 0))
        except redis.RedisError as error:
            raise StoreUnavailableError(f"Redis does not answer: {error}") from error
        except StoreEmptyError:
            self._loaded = False
            raise
        return touched

    def _look_at_the_store(self) -> None:
        """Begins anew with a Redis that was restarted or replaced.

        Under appendfsync everysec a killed one forgets up to two seconds of what it had acknowledged, wherever its disk
        was slow (its documentation calls the write postponed). Whatever is missing is written again then.
        """
        server, led = reading.identity(self._client)
        if not led and self._loaded:
            book.write_epoch(self._client, self.epoch)
            raise StoreEmptyError("the store was emptied")
        if server != self._server:
            self._loaded, self._server = False, server

    def _load(self, now: int) -> bool:
        if self._loaded:
            return False
        self._step("load")
        books = self.books
        lost = load(self._client, books, now)
        books.budgets.refresh(self._source.mirrors)
        self._assign(now)
        restored = take_checkpoints(books)
        bring_back(books)
        self._open(now, set(books.accounts))
        reported = self._reported
        self._silent = nodes_that_are_silent(self._source.mirrors)
        books.pods.refresh(self._source.mirrors.pods, self._rules(), self._silent, reported, now)
        books.pods.end_missing(reading.watched(self._client), reported, now)
        self._repriced = reprice(books, now)
        for name in sorted(lost | restored):
            _log.error("account was not in the store: it starts again from its checkpoint", account=name)
        for name in sorted((lost | restored) & books.budgets.objects.keys())[:MAX_NOTICES]:
            self._tell_of_loss(books.budgets.objects[name])
        self._loaded = True
        return True

    def _observe(self, now: int) -> set[str]:
        books, mirrors = self.books, self._source.mirrors
        books.budgets.refresh(mirrors)
        for name in mirrors.__slots__:
            if name != "pods":
                getattr(mirrors, name).take_departures()  # nobody asks who else left
        self._silent = nodes_that_are_silent(mirrors)
        changed = books.pods.refresh(mirrors.pods, self._rules(), self._silent, self._reported, now)
        touched = self._assign(now) | books.concerned(changed)
        return touched | {name for name, found in books.figures.items() if found.due <= now}

    def _assign(self, now: int) -> set[str]:
        """Settles who pays from now on, in the store first: nothing may be metered under what could be forgotten."""
        books = self.books
        books.payers, books.conflicts = payers(books.budgets.budgets.values())
        metered = books.pods.sessions.namespaces() | books.pods.namespaces
        changed = reassigned(books.assignments, books.payers, metered, now)
        self._step("assign")
        book.write_assignments(self._client, changed)
        books.assignments.update(changed)
        before = set(books.accounts)
        books.ensure_accounts(books.budgets.budgets)
        books.ensure_accounts(account for known in changed.values() for _, account in known)
        book.write_accounts(self._client, sorted(books.accounts.keys() - before))
        moved = {account for known in changed.values() for _, account in known[-2:]}
        return moved | books.refresh_budgets() | (books.accounts.keys() - before)

    def _open(self, now: int, names: Iterable[str]) -> None:
        openings = due_openings(self.books, names, now)
        if not openings:
            return
        self._step("open")
        answers = open_periods(self._client, self.epoch, now, [opening for _, _, opening in openings])
        for (account, period, _), answer in zip(openings, answers, strict=True):
            account.standings[period.start] = _checked(answer)
            account.periods.append(period)

    def _grant(self, now: int) -> set[str]:
        books = self.books
        entries, lapsed = due_grants(books, now)
        for account, name in lapsed:
            account.grants.add(name)
        if not entries:
            return set()
        self._step("grant")
        answers = apply_grants(self._client, self.epoch, now, entries)
        kept = self._replicated("grants", len(entries))
        for entry, answer in zip(entries, answers, strict=True):
            account = books.accounts[entry.account]
            if isinstance(answer, Standing):
                account.standings[entry.period] = answer
            else:
                _raise_if_general(answer)
                _log.error("grant not applied", grant=entry.name, budget=entry.account, error=str(answer))
            if kept:
                account.grants.add(entry.name)
        return {entry.account for entry in entries}

    def _settle(self, now: int, touched: set[str]) -> None:
        books = self.books
        concerned = [metered for metered in books.sessions_under(touched) if _unsettled(metered)]
        namespaces = {metered.session.namespace for metered in concerned}
        self._open(now, {account for namespace in namespaces for _, account in books.assignments[namespace]})
        billed = billing(books.rules.bill, books.prices, books.rules.charge)
        if billed:
            self._take_use(concerned)
        plans = [
            plan(
                metered, books.assignments[metered.session.namespace], books.accounts, self._until(metered, now), billed
            )
            for metered in concerned
        ]
        batches: dict[Key, list[Item]] = {}
        for prepared in plans:
            for key, item in prepared.items.items():
                batches.setdefault(key, []).append(item)
        self._counter += 1
        self._step("settle")
        settlements = [Settlement(account, period, items) for (account, period), items in batches.items()]
        answers = settle(self._client, Revision(self.epoch, self._counter), now, settlements)
        failed = set()
        for key, answer in zip(batches, answers, strict=True):
            if isinstance(answer, Standing):
                books.accounts[key[0]].standings[key[1]] = answer
            else:
                _raise_if_general(answer)
                failed.add(key)
                _log.error("not settled", account=key[0], period=key[1], error=str(answer))
        done = [prepared for prepared in plans if not failed & prepared.items.keys()]
        ends = sum(prepared.ends for prepared in done)
        if ends and not self._replicated("ends of sessions", ends):
            done = [prepared for prepared in done if not prepared.ends]
        self._acknowledge(done, now)

    def _replicated(self, what: str, count: int) -> bool:
        """Whether a replica holds what was just written, where there is one; else it is written again."""
        kept = replicated(self._client, self.epoch, self.books.rules.replica_wait_seconds)
        if not kept:
            _log.warning("no replica of the store has it yet: it is sent again", what=what, count=count)
        return kept

    def _acknowledge(self, plans: list[Plan], now: int) -> None:
        opened: list[tuple[str, str]] = []
        closed: list[tuple[str, str]] = []
        for done in plans:
            if done.plain:
                continue
            uid = done.metered.session.uid
            for (account, _), item in done.items.items():
                if item.action is Action.OPEN:
                    opened.append((uid, account))
                elif item.action not in {Action.HOLD, Action.POST}:
                    closed.append((uid, account))
        self._step("index")
        book.index_sessions(self._client, opened, closed)
        gone = [done.metered.session.uid for done in plans if done.metered.pod_gone]
        book.let_reports_go(self._client, gone)
        for done in plans:
            acknowledge(done, self.books.accounts, now)
            if done.metered.pod_gone and done.metered.closed:
                self.books.left.append((now, done.metered))
                self.books.pods.sessions.drop(done.metered)

    def _take_use(self, sessions: list[Metered]) -> None:
        bodies = reading.reports(self._client, [metered.session.uid for metered in sessions])
        for metered, body in zip(sessions, bodies, strict=True):
            take_use(metered, body, self.books.prices)

    def _until(self, metered: Metered, now: int) -> int:
        session = metered.session
        if session.end is not None:
            return session.end
        silent = self._silent.get(session.node)
        return now if silent is None else max(session.start, alive_until(now, silent, self._reported(session.uid)))

    def _rules(self) -> MeterRules:
        rules = self.books.rules
        prices = self.books.prices or rules.prices
        return MeterRules(rules.charge, rules.meter_from, prices, namespace_uids(self._source.mirrors))

    def _reported(self, uid: str) -> int | None:
        at = self._client.hget(keys.report(uid), "at")
        return int(at) if at is not None else None

    def _tell_of_loss(self, budget: Json) -> None:
        message = (
            "The store of the ledger had been emptied. Spending starts again from the last checkpoint; sessions "
            "that ended after it and whose pods are gone are not charged."
        )
        self._source.tell(Notice(budget, "LedgerRestored", message, warning=True))


def _unsettled(metered: Metered) -> bool:
    """Whether the store must still hear of it: a closed session waits for its pod to go."""
    return not metered.closed or metered.pod_gone


def _raise_if_general(error: StoreError) -> None:
    """Lets an error pass that is of this one change; one that any change would meet ends the round."""
    if isinstance(error, StoreEmptyError | FencedError | StoreUnavailableError):
        raise error


def _checked(answer: Standing | StoreError) -> Standing:
    if isinstance(answer, StoreError):
        raise answer
    return answer
