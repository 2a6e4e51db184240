"""Brings the ledger up to an instant: periods, orders, settlements and published states, in that order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from functools import partial

import redis
import structlog

from timekeeper.controller.reconcile.apply_orders import apply_due_corrections, apply_due_grants
from timekeeper.controller.reconcile.context import ReconcileContext
from timekeeper.controller.reconcile.open_and_close_periods import assign, close_due_balances, open_due_periods
from timekeeper.controller.reconcile.publication import publish
from timekeeper.controller.reconcile.recovery import restore_periods_before, take_over
from timekeeper.controller.reconcile.settle_accounts import settle_accounts
from timekeeper.controller.state.books import Books, ControllerRules
from timekeeper.controller.state.loading import reprice
from timekeeper.controller.state.observing import Clocks
from timekeeper.controller.state.other_stacks import complete_holdings
from timekeeper.domain.holdings.holding import summed
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import price_changes
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import reading, shared
from timekeeper.ledger.client import (
    Store,
    StoreEmptyError,
    StoreError,
    StoreUnavailableError,
    described,
    isolate_failures,
)
from timekeeper.ledger.connection import identity, is_full_for_pods, store_clock
from timekeeper.ledger.mending import broken_keys
from timekeeper.ledger.writing import HeldTerm, LedTerm
from timekeeper.sources.base import Source


def note_capacity(context: ReconcileContext, now: Instant) -> None:
    """Writes the cluster's capacity to the store if it has changed; queries compute idle GPUs from it.

    Raises:
        FencedError: a later leader has taken over.
        StoreError: the store refused the write, or Redis does not answer.
    """
    nodes = context.source.mirrors.nodes.items()
    own = context.books.rules.own_resources
    claimable = {} if own is None else context.books.claims.capacity(context.source.mirrors)
    gpus = summed([*context.nodes.gpus(nodes, own).items(), *claimable.items()])
    rates = {model: int(GPU_SECOND * count) for model, count in sorted(gpus.items())}
    if rates != context.capacity:
        context.capacity = None  # until the store answers
        shared.write_capacity(context.client, context.fencing_token, now, rates)
        context.capacity = rates


def note_silent(context: ReconcileContext) -> None:
    """Writes the last signs of life of silent nodes to the store if they have changed; a later leader begins with them.

    Raises:
        FencedError: a later leader has taken over.
        StoreError: the store refused the write, or Redis does not answer.
    """
    if context.silent != context.silent_stored:
        context.silent_stored = None  # until the store answers
        shared.write_silent(context.client, context.fencing_token, context.silent)
        context.silent_stored = context.silent


def note_not_settled(context: ReconcileContext) -> None:
    """Writes to the store the names of the accounts whose settlement failed, if these names have changed.

    These accounts get no forecast.

    Raises:
        StoreError: the store refused the write, or Redis does not answer.
        redis.RedisError: the store does not answer.
    """
    failing = frozenset(context.books.not_settled)
    if failing != context.not_settled:
        before, context.not_settled = context.not_settled, None  # until the store answers
        shared.write_not_settled(context.client, context.fencing_token, before, failing)
        context.not_settled = failing


def note_resumed(context: ReconcileContext) -> None:
    """Removes the stored ends of sessions whose pods are metered again, if all accounts are settled.

    By then the store holds these sessions as open. Nothing is removed while an account cannot be settled, or while the
    store has no memory for new sessions.

    Raises:
        FencedError: a later leader has taken over.
        StoreError: the store refused the write, or Redis does not answer.
    """
    if context.resumed and not context.books.not_settled and not context.full:
        shared.forget_unmetered(context.client, context.fencing_token, context.resumed)
        context.resumed = frozenset()


def note_ends(context: ReconcileContext) -> None:
    """Records the ends of deleted pods' sessions apart from the sessions, until the store holds each session's end.

    The end of a session with holdings by another stack stays recorded for longer: the `Archivist` removes it.

    The store lacks a session's end while it refuses the session's settlement, or while the account cannot be read.
    Without the record, a later leader would find the session open. It would then charge the session up to the instant
    at which pods were last observed.

    Raises:
        FencedError: a later leader has taken over.
        StoreError: the store refused the write, or Redis does not answer.
    """
    lacking = [each for each in context.books.pods.sessions.all() if each.pod_deleted and not each.acknowledged.closed]
    ends = {each.session.uid: end for each in lacking if (end := each.session.end) is not None}
    elsewhere = {each.session.uid for each in lacking if each.session.holdings}
    noted = context.noted_ends
    if not ends and not noted:
        return
    new = {uid: end for uid, end in ends.items() if noted.get(uid) != end}
    shared.note_unmetered(context.client, context.fencing_token, new)
    shared.forget_unmetered(context.client, context.fencing_token, noted.keys() - ends.keys())
    context.noted_ends = {uid: end for uid, end in ends.items() if uid not in elsewhere}


READ_AGAIN = 600 * SECOND
"""The interval at which unreadable accounts are read again, so that a manual repair needs no change of leader."""

_log = structlog.get_logger()


class NotReadyError(RuntimeError):
    """A reconciliation was asked for before each collection that bills depend on has been read once."""


class Reconciler:
    """Reconciles ledger and cluster for one term of the leader. Not thread-safe."""

    def __init__(
        self,
        client: Store,
        source: Source,
        rules: ControllerRules,
        fencing_token: int | LedTerm,
        clocks: Clocks | None = None,
    ) -> None:
        """Makes a reconciler of one term that has read nothing yet.

        Args:
            source: the cluster.
            rules: the settings of the controller.
            fencing_token: the term with its fencing token. A bare number is both the token and the term's number.
            clocks: the local clock and the store's. If the local clock has passed the `now` of a reconciliation once
                the objects are read, its time counts in place of `now`. None reads no local clock, only the store's.
        """
        self.books = Books(rules)
        led = fencing_token if isinstance(fencing_token, LedTerm) else LedTerm(fencing_token, HeldTerm(fencing_token))
        self.fencing_token = led.fencing_token
        clocks = clocks or Clocks(lambda: 0, partial(store_clock, client))
        self._context = ReconcileContext(client, source, self.books, led.fencing_token, led.term, clocks)
        self._loaded = False
        self._fresh = False
        """Whether the present reconciliation has read the whole store."""
        self._lost: StoreEmptyError | None = None
        """The error by which the store turned out to have lost data in this reconciliation."""
        self._read_at = 0
        """The instant at which the store was last read, for unreadable accounts, which are read again."""
        self._repriced = False
        self._latest = 0
        """The instant of the last reconciliation."""
        self._past = 0
        """The instant of the last reconciliation of any leader: the local clock's time or, if earlier, the store's.

        A reconciliation writes the instant to the store as `past` before it settles, and sets it here after it has
        settled.
        """

    @property
    def held_back(self) -> int:
        """The number of sessions that are not opened until the store has memory for them."""
        return len(self._context.held_back & (self.books.pods.facts.keys() | self.books.claims.open_uids()))

    def ahead_of_store(self, now: Instant) -> int:
        """Returns the nanoseconds by which the local clock was ahead of the store's at the last reconciliation.

        The result is below 0 if the local clock was behind.

        Args:
            now: the local clock's time when that reconciliation began.
        """
        return now - self._context.store_time

    @property
    def past(self) -> int:
        """The instant of any leader's last reconciliation, by its clock or, if earlier, the store's; 0 for none.

        It is in nanoseconds since 1970. If the local clock was behind, and the store's clock confirms the later
        timestamps of the API server, these timestamps count in place of the local clock.
        """
        return self._past

    def surely_past(self, now: Instant) -> Instant:
        """Returns the earlier of the local clock's time and the store's: an instant that both clocks have reached.

        Args:
            now: the local clock's time. The store's time is that at the begin of the last reconciliation.
        """
        return self._context.surely_past(now)

    def reconcile(self, now: Instant, *, full: bool = True) -> set[str]:
        """Brings the ledger and the published states up to an instant, for all accounts or for some.

        Args:
            full: True to settle every session of all accounts; False for only those accounts that have changed, or
                whose figures are due to be computed again by `now`. A reconciliation that reads the whole store, such
                as the first, settles every session in any case.

        Returns:
            The accounts for which no step failed. Single sessions of them may be unsettled: see `Books.not_settled`.

        Raises:
            NotReadyError: a collection of the API server that bills depend on has not been read yet.
            StoreError: the store refuses or does not answer; the next reconciliation does the rest.
            FencedError: a later leader has taken over.
            SourceError: the store must be read whole, but the checkpoints on the API server cannot be read.
        """
        mirrors = self._context.source.mirrors
        if not mirrors.all_read:
            raise NotReadyError("not every collection that bills depend on has been read yet")
        try:
            self._lost = None
            self._context.store_time = self._context.clocks.store()
            now = self._not_before_the_past(now)
            self._check_store()
            unreadable = self.books.unreadable or self.books.payers_unreadable or self.books.amounts_unreadable
            if full and unreadable and not self._read_at <= now < self._read_at + READ_AGAIN:
                self._loaded = False
            self._check_clock(max(now, self.books.pods.newest))
            self._fresh = self._load(now)
            if self._fresh:
                full, now = True, max(self._not_before_the_past(now), self.books.pods.as_of)
            self._context.full = is_full_for_pods(self._context.client)
            pods, claims = self.books.pods.observed, self.books.claims.observed
            confirmed = [(pods, mirrors.pods.confirmed_at or 0), (claims, mirrors.claims.confirmed_at or 0)]
            touched = self._observe(now, full=full)
            now = max(now, self.books.pods.as_of)
            past = self._context.surely_past(now)
            for observed, at in confirmed:
                observed.advance(at, past, now)
            if full:
                touched = set(self.books.accounts)
            # Before anything is settled: the next leader takes nothing of it back, however far its clock is behind.
            shared.write_past(self._context.client, self._context.fencing_token, past)
            note_silent(self._context)
            self._settle(now, touched, full=full)
            self._past = past
            if full:
                note_ends(self._context)
                shared.write_watched(self._context.client, self._context.fencing_token, pods.seen, claims.seen)
                note_resumed(self._context)
                note_capacity(self._context, now)
                note_not_settled(self._context)
            if self._lost is not None:
                raise self._lost
        except redis.RedisError as error:
            raise StoreUnavailableError(f"Redis does not answer: {error}") from error
        except StoreEmptyError:
            self._loaded = False
            raise
        return touched - self.books.failed.keys()

    def _settle(self, now: Instant, touched: set[str], *, full: bool) -> None:
        """Reconciles the accounts in `touched`: opens periods, applies orders, closes balances, settles, publishes.

        Adds to `touched` the accounts that an applied order changes. `full` writes changed prices to the store, too.
        """
        context, books, past = self._context, self.books, self._context.surely_past(now)
        suspects = touched & books.not_settled.keys()
        books.failed = {name: why for name, why in books.failed.items() if name not in touched} | books.unreadable
        books.not_settled = {name: why for name, why in books.not_settled.items() if name not in touched}
        books.not_settled |= books.amounts_unreadable | books.unreadable
        for namespace, why in books.payers_unreadable.items():
            books.not_settled[books.payer_named(namespace)] = f"the payers of {namespace} cannot be read: {why}"

        def step(what: str, names: AbstractSet[str], act: Callable[[Collection[str]], object]) -> None:
            self._step(what, names - books.failed.keys(), suspects, act)

        gained, everyone = set[str](), books.accounts.keys()
        step("open", touched, partial(open_due_periods, context, now))
        step("grant", everyone, lambda names: gained.update(apply_due_grants(context, now, set(names))))
        step(
            "correct",
            books.accounts.keys(),
            lambda names: gained.update(apply_due_corrections(context, now, set(names))),
        )
        touched |= gained
        step("close", touched, partial(close_due_balances, context, past))
        step("settle", touched, partial(settle_accounts, context, now))
        settled = [books.accounts[name] for name in touched - books.not_settled.keys()]
        restored = {each.name for each in settled if each.restoring is not None or each.restored is not None}
        if restored and not context.full:
            step("restore", restored, partial(restore_periods_before, context, now))
        if full and self._repriced:
            shared.write_prices(context.client, context.fencing_token, self.books.prices)
            self._repriced = False
        step("publish", touched, partial(publish, context, now))
        for name in touched:
            self.books.accounts[name].forget_old_periods(past)

    def _step(
        self, what: str, names: AbstractSet[str], suspects: AbstractSet[str], act: Callable[[Collection[str]], object]
    ) -> None:
        """Runs a step for accounts: first for those that are no suspects, then for the suspects.

        If the step fails for a group, the group is halved until single accounts are left. The suspects are a group of
        their own, so that they do not make other accounts repeat the step. The books keep each account's error. If the
        store has lost an account, the next reconciliation reads the whole store. That is left out for a suspect, since
        an earlier reading did not mend it. It is left out for all accounts if the present reconciliation has itself
        read the whole store.

        Args:
            what: the step's name in the log.
            names: the accounts to act on.
            suspects: the accounts whose last attempt failed.
            act: the step, for several accounts; it may be repeated.

        Raises:
            StoreError: the store does not answer, was emptied, or refuses this leader's term.
            redis.RedisError: the store does not answer.
        """
        failed = isolate_failures(names - suspects, act)
        if names & suspects:
            failed |= isolate_failures(names & suspects, act)
        for name, error in failed.items():
            if isinstance(error, StoreEmptyError) and name not in suspects and not self._fresh:
                self._lost = error
            unforeseen = not isinstance(error, StoreError)
            if unforeseen and name not in suspects:
                self._loaded = False  # the state in memory may be half changed
            why = str(error) if not unforeseen else described(error)
            self.books.failed[name] = self.books.not_settled[name] = why
            _log.error("not settled", account=name, step=what, error=why, exc_info=error if unforeseen else None)

    def _check_store(self) -> None:
        """Makes this reconciliation read the whole store if a Redis server was restarted or replaced.

        It does so, too, if a shared key holds a value of another type. The leader writes again what the store has lost.
        Under the setting `appendfsync everysec`, a killed Redis loses up to two seconds of acknowledged writes if its
        disk was slow. A promoted replica lacks the writes that had not reached it.

        Raises:
            StoreEmptyError: the store was emptied.
            redis.RedisError: the store does not answer.
        """
        server, led = identity(self._context.client)
        if not led and self._loaded:
            shared.write_fencing_token(self._context.client, self.fencing_token, self._context.term)
            raise StoreEmptyError("the store was emptied")
        if server != self._context.servers:
            self._loaded, self._context.servers = False, server
        if self._loaded and broken_keys(self._context.client):
            self._loaded = False

    def _not_before_the_past(self, now: Instant) -> int:
        """Returns `now`, or the last reconciliation's instant if that is later and the store's clock has reached it.

        While the local clock is behind, the ledger stays at that instant, so that nothing that was charged is taken
        back.
        """
        return max(now, self._context.surely_past(self._past))

    def _check_clock(self, now: Instant) -> None:
        """Undoes the effects of a local clock that was ahead, if `now` is before the last reconciliation's instant.

        Prices that changed too early are set back, and the cluster's capacity is written again. If the totals of an
        account's present period are no longer in memory, this reconciliation reads the whole store.
        """
        if now < self._latest and self._loaded:
            if any(account.lacks_present(now) for account in self.books.accounts.values()):
                self._loaded = False
            elif price_changes(self.books.prices, self._context.perhaps_past(now), self._latest + 1):
                self._repriced |= reprice(self.books, now)
            self._context.capacity = None
        self._latest = now

    def _load(self, now: Instant) -> bool:
        if self._loaded:
            return False
        client, books = self._context.client, self.books
        past, watched = reading.past(client), reading.watched(client) or 0
        self._past = max(self._past, past or 0, watched)
        books.pods.observed.advance_to(watched)
        claims_watched = reading.watched_claims(client)  # a store of an earlier version lacks it
        books.claims.observed.advance_to(watched if claims_watched is None else claims_watched)
        self._repriced = take_over(self._context, self._not_before_the_past(now), past)
        self._read_at = now
        self._loaded = True
        return True

    def _observe(self, now: Instant, *, full: bool) -> set[str]:
        """Updates the leader's state from the mirrors of the cluster; returns the accounts to reconcile.

        These accounts have changed, or their figures are due by `now`. If `full` is set, the holdings of sessions of
        other stacks are corrected, too, while the sessions are younger than `other_stacks.PROVISIONAL`.
        """
        context, books, mirrors = self._context, self.books, self._context.source.mirrors
        books.budgets.refresh(mirrors, books.rules.overhead)
        mirrors.drop_unused_departures()
        context.note_silent_nodes()
        rules = context.meter_rules()
        changed = books.pods.refresh(mirrors.pods, rules, context.silent, context.reported, now, context.clocks)
        changed |= books.claims.refresh(mirrors, books.pods, rules, context.silent, context.clocks)
        if full and books.rules.own_resources is not None:
            changed |= complete_holdings(books, mirrors, context.held_of(), max(now, books.pods.as_of))
        touched = assign(context, now) | books.concerned(changed)
        waiting = {books.account_of(namespace) for namespace in books.pods.take_changed_waiting()}
        touched |= waiting & books.accounts.keys()
        return touched | {name for name, each in books.figures.items() if each.due <= now}
