"""Holds each session's amount to what its record, the clock and who paid when make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from timekeeper.audit.charging import Changes, charge
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import OPEN, SessionAmount, SessionRecord, Snapshot, read_amount, read_session
from timekeeper.audit.sums import difference


@dataclass(frozen=True, slots=True)
class Moment:
    """When a snapshot was taken, and how far the books had surely come then; nanoseconds since 1970.

    Attributes:
        settled: every open session was settled up to it before the snapshot; None where that is unknown.
        now: nothing was settled beyond it.
        bill: what is billed; an amount follows from time alone where that is what was reserved.
        silent: nodes that do not speak, whose sessions are settled up to their last sign of life only.
    """

    settled: int | None
    now: int
    bill: str = "reserved"
    silent: frozenset[str] = frozenset()


def check_sessions(snapshot: Snapshot, payers: Mapping[str, Changes], moment: Moment) -> Iterator[Difference]:
    """Every session's record is one, stands in one place, and its amount follows from it."""
    for uid in sorted(snapshot.sessions.keys() & snapshot.ended.keys()):
        yield difference(snapshot, Figure.SESSION, uid, "open and ended", "one of the two", "its records")
    for ended, records in ((False, snapshot.sessions), (True, snapshot.ended)):
        for uid in sorted(records):
            record = read_session(records[uid])
            if record is None or record.uid != uid or (record.end is not None) != ended:
                expected = "the record of an ended session" if ended else "the record of an open session"
                yield difference(snapshot, Figure.SESSION, uid, records[uid][:200], expected, "its place in the store")
            else:
                yield from _check_session(snapshot, record, payers.get(record.namespace, ()), moment)
    if snapshot.latest:
        yield from _check_homeless(snapshot)


def _check_homeless(snapshot: Snapshot) -> Iterator[Difference]:
    """A session that is open in the latest period has a record, under this account or the one that it moved to."""
    for uid, text in sorted(snapshot.amounts.items()):
        found = read_amount(text)
        if found is not None and found.flag == OPEN and found.amount != found.posted and uid not in snapshot.sessions:
            reason = "what the ledger does not hold is of an open session"
            yield difference(snapshot, Figure.SESSION, uid, "no record", "the record of an open session", reason)


def _check_session(snapshot: Snapshot, record: SessionRecord, payers: Changes, moment: Moment) -> Iterator[Difference]:
    end = snapshot.end
    text = snapshot.amounts.get(record.uid)
    found = read_amount(text) if text is not None else SessionAmount(0, 0, OPEN)
    if end is None or found is None or not payers or moment.bill != "reserved" or record.by_use:
        return
    period = (snapshot.start, end)

    def until(instant: int) -> int:
        return charge(record, payers, snapshot.account, period, instant)

    if record.end is not None:
        expected = until(record.end)
        if found.amount != expected:
            reason = "rate x time from its start to its end"
            yield difference(snapshot, Figure.AMOUNT, record.uid, str(found.amount), str(expected), reason)
        return
    most = until(moment.now)
    speaks = moment.settled is not None and record.node not in moment.silent
    least = until(min(moment.settled or 0, moment.now)) if speaks else 0
    if not least <= found.amount <= most:
        reason = "rate x time from its start to the last settlement"
        yield difference(snapshot, Figure.AMOUNT, record.uid, str(found.amount), f"{least} to {most}", reason)
