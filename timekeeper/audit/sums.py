"""Checks a period's totals, postings and orders against its ledger entries, and the sums of its hours."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import FINALIZED, OPEN, Entry, SessionAmount, Snapshot, read_amount, whole
from timekeeper.domain.sessions import EndProof
from timekeeper.domain.timestamps import Instant
from timekeeper.domain.usage import Dimensions, Row, UsageFigures, of_values
from timekeeper.domain.usage_folding import FoldedError, parse_part, totals_of, unfold
from timekeeper.ledger.entries import Ending, read_ending

HOUR = 3_600 * 10**9
_ROW = re.compile(r"(-?[0-9]+) (-?[0-9]+) (-?[0-9]+) (-|-?[0-9]+)")
LONGEST_DAYS = 62
"""The longest period, in days, of which a snapshot has all hours; the hours of longer periods are not checked."""


def hours_around(start: Instant) -> tuple[int, int]:
    """Returns the hours of usage that a snapshot reads for a period: the first hour, and the hour after the last one.

    Both are counted from 1970. They cover the longest period that `check_hours` checks.

    Args:
        start: the period's start.
    """
    return start // HOUR, start // HOUR + LONGEST_DAYS * 24 + 1


def check_hours(snapshot: Snapshot) -> Iterator[Difference]:
    """Checks the usage by hour in a period against its ledger entries, and the sums of usage against its rows.

    Yields each difference.

    A period is skipped if it does not begin and end on a full hour, is longer than LONGEST_DAYS, or was restored from a
    checkpoint after its end.
    """
    start, end = snapshot.start, snapshot.end
    if end is None or not _reads_all_hours(snapshot):
        return
    billed = 0
    for first, hours, subject, amount in _rows(snapshot):
        if start <= first * HOUR and (first + hours) * HOUR <= end:
            if amount is None:
                yield difference(snapshot, Figure.HOURS, subject, "unreadable", "billed core memory used", "its form")
            billed += amount or 0
    for name, blob in snapshot.folded.items():
        try:
            detailed, *others = totals_of(blob)
        except FoldedError as error:
            yield difference(snapshot, Figure.HOURS, name, str(error), "packed rows", "its form")
            continue
        yield from _check_place(snapshot, name, blob)
        for other in others:
            if other != detailed:
                reason = "the rows that the same packed value holds in detail"
                yield difference(snapshot, Figure.HOURS, "", str([*other]), str([*detailed]), reason)
    yield from _check_sums(snapshot)
    expected = sum(entry.amount for entry in snapshot.entries if entry.kind not in MONEY)
    if billed != expected:
        reason = "the ledger's entries of what was spent"
        yield difference(snapshot, Figure.HOURS, "", str(billed), str(expected), reason)


def _check_place(snapshot: Snapshot, name: str, blob: bytes) -> Iterator[Difference]:
    """Checks that the rows of a packed value, `blob`, lie in the hours that its `name` states; yields a difference."""
    part, rows = parse_part(name.encode()), unfold(blob)
    if part is None or not rows:
        return
    first, end = min(row.hour for row in rows), max(row.hour + row.hours for row in rows)
    if not part.first <= first or not end <= part.end:
        expected = f"hours from {first} to {end}"
        yield difference(snapshot, Figure.HOURS, name, f"hours from {part.first} to {part.end}", expected, "its rows")


def billed_hours(snapshot: Snapshot) -> tuple[int, int]:
    """Returns the amount billed in the hours of a period, and the part of it for devices of unknown model.

    Both are in microGPU-seconds, and 0 for a period that `check_hours` skips. Hours that only partly lie in the period
    are left out, and so are unreadable rows. Corrections and restored checkpoints name no node: they never count as of
    unknown model.
    """
    start, end = snapshot.start, snapshot.end
    billed = unknown = 0
    if end is None or not _reads_all_hours(snapshot):
        return billed, unknown
    for hour, hours, to, amount in _rows_by_dimensions(snapshot):
        if start <= hour * HOUR and (hour + hours) * HOUR <= end:
            billed += amount
            unknown += amount if to.node and "" in to.model.split(",") else 0
    return billed, unknown


@dataclass(frozen=True, slots=True)
class UnseenEnd:
    """A session whose end was not observed, so that it was charged up to its last sign of life.

    Attributes:
        account: the account that paid.
        namespace: the pod's namespace.
        pod: the pod's name; of a ResourceClaim, `resourceclaim/NAME`.
        start: the session's start.
        end: the last sign of life, up to which the session was charged.
        amount: the session's amount in the audited period, in microGPU-seconds.
    """

    account: str
    namespace: str
    pod: str
    start: Instant
    end: Instant
    amount: int


def unseen_ends(snapshot: Snapshot) -> Iterator[UnseenEnd]:
    """Yields the sessions of a period whose end was not observed, in the order of the entries that state the ends."""
    endings: dict[str, tuple[Entry, Ending]] = {}
    for entry in snapshot.entries:
        # A later entry may state another end. Most entries are of neither kind, and are not parsed.
        unseen = entry.note.startswith(EndProof.LAST_SEEN) or entry.session in endings
        if entry.session and unseen and (ending := read_ending(entry.note)) is not None:
            endings[entry.session] = entry, ending
    posted = posted_by_session(snapshot)
    for uid, (entry, ending) in endings.items():
        if ending.proof == EndProof.LAST_SEEN:
            yield UnseenEnd(snapshot.account, entry.namespace, entry.name, ending.start, ending.end, posted[uid])


def _reads_all_hours(snapshot: Snapshot) -> bool:
    """Whether a period's hours can be checked: it begins and ends on a full hour, and the snapshot has all its hours.

    A period that was restored from a checkpoint after its end cannot be checked: some of its use counts in later hours.
    """
    start, end = snapshot.start, snapshot.end
    if end is None or start % HOUR or end % HOUR:
        return False
    return end - start <= LONGEST_DAYS * 24 * HOUR and not _restored_late(snapshot)


def _rows_by_dimensions(snapshot: Snapshot) -> Iterator[tuple[int, int, Dimensions, int]]:
    """Yields each row of usage: first hour since 1970, number of hours, dimensions, and billed microGPU-seconds."""
    for field, text in snapshot.hours.items():
        if (row := _row_of(field, text)) is not None:
            hour, to, figures = row
            yield hour, 1, to, figures.billed
    for folded in _readable_folded(snapshot):
        yield folded.hour, folded.hours, folded.dimensions, folded.figures.billed


def _check_sums(snapshot: Snapshot) -> Iterator[Difference]:
    """Checks the stored sums by hour, namespace and model against the rows of these hours; yields each difference."""
    rows, sums = _added_up(snapshot.hours), _added_up(snapshot.hour_sums)
    for place in sorted({*rows, *sums}):
        stored, expected = sums.get(place, UsageFigures()), rows.get(place, UsageFigures())
        if stored != expected:
            hour, namespace, model = place
            stored_text = f"{[*stored]} in hour {hour} of {namespace or 'no namespace'}, model {model or 'unknown'}"
            yield difference(snapshot, Figure.HOURS, "", stored_text, str([*expected]), "the rows of that hour")


def _added_up(rows: Mapping[str, str]) -> dict[tuple[int, str, str], UsageFigures]:
    """Returns rows added up, keyed by hour since 1970, namespace and model; unreadable rows are left out.

    Args:
        rows: the stored text of each row, keyed by `HOUR DIMENSIONS`.
    """
    sums: dict[tuple[int, str, str], UsageFigures] = {}
    for field, text in rows.items():
        if (row := _row_of(field, text)) is not None:
            hour, to, figures = row
            place = hour, to.namespace, to.model
            sums[place] = sums.get(place, UsageFigures()).plus(figures)
    return sums


def _row_of(field: str, text: str) -> tuple[int, Dimensions, UsageFigures] | None:
    """Returns a row's hour since 1970, dimensions and figures; None if its key `HOUR DIMENSIONS` or text is broken."""
    hour, _, dimensions = field.partition(" ")
    row = _ROW.fullmatch(text)
    try:
        number, to = int(hour), of_values(json.loads(dimensions))
    except (ValueError, TypeError, AttributeError):
        return None
    if row is None or not all(isinstance(text, str) for text in to[:5]):
        return None
    billed, core, memory, used = row.groups()
    return number, to, UsageFigures(int(billed), int(core), int(memory), None if used == "-" else int(used))


