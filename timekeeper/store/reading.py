"""Reads accounts, ledgers, sessions and the book from the store. Every function may raise redis.RedisError."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from timekeeper.metering.cuts import Cut
from timekeeper.metering.segments import Assignments
from timekeeper.metering.sessions import Session
from timekeeper.rules.orders import Taken
from timekeeper.rules.periods import Period
from timekeeper.rules.pots import Pot
from timekeeper.rules.pricing import Prices
from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one
from timekeeper.store.entries import LedgerEntry, entry_order, read_entry
from timekeeper.store.records import decode_assignments, decode_prices, decode_session
from timekeeper.store.segments import SEGMENT_ENTRIES, unpack_entries
from timekeeper.store.standing import Standing, read_standing

BATCH = 500
GONE = "g"
"""Flags an amount whose pod is known to be gone."""
SUMS = ["total", "granted", "gone", "exhausted", "struck", "terms"]


@dataclass(frozen=True, slots=True)
class StoredAmount:
    """A session's cumulative amount in a period, how much of it the ledger holds, and what is put down to hours.

    `cut` is that: cumulative, with what is posted as billed; None where nothing is.
    """

    amount: int
    posted: int
    flag: str
    cut: Cut | None = None

    @property
    def used(self) -> int:
        """What reports told of so far, as it is put down to hours."""
        return (self.cut.used or 0) if self.cut is not None else 0


def account_names(client: redis.Redis) -> list[str]:
    """Every account, by name."""
    return sorted(_text(name) for name in client.smembers(keys.ACCOUNTS))


def standing(client: redis.Redis, account: str, period: int) -> Standing | None:
    """What a period stands at; None where it was never opened."""
    return standing_of(client.hmget(keys.AccountKeys(account).period(period), SUMS))


def period_at(client: redis.Redis, account: str, instant: int) -> Period | None:
    """The period of an account that holds an instant."""
    found: Any = client.hgetall(keys.AccountKeys(account).periods)
    periods = (Period(int(start), int(end)) for start, end in found.items())
    return next((period for period in periods if period.holds(instant)), None)


def orders_of(client: redis.Redis, account: str) -> tuple[dict[str, Taken], dict[str, Taken]]:
    """The grants and the corrections that an account has taken, by name."""
    names = keys.AccountKeys(account)
    pipeline = client.pipeline(transaction=False)
    pipeline.hgetall(names.grants)
    pipeline.hgetall(names.corrections)
    grants, corrections = pipeline.execute()
    return orders_by_name(grants), orders_by_name(corrections)


def pots(client: redis.Redis, account: str, period: int) -> dict[str, Pot]:
    """A period's money that expires on its own, by name."""
    return pots_by_name(client.hgetall(keys.AccountKeys(account).pots(period)))


def stored_amounts(client: redis.Redis, account: str, period: int) -> dict[str, StoredAmount]:
    """The amount of each session in a period."""
    return _amounts(client.hgetall(keys.AccountKeys(account).amounts(period)))


def amounts_of(
    client: redis.Redis, wanted: Sequence[tuple[str, int, Sequence[str]]]
) -> dict[tuple[str, int], dict[str, StoredAmount]]:
    """The amounts of some sessions in several periods, given as account, start and the sessions' uids.

    One that cannot be read is left out: the store refuses to settle that session, and no other.
    """
    amounts: dict[tuple[str, int], dict[str, StoredAmount]] = {}
    for start in range(0, len(wanted), BATCH):
        chunk = wanted[start : start + BATCH]
        pipeline = client.pipeline(transaction=False)
        for account, period, uids in chunk:
            pipeline.hmget(keys.AccountKeys(account).amounts(period), list(uids))
        for (account, period, uids), texts in zip(chunk, pipeline.execute(), strict=True):
            found = zip(uids, texts, strict=True)
            read = {uid: _amount_or_nothing(text) for uid, text in found if text is not None}
            amounts[account, period] = {uid: amount for uid, amount in read.items() if amount is not None}
    return amounts


def checkpoint(client: redis.Redis, account: str, period: int) -> int:
    """What the period was opened with."""
    return int(client.hget(keys.AccountKeys(account).period(period), "checkpoint") or 0)


