"""Restores accounts of a store that returned to an earlier state: a backup, an old master, a truncated file.

Such a store holds the ledger of an earlier time. Sessions whose pods still exist are computed again from that time on.
All other sessions have ended since: the checkpoint holds the sum of their amounts, and the excess over the store's sum
becomes one ledger entry.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import structlog

from fairgpu.cluster.api import Json
from timekeeper.controller.reconcile.context import ReconcileContext
from timekeeper.controller.reconcile.open_and_close_periods import assign, open_due_periods, restore_credits
from timekeeper.controller.reconcile.settle_accounts import write_limits_of
from timekeeper.controller.state.accounts import DEFAULT_PREFIX, Account, read_moves
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.loading import (
    bring_back,
    bring_rates_up,
    catch_rates_up,
    first_forgotten,
    load,
    newest_prices,
    read_holdings,
    read_prices,
    read_since,
    reprice,
    take_checkpoints,
)
from timekeeper.domain.budgets import payers
from timekeeper.domain.charges import Assignments
from timekeeper.domain.money import display
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import Prices
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys, reading, shared
from timekeeper.ledger.client import described, isolate_failures
from timekeeper.ledger.codec import RecordError
from timekeeper.ledger.conversion import convert_store
from timekeeper.ledger.mending import mark_lost, replace_broken_keys
from timekeeper.ledger.writing import FinalizedSession, Restoration, RestoringNote, note_restoring, restore
from timekeeper.sources.base import ObjectEvent

MAX_NOTICES = 20
"""The most budgets that get an event about a loss; if more are affected, the store as a whole was lost."""
NOTE = "the store had gone back to an earlier state"

_log = structlog.get_logger()


def restore_accounts(context: ReconcileContext, names: Iterable[str], now: Instant) -> None:
    """Restores accounts from their checkpoints, each in the one period that its checkpoint describes.

    Args:
        names: the accounts that the store holds in an earlier state.

    Raises:
        StoreError: the store refused.
        redis.RedisError: the store does not answer.
        ValueError: a value of an account in the store cannot be read.
    """
    books = context.books
    for number, name in enumerate(sorted(names)):
        account = books.accounts[name]
        before, wanted = account.version, _restoration_of(context, account)
        if wanted is None:
            continue
        shared.note_restored(context.client, context.fencing_token, [wanted.account])
        added = _restore(context, now, account, wanted)
        restore_credits(context, now, [account])
        _drop_sessions(context, account, wanted.to_finalize)
        if before >= wanted.version and not added:
            continue  # an earlier leader has restored it and said so
        _log.error(
            "account had gone back to an earlier state: it was restored from its checkpoint",
            account=name,
            version=before,
            checkpoint_version=wanted.version,
            added_micro_gpu_seconds=str(added),
        )
        if number < MAX_NOTICES and name in books.budgets.objects:
            message = (
                f"The store of the ledger had gone back to an earlier state: it knew of {before} changes of this "
                f"budget, and {wanted.version} had been made. Spending was restored from the last checkpoint, with "
                f"{display(added)} GPU-hours as one entry of kind checkpoint. Sessions that ended after that "
                "checkpoint while no timekeeper ran, and whose pods are gone, are not charged."
            )
            context.source.record_event(
                ObjectEvent(books.budgets.objects[name], "LedgerRestored", message, warning=True)
            )


def _restoration_of(context: ReconcileContext, account: Account) -> Restoration | None:
    checkpoint = account.checkpoint
    if checkpoint is None:
        return None
    start, end = checkpoint.period.start, checkpoint.period.end
    named, apart = _sessions_that_are_over(context, account, start)
    return Restoration(account.name, start, end, checkpoint.amount, apart, checkpoint.version, named, NOTE)


def _sessions_that_are_over(
    context: ReconcileContext, account: Account, start: Instant
) -> tuple[list[FinalizedSession], int]:
    """Returns the sessions that a restoration of the account's period from `start` must finalize, and an amount.

    The sessions are those that the store does not hold as finalized, and that the leader does not compute again. The
    amount, in microGPU-seconds, is that of the sessions that the store holds as finalized and that the leader computes
    again.
    """
    books, sessions = context.books, context.books.pods.sessions
    again = books.pods.facts.keys() | books.claims.open_uids() | (books.snapshot.metered if books.snapshot else set())
    stored = reading.stored_amounts(context.client, account.name, start)
    to_finalize = {uid for uid, amount in stored.items() if amount.flag != "g"} - again
    to_finalize |= {m.session.uid for m in sessions.all() if m.acknowledged.open_under == account.name} - again
    named = []
    for uid in sorted(to_finalize):
        metered = sessions.get(uid)
        where = (metered.session.namespace, metered.session.pod) if metered else ("", "")
        named.append(FinalizedSession(uid, *where))
    return named, sum(amount.amount for uid, amount in stored.items() if amount.flag == "g" and uid in again)


def _begin_restoring(context: ReconcileContext, kept: Mapping[str, Json]) -> tuple[set[str], set[str]]:
    """Finds the accounts to restore, and notes in the store, before it changes, that their restoration is under way.

    The restoration itself raises the version of an account. If this leader ends before the restoration is complete, the
    next leader therefore begins it again by the note. Each step may be repeated.

    Returns:
        The accounts that the store does not hold, and those that it holds in an earlier state.
    """
    books = context.books
    lost, behind = take_checkpoints(books, kept)
    bring_back(context.client, books, behind)
    for account in (books.accounts[name] for name in behind):
        if account.restoring is None:
            account.restoring = account.periods[-1].start
    _for_each_account(context, behind, partial(_note_restoring, context))
    return lost, behind


def _end_restoring(context: ReconcileContext) -> None:
    """Notes in the store which accounts have what their checkpoints have.

    These are all but the failed ones, and those for which the leader's memory alone has ended sessions.
    """
    accounts = {name: each for name, each in context.books.accounts.items() if each.restoring is not None}
    whole = accounts.keys() - context.books.in_memory_alone - context.books.failed.keys()
    for name in whole:
        accounts[name].restoring = None
    _for_each_account(context, whole, partial(_note_restoring, context))


def _note_restoring(context: ReconcileContext, names: Iterable[str]) -> None:
    accounts = [context.books.accounts[name] for name in names]
    if accounts:
        notes = [RestoringNote(account.name, account.restoring, account.restored) for account in accounts]
        note_restoring(context.client, context.fencing_token, notes)


def _periods_before(account: Account) -> list[Period]:
    """Returns the periods from the latest one that the store had before the restoration up to the checkpoint's."""
    since, checkpoint = account.restoring, account.checkpoint
    if since is None or checkpoint is None:
        return []
    return [period for period in account.periods if since <= period.start < checkpoint.period.start]


