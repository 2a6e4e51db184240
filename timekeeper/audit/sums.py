"""Holds a period's sums to its ledger, its sessions' amounts and its grants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import GONE, OPEN, SessionAmount, Snapshot, read_amount, whole

GRANT, CHECKPOINT = "grant", "checkpoint"
MONEY = frozenset({GRANT, "carry", "lapse"})
"""Entries that change what is available, and not what is spent."""


def check_sums(snapshot: Snapshot) -> Iterator[Difference]:
    """What a period stands at, against checkpoint + entries + what is not posted yet; and each session's postings."""
    amounts = {uid: found for uid, text in snapshot.amounts.items() if (found := read_amount(text)) is not None}
    unreadable = snapshot.amounts.keys() - amounts.keys()
    for uid in sorted(unreadable):
        text = snapshot.amounts[uid]
        yield difference(snapshot, Figure.AMOUNT, uid, text, "epoch counter amount posted flag", "it cannot be read")
    posted = posted_by_session(snapshot)
    opened_with = sum(entry.amount for entry in snapshot.entries if entry.kind == CHECKPOINT)
    # What is closed is in the ledger, whatever the amount beside it says.
    unposted = sum(found.amount - posted.get(uid, 0) for uid, found in amounts.items() if found.flag == OPEN)
    expected = {
        Figure.CHECKPOINT: (opened_with, "the ledger's entries of kind checkpoint"),
        Figure.SPENT: (opened_with + sum(posted.values()) + unposted, "checkpoint + ledger entries + unposted amounts"),
        Figure.GONE: (
            opened_with + sum(posted.get(uid, 0) for uid, found in amounts.items() if found.flag == GONE),
            "checkpoint + ledger entries of sessions whose pods are gone",
        ),
    }
    for figure, (amount, reason) in expected.items():
        stored = snapshot.sums.get("total" if figure is Figure.SPENT else figure.value, "nothing")
        if stored != str(amount):
            yield difference(snapshot, figure, "", stored, str(amount), reason)
    yield from _check_postings(snapshot, amounts, posted, unreadable)
    yield from _check_grants(snapshot)


def posted_by_session(snapshot: Snapshot) -> dict[str, int]:
    """What the ledger's entries of each session in the period add up to."""
    posted: dict[str, int] = defaultdict(int)
    for entry in snapshot.entries:
        if entry.kind not in MONEY | {CHECKPOINT}:
            posted[entry.session] += entry.amount
    return posted


def _check_postings(
    snapshot: Snapshot, amounts: Mapping[str, SessionAmount], posted: Mapping[str, int], unreadable: set[str]
) -> Iterator[Difference]:
    for uid in sorted(posted.keys() - amounts.keys() - unreadable):
        reason = "the ledger has entries of it, and the period knows no such session"
        yield difference(snapshot, Figure.LEDGER, uid, str(posted[uid]), "0", reason)
    for uid, found in amounts.items():
        entries = posted.get(uid, 0)
        if found.posted != entries:
            reason = "the session's ledger entries in the period"
            yield difference(snapshot, Figure.POSTED, uid, str(found.posted), str(entries), reason)
        if found.flag != OPEN and found.amount != entries:
            reason = "a closed session's ledger entries in the period"
            yield difference(snapshot, Figure.AMOUNT, uid, str(found.amount), str(entries), reason)


def _check_grants(snapshot: Snapshot) -> Iterator[Difference]:
    entries: dict[str, int] = defaultdict(int)
    for entry in snapshot.entries:
        if entry.kind == GRANT:
            entries[entry.name] += entry.amount
    applied: dict[str, int | None] = {}
    for name, text in snapshot.grants.items():
        start, _, amount = text.partition(" ")
        if start == str(snapshot.start):
            applied[name] = whole(amount)
    for name in sorted(entries.keys() | applied.keys()):
        if applied.get(name) != entries.get(name):
            stored, expected = applied.get(name, "nothing"), entries.get(name, "nothing")
            reason = "the ledger's entry of this grant"
            yield difference(snapshot, Figure.GRANTED, name, str(stored), str(expected), reason)
    total = str(sum(entry.amount for entry in snapshot.entries if entry.kind in MONEY))
    if snapshot.sums.get("granted") != total:
        stored = snapshot.sums.get("granted", "nothing")
        yield difference(snapshot, Figure.GRANTED, "", stored, total, "the ledger's grant, carry and lapse entries")


def difference(snapshot: Snapshot, figure: Figure, subject: str, stored: str, expected: str, reason: str) -> Difference:
    """A difference in this period."""
    return Difference(snapshot.account, snapshot.start, figure, subject, stored, expected, reason)