def _restored_late(snapshot: Snapshot) -> bool:
    """Whether the period was restored from a checkpoint after its end, so that some use of it counts in later hours."""
    end = snapshot.end or 0
    return any(entry.kind == CHECKPOINT and entry.at >= end for entry in snapshot.entries)


def _rows(snapshot: Snapshot) -> Iterator[tuple[int, int, str, int | None]]:
    """Yields, for each row of usage, its first hour since 1970, its number of hours, its key, and its billed amount.

    The key is `HOUR DIMENSIONS`; a row of a packed value has an empty key. The amount is in microGPU-seconds; None if
    the row is unreadable.
    """
    for field, text in snapshot.hours.items():
        hour = whole(field.partition(" ")[0])
        if hour is not None:
            yield hour, 1, field, whole(text.partition(" ")[0])
    for row in _readable_folded(snapshot):
        yield row.hour, row.hours, "", row.figures.billed


def _readable_folded(snapshot: Snapshot) -> Iterator[Row]:
    """Yields the rows of packed values. `check_hours` names the values that cannot be read; they are left out here."""
    for blob in snapshot.folded.values():
        with suppress(FoldedError):
            yield from unfold(blob)


GRANT, CHECKPOINT, CORRECTION = "grant", "checkpoint", "correction"
OF_CREDITS = frozenset({"carry", "lapse"})
"""The kinds of ledger entries that only a credit has."""
MONEY = OF_CREDITS | {GRANT}
"""The kinds of ledger entries that change the available amount and not the spent amount."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The expected totals of a period, in microGPU-seconds.

    Attributes:
        total: the amount spent: ledger entries, and the amounts of open sessions that the ledger does not hold yet.
        checkpoint: the part of `total` that was taken from checkpoints, after the store was lost or had gone back to an
            earlier state.
        granted: the amount that grants and money carried over have added, less the money that has expired.
        finalized: the part of `total` that finalized sessions spent, and `checkpoint`.
    """

    total: int
    checkpoint: int
    granted: int
    finalized: int


