"""Loads the leader's state from the store and the checkpoints: accounts, sessions, amounts, and prices as charged.

The prices by which sessions were charged are also kept outside the store, among the checkpoints on the API server.
After the store was emptied, running sessions are computed with these prices, since an admin may have changed the
settings meanwhile. Metered time is never priced again.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import structlog

from timekeeper.controller.state.accounts import Account, Checkpoint, Restored
from timekeeper.controller.state.books import Books, RecoverySnapshot
from timekeeper.controller.state.sessions import (
    NOTHING,
    Acknowledged,
    AcknowledgedAmount,
    Decided,
    Key,
    MeteredSession,
    Meters,
    RecordedUse,
    allocation_of,
    first_known,
    last_amounts_alone,
    loaded,
    recorded_use_alone,
    running_on,
    use_of,
    without_use,
)
from timekeeper.domain.budgets import Budget
from timekeeper.domain.charges import rate_now, segments
from timekeeper.domain.credits import OWN, Credit
from timekeeper.domain.holdings.holding import Holding
from timekeeper.domain.periods import Period, PeriodRule, boundary_after
from timekeeper.domain.pricing import (
    FOREVER,
    Prices,
    amended,
    by_words,
    dearest_at,
    price_at,
    price_changes,
    prices_in_force,
)
from timekeeper.domain.reservations import Reservation, Tariff, rate_at, tariff
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import DAY, Instant, TimeError, parse_instant
from timekeeper.ledger import reading, shared
from timekeeper.ledger.client import FencingToken, Store, described, isolate_failures
from timekeeper.ledger.codec import (
    UNREADABLE,
    RecordError,
    decode_prices,
    encode_prices,
    holding_document,
    read_holding,
    whole_number,
)
from timekeeper.ledger.reading import FINALIZED, StoredAccount, StoredAmount, load_accounts
from timekeeper.sources.base import CHECKPOINT_SHARDS

PRICES = ":prices"
"""The key of the prices among the checkpoints; no account can have this name."""

SINCE = ":since"
"""The key, among the checkpoints, of the instant from which pods of other stacks are metered."""

DECIDED = ":held:"
"""The prefix of the keys, among the checkpoints, of the holdings of sessions by other stacks; the number of a shard
follows.
"""

MENDED_WITHIN = 2 * DAY
"""The time after a period's end for which a new leader still completes amounts in it.