def finalize_last_periods(context: ReconcileContext, now: Instant, names: Iterable[str]) -> None:
    """Finalizes the sessions that were open in the last period of a store that went back, and that have ended since.

    For periods before the checkpoint's: the checkpoint has what these sessions have spent since then.

    Args:
        names: the accounts that the store held in an earlier state.

    Raises:
        StoreError: the store refused.
        redis.RedisError: the store does not answer.
        ValueError: a value of an account in the store cannot be read.
    """
    accounts = [context.books.accounts[name] for name in sorted(names)]
    for account, period in [(each, period) for each in accounts for period in _periods_before(each)]:
        named, _ = _sessions_that_are_over(context, account, period.start)
        if named:
            _restore(context, now, account, Restoration(account.name, period.start, period.end, 0, 0, 0, named, NOTE))
            _drop_sessions(context, account, named)


def _restore(context: ReconcileContext, now: Instant, account: Account, wanted: Restoration) -> int:
    """Restores a period of an account; returns the added amount in microGPU-seconds."""
    added, totals = restore(context.client, context.fencing_token, now, wanted)
    if wanted.period in account.period_totals:
        account.period_totals[wanted.period] = totals
    return added


def restore_periods_before(context: ReconcileContext, now: Instant, names: Iterable[str]) -> None:
    """Restores the spending of each period that precedes a period restored from a checkpoint: the last step.

    A store that went back to an earlier state may lack sessions that have ended since. The checkpoint of the later
    period also states what the period before had spent, and the later period's credits follow from that amount. Call
    this once the store holds all sessions that can be computed again.

    Raises:
        StoreError: the store refused, or does not answer.
        ValueError: the totals of a period in the store cannot be read.
    """
    accounts = [context.books.accounts[name] for name in sorted(names)]
    for account in accounts:
        missing = _missing_before(context, account)
        if missing is not None:
            shared.note_restored(context.client, context.fencing_token, [account.name])
            _restore(context, now, account, missing)
    note_restoring(context.client, context.fencing_token, [RestoringNote(each.name, None, None) for each in accounts])
    for account in accounts:
        account.restoring = account.restored = None
        context.books.in_memory_alone.discard(account.name)