def recompute(snapshot: Snapshot) -> Sums:
    """Computes the expected totals of a period from its ledger entries and from the amounts of its sessions."""
    amounts = _amounts(snapshot)
    posted = posted_by_session(snapshot)
    checkpoint = sum(entry.amount for entry in snapshot.entries if entry.kind == CHECKPOINT)
    corrected = sum(entry.amount for entry in snapshot.entries if _of_no_session(entry))
    unposted = sum(amount.amount - posted.get(uid, 0) for uid, amount in amounts.items() if amount.flag == OPEN)
    return Sums(
        total=checkpoint + corrected + sum(posted.values()) + unposted,
        checkpoint=checkpoint,
        granted=sum(entry.amount for entry in snapshot.entries if entry.kind in MONEY),
        finalized=checkpoint
        + sum(posted.get(uid, 0) for uid, amount in amounts.items() if amount.flag == FINALIZED)
        + (whole(snapshot.sums.get("folded")) or 0),
    )


def check_sums(snapshot: Snapshot, sums: Sums) -> Iterator[Difference]:
    """Checks the totals of a period, and the ledger entries of each session and order; yields each difference.

    Args:
        snapshot: the period as the store holds it.
        sums: the expected totals.
    """
    amounts, posted = _amounts(snapshot), posted_by_session(snapshot)
    unreadable = snapshot.amounts.keys() - amounts.keys()
    for uid in sorted(unreadable):
        text = snapshot.amounts[uid]
        yield difference(snapshot, Figure.AMOUNT, uid, text, "epoch counter amount posted flag", "it cannot be read")
    expected = {
        "total": (Figure.SPENT, sums.total, "checkpoint + ledger entries + unposted amounts"),
        "checkpoint": (Figure.CHECKPOINT, sums.checkpoint, "the ledger's entries of kind checkpoint"),
        "granted": (Figure.GRANTED, sums.granted, "the ledger's grant, carry and lapse entries"),
        "gone": (Figure.FINALIZED, sums.finalized, "checkpoint + ledger entries of sessions whose pods are gone"),
    }
    for field, (figure, amount, reason) in expected.items():
        stored = snapshot.sums.get(field, "nothing")
        if stored != str(amount):
            yield difference(snapshot, figure, "", stored, str(amount), reason)
    yield from _check_postings(snapshot, amounts, posted, unreadable)
    yield from _check_orders(snapshot)