Later they are final, unless the period is one of the account's latest.
"""

MIXED = ","
"""The separator between the models in the attribution of a session with GPUs of several models."""

_log = structlog.get_logger()


def kept_prices(charged: Prices, configured: Prices) -> dict[str, dict[str, Any]]:
    """Returns a dict with one checkpoint document, keyed by its name: the prices by which sessions were charged.

    The result is empty if the settings state the same prices, so that nothing must be kept.

    Args:
        charged: the price of each model over time, as sessions were charged.
        configured: the price of each model over time, according to the settings.
    """
    lists = (charged, configured)
    moments = {0, *(point.effective_from for prices in lists for points in prices.values() for point in points)}
    if all(_in_force(charged, at) == _in_force(configured, at) for at in moments):
        return {}
    return {PRICES: {"prices": encode_prices(charged)}}


def kept_since(since: Instant) -> dict[str, dict[str, Any]]:
    """Returns a dict with one checkpoint document, keyed by its name, that keeps `since`.

    Args:
        since: the instant from which pods of other stacks are metered; 0 if they are not metered, and the dict is then
            empty.
    """
    return {SINCE: {"since": str(since)}} if since else {}


def read_since(documents: Mapping[str, Any]) -> Instant | None:
    """Returns the instant from which pods of other stacks are metered.

    Args:
        documents: the checkpoint documents, keyed by name; one of them keeps the instant.

    Returns:
        None if that document is missing or unreadable.
    """
    document = documents.get(SINCE)
    text = document.get("since") if isinstance(document, dict) else None
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20 else None


def kept_holdings(sessions: Iterable[MeteredSession]) -> dict[str, dict[str, Any]]:
    """Returns the checkpoint documents that keep the starts of sessions and their holdings by other stacks.

    Most sessions have the same holdings as many others, so each document lists equal holdings once.

    Args:
        sessions: the metered sessions; those without holdings are left out.

    Returns:
        The documents, keyed by name. A hash of a session's uid decides in which document the session is.
    """
    kinds: dict[str, dict[tuple[Holding, ...], int]] = {}
    begun: dict[str, dict[str, list[int]]] = {}
    for metered in sessions:
        session = metered.session
        if session.holdings:
            shard = f"{DECIDED}{zlib.crc32(session.uid.encode()) % CHECKPOINT_SHARDS}"
            known = kinds.setdefault(shard, {})
            which = known.setdefault(session.holdings, len(known))
            begun.setdefault(shard, {})[session.uid] = [session.start, which]
    return {
        shard: {
            "kinds": [[holding_document(each) for each in holdings] for holdings in kinds[shard]],
            "begun": sessions_of_shard,
        }
        for shard, sessions_of_shard in begun.items()
    }


def read_holdings(documents: Mapping[str, Any]) -> dict[str, Decided]:
    """Returns the starts and the holdings of sessions that checkpoint documents keep, keyed by the session's uid.

    Args:
        documents: the checkpoint documents, keyed by name; unreadable documents, and those with other contents, are
            left out.
    """
    decided: dict[str, Decided] = {}
    for name, document in documents.items():
        if not name.startswith(DECIDED):
            continue
        try:
            kinds = [tuple(read_holding(each) for each in holdings) for holdings in document["kinds"]]
            decided |= {
                uid: Decided(whole_number(start), kinds[whole_number(which)])
                for uid, (start, which) in document["begun"].items()
            }
        except UNREADABLE as error:
            _log.error("holdings cannot be read", name=name, error=repr(error))
    return decided


def _in_force(prices: Prices, instant: int) -> tuple[bool, Mapping[str, Fraction]]:
    named = prices_in_force(prices, instant)
    return by_words(prices, instant) and len(named) > 1, named


def read_prices(documents: Mapping[str, Any]) -> Prices:
    """Returns the prices by which sessions were charged, as the checkpoint document PRICES keeps them.

    Args:
        documents: the checkpoint documents, keyed by name. The result is empty if PRICES is missing or unreadable.
    """
    try:
        return decode_prices((documents.get(PRICES) or {}).get("prices", "{}"))
    except (RecordError, AttributeError) as error:
        _log.error("prices cannot be read", error=str(error))
        return {}


def newest_prices(stored: Prices, kept: Prices, now: Instant) -> Prices:
    """Returns the prices by which a new leader charges: the store's, or a checkpoint's if these changed more recently.

    An emptied store has no prices, and a store that was restored from a copy may lack the latest change.

    Args:
        stored: the price of each model over time, as the store holds it.
        kept: the price of each model over time, as a checkpoint holds it.
        now: the present; a change of prices that takes effect after it does not count.
    """
    return kept if last_change(kept, now) > last_change(stored, now) else stored


def first_forgotten(stored: Prices, charged: Prices, now: Instant) -> Instant:
    """Returns the instant of the first change of prices that the store lacks.

    Args:
        stored: the price of each model over time, as the store holds it.
        charged: the price of each model over time, as sessions were charged.
        now: the present; changes after it do not count. If the store lacks no change, `now` is the result.
    """
    return min(price_changes(charged, last_change(stored, now), now + 1), default=now)


def last_change(prices: Prices, now: Instant) -> Instant:
    """Returns the instant of the latest change of prices up to now; 0 if none has changed, -1 without prices.

    Args:
        prices: the price of each model over time.
    """
    return max(price_changes(prices, 0, now + 1), default=0 if prices else -1)


def load(client: Store, fencing_token: FencingToken, books: Books, now: Instant, surely_past: Instant) -> set[str]:
    """Reads the store into the leader's state; returns the accounts that were in memory and that the store has lost.

    Args:
        now: nanoseconds since 1970.
        surely_past: the earliest of the local clock's time, the store's, and the last reconciliation's. Periods that
            end later are not final.

    Raises:
        StoreError: the store refused a write, or does not answer.
        redis.RedisError: the store does not answer.
    """
    remembered = books.accounts
    books.snapshot = books.snapshot or snapshot_of(books)
    books.budgets.take_stored(*reading.budgets_and_faults(client))
    _take_assignments(client, fencing_token, books)
    stored, books.unreadable = _readable(client, reading.account_names(client), surely_past)
    books.failed = dict(books.unreadable)
    books.accounts = {
        account.name: Account(
            account.name,
            Budget(account.name),
            list(account.periods),
            dict(account.totals),
            {start: dict(period_credits) for start, period_credits in account.credits.items()},
            grants=dict(account.grants),
            corrections=dict(account.corrections),
            checkpoint=books.snapshot.checkpoints.get(account.name),
            burn=account.burn,
            restoring=account.restoring,
            restored=None if account.restored is None else Restored(*account.restored),
        )
        for account in stored
    }
    there = books.accounts.keys() | books.unreadable.keys()
    lost = {name for name, account in remembered.items() if account.periods and name not in there}
    books.figures, books.published = {}, {}
    # A leader may have ended between naming a payer and opening its account.
    books.ensure_accounts(account for known in books.assignments.values() for _, account in known)
    books.ensure_accounts(books.unreadable)
    shared.write_accounts(client, fencing_token, sorted(books.accounts.keys() - there))
    _take_sessions(client, fencing_token, books, stored)
    _take_amounts(client, books, stored, now, surely_past)
    for name in lost:
        books.accounts[name] = Account(name, remembered[name].budget, checkpoint=books.snapshot.checkpoints.get(name))
    return lost


def _readable(client: Store, names: Sequence[str], now: Instant) -> tuple[list[StoredAccount], dict[str, str]]:
    """Reads accounts from the store; returns the readable ones, and why others are unreadable, keyed by account."""
    stored: list[StoredAccount] = []
    failed = isolate_failures(names, lambda some: stored.extend(load_accounts(client, some, now=now)))
    for name, error in failed.items():
        _log.error("account unreadable", account=name, error=described(error))
    return stored, {name: f"it cannot be read: {described(error)}" for name, error in failed.items()}


def snapshot_of(books: Books) -> RecoverySnapshot:
    """Returns a snapshot of the leader's state, from which the leader restores a store that has lost data.

    The snapshot is empty if the leader has not read the store in this term yet.
    """
    again = [*books.pods.sessions.all(), *(metered for _, metered in books.finalized)]
    computed: dict[Key, int] = {}
    for metered in again:
        for key, amount in metered.acknowledged.periods.items():
            if amount.finalized:
                computed[key] = computed.get(key, 0) + amount.amount
    checkpoints = {}
    for name, account in books.accounts.items():
        if account.restoring is not None and account.checkpoint is not None:
            checkpoints[name] = account.checkpoint  # the account does not have all of it yet
        elif account.period_totals:
            start, totals = max(account.period_totals.items())
            period = next(period for period in account.periods if period.start == start)
            period_credits = tuple(account.credits.get(start, {}).values())
            finalized = max(totals.finalized - computed.get((name, start), 0), 0)
            sums = (finalized, totals.exhausted_at, period_credits, totals.previous_spent)
            # Without a time: a session that has left is restored whole.
            checkpoints[name] = Checkpoint(period, 0, *sums, account.version, account.corrected_before(start))
    return RecoverySnapshot(checkpoints, frozenset(metered.session.uid for metered in again))


def take_checkpoints(books: Books, kept: Mapping[str, dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Sets the checkpoint of each account that the store has lost or holds in an earlier state.

    The checkpoint comes from the leader's snapshot. If the budget's status, or `kept`, has a checkpoint with a later
    version, that checkpoint counts. The checkpoint of any other account becomes None. Failed accounts keep theirs, and
    are left out of the result. An account that an earlier leader has not restored whole counts as in an earlier state,
    whatever its version.

    Args:
        kept: keyed by name, the checkpoints of accounts without a GPUBudget, as the API server holds them.

    Returns:
        The accounts that the store does not hold, and those that it holds in an earlier state.
    """
    lost, behind = set[str](), set[str]()
    for name, account in books.accounts.items():
        item = books.budgets.objects.get(name) or ({"status": kept[name]} if name in kept else None)
        if item is not None:
            written = read_checkpoint(item, account.budget.period)
            if written is not None and (account.checkpoint is None or written.version > account.checkpoint.version):
                account.checkpoint = written
        if account.checkpoint is None or name in books.failed:
            continue
        if not account.periods:
            lost.add(name)
        elif account.checkpoint.version > account.version or account.restoring is not None:
            behind.add(name)
        else:
            account.checkpoint = None
    return lost, behind