def _missing_before(context: ReconcileContext, account: Account) -> Restoration | None:
    """Returns the change that restores the spending of the period before `account.restored`.

    None if the store's spending of that period is complete, or if the store has no such period.
    """
    before = None if account.restored is None else account.period_before(account.restored.start)
    if account.restored is None or before is None:
        return None
    totals = account.period_totals.get(before.start) or reading.period_totals(
        context.client, account.name, before.start
    )
    if totals is None:
        return None
    start, spent, corrected = account.restored
    later_corrections = 0 if corrected is None else account.corrected_before(start) - corrected
    missing = spent + later_corrections - totals.total
    if missing <= 0:
        return None
    return Restoration(account.name, before.start, before.end, totals.finalized + missing, 0, 0, [], NOTE)


def _drop_sessions(context: ReconcileContext, account: Account, finalized: Iterable[FinalizedSession]) -> None:
    sessions = context.books.pods.sessions
    left = [
        metered
        for uid, _, _ in finalized
        if (metered := sessions.get(uid))
        and account.name in (metered.acknowledged.open_under, metered.acknowledged.ended_under)
    ]
    for metered in left:
        sessions.drop(metered)
    shared.index_sessions(
        context.client, context.fencing_token, [], [(metered.session.uid, account.name) for metered in left]
    )


def take_over(context: ReconcileContext, now: Instant, stored_past: Instant | None) -> bool:
    """Mends the store, then builds the leader's state from the store, the mirrors and the checkpoints.

    Args:
        context: the leader's state, which is filled, the store and the cluster.
        stored_past: the instant that the last reconciliation of any leader wrote before it settled, by that leader's
            clock or, if earlier, the store's; None if the store holds none. Periods that end later are not final.

    Returns:
        Whether the caller must write the prices to the store, because they differ from the stored ones.

    Raises:
        FencedError: a later leader has taken over.
        StoreError: the store refused.
        redis.RedisError: the store does not answer.
        SourceError: the checkpoints on the API server cannot be read.
    """
    books, mirrors = context.books, context.source.mirrors
    shared.write_fencing_token(context.client, context.fencing_token, context.term)  # a store that went back lacks it
    budgets_lost = replace_broken_keys(context.client, context.fencing_token, books.accounts)
    context.capacity = context.silent_stored = context.not_settled = None  # the store may have lost them
    converted = convert_store(context.client, context.fencing_token)
    if converted:
        _log.info("store converted", format=keys.FORMAT, accounts=converted)
    stored_prices, kept = _stored_prices(context), context.source.read_checkpoints()
    remembered = books.prices or newest_prices(stored_prices, read_prices(kept), now)
    books.prices = remembered
    books.since = _metered_since(context, kept, now)
    past = context.surely_past(now)
    # What a clock that was ahead has written of a period is not final, though the period has ended since.
    load(context.client, context.fencing_token, books, now, min(past, stored_past or past))
    books.budgets.refresh(mirrors, books.rules.overhead)
    if budgets_lost:
        _mark_lost_budgets(context)
    _restore_moves(context)
    _restore_default_payers(context, kept)
    context.inherit_silent_nodes()
    context.note_silent_nodes()
    assign(context, now)
    _mark_unreadable(books)
    lost, behind = _begin_restoring(context, kept)
    there = {name for name in behind if _is_there(books.accounts[name])}
    _for_each_account(context, set(books.accounts), lambda names: open_due_periods(context, now, names))
    rules = replace(context.meter_rules(), decided=read_holdings(kept))
    books.pods.refresh(mirrors.pods, rules, context.silent, context.reported, now, context.clocks)
    books.claims.take_loaded(books.pods.sessions)
    unmetered = reading.unmetered(context.client)
    noted, last_seen = _apart(unmetered)
    books.claims.resume({**last_seen, **noted})
    books.claims.refresh(mirrors, books.pods, rules, context.silent, context.clocks)
    _for_each_account(context, there, lambda names: restore_accounts(context, names, now))
    _for_each_account(context, behind, lambda names: finalize_last_periods(context, now, names))
    _end_restoring(context)
    books.pods.end_missing(context.silent, context.reported, noted, last_seen, now)
    context.resumed = frozenset(name for name in unmetered if name.removesuffix(keys.SEEN) in books.pods.facts)
    shared.note_unmetered(
        context.client, context.fencing_token, _last_seen_unread(context, {**last_seen, **noted}) | _ends_unseen(books)
    )
    own = {each.session.uid for each in books.pods.sessions.all() if not each.session.holdings}
    context.noted_ends = {name: at for name, at in unmetered.items() if name.removesuffix(keys.SEEN) in own}
    if stored_prices and remembered != stored_prices:
        bring_rates_up(books, first_forgotten(stored_prices, remembered, now))
    catch_rates_up(books, now)
    reprice(books, now)
    metered = [each for each in books.pods.sessions.all() if each.session.namespace in books.assignments]
    write_limits_of(context, [each for each in metered if each.acknowledged.open_under], now)
    _report_losses(context, (lost | behind - there) - books.failed.keys())
    books.snapshot = None
    return books.prices != stored_prices