def check_closing_balance(snapshot: Snapshot, now: Instant) -> Iterator[Difference]:
    """Checks the amount that the preceding period had spent, as the present period recorded it; yields any difference.

    The amount was recorded when the preceding period was closed, and decided how much money was carried over. It must
    still equal the preceding period's total.

    Args:
        snapshot: the present period; any other is skipped.
    """
    stored = snapshot.sums.get("struck")
    if snapshot.is_present(now) and stored and snapshot.before and stored != snapshot.before:
        yield difference(snapshot, Figure.BALANCE, "", stored, snapshot.before, "the total of the period before")


def _amounts(snapshot: Snapshot) -> dict[str, SessionAmount]:
    return {uid: amount for uid, text in snapshot.amounts.items() if (amount := read_amount(text)) is not None}


def posted_by_session(snapshot: Snapshot) -> dict[str, int]:
    """Returns the sum of each session's ledger entries in the period, in microGPU-seconds, keyed by uid.

    Entries of no session, such as grants, checkpoints and ordered corrections, are left out.
    """
    posted: dict[str, int] = defaultdict(int)
    for entry in snapshot.entries:
        if entry.kind not in MONEY | {CHECKPOINT} and not _of_no_session(entry):
            posted[entry.session] += entry.amount
    return posted


def _of_no_session(entry: Entry) -> bool:
    """Whether a ledger entry is an ordered correction, which belongs to no session."""
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
    for uid, amount in amounts.items():
        entries = posted.get(uid, 0)
        if amount.posted != entries:
            reason = "the session's ledger entries in the period"
            yield difference(snapshot, Figure.POSTED, uid, str(amount.posted), str(entries), reason)
        if amount.flag != OPEN and amount.amount != entries:
            reason = "a closed session's ledger entries in the period"
            yield difference(snapshot, Figure.AMOUNT, uid, str(amount.amount), str(entries), reason)


def _check_orders(snapshot: Snapshot) -> Iterator[Difference]:
    """Yields differences between stored grants, corrections and credits, and the ledger entries of the same names."""
    granted = _by_name(entry for entry in snapshot.entries if entry.kind == GRANT)
    corrected = _by_name(entry for entry in snapshot.entries if _of_no_session(entry))
    moved = _by_name(entry for entry in snapshot.entries if entry.kind in MONEY)
    stored_credits = {name: f"{snapshot.start} {text.partition(' ')[0]}" for name, text in snapshot.credits.items()}
    of_credits = stored_credits.keys() | {entry.name for entry in snapshot.entries if entry.kind in OF_CREDITS}
    kinds = (
        (Figure.GRANTED, "grant", snapshot.grants, granted),
        (Figure.SPENT, "correction", snapshot.corrections, corrected),
        (Figure.GRANTED, "credit", stored_credits, {name: moved.get(name, 0) for name in of_credits}),
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
    """Returns a difference in the account and the period of a snapshot.

    Args:
        figure: the kind of figure.
        subject: the session, grant, namespace or field of the figure; empty for a figure of the account itself.
        stored: the value in the store or in a status.
        expected: the value that was recomputed.
        reason: the data from which it was recomputed.
    """
    return Difference(snapshot.account, snapshot.start, figure, subject, stored, expected, reason)