def bring_back(client: Store, books: Books, behind: set[str]) -> None:
    """Puts back into memory the finalized sessions that the checkpoint of an account to be restored does not contain.

    The leader settles these sessions again. Their reports are deleted, so their use cannot be computed again. If usage
    is billed, they therefore keep the amounts that the leader remembers or the store holds. `books.finalized` is empty
    afterwards. The accounts that have spending of these sessions are added to `books.in_memory_alone`.

    Args:
        behind: the accounts that the store holds in an earlier state.

    Raises:
        redis.RedisError: the store does not answer.
    """
    for left_at, metered in books.finalized:
        names = {account for account, _ in metered.acknowledged.periods}
        started = [books.accounts[name] for name in names if name in behind or not books.accounts[name].periods]
        checkpoints = [account.checkpoint for account in started]
        if checkpoints and all(checkpoint is None or checkpoint.time < left_at for checkpoint in checkpoints):
            known = last_amounts_alone(metered.acknowledged)
            metered.acknowledged = known._replace(periods={**_stored_of(client, books, metered), **known.periods})
            _replace(books.pods.sessions, metered)
            books.in_memory_alone |= names
    books.finalized = []


def _stored_of(client: Store, books: Books, metered: MeteredSession) -> dict[Key, AcknowledgedAmount]:
    """Returns the amounts that the store holds of an ended session, keyed by (account, start of the period)."""
    session, payers = metered.session, {account for account, _ in metered.acknowledged.periods}
    since, until = max(first_known(metered.acknowledged.use), session.start), session.end or 0
    periods = [(name, each) for name in sorted(payers) for each in books.accounts[name].periods_after(since)]
    wanted = [(name, each.start, [session.uid]) for name, each in periods if each.start < until]
    found = reading.amounts_of(client, wanted)
    readable = {key: amounts.get(session.uid) for key, amounts in found.items()}
    return {key: AcknowledgedAmount(each.amount) for key, each in readable.items() if each is not None}