def _apart(unmetered: Mapping[str, Instant]) -> tuple[dict[str, Instant], dict[str, Instant]]:
    """Divides the entries of the store's hash `keys.UNMETERED` by kind; returns two mappings keyed by session's uid.

    The first has the ends of sessions that an earlier leader stored. The second has the instants that an earlier
    leader's `_last_seen_unread` returned.
    """
    seen = {name.removesuffix(keys.SEEN): at for name, at in unmetered.items() if name.endswith(keys.SEEN)}
    return {uid: end for uid, end in unmetered.items() if not uid.endswith(keys.SEEN)}, seen


def _ends_unseen(books: Books) -> dict[str, Instant]:
    """Returns the ends of ended sessions of other stacks whose pods are not among the observed ones, keyed by uid.

    Such a pod is deleted, or it runs and is not metered: the mode is share, or its resource is not listed any more.
    """
    held = (metered.session for metered in books.pods.sessions.all() if metered.session.holdings)
    return {each.uid: each.end for each in held if each.end is not None and each.uid not in books.pods.facts}


def _last_seen_unread(context: ReconcileContext, noted: Container[str]) -> dict[str, Instant]:
    """Returns the instant of the last observation of pods for each open session that this leader cannot read.

    These are the sessions in unreadable accounts whose pods are not among the observed ones.

    A later leader that can read such a session ends the session no later than this instant, although that leader has
    observed other pods for longer. It ends the session earlier if the session's node was silent: this leader cannot
    read which node that is.

    Args:
        noted: the uids of the sessions for which the store has an earlier instant; they are left out.

    Returns:
        The instants, keyed by the name of the field of `keys.UNMETERED`.

    Raises:
        redis.RedisError: the store does not answer.
    """
    books = context.books
    if not books.unreadable:
        return {}
    pods, claims = books.pods, {uid.rpartition("-")[0] for uid in books.claims.open_uids()}
    uids = reading.sessions_under(context.client, books.unreadable)
    unseen = [uid for uid in uids if uid not in pods.facts and uid.rpartition("-")[0] not in claims]
    return {uid + keys.SEEN: pods.observed.seen for uid in unseen if uid not in noted and uid not in pods.sessions}


def _for_each_account(context: ReconcileContext, names: AbstractSet[str], act: Callable[[list[str]], object]) -> None:
    """Runs a step for those accounts that have not failed yet.

    An account whose step fails is marked as unreadable and does not stop the others.
    """
    failed = isolate_failures(names - context.books.failed.keys(), act)
    for name, error in failed.items():
        context.books.unreadable[name] = context.books.failed[name] = described(error)
        _log.error("account unreadable", account=name, error=described(error))


