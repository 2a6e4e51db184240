"""Reads accounts, ledgers, sessions, the records that all accounts share, and the published states of namespaces.

Every function that takes a client may raise redis.RedisError. For a stored value that cannot be read, it raises one of
the errors in codec.UNREADABLE, unless its docstring states another error or result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson
import redis

from fairgpu.states import BudgetState
from timekeeper.domain.budgets import parse_budget
from timekeeper.domain.charges import Assignments, HourlyPoint
from timekeeper.domain.credits import Credit
from timekeeper.domain.forecast import BurnRecord
from timekeeper.domain.orders import OrderEntry
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import Prices
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import LAST_INSTANT, Instant
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, Store, concerns_all, described, readable_answers, run_for_each, run_one
from timekeeper.ledger.codec import (
    UNREADABLE,
    RecordError,
    as_text,
    decode_assignments,
    decode_burn,
    decode_prices,
    decode_session,
    decode_silent,
)
from timekeeper.ledger.entries import SEGMENT_ENTRIES, LedgerEntry, entry_order, read_entry, unpack_entries
from timekeeper.ledger.totals import PeriodTotals, read_totals

Value = TypeVar("Value")

BATCH = 500
FINALIZED = "g"
"""The flag of a finalized session's amount."""
FENCING_TOKEN_LIMIT = 10**15
"""A bound above all fencing tokens: a script's numbers are doubles, which must hold a token exactly."""
_WHOLE = re.compile(r"[0-9]{1,40}")
_RESTORED = re.compile(rb"([0-9]{1,40}) (-?[0-9]{1,40})(?: (-?[0-9]{1,40}))?")
SUMS = ["total", "granted", "gone", "exhausted", "struck", "terms"]


@dataclass(frozen=True, slots=True)
class StoredAmount:
    """A session's amount in a period, as the store holds it. Amounts are microGPU-seconds.

    Attributes:
        amount: the whole amount in the period so far.
        posted: the part of `amount` that the ledger holds.
        flag: `o` for an open session, `c` for a closed one, `g` for a finalized one.
        last_point: the last hourly point; its billed figure is `posted`. None before the first point.
    """

    amount: int
    posted: int
    flag: str
    last_point: HourlyPoint | None = None

    @property
    def used(self) -> int:
        """The session's GPU time that is attributed to hours so far, in microGPU-seconds."""
        return (self.last_point.used or 0) if self.last_point is not None else 0


def account_names(client: Store) -> list[str]:
    """Returns the names of all accounts, sorted."""
    return sorted(as_text(name) for name in client.smembers(keys.ACCOUNTS))


def highest_fencing_token(client: Store) -> int:
    """Returns the highest fencing token that the store has given to a leader; the next leader's must be higher.

    If the stored token cannot be read, the result is the highest token under which an account was written. If no token
    is stored, the result is 0.
    """
    known = whole(_text(client, keys.BOOK_FENCING_TOKEN))
    if known is not None and known < FENCING_TOKEN_LIMIT:
        return known
    if not client.exists(keys.BOOK_FENCING_TOKEN):
        return 0
    tokens = [0]
    names = account_names(client)
    for start in range(0, len(names), BATCH):
        pipeline = client.pipeline(transaction=False)
        for name in names[start : start + BATCH]:
            pipeline.hget(keys.AccountKeys(name).head, "epoch")
        account_tokens = [whole(answer) for answer in readable_answers(pipeline.execute(raise_on_error=False))]
        tokens += [
            fencing_token
            for fencing_token in account_tokens
            if fencing_token is not None and fencing_token < FENCING_TOKEN_LIMIT
        ]
    return max(tokens)


def _text(client: Store, key: str) -> Any:
    """Returns the bytes under a key; None if there are none, or the key holds another Redis type."""
    try:
        return client.get(key)
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        return None


def _text_or_error(client: Store, key: str) -> Any:
    """Returns the bytes under a key; None if there are none.

    Raises:
        RecordError: the key holds another Redis type.
    """
    try:
        return client.get(key)
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        raise RecordError(described(error)) from error


def period_totals(client: Store, account: str, period: Instant) -> PeriodTotals | None:
    """Returns the totals of an account's period, without the account's version; None if the period was never opened.

    Args:
        period: the start of the period.
    """
    return totals_of(client.hmget(keys.AccountKeys(account).period(period), SUMS))