def ledger_page(client: redis.Redis, account: str, after: str, limit: int) -> list[LedgerEntry]:
    """Entries after the one of that id, oldest first; from the first one where the id is empty.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
        SegmentError: older entries are packed in a way that this timekeeper does not know.
    """
    names = keys.AccountKeys(account)
    entries: list[LedgerEntry] = []
    while True:
        missing = limit - len(entries)
        most_segments = -(-missing // SEGMENT_ENTRIES) + 1
        call = Call("read_ledger", (names.ledger, names.segments, names.segment_order), (after, most_segments, missing))
        segments, last, latest = run_one(client, call)
        place = entry_order(after) if after else (-1, 0)
        found = [entry for segment in segments for entry in unpack_entries(segment) if entry_order(entry.id) > place]
        found += [read_entry(name, dict(zip(fields[::2], fields[1::2], strict=True))) for name, fields in latest]
        entries += found[:missing]
        if last or len(entries) >= limit:
            return entries
        after = entries[-1].id


def summaries(client: redis.Redis, accounts: Sequence[str]) -> dict[str, str]:
    """The figures of accounts as the leader published them, as JSON, with what is spent by now and was before.

    Accounts without any are left out.
    """
    pipeline = client.pipeline(transaction=False)
    for name in accounts:
        pipeline.hmget(keys.AccountKeys(name).head, ["summary", "burn"])
    answers = zip(accounts, pipeline.execute(), strict=True)
    found = {name: {**json.loads(text), "burn": _text(burn or "")} for name, (text, burn) in answers if text}
    for name, summary in found.items():
        pipeline.hget(keys.AccountKeys(name).period(summary["period_start"]), "total")
    for summary, total in zip(found.values(), pipeline.execute(), strict=True):
        summary["spent"] = int(total) if total is not None else summary["spent"]
    return {name: json.dumps(summary) for name, summary in found.items()}


def open_sessions(client: redis.Redis, after: str, limit: int) -> list[tuple[str, str]]:
    """(uid, account) of open sessions after a uid, by uid."""
    low = f"({after} \xff" if after else "-"
    members = client.zrangebylex(keys.OPEN_SESSIONS, low, "+", 0, limit)
    return [_uid_and_account(member) for member in members]


def sessions(client: redis.Redis, found: Sequence[tuple[str, str]]) -> dict[str, Session]:
    """The open sessions among these (uid, account), by uid."""
    pipeline = client.pipeline(transaction=False)
    for uid, account in found:
        pipeline.hget(keys.AccountKeys(account).sessions, uid)
    answers = zip(found, pipeline.execute(), strict=True)
    return {uid: decode_session(text) for (uid, _), text in answers if text is not None}


def assigned_namespaces(client: redis.Redis) -> list[str]:
    """The namespaces that anybody ever paid for."""
    found: Any = client.hkeys(keys.NAMESPACES)
    return [_text(name) for name in found]


def count_namespaces(client: redis.Redis) -> int:
    """How many namespaces anybody ever paid for."""
    return int(client.hlen(keys.NAMESPACES))


def assignments_of(client: redis.Redis, namespaces: Sequence[str]) -> dict[str, Assignments]:
    """Who pays for some namespaces from when on; those that nobody ever paid for are left out."""
    if not namespaces:
        return {}
    texts: Any = client.hmget(keys.NAMESPACES, list(namespaces))
    found = zip(namespaces, texts, strict=True)
    return {name: decode_assignments(text) for name, text in found if text is not None}


def assignments(client: redis.Redis) -> dict[str, Assignments]:
    """Who pays for each namespace from when on."""
    found = client.hgetall(keys.NAMESPACES)
    return {_text(namespace): decode_assignments(text) for namespace, text in found.items()}


def namespaces(client: redis.Redis) -> list[str]:
    """Every namespace that is or was assigned to an account, by name."""
    return sorted(_text(name) for name in client.hkeys(keys.NAMESPACES))


def budgets(client: redis.Redis) -> dict[str, Any]:
    """Each GPUBudget as it last could be used."""
    return {_text(name): json.loads(text) for name, text in client.hgetall(keys.BUDGETS).items()}


def prices(client: redis.Redis) -> Prices:
    """The price of each model over time, as it was charged."""
    text = client.get(keys.PRICES)
    return decode_prices(text) if text is not None else {}


def watched(client: redis.Redis) -> int | None:
    """Until when all open sessions were known to live."""
    text = client.get(keys.WATCHED)
    return int(text) if text is not None else None


def used(client: redis.Redis, uids: Sequence[str]) -> list[int | None]:
    """The GPU time that each pod's reports tell of, in microGPU-seconds; None where it never sent any."""
    pipeline = client.pipeline(transaction=False)
    for uid in uids:
        pipeline.hget(keys.report(uid), "used")
    answers = pipeline.execute() if uids else []
    return [None if found is None else int(found) for found in answers]


def standing_of(sums: Sequence[Any], version: Any = None) -> Standing | None:
    """What a period stands at, from its SUMS and the account's version; None where it was never opened."""
    return None if sums[0] is None else read_standing([*sums, version])


def orders_by_name(found: Mapping[Any, Any]) -> dict[str, Taken]:
    """Grants or corrections as they stand in an account."""
    return {_text(name): Taken(*map(int, _text(text).split(" "))) for name, text in found.items()}


def pots_by_name(found: Mapping[Any, Any]) -> dict[str, Pot]:
    """A period's pots as they stand in it."""
    result = {}
    for key, text in found.items():
        amount, expires, since, flag = _text(text).split(" ")
        name = _text(key)
        result[name] = Pot(name, int(amount), int(expires), int(since), flag == "l")
    return result


def _amounts(found: Mapping[Any, Any]) -> dict[str, StoredAmount]:
    return {_text(uid): read_amount(text) for uid, text in found.items()}


def read_amount(text: Any) -> StoredAmount:
    """Reads what stands of a session in `amounts`."""
    _, _, amount, posted, flag, *cut = _text(text).partition(" @")[0].split(" ")
    if not cut:
        return StoredAmount(int(amount), int(posted), flag)
    until, core, memory, used = cut
    taken = Cut(int(until), int(posted), int(core), int(memory), None if used == "-" else int(used))
    return StoredAmount(int(amount), int(posted), flag, taken)


def _amount_or_nothing(text: Any) -> StoredAmount | None:
    try:
        return read_amount(text)
    except ValueError:
        return None


def _uid_and_account(member: Any) -> tuple[str, str]:
    uid, _, account = _text(member).partition(" ")
    return uid, account


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