def _metered_since(context: ReconcileContext, kept: Mapping[str, Json], now: Instant) -> int:
    """Returns the instant at which a leader first began to meter pods of other stacks; 0 if they are not metered.

    The instant is stored before any pod is metered, so that all later leaders use the same one. It is also read from
    the checkpoint documents in `kept`, keyed by name, since the store may have been emptied.
    """
    if context.books.rules.own_resources is None:
        return 0
    stored = reading.since(context.client)
    known = [instant for instant in (context.books.since or None, stored, read_since(kept)) if instant is not None]
    since = min(known, default=now)
    if since != stored:
        shared.write_since(context.client, context.fencing_token, since)
    return since


def _stored_prices(context: ReconcileContext) -> Prices:
    """Returns the stored prices by which sessions were charged; empty if the store's entry is missing or unreadable."""
    try:
        return reading.prices(context.client)
    except RecordError as error:
        _log.error("prices cannot be read", error=str(error))
        return {}


def _mark_unreadable(books: Books) -> None:
    """Marks each account whose stored budget cannot be read as unreadable; logs these, and unreadable payers."""
    for namespace, why in books.payers_unreadable.items():
        _log.error("payers unreadable", namespace=namespace, account=books.payer_named(namespace), error=why)
    for name, why in books.budgets.unknown().items():
        _log.error("budget unreadable", account=name, error=why)
        if name in books.accounts:
            books.unreadable[name] = books.failed[name] = f"its budget cannot be read: {why}"


def _restore_moves(context: ReconcileContext) -> None:
    """Restores in the store, from checkpoints, the lost payers of namespaces that ever changed their payer."""
    books = context.books
    moves = read_moves(books.budgets.objects.values())
    forgotten = {namespace: payers_of for namespace, payers_of in moves.items() if namespace not in books.assignments}
    shared.write_assignments(context.client, context.fencing_token, forgotten)
    books.assignments.update(forgotten)
    for namespace in forgotten:
        books.payers_unreadable.pop(namespace, None)


def _restore_default_payers(context: ReconcileContext, kept: Iterable[str]) -> None:
    """Restores in the store the lost payers of namespaces that no budget names and that have spent.

    `kept` has the names of the accounts with a checkpoint: of such namespaces, only those that have spent have one.
    """
    books = context.books
    paid = payers(books.budgets.budgets.values())[0]
    named = {name.removeprefix(DEFAULT_PREFIX): name for name in kept if name.startswith(DEFAULT_PREFIX)}
    forgotten: dict[str, Assignments] = {
        namespace: ((0, name),)
        for namespace, name in named.items()
        if namespace not in paid and namespace not in books.assignments.keys() | books.payers_unreadable.keys()
    }
    shared.write_assignments(context.client, context.fencing_token, forgotten)
    books.assignments.update(forgotten)
    books.ensure_accounts(account for ((_, account),) in forgotten.values())


def _is_there(account: Account) -> bool:
    """Whether the store has the period that the account's checkpoint describes."""
    return account.checkpoint is not None and account.checkpoint.period.start in account.period_totals


def _mark_lost_budgets(context: ReconcileContext) -> None:
    """Marks those budgets as unreadable, in the store and in memory, whose last valid version the store has lost.

    Budgets of which the leader has a valid version are left out. A budget stays marked until its object is valid.
    """
    books = context.books
    wanted = {known[-1][1] for known in books.assignments.values()} | books.budgets.objects.keys()
    named = [name for name in books.accounts.keys() & wanted if books.has_object(name)]
    books.budgets.unreadable |= mark_lost(context.client, context.fencing_token, named, books.budgets.last_valid)


def _report_losses(context: ReconcileContext, lost: AbstractSet[str]) -> None:
    """Logs each account that starts again from its checkpoint; records events for at most MAX_NOTICES budgets."""
    objects = context.books.budgets.objects
    for name in sorted(lost):
        _log.error("account was not in the store: it starts again from its checkpoint", account=name)
    for name in sorted(lost & objects.keys())[:MAX_NOTICES]:
        _record_loss(context, objects[name])


def _record_loss(context: ReconcileContext, budget: Json) -> None:
    message = (
        "The store of the ledger had been emptied. Spending starts again from the last checkpoint; sessions "
        "that ended after it and whose pods are gone are not charged, and grants and corrections whose objects were "
        "deleted are not there any more."
    )
    context.source.record_event(ObjectEvent(budget, "LedgerRestored", message, warning=True))
