"""Holds a period's sums to its ledger, its sessions' amounts and its grants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import GONE, OPEN, Entry, SessionAmount, Snapshot, read_amount, whole

GRANT, CHECKPOINT, CORRECTION = "grant", "checkpoint", "correction"
MONEY = frozenset({GRANT, "carry", "lapse"})
"""Entries that change what is available, and not what is spent."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a period must stand at, in microGPU-seconds: the ledger's entries, and what is not posted yet."""

    total: int
    checkpoint: int
    granted: int
    gone: int


def recompute(snapshot: Snapshot) -> Sums:
    """Spend = checkpoint + entries + unposted amounts; what is closed is in the ledger, whatever else is said of it."""
    amounts = _amounts(snapshot)
    posted = posted_by_session(snapshot)
    checkpoint = sum(entry.amount for entry in snapshot.entries if entry.kind == CHECKPOINT)
    corrected = sum(entry.amount for entry in snapshot.entries if _of_no_session(entry))
    unposted = sum(found.amount - posted.get(uid, 0) for uid, found in amounts.items() if found.flag == OPEN)
    return Sums(
        total=checkpoint + corrected + sum(posted.values()) + unposted,
        checkpoint=checkpoint,
        granted=sum(entry.amount for entry in snapshot.entries if entry.kind in MONEY),
        gone=checkpoint
        + sum(posted.get(uid, 0) for uid, found in amounts.items() if found.flag == GONE)
        + (whole(snapshot.sums.get("folded")) or 0),
    )


def check_sums(snapshot: Snapshot, sums: Sums) -> Iterator[Difference]:
    """What a period stands at against what it must stand at, and what is posted of each session and grant."""
    amounts, posted = _amounts(snapshot), posted_by_session(snapshot)
    unreadable = snapshot.amounts.keys() - amounts.keys()
    for uid in sorted(unreadable):
        text = snapshot.amounts[uid]
        yield difference(snapshot, Figure.AMOUNT, uid, text, "epoch counter amount posted flag", "it cannot be read")
    expected = {
        "total": (Figure.SPENT, sums.total, "checkpoint + ledger entries + unposted amounts"),
        "checkpoint": (Figure.CHECKPOINT, sums.checkpoint, "the ledger's entries of kind checkpoint"),
        "granted": (Figure.GRANTED, sums.granted, "the ledger's grant, carry and lapse entries"),
        "gone": (Figure.GONE, sums.gone, "checkpoint + ledger entries of sessions whose pods are gone"),
    }
    for field, (figure, amount, reason) in expected.items():
        stored = snapshot.sums.get(field, "nothing")
        if stored != str(amount):
            yield difference(snapshot, figure, "", stored, str(amount), reason)
    yield from _check_postings(snapshot, amounts, posted, unreadable)
    yield from _check_orders(snapshot)


def check_closing_balance(snapshot: Snapshot) -> Iterator[Difference]:
    """The spending on which the latest period's carried money rests, against the total of the period before it."""
    stored = snapshot.sums.get("struck")
    if snapshot.latest and stored is not None and snapshot.before and stored != snapshot.before:
        yield difference(snapshot, Figure.BALANCE, "", stored, snapshot.before, "the total of the period before")


def _amounts(snapshot: Snapshot) -> dict[str, SessionAmount]:
    return {uid: found for uid, text in snapshot.amounts.items() if (found := read_amount(text)) is not None}


def posted_by_session(snapshot: Snapshot) -> dict[str, int]:
    """What the ledger's entries of each session in the period add up to."""
    posted: dict[str, int] = defaultdict(int)
    for entry in snapshot.entries:
        if entry.kind not in MONEY | {CHECKPOINT} and not _of_no_session(entry):
            posted[entry.session] += entry.amount
    return posted


def _of_no_session(entry: Entry) -> bool:
    """Whether it is a correction that somebody ordered; those of a session name it."""
    return entry.kind == CORRECTION and not entry.session


def _check_postings(
    snapshot: Snapshot, amounts: Mapping[str, SessionAmount], posted: Mapping[str, int], unreadable: set[str]
) -> Iterator[Difference]:
    unknown = posted.keys() - amounts.keys() - unreadable
    folded = [snapshot.sums[field] for field in ("folded", "passed") if field in snapshot.sums]
    if folded:
        expected = sum(posted[uid] for uid in unknown)
        stored = [whole(text) for text in folded]
        if None in stored or sum(number or 0 for number in stored) != expected:
            reason = "the ledger's entries of sessions whose amounts are not kept"
            yield difference(snapshot, Figure.FOLDED, "", " + ".join(folded), str(expected), reason)
        unknown = set()
    for uid in sorted(unknown):
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


def _check_orders(snapshot: Snapshot) -> Iterator[Difference]:
    """Grants, corrections and pots, each by its name: what is written down of it is what the ledger's entries say."""
    granted = _by_name(entry for entry in snapshot.entries if entry.kind == GRANT)
    corrected = _by_name(entry for entry in snapshot.entries if _of_no_session(entry))
    moved = _by_name(entry for entry in snapshot.entries if entry.kind in MONEY)
    pots = {name: f"{snapshot.start} {text.partition(' ')[0]}" for name, text in snapshot.pots.items()}
    kinds = (
        (Figure.GRANTED, "grant", snapshot.grants, granted),
        (Figure.SPENT, "correction", snapshot.corrections, corrected),
        (Figure.GRANTED, "pot", pots, {name: moved.get(name, 0) for name in pots}),
    )
    for figure, kind, texts, entries in kinds:
        known = {name: whole(text.partition(" ")[2]) for name, text in texts.items() if _is_of(snapshot, text)}
        for name in sorted(entries.keys() | known.keys()):
            if known.get(name) != entries.get(name):
                stored, expected = known.get(name, "nothing"), entries.get(name, "nothing")
                subject = f"{kind} {name}" if name else "rolled over"
                yield difference(snapshot, figure, subject, str(stored), str(expected), "the ledger's entries of it")


def _is_of(snapshot: Snapshot, text: str) -> bool:
    return text.partition(" ")[0] == str(snapshot.start)


def _by_name(entries: Iterable[Entry]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for entry in entries:
        sums[entry.name] += entry.amount
    return dict(sums)


def difference(snapshot: Snapshot, figure: Figure, subject: str, stored: str, expected: str, reason: str) -> Difference:
    """A difference in this period."""
    return Difference(snapshot.account, snapshot.start, figure, subject, stored, expected, reason)