def _replace(sessions: Meters, metered: MeteredSession) -> None:
    """Puts a remembered session in the place of the one read from the store, whose acknowledged state it takes over.

    If the remembered use is later than the store's, it counts, since the session's reports are deleted. If no session
    was read from the store, the remembered one keeps its own acknowledged state.
    """
    stored = sessions.get(metered.session.uid)
    if stored is not None:
        use = _later(metered.acknowledged.use, stored.acknowledged.use)
        final = max(stored.acknowledged.settled_until, first_known(use))
        metered.acknowledged = stored.acknowledged._replace(use=use, settled_until=final)
        sessions.drop(stored)
    sessions.keep(metered)


def _later(one: RecordedUse, other: RecordedUse) -> RecordedUse:
    """Returns the later of two states of a session's recorded use: reports only add to its total."""
    return one if one.total is not None and (other.total is None or one.total > other.total) else other


def read_checkpoint(item: dict[str, Any], rule: PeriodRule) -> Checkpoint | None:
    """Reads the checkpoint in a GPUBudget's status; returns None if there is none or it is unreadable.

    Args:
        rule: the rule for the budget's periods, by which the end of an older period is computed.
    """
    try:
        status = item.get("status") or {}
        document = status.get("checkpoint") or {}
        start = parse_instant(document.get("period"))
        time = parse_instant(document.get("time"))
        amount = int(document["closedMicroGPUSeconds"])
        present = status.get("period") or {}
        ours = present.get("end") is not None and parse_instant(present.get("start")) == start
        end = parse_instant(present["end"]) if ours else boundary_after(rule, start)
        exhausted = status.get("exhaustedAt")
        exhausted_at = parse_instant(exhausted) if exhausted and ours else None
        period_credits = tuple(_read_credit(credit) for credit in document.get("pots") or ())
        previous_spent = int(document["previousMicroGPUSeconds"]) if "previousMicroGPUSeconds" in document else None
        corrected = document.get("previousCorrectedMicroGPUSeconds")
        previous_corrected = None if corrected is None else int(corrected)
        version = int(document.get("version", 0))
    except (TimeError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    sums = (amount, exhausted_at, period_credits, previous_spent, version, previous_corrected)
    return Checkpoint(Period(start, end), time, *sums)


def _read_credit(fields: dict[str, Any]) -> Credit:
    return Credit(
        name=str(fields.get("grant", OWN)),
        amount=int(fields["microGPUSeconds"]),
        expires=parse_instant(fields["expires"]),
        since=int(fields.get("sinceMicroGPUSeconds", 0)),
        expired=fields.get("lapsed") is True,
    )


def _take_assignments(client: Store, fencing_token: FencingToken, books: Books) -> None:
    """Reads the payers of namespaces from the store.

    If the leader's memory holds other payers of a namespace, the memory counts and is written to the store.
    """
    stored, faults = reading.assignments_and_faults(client)
    books.payers_unreadable = {name: why for name, why in faults.items() if name not in books.assignments}
    shared.write_assignments(
        client, fencing_token, {name: known for name, known in books.assignments.items() if stored.get(name) != known}
    )
    books.assignments = {**stored, **books.assignments}


def _take_sessions(client: Store, fencing_token: FencingToken, books: Books, stored: list[StoredAccount]) -> None:
    """Adds to the books the sessions of which the store has records, still without their amounts in periods.

    The store's index of open sessions is then made to hold exactly the open ones. Only its entries of accounts that
    cannot be read stay as they are.
    """
    sessions = books.pods.sessions
    unread = {allocation_of(each.session): each for each in sessions.all() if each.acknowledged == NOTHING}
    for metered in sessions.all():
        # If the store went back to before a session, it has no record of the session that replaces the amounts.
        remembered = last_amounts_alone if metered.acknowledged.closed else recorded_use_alone
        metered.acknowledged = remembered(metered.acknowledged)
    for account in stored:
        for record in account.closed:
            metered = _keep(books, record, unread)
            metered.acknowledged = Acknowledged(
                session=without_use(record), use=use_of(record), closed=True, ended_under=account.name
            )
    for account in stored:
        for record in account.sessions:
            metered = _keep(books, record, unread)
            paying = books.account_of(record.namespace) == account.name
            metered.acknowledged = _with_record(metered, record, account.name, paying=paying)
    index = ((session.uid, account.name) for account in stored for session in account.sessions)
    shared.renew_index(client, fencing_token, index, books.unreadable.keys())


def _keep(books: Books, record: Session, unread: Mapping[str, MeteredSession]) -> MeteredSession:
    """Adds the session of a record to the books if they lack it; returns the session in the books.

    If the leader could not read the record before, it began a second session for the pod. The record now replaces that
    second session. The end in the record counts. If the record has no end and the pod was deleted, the second session's
    end counts.

    Args:
        unread: keyed by what `allocation_of` returns, the sessions in the books that the store has not acknowledged.
    """
    sessions, first = books.pods.sessions, loaded(record)
    anew = unread.get(allocation_of(record))
    if anew is None or sessions.get(anew.session.uid) is not anew:
        metered = sessions.keep(first)
        if metered is first:
            books.pods.observe_again(record.uid)
        return metered
    sessions.drop(anew)
    first.reservation, first.pod_deleted = first.reservation or anew.reservation, anew.pod_deleted
    if record.end is None and anew.pod_deleted and anew.session.end is not None:
        end = max(record.start, anew.session.end)
        first.session = replace(first.session, end=end, proof=anew.session.proof)
    books.pods.observe_again(record.uid)
    return sessions.keep(first)


def _with_record(metered: MeteredSession, record: Session, account: str, *, paying: bool) -> Acknowledged:
    """Returns the session's acknowledged state with one account's record of the open session added.

    Several accounts may have a record of one session, since an earlier leader may have written only part of an end or
    of a move. The result is based on the record of the session's end. Without one, it is based on the record of the
    account that pays now, or else on the first record that was added. `also_open` names the accounts of other records.

    Args:
        record: the record of the open session.
        account: the account that has this record.
        paying: whether that account pays for the namespace now.
    """
    known = metered.acknowledged
    if known.closed or known.ended_under:
        return known._replace(closed=False, also_open=known.also_open | {account})
    if known.open_under and not paying:
        return known._replace(also_open=known.also_open | {account})
    session = without_use(record)
    return Acknowledged(
        session=metered.session if metered.session == session else session,
        use=_use_going_on(metered.session, known.use, use_of(record)),
        open_under=account,
        also_open=known.also_open | {known.open_under} - {""},
    )


def _use_going_on(session: Session, remembered: RecordedUse, recorded: RecordedUse) -> RecordedUse:
    """Returns the use of a session with a record in the store: the remembered use if it is later than the recorded one.

    Periods before the first use are final. If the record reaches further back than the remembered use of a running
    session, the recorded use counts, and later reports change the periods in between.
    """
    if session.end is None and first_known(remembered) > max(first_known(recorded), session.start):
        return recorded
    return _later(remembered, recorded)


def _take_amounts(client: Store, books: Books, stored: list[StoredAccount], now: Instant, surely_past: int) -> None:
    """Adds the store's amounts to the acknowledged states of metered sessions.

    Amounts of sessions that are no longer metered are not read: a period has an amount of every pod that ever ran in
    it. An unreadable amount is left out, and `Books.amounts_unreadable` names its account, so that the amount is read
    again. If none of an account's amounts can be read, the account counts as unreadable. Periods that have not begun
    are read, too: a clock that was ahead may have charged the session in one, and that amount must be taken back.
    Periods that end after `surely_past` are not final.
    """
    wanted = _amounts_that_matter(books, stored, now)
    by_uid: dict[str, dict[Key, StoredAmount | None]] = {}

    def read(names: Sequence[str]) -> None:
        chosen = set(names)
        for key, amounts in reading.amounts_of(client, [item for item in wanted if item[0] in chosen]).items():
            for uid, amount in amounts.items():
                by_uid.setdefault(uid, {})[key] = amount

    for name, error in isolate_failures({account for account, *_ in wanted}, read).items():
        books.unreadable[name] = books.failed[name] = f"its amounts cannot be read: {described(error)}"
        _log.error("account unreadable", account=name, error=described(error))
    books.amounts_unreadable = {}
    for uid, amounts_found in by_uid.items():
        metered = books.pods.sessions.get(uid)
        if metered is not None:
            for (account, _), amount in amounts_found.items():
                if amount is None:
                    books.amounts_unreadable[account] = f"the amount of {uid} cannot be read"
            metered.acknowledged = _with_amounts(books, metered, amounts_found, now, surely_past)


def _amounts_that_matter(books: Books, stored: list[StoredAccount], now: Instant) -> list[tuple[str, int, list[str]]]:
    """Returns the amounts that may still change, as tuples of an account, a period's start, and sessions' uids.

    Amounts may still change in three kinds of periods: the latest ones of each account, those that ended within
    MENDED_WITHIN, and the last period of each ended session.
    """
    payers: dict[str, set[str]] = {}
    for namespace, known in books.assignments.items():
        for _, name in known:
            payers.setdefault(name, set()).add(namespace)
    wanted: list[tuple[str, int, list[str]]] = []
    for account in stored:
        sessions = books.pods.sessions.of_namespaces(payers.get(account.name, ()))
        uids = [metered.session.uid for metered in sessions]
        starts = {start: list(uids) for start in account.totals if uids}
        for period in books.accounts[account.name].periods_after(now - MENDED_WITHIN):
            if period.start not in starts:
                starts[period.start] = [m.session.uid for m in sessions if _may_be_in(m.session, period)]
        for session in account.closed:
            last = books.accounts[account.name].period_at((session.end or 0) - 1)
            if last is not None and last.start not in starts:
                starts.setdefault(last.start, []).append(session.uid)
        wanted.extend((account.name, start, uids) for start, uids in starts.items() if uids)
    return wanted


def _may_be_in(session: Session, period: Period) -> bool:
    return session.start < period.end and (session.end is None or session.end > period.start)


def _with_amounts(
    books: Books, metered: MeteredSession, amounts: Mapping[Key, StoredAmount | None], now: Instant, surely_past: int
) -> Acknowledged:
    """Returns a session's acknowledged state with its amounts in the periods that were read from the store.

    A period is final once it has ended and the store holds the session's whole amount in it and in all periods before.
    The amounts of final periods are left out, unless the store holds the session's end and all its amounts.

    The store may hold the end of a session, but lack its amount in an earlier period, or hold an amount other than 0 in
    a later period that the session did not reach. The session then counts as not closed, and is settled again.

    Args:
        amounts: the session's stored amounts, keyed by account and start of the period; None for an unreadable one.
        surely_past: the earliest of the local clock's time, the store's, and the last reconciliation's, in ns since
            1970.
    """
    known, session = metered.acknowledged, metered.session
    periods = {
        key: AcknowledgedAmount(amount.amount, amount.last_point, amount.flag == FINALIZED)
        for key, amount in amounts.items()
        if amount is not None
    }
    until = now if session.end is None else session.end
    expected = _last_instants(books, session, until, now)
    lacking = [key for key, last in expected.items() if not _holds(amounts.get(key), last)]
    if session.end is not None:
        lacking += _not_reached(books, session, [key for key in periods if key not in expected and periods[key].amount])
    if known.closed and not lacking:
        return known._replace(periods=periods)
    ends = {key: each.end for key in {*amounts, *expected} if (each := books.accounts[key[0]].period_at(key[1]))}
    over = {key: end for key, end in ends.items() if end <= min(until, surely_past)}
    lacking += [key for key in amounts.keys() - expected.keys() if not _holds(amounts[key], key[1])]
    unsettled = [over[key] for key in lacking if key in over]
    final = [end for end in over.values() if end < min(unsettled, default=until + 1)]
    settled_until = max([first_known(known.use), *final])
    open_after = {key: each for key, each in periods.items() if ends.get(key, until + 1) > settled_until}
    payers = books.assignments.get(session.namespace, ())
    return running_on(known, session, payers, open_after, until, settled_until)


def _last_instants(books: Books, session: Session, until: int, now: Instant) -> dict[Key, int]:
    """Returns the end (nanoseconds since 1970) of a session's last segment in each period whose amounts were read.

    The key is the account and the start of the period. `until` is the instant up to which the session is charged.
    """

    def read(name: str) -> Sequence[Period]:
        account = books.accounts[name]
        count = max(len(account.period_totals), len(account.periods_after(now - MENDED_WITHIN)))
        return account.periods[-count:] if count else ()

    payers = books.assignments.get(session.namespace, ())
    return {(span.account, span.period): span.end for span in segments(payers, read, session.start, until)}


def _not_reached(books: Books, session: Session, charged: Collection[Key]) -> list[Key]:
    """Returns the periods in `charged`, each as its account and start, that an ended session did not reach."""
    if not charged:
        return []
    payers, start = books.assignments.get(session.namespace, ()), session.start
    spans = segments(payers, lambda name: books.accounts[name].periods_after(start - 1), start, session.end or start)
    reached = {(span.account, span.period) for span in spans}
    return [key for key in charged if key not in reached]


def _holds(amount: StoredAmount | None, last: int) -> bool:
    """Whether a session's stored amount covers a period up to the instant `last`, and the ledger holds all of it."""
    if amount is None or amount.amount != amount.posted or amount.last_point is None:
        return False
    return amount.last_point.until >= last


def reprice(books: Books, now: Instant) -> bool:
    """Adopts the configured prices from now on, for open sessions too; returns whether the prices changed.

    Time that was metered keeps its rates, and so does a session whose reservation is not known. The caller must write
    the new prices to the store only after every session with its new rates: if the leader ends in between, the next
    leader then finds the change again.

    Args:
        books: the leader's state, with the configured and the charged prices.
    """
    # Before anything was charged, the configured prices hold for the past, too.
    prices = amended(books.prices or books.rules.prices, books.rules.prices, now)
    if prices == books.prices:
        return False
    books.prices = prices
    for metered in books.pods.sessions.all():
        session = metered.session
        if metered.reservation is not None and session.end is None:
            later = tariff(metered.reservation, prices, max(now, session.start), books.rules.charge)
            rates = from_now_on(session.tariff, later)
            if rates != session.tariff:
                metered.session = replace(session, tariff=rates)
    return True


def bring_rates_up(books: Books, since: Instant) -> None:
    """Sets the rates of sessions from `since` on anew, because the store has lost the price changes of that time.

    Closed sessions, and sessions whose reservation is not known, keep their rates.

    Args:
        books: the leader's state, with the prices by which sessions were charged; the new rates follow from them.
        since: the first change of prices that the store lacks.
    """
    for metered in books.pods.sessions.all():
        session = metered.session
        if metered.reservation is None or metered.acknowledged.closed:
            continue
        rates = tariff(metered.reservation, books.prices, max(since, session.start), books.rules.charge)
        known = from_now_on(session.tariff, rates)
        if known != session.tariff:
            metered.session = replace(session, tariff=known)


def catch_rates_up(books: Books, now: Instant) -> None:
    """Corrects the rates of sessions that missed price changes because their account could not be settled.

    The store has the new prices, and the records of these sessions have rates by the old prices. A session with a known
    reservation keeps its rates if they do not follow from the old prices: other rules set them. A session with GPUs of
    several models whose reservation is not known keeps its rates, too.

    Args:
        now: the present; price changes after it do not count.
    """
    changes = price_changes(books.prices, 0, now + 1)
    for metered in books.pods.sessions.all():
        session = metered.session
        if metered.acknowledged.closed:
            continue
        within = [change for change in changes if session.start < change < (session.end or FOREVER)]
        if metered.reservation is not None:
            known = _caught_up(books, session, metered.reservation, within)
        else:
            known = _scaled(books.prices, session, within)
        if known != session.tariff:
            metered.session = replace(session, tariff=known)


def _caught_up(books: Books, session: Session, reservation: Reservation, changes: Sequence[int]) -> Tariff:
    """Returns a session's tariff, brought up to date from the first price change on that it lacks.

    It lacks a change if its rate at that instant still follows from the prices before the change. `changes` are the
    instants of price changes, in nanoseconds since 1970.
    """
    rules = books.rules.charge
    for change in changes:
        before = rate_at(reservation, books.prices, change - 1, rules)
        after = rate_at(reservation, books.prices, change, rules)
        if rate_now(session.tariff, change) == before != after:
            return from_now_on(session.tariff, tariff(reservation, books.prices, change, rules))
    return session.tariff


def _scaled(prices: Prices, session: Session, changes: Sequence[int]) -> Tariff:
    """Returns the tariff of a session without a reservation, brought up to date with the price changes that it lacks.

    The attribution names the model of the session's GPUs; a session with several models keeps its tariff. A rate is
    proportional to the price, and rounded up. `changes` are the instants of price changes, in nanoseconds since 1970.
    """
    model = session.attribution.model if session.attribution is not None else MIXED
    rates_so_far = session.tariff
    for change in changes:
        if MIXED in model or any(since == change for since, _ in rates_so_far):
            continue
        before, after = (
            price_at(prices, model, instant) if model else dearest_at(prices, instant)
            for instant in (change - 1, change)
        )
        rate = ceil(rate_now(rates_so_far, change) * after / before) if before else 0
        if before not in {0, after} and rate != rate_now(rates_so_far, change):
            rates_so_far = from_now_on(rates_so_far, ((change, rate),))
    return rates_so_far


def from_now_on(rates: Tariff, later: Tariff) -> Tariff:
    """Returns the rates of one tariff up to the first instant of another, and the other's rates from then on.

    Args:
        rates: the earlier tariff: pairs of an instant (nanoseconds since 1970) and the rate from then on.
        later: the later tariff, of the same form.
    """
    since, rate = later[0]
    past = tuple(entry for entry in rates if entry[0] < since)
    if past and past[-1][1] == rate:
        return past + later[1:]
    return past + later