def period_at(client: Store, account: str, instant: Instant) -> Period | None:
    """Returns the account's period that contains an instant; None if no period of the account contains it."""
    ends: Any = client.hgetall(keys.AccountKeys(account).periods)
    periods = (Period(int(start), int(end)) for start, end in ends.items())
    return next((period for period in periods if period.holds(instant)), None)


def orders_of(client: Store, account: str) -> tuple[dict[str, OrderEntry], dict[str, OrderEntry]]:
    """Returns the grants and the corrections that were applied to an account, each keyed by name."""
    names = keys.AccountKeys(account)
    pipeline = client.pipeline(transaction=False)
    pipeline.hgetall(names.grants)
    pipeline.hgetall(names.corrections)
    grants, corrections = pipeline.execute()
    return orders_by_name(grants), orders_by_name(corrections)


def credits_of(client: Store, account: str, period: Instant) -> dict[str, Credit]:
    """Returns the credits of an account's period, keyed by the credit's name; the empty name is the rollover.

    Args:
        period: the start of the period.
    """
    return credits_by_name(client.hgetall(keys.AccountKeys(account).credits(period)))


def stored_amounts(client: Store, account: str, period: Instant) -> dict[str, StoredAmount]:
    """Returns the amounts of sessions in an account's period, keyed by the session's uid.

    Args:
        period: the start of the period.
    """
    return _amounts(client.hgetall(keys.AccountKeys(account).amounts(period)))


def amounts_of(
    client: Store, wanted: Sequence[tuple[str, int, Sequence[str]]]
) -> dict[tuple[str, int], dict[str, StoredAmount | None]]:
    """Returns the amounts of some sessions in several periods.

    The result is keyed by (account, start of the period), then by the session's uid. Sessions without an amount are
    left out. None stands for an unreadable amount: the store refuses to settle that session, and no other.

    Args:
        wanted: for each period the account, the start in nanoseconds since 1970, and the sessions' uids.
    """
    amounts: dict[tuple[str, int], dict[str, StoredAmount | None]] = {}
    for start in range(0, len(wanted), BATCH):
        chunk = wanted[start : start + BATCH]
        pipeline = client.pipeline(transaction=False)
        for account, period, uids in chunk:
            pipeline.hmget(keys.AccountKeys(account).amounts(period), list(uids))
        for (account, period, uids), texts in zip(chunk, pipeline.execute(), strict=True):
            amount_texts = zip(uids, texts, strict=True)
            amounts[account, period] = {uid: readable_amount(text) for uid, text in amount_texts if text is not None}
    return amounts


def checkpoint(client: Store, account: str, period: Instant) -> int:
    """Returns the part of a period's total that came from a checkpoint, in microGPU-seconds; 0 without a checkpoint.

    Args:
        period: the start of the period.
    """
    return int(client.hget(keys.AccountKeys(account).period(period), "checkpoint") or 0)


