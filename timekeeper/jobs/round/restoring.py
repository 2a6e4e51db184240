"""Restores accounts of a store that went back to an earlier state: a backup, an old master, a file that was cut off.

What such a store holds is true of an earlier time. Sessions that can be computed are computed again and go on from it.
The others have ended since: their sum is in the checkpoint, and what it holds beyond what the store has of them becomes
one entry of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.round.desk import Desk
from timekeeper.rules.money import display
from timekeeper.sources.source import Notice
from timekeeper.store import book, reading
from timekeeper.store.restoring import GoneSession, Restoration, restore

MAX_NOTICES = 20
"""Accounts beside whose loss an event is written: where more are lost at once, all of them are."""
NOTE = "the store had gone back to an earlier state"

_log = structlog.get_logger()


def restore_accounts(desk: Desk, names: Iterable[str], now: int) -> None:
    """Brings accounts up to their checkpoints, in the period that these are of.

    Raises:
        StoreError: the store refused.
        redis.RedisError: it does not answer.
    """
    books = desk.books
    metered = books.memory.metered if books.memory else frozenset()
    for number, name in enumerate(sorted(names)):
        account = books.accounts[name]
        before, wanted = account.version, _wanted(desk, account, metered | books.pods.facts.keys())
        if wanted is None:
            continue
        desk.step("restore")
        book.note_restored(desk.client, [wanted.account])
        added, account.standings[wanted.period] = restore(desk.client, desk.epoch, now, wanted)
        _take_off_the_meter(desk, account, wanted.gone)
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
                "checkpoint while nobody watched, and whose pods are gone, are not charged."
            )
            desk.source.tell(Notice(books.budgets.objects[name], "LedgerRestored", message, warning=True))


def _wanted(desk: Desk, account: Account, computed: Iterable[str]) -> Restoration | None:
    found = account.checkpoint
    if found is None:
        return None
    again, sessions = set(computed), desk.books.pods.sessions
    stored = reading.stored_amounts(desk.client, account.name, found.period.start)
    gone = {uid for uid, amount in stored.items() if amount.flag != "g"} - again
    gone |= {m.session.uid for m in sessions.all() if m.acknowledged.open_under == account.name} - again
    named = []
    for uid in sorted(gone):
        metered = sessions.get(uid)
        where = (metered.session.namespace, metered.session.pod) if metered else ("", "")
        named.append(GoneSession(uid, *where))
    apart = sum(amount.amount for uid, amount in stored.items() if amount.flag == "g" and uid in again)
    start = found.period.start
    return Restoration(account.name, start, found.amount, apart, found.version, named, NOTE)


def _take_off_the_meter(desk: Desk, account: Account, gone: Iterable[GoneSession]) -> None:
    sessions = desk.books.pods.sessions
    left = [
        metered
        for uid, _, _ in gone
        if (metered := sessions.get(uid)) and metered.acknowledged.open_under == account.name
    ]
    for metered in left:
        sessions.drop(metered)
    book.index_sessions(desk.client, [], [(metered.session.uid, account.name) for metered in left])