def ledger_page(client: Store, account: str, after: str, limit: int) -> list[LedgerEntry]:
    """Returns a page of an account's ledger entries, oldest first.

    Args:
        after: the id of the entry after which the page begins; empty for the first page.
        limit: the most entries on the page.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
        SegmentError: a value of packed older entries cannot be read, or a later timekeeper wrote it.
    """
    names = keys.AccountKeys(account)
    entries: list[LedgerEntry] = []
    while True:
        missing = limit - len(entries)
        most_segments = -(-missing // SEGMENT_ENTRIES) + 1
        call = Call("read_ledger", (names.ledger, names.segments, names.segment_order), (after, most_segments, missing))
        segments, last, latest = run_one(client, call)
        place = entry_order(after) if after else (-1, 0)
        later_entries = [
            entry for segment in segments for entry in unpack_entries(segment) if entry_order(entry.id) > place
        ]
        later_entries += [
            read_entry(name, dict(zip(fields[::2], fields[1::2], strict=True))) for name, fields in latest
        ]
        entries += later_entries[:missing]
        if last or len(entries) >= limit:
            return entries
        after = entries[-1].id


def summaries(client: Store, accounts: Sequence[str]) -> dict[str, str]:
    """Returns the published figures of accounts as JSON, keyed by account; the amount spent is the present one.

    `decode_summary` reads each text. The field `burn` holds the samples of recent spending. Accounts without published
    figures are left out; unreadable figures are an empty text.
    """
    pipeline = client.pipeline(transaction=False)
    for name in accounts:
        pipeline.hmget(keys.AccountKeys(name).head, ["summary", "burn"])
    answers = zip(accounts, readable_answers(pipeline.execute(raise_on_error=False)), strict=True)
    found = {name: answer or (b"", None) for name, answer in answers if answer is None or answer[0]}
    decoded = {name: summary for name, answer in found.items() if (summary := _summary(*answer)) is not None}
    for name, summary in decoded.items():
        pipeline.hget(keys.AccountKeys(name).period(summary["period_start"]), "total")
    totals = readable_answers(pipeline.execute(raise_on_error=False))
    for summary, total in zip(decoded.values(), totals, strict=True):
        with suppress(TypeError, ValueError):  # the published amount stays if there is no total, or it is damaged
            summary["spent"] = int(total)
    return dict.fromkeys(found, "") | {name: json.dumps(summary) for name, summary in decoded.items()}


def _summary(text: bytes, burn: bytes | None) -> dict[str, Any] | None:
    """Returns an account's published figures with the samples of its spending; None if they cannot be read."""
    try:
        summary = {**json.loads(text), "burn": as_text(burn or "")}
        return summary if isinstance(summary["period_start"], int) and "spent" in summary else None
    except (ValueError, TypeError, KeyError):
        return None


def open_sessions(client: Store, after: str, limit: int, account: str = "\xff") -> list[tuple[str, str]]:
    """Returns (uid, account) of each open session, sorted by uid, then by account.

    A session that moves has two accounts until the leader has removed the former one.

    Args:
        after: the uid after which the list begins; empty for the first sessions.
        limit: the most sessions to return.
        account: the account of `after` behind which the list begins; by default all of them are left out.
    """
    low = f"({after} {account}" if after else "-"
    members = client.zrangebylex(keys.OPEN_SESSIONS, low, "+", 0, limit)
    return [_uid_and_account(member) for member in members]


def sessions_under(client: Store, accounts: Container[str]) -> list[str]:
    """Returns the uids, sorted, of the open sessions for which any of these accounts pays, by the store's index."""
    members: Any = client.zrange(keys.OPEN_SESSIONS, 0, -1)
    return [uid for uid, account in map(_uid_and_account, members) if account in accounts]


def sessions(client: Store, keys_of_sessions: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Session]:
    """Returns the open ones among some sessions; a session that cannot be read is left out.

    Args:
        keys_of_sessions: (uid, account) of each of these sessions. A session is open under the account that pays for
            it, and under no other.

    Returns:
        The sessions, keyed by (uid, account).
    """
    pipeline = client.pipeline(transaction=False)
    for uid, account in keys_of_sessions:
        pipeline.hget(keys.AccountKeys(account).sessions, uid)
    answers = zip(keys_of_sessions, readable_answers(pipeline.execute(raise_on_error=False)), strict=True)
    found = dict[tuple[str, str], Session]()
    for key, text in answers:
        if text is not None:
            with suppress(RecordError):
                found[key] = decode_session(text)
    return found


def readable_sessions(records: Mapping[Any, Any]) -> dict[str, Session]:
    """Decodes the records of sessions; unreadable ones are left out.

    Args:
        records: the stored records keyed by uid, both as text or bytes.

    Returns:
        The sessions, keyed by uid.
    """
    return _readable(records, decode_session)[0]


def assigned_namespaces(client: Store) -> list[str]:
    """Returns the names of the namespaces whose payers over time the store holds."""
    names: Any = client.hkeys(keys.NAMESPACES)
    return [as_text(name) for name in names]


def count_namespaces(client: Store) -> int:
    """Returns the number of namespaces whose payers over time the store holds."""
    return int(client.hlen(keys.NAMESPACES))


def assignments_of(client: Store, namespaces: Sequence[str]) -> dict[str, Assignments]:
    """Returns the payers over time of some namespaces, keyed by namespace.

    Namespaces without readable payers are left out.
    """
    if not namespaces:
        return {}
    texts: Any = client.hmget(keys.NAMESPACES, list(namespaces))
    payer_texts = zip(namespaces, texts, strict=True)
    return _readable({name: text for name, text in payer_texts if text is not None}, decode_assignments)[0]


def assignments(client: Store) -> dict[str, Assignments]:
    """Returns the payers over time of all namespaces, keyed by namespace.

    Namespaces with unreadable payers are left out.
    """
    return assignments_and_faults(client)[0]


def assignments_and_faults(client: Store) -> tuple[dict[str, Assignments], dict[str, str]]:
    """Returns the payers over time of all namespaces, and the errors of the namespaces whose payers cannot be read.

    Both results are keyed by namespace; no namespace is in both.
    """
    return _readable(client.hgetall(keys.NAMESPACES), decode_assignments)


def unreadable_payers(client: Store) -> dict[str, tuple[str, str]]:
    """Returns the stored payers that cannot be read, keyed by namespace: their text, and the error of reading it."""
    stored: Any = client.hgetall(keys.NAMESPACES)
    texts = {key.decode(errors="backslashreplace"): text.decode(errors="replace") for key, text in stored.items()}
    faults = _readable(stored, decode_assignments)[1]
    return {namespace: (texts[namespace], why) for namespace, why in faults.items()}


def namespaces(client: Store) -> list[str]:
    """Returns the names of the namespaces whose payers over time the store holds, sorted."""
    return sorted(as_text(name) for name in client.hkeys(keys.NAMESPACES))


def kept_budgets(client: Store) -> list[str]:
    """Returns the names of the budgets of which the store has a last valid version, be it readable or not."""
    names: Any = client.hkeys(keys.BUDGETS)
    return [as_text(name) for name in names]


def budgets_and_faults(client: Store) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns GPUBudget objects in their last valid version, and the errors of the stored versions that are unreadable.

    Both results are keyed by the budget's name; no budget is in both.
    """

    def decode(text: Any) -> Any:
        item = json.loads(text)
        parse_budget(item)
        return item

    return _readable(client.hgetall(keys.BUDGETS), decode)


def prices(client: Store) -> Prices:
    """Returns the prices of all models over time, as they were charged; none if the store holds none.

    Raises:
        RecordError: the stored prices cannot be read.
    """
    text = _text_or_error(client, keys.PRICES)
    return decode_prices(text) if text is not None else {}


def since(client: Store) -> Instant | None:
    """Returns the instant from which pods of other stacks are metered; None if it is not stored, or unreadable."""
    return whole(_text(client, keys.SINCE))


def not_settled(client: Store) -> set[str]:
    """Returns the names of the accounts whose last settlement failed, at least in part."""
    names: Any = client.smembers(keys.NOT_SETTLED)
    return {name.decode(errors="replace") for name in names}


def watched(client: Store) -> Instant | None:
    """Returns the latest instant at which the leader knew that the pods of all open sessions were alive.

    A new leader dates by this instant the ends of sessions whose pods no longer exist. None if the instant is not
    stored, or unreadable.
    """
    return whole(_text(client, keys.WATCHED))


def watched_claims(client: Store) -> Instant | None:
    """Returns the latest instant at which the leader knew that the ResourceClaims of all open sessions existed.

    A new leader dates by this instant the ends of sessions whose claims no longer exist. None if the instant is not
    stored, or unreadable.
    """
    return whole(_text(client, keys.WATCHED_CLAIMS))


def silent(client: Store) -> dict[str, Instant]:
    """Returns the last sign of life of each node that the leader last knew as silent, keyed by the node's name.

    Raises:
        RecordError: the stored nodes cannot be read.
    """
    text = _text_or_error(client, keys.SILENT)
    return decode_silent(text) if text is not None else {}


def unmetered(client: Store) -> dict[str, Instant]:
    """Returns the ends of sessions whose pods a leader did not observe any more (see `note_unmetered`), keyed by uid.

    A key that ends with `keys.SEEN` has another instant: the one up to which pods had been observed when the pod of
    that uid was missing. Unreadable instants are left out. The result is empty if the key holds no hash.
    """
    try:
        ends: Any = client.hgetall(keys.UNMETERED)
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        return {}
    return {uid.decode(errors="replace"): end for uid, text in ends.items() if (end := whole(text)) is not None}


def past(client: Store) -> Instant | None:
    """Returns the instant of the last reconciliation that began to settle, by the leader's or the store's clock.

    A new leader whose clock is behind takes back nothing that was charged up to this instant. None if the instant is
    not stored, or unreadable.
    """
    return whole(_text(client, keys.PAST))


def used(client: Store, uids: Sequence[str]) -> list[int | None]:
    """Returns the GPU time that each pod's reports state as used, in microGPU-seconds, in the order of `uids`.

    A pod has None if it has no reports, or if their stored total cannot be read.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    answers = run_for_each(client, "read_used", (), [(keys.report(uid), ()) for uid in uids])
    return [whole(answer) for answer in readable_answers(answers)]


def totals_of(sums: Sequence[Any], version: Any = None) -> PeriodTotals | None:
    """Returns a period's totals from stored fields; None if the period was never opened.

    Args:
        sums: the values of the fields that SUMS names.
        version: the account's version; None if it is not needed.
    """
    return None if sums[0] is None else read_totals([*sums, version])


def orders_by_name(texts: Mapping[Any, Any]) -> dict[str, OrderEntry]:
    """Parses the grants or the corrections that were applied to an account; returns them keyed by name.

    Args:
        texts: the stored text of each order, keyed by name; both are text or bytes.

    Raises:
        ValueError, TypeError: a text is not that of an order.
    """
    return {as_text(name): OrderEntry(*map(int, as_text(text).split(" "))) for name, text in texts.items()}


def credits_by_name(texts: Mapping[Any, Any]) -> dict[str, Credit]:
    """Parses the credits of a period; returns them keyed by name.

    Args:
        texts: the stored text of each credit, keyed by name; both are text or bytes.

    Raises:
        ValueError: a text is not that of a credit.
    """
    result = {}
    for key, text in texts.items():
        amount, expires, since, flag = as_text(text).split(" ")
        name = as_text(key)
        result[name] = Credit(name, int(amount), int(expires), int(since), flag == "l")
    return result


def whole(text: Any) -> int | None:
    """Parses a stored whole number from 0 up, of at most 40 digits; None for an absent value or any other text.

    Args:
        text: the stored value, as text or bytes; None if it is absent.
    """
    digits = "" if text is None else text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return int(digits) if _WHOLE.fullmatch(digits) else None


def _readable(texts: Mapping[Any, Any], decode: Callable[[Any], Value]) -> tuple[dict[str, Value], dict[str, str]]:
    """Decodes the fields of a hash; returns the readable values and the errors of the other fields, keyed by field."""
    values, faults = dict[str, Value](), dict[str, str]()
    for key, text in texts.items():
        name = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
        try:
            values[name] = decode(text)
        except UNREADABLE as error:
            faults[name] = described(error)
    return values, faults


def _amounts(texts: Mapping[Any, Any]) -> dict[str, StoredAmount]:
    return {as_text(uid): read_amount(text) for uid, text in texts.items()}


def read_amount(text: Any) -> StoredAmount:
    """Parses the stored amount of a session in a period.

    Args:
        text: the stored value, as text or bytes.

    Raises:
        ValueError: the text is not such an amount.
    """
    _, _, amount, posted, flag, *point = as_text(text).partition(" @")[0].split(" ")
    if not point:
        return StoredAmount(int(amount), int(posted), flag)
    until, core, memory, used = point
    last_point = HourlyPoint(int(until), int(posted), int(core), int(memory), None if used == "-" else int(used))
    return StoredAmount(int(amount), int(posted), flag, last_point)


def readable_amount(text: Any) -> StoredAmount | None:
    """Parses the stored amount of a session in a period; returns None for any other text.

    Args:
        text: the stored value, as text or bytes.
    """
    try:
        return read_amount(text)
    except ValueError:
        return None


def _uid_and_account(member: Any) -> tuple[str, str]:
    uid, _, account = as_text(member).partition(" ")
    return uid, account


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account as the store holds it.

    Attributes:
        name: the account's name.
        periods: its periods, in order.
        totals: the totals of its latest periods, keyed by the period's start in nanoseconds since 1970.
        sessions: its open sessions.
        closed: its closed sessions whose pods are still on the API server.
        grants: the grants that were applied to it, keyed by name.
        corrections: the corrections that were applied to it, keyed by name.
        credits: the credits of its latest periods, keyed by the period's start, then by name.
        burn: the samples of its recent spending; None without any.
        restoring: the start of the latest period that the store had when a leader began to restore the account from a
            checkpoint, 0 for none or if it cannot be read; None if no restoration is under way.
        restored: the start of a period that was restored, the microGPU-seconds that the period before it had spent, and
            the part of them that is from corrections, None if it is not known; None if that period does not lack any
            spending, or the numbers cannot be read.
    """

    name: str
    periods: tuple[Period, ...]
    totals: Mapping[int, PeriodTotals]
    sessions: tuple[Session, ...]
    closed: tuple[Session, ...]
    grants: Mapping[str, OrderEntry]
    corrections: Mapping[str, OrderEntry]
    credits: Mapping[int, Mapping[str, Credit]]
    burn: BurnRecord | None = None
    restoring: Instant | None = None
    restored: tuple[Instant, int, int | None] | None = None


def load_accounts(
    client: Store, names: Sequence[str], latest_periods: int = 2, now: Instant | None = None
) -> list[StoredAccount]:
    """Reads accounts with their sessions and the totals of their latest periods; unknown accounts are left out.

    The totals of earlier periods whose balances are still to be closed are read, too.

    Args:
        latest_periods: the number of latest periods whose totals are read.
        now: the present instant. The latest periods are then those that have begun by `now`, and the totals of all
            later periods are read, too: a clock that was ahead has opened these. None counts all stored periods.

    Raises:
        ValueError, TypeError: a stored value of an account cannot be read.
    """
    accounts = []
    for start in range(0, len(names), BATCH):
        chunk = names[start : start + BATCH]
        pipeline = client.pipeline(transaction=False)
        for name in chunk:
            account = keys.AccountKeys(name)
            for key in (account.periods, account.sessions, account.ended):
                pipeline.hgetall(key)
            pipeline.hgetall(account.grants)
            pipeline.hgetall(account.corrections)
            pipeline.hmget(account.head, ["burn", "version", "restoring", "restored"])
        answers = pipeline.execute()
        raw_accounts = [_RawAccount(name, *answers[6 * index : 6 * index + 6]) for index, name in enumerate(chunk)]
        accounts.extend(_with_totals(client, [item for item in raw_accounts if item.periods], latest_periods, now))
    return accounts


@dataclass(frozen=True, slots=True)
class _RawAccount:
    name: str
    periods: Mapping[Any, Any]
    sessions: Mapping[Any, Any]
    ended: Mapping[Any, Any]
    grants: Mapping[Any, Any]
    corrections: Mapping[Any, Any]
    head: Sequence[Any]


def _with_totals(
    client: Store, raw_accounts: Sequence[_RawAccount], latest_periods: int, now: int | None
) -> list[StoredAccount]:
    pipeline = client.pipeline(transaction=False)
    periods_of, latest_of = list[list[Period]](), list[list[Period]]()
    for item in raw_accounts:
        periods = sorted((_bound(start), _bound(end)) for start, end in item.periods.items())
        periods_of.append([Period(start, end) for start, end in periods])
        to_come = 0 if now is None else sum(period.start > now for period in periods_of[-1])
        latest_of.append(periods_of[-1][-latest_periods - to_come :])
        for start in (period.start for period in latest_of[-1]):
            sums = keys.AccountKeys(item.name).period(start)
            pipeline.hmget(sums, SUMS)
            pipeline.hgetall(keys.AccountKeys(item.name).credits(start))
    answers = iter(pipeline.execute())
    accounts = []
    for item, periods_found, latest_found in zip(raw_accounts, periods_of, latest_of, strict=True):
        latest = [_StoredPeriod(period.start, next(answers), next(answers)) for period in latest_found]
        latest = _with_unclosed(client, item.name, periods_found, latest)
        burn, version, restoring, restored = item.head
        totals = {start: totals_of(sums, version) for start, sums, _ in latest}
        accounts.append(
            StoredAccount(
                item.name,
                tuple(periods_found),
                {start: sums for start, sums in totals.items() if sums is not None},
                tuple(decode_session(text) for text in item.sessions.values()),
                tuple(decode_session(text) for text in item.ended.values()),
                orders_by_name(item.grants),
                orders_by_name(item.corrections),
                {start: credits_by_name(found) for start, _, found in latest if found},
                decode_burn(burn) if burn else None,
                None if restoring is None else whole(restoring) or 0,
                None if restored is None else _restored(restored),
            )
        )
    return accounts


def _bound(text: Any) -> Instant:
    """Parses the start or the end of a period.

    Raises:
        ValueError: the text is no number, or the instant is one that no date expresses.
    """
    instant = int(text)
    if instant > LAST_INSTANT:
        raise ValueError(f"no period starts or ends at {instant}")
    return instant


def _restored(text: bytes) -> tuple[int, int, int | None] | None:
    match = _RESTORED.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]), None if match[3] is None else int(match[3]))


class _StoredPeriod(NamedTuple):
    """A period as the store holds it: its start, the values of the fields that SUMS names, and its credits by name."""

    start: Instant
    sums: Sequence[Any]
    credits: Mapping[Any, Any]


def _with_unclosed(
    client: Store, name: str, periods: Sequence[Period], latest: Sequence[_StoredPeriod]
) -> list[_StoredPeriod]:
    """Returns the latest periods, preceded by the earlier periods whose balances are still to be closed.

    There are such earlier periods if a leader ended while it closed the balances of several periods.

    Args:
        name: the account's name.
        periods: all periods of the account, in order.
        latest: the latest of these periods, as the store holds them, in order.
    """
    known, account = list(latest), keys.AccountKeys(name)
    earlier = [period.start for period in periods if not known or period.start < known[0].start]
    while earlier and known and known[0].sums[SUMS.index("struck")] == b"":
        start = earlier.pop()
        sums: Any = client.hmget(account.period(start), SUMS)
        found: Any = client.hgetall(account.credits(start))
        known.insert(0, _StoredPeriod(start, sums, found))
    return known


CHUNK = 5000
"""The number of states in one read."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position in the published states.

    Attributes:
        store_id: the store id; versions of another store id cannot be compared.
        version: the version of the states that the reader has received.
    """

    store_id: str
    version: int

    def __str__(self) -> str:
        return f"{self.store_id}.{self.version}"


@dataclass(frozen=True, slots=True)
class Changes:
    """The published states of namespaces that a reader does not have yet.

    Attributes:
        cursor: the store's present version.
        full: whether `states` holds all namespaces; otherwise it holds the namespaces whose state changed.
        states: pairs of a namespace and its state as JSON, each namespace once.
        prices: keyed by model, the GPU-hours charged for an hour of a whole GPU.
        default: the state of each namespace that has no published state of its own.
        charge: the admin's settings for charging, keyed by their name in GET /v1/states, such as unknownDeviceMiB.
        unused: as JSON, for namespaces without a published state, if the default budget has safe admission: the state
            `default` with the amounts of a period in which nothing is spent yet. Empty otherwise.
    """

    cursor: Cursor
    full: bool
    states: tuple[tuple[str, bytes], ...]
    prices: Mapping[str, float]
    default: str
    charge: Mapping[str, int] = field(default_factory=dict)
    unused: bytes = b""


def read_changes(client: Store, since: Cursor | None) -> Changes | None:
    """Reads the published states that changed since a reader's cursor, and all else that is published, such as prices.

    All states are read without a cursor, and with a cursor of another store id or of a later version than the store's.
    The result is None if nothing that is published changed since the cursor, or if nothing was ever published.

    Args:
        since: the reader's cursor; None if the reader has no state yet.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    head: Any = client.hmget(keys.STATES_HEAD, ["id", "version", "prices", "default", "charge", "unused"])
    if head[0] is None:
        return None
    cursor = Cursor(head[0].decode(), int(head[1] or 0))
    if since == cursor:
        return None
    full = since is None or since.store_id != cursor.store_id or since.version > cursor.version
    # A state that is published between these reads is sent now and, under its later version, once more.
    states = _all(client) if full or since is None else _since(client, since.version)
    prices, charge = orjson.loads(head[2]), orjson.loads(head[4] or b"{}")
    return Changes(cursor, full, states, prices, _default(head[3]), charge, head[5] or b"")


def unused_state(client: Store) -> BudgetState:
    """Returns the state of a namespace that no budget names and in which no pod was ever metered.

    Such a namespace is unlimited as long as no state was ever published.
    """
    head: Any = client.hget(keys.STATES_HEAD, "default")
    return BudgetState.UNLIMITED if head is None else BudgetState(_default(head))


def _default(head: bytes) -> str:
    return str(orjson.loads(head)) if head.startswith(b'"') else head.decode()


def _all(client: Store) -> tuple[tuple[str, bytes], ...]:
    # A scan may return a field twice; the later value counts.
    states: dict[bytes, bytes] = dict(client.hscan_iter(keys.STATES_VALUES, count=CHUNK))
    return tuple((name.decode(), state) for name, state in states.items())


def _since(client: Store, version: int) -> tuple[tuple[str, bytes], ...]:
    names: Any = client.zrangebyscore(keys.STATES_CHANGES, f"({version}", "+inf")
    states: list[tuple[str, bytes]] = []
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        values: Any = client.hmget(keys.STATES_VALUES, chunk)
        states += [(name.decode(), value) for name, value in zip(chunk, values, strict=True) if value is not None]
    return tuple(states)
