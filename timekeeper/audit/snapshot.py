"""A snapshot of an account's period as the store holds it, in unparsed texts: an audit also reports broken values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from timekeeper.domain.timestamps import Instant

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,23}")
_AMOUNT = re.compile(r"([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([ocg])(?: .*)?")

OPEN, CLOSED, FINALIZED = "o", "c", "g"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the ledger, as a snapshot contains it.

    Attributes:
        kind: the reason for the entry, such as close or grant.
        amount: the entry's amount, in microGPU-seconds.
        at: the instant at which the entry was written, by the leader's clock.
        session: the uid of the entry's session; empty for an entry of no session.
        name: the name of the pod or of the order that the entry concerns.
        note: further facts, such as how the session's end was proved.
        namespace: the namespace of the pod.
    """

    kind: str
    amount: int
    at: Instant
    session: str
    name: str
    note: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One period of one account, read from the store as of one moment, in raw texts.

    Attributes:
        account: the account's name.
        start: the period's start.
        head: the fields of the account as a whole (see timekeeper/ledger/keys.py), such as its latest period.
        periods: the end of each of the account's periods, keyed by the period's start.
        sums: the period's sums, such as `total`, keyed by name.
        amounts: keyed by session, `epoch counter amount posted flag`, which `read_amount` parses.
        sessions: keyed by session, the records of open sessions.
        ended: keyed by session, the records of closed sessions whose pods still exist.
        grants: keyed by the grant's name, `START amount`; START is the start of the period that the grant went to.
        corrections: keyed by the correction's name, `START amount`.
        credits: keyed by the grant's name, `amount expires since flag` of the period's credits: `since` is what the
            period had spent when the credit arrived, and `flag` is `l` once it has expired.
        entries: the ledger's entries of this period.
        hours: keyed by `HOUR DIMENSIONS`, the use `billed core memory used`, whichever period the use belongs to. HOUR
            is counted from 1970, and DIMENSIONS are JSON.
        hour_sums: keyed as `hours`, the stored sums of these rows for each hour, namespace and model.
        folded: packed values with the rows of older hours and days around the period, keyed by their names, which state
            their hours.
        before: the total of the preceding period; empty if it is unknown.
        reports: keyed by open session, its report limits and its reports so far, as JSON, read a moment later.
        fault: the reason why the ledger's entries, or the whole account, cannot be read and are empty here; empty if
            they can be read.
    """

    account: str
    start: Instant
    head: Mapping[str, str]
    periods: Mapping[str, str]
    sums: Mapping[str, str]
    amounts: Mapping[str, str]
    sessions: Mapping[str, str]
    ended: Mapping[str, str]
    grants: Mapping[str, str]
    corrections: Mapping[str, str]
    credits: Mapping[str, str]
    entries: tuple[Entry, ...] = ()
    hours: Mapping[str, str] = field(default_factory=dict)
    hour_sums: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, bytes] = field(default_factory=dict)
    before: str = ""
    reports: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    fault: str = ""

    @property
    def end(self) -> int | None:
        """The period's end, in nanoseconds since 1970; None if the store does not state it."""
        return whole(self.periods.get(str(self.start)))

    @property
    def exists(self) -> bool:
        """Whether the store holds the period of this snapshot; True if it cannot be read."""
        return bool(self.sums or self.fault) or str(self.start) in self.periods

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces in the account's published summary; empty if the summary is unreadable."""
        try:
            return tuple(str(name) for name in json.loads(self.head.get("summary", "{}"))["namespaces"])
        except (ValueError, KeyError, TypeError):
            return ()

    def is_present(self, now: Instant) -> bool:
        """Returns whether the period is the account's present one at an instant (nanoseconds since 1970)."""
        latest = whole(self.head.get("period"))
        return latest is not None and self.start == present_start(latest, self.periods, now)


def unreadable(account: str, start: Instant, fault: str) -> Snapshot:
    """Returns the snapshot of an account that cannot be read; `fault` is the reason."""
    return Snapshot(account, start, {}, {}, {}, {}, {}, {}, {}, {}, {}, fault=fault)


def present_start(latest: int, periods: Iterable[str], now: Instant) -> Instant:
    """Returns the start of an account's present period.

    The present period is the latest one that has begun, or the latest one of all if none has begun. Periods that have
    not begun exist if a clock that was ahead has opened them.

    Args:
        latest: the start of the latest period, by the account's `head`.
        periods: the starts of the account's periods as text; read only if the latest one has not begun.
    """
    if latest <= now:
        return latest
    return max((start for start in map(whole, periods) if start is not None and start <= now), default=latest)


@dataclass(frozen=True, slots=True)
class SessionAmount:
    """The amount of a session in a period, in microGPU-seconds.

    Attributes:
        amount: the whole amount in the period so far.
        posted: the part of `amount` that the ledger holds.
        flag: `o` for an open session, `c` for a closed one, `g` for a finalized one.
    """

    amount: int
    posted: int
    flag: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The store's record of a session; instants in nanoseconds since 1970, rates in microGPU-seconds a second.

    Attributes:
        uid: the session's uid.
        namespace: the pod's namespace.
        node: the pod's node.
        start: the start of the session.
        tariff: pairs of an instant and the rate from then on.
        end: the end of the session; None while it is open.
        bases: for each segment of the session the account, the start of the period, and the cost of all use that had
            been reported when the segment began, in microGPU-seconds; empty if reservations are billed.
        used: the cost of all reported use, in microGPU-seconds; 0 if reservations are billed, or without reports.
        missing: two reserved rates: that of the devices that no report names, and that of all devices.
        held: the parts of GPUs that the pod or claim holds by another stack: a model, the number of equal parts, and
            the share of a GPU that each part is charged as; 0 if the stack does not bound its time.
        claim: the uid of the ResourceClaim that the session meters; empty for a pod's session.
    """

    uid: str
    namespace: str
    node: str
    start: int
    tariff: tuple[tuple[int, int], ...]
    end: int | None
    bases: tuple[tuple[str, int, int], ...] = ()
    used: int = 0
    missing: tuple[int, int] = (0, 0)
    held: tuple[tuple[str, int, Fraction], ...] = ()
    claim: str = ""

    @property
    def by_use(self) -> bool:
        """Whether the session's cost follows from its reports, and not from time alone."""
        return bool(self.bases)


@dataclass(frozen=True, slots=True)
class AuditedReports:
    """The reports of an open session, as the store holds them.

    Attributes:
        rate: the rate of the reservation when the session opened, in microGPU-seconds a second.
        most: the highest rate at which the pod can use GPUs: `rate`, or the rate of its devices as a whole if the pod
            may use the GPU time that other pods do not use.
        whole: the reserved rate of all shares that the session holds on its devices, in microGPU-seconds a second.
        samples: in order of time: the instant at which a report was received (nanoseconds since 1970), the cost of all
            reported use by then (microGPU-seconds), and the reserved rate of the devices that no report had named.
    """

    rate: int
    most: int
    whole: int
    samples: tuple[tuple[int, int, int], ...]


def whole(text: str | None) -> int | None:
    """Parses a whole number in the form in which the store writes it; returns None for any other text, and for None."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def read_amount(text: str) -> SessionAmount | None:
    """Parses a session's amount in a snapshot: `epoch counter amount posted flag`, and what the store adds to it.

    Epoch, counter and what is added (see `timekeeper.ledger.keys`) are left out. Returns None for a text that does not
    begin so.
    """
    match = _AMOUNT.fullmatch(text)
    return SessionAmount(int(match[3]), int(match[4]), match[5]) if match else None


def read_session(text: str) -> SessionRecord | None:
    """Parses the store's record of a session; returns None for any other text."""
    try:
        document: Any = json.loads(text)
        rates = tuple((int(since), int(rate)) for since, rate in document["tariff"])
        end = document.get("end")
        used, _ = document.get("tally") or (0, ())
        missing, whole_rate = document.get("unmeasured") or (0, 0)
        record = SessionRecord(
            uid=str(document["uid"]),
            namespace=str(document["namespace"]),
            node=str(document["node"]),
            start=int(document["start"]),
            tariff=rates,
            end=None if end is None else int(end),
            bases=tuple((str(payer), int(since), int(base)) for payer, since, base in document.get("use") or ()),
            used=int(used),
            missing=(int(missing), int(whole_rate)),
            held=tuple(
                (str(model), int(count), max(Fraction(time), Fraction(memory)) if Fraction(time) else Fraction(0))
                for _, model, count, time, memory in document.get("holds") or ()
            ),
            claim=_claim(str(document["uid"])) if str(document.get("pod", "")).startswith("resourceclaim/") else "",
        )
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if rates else None


def _claim(uid: str) -> str:
    """Returns a ResourceClaim's uid from the uid of its session, which is `CLAIM-ALLOCATION-START`."""
    return uid.rsplit("-", 2)[0]


def read_reports(texts: tuple[str, str] | None) -> AuditedReports | None:
    """Parses the reports of an open session; returns None if they are missing or unreadable.

    Args:
        texts: the session's report limits, and its reports so far, as JSON; None if the store has none.
    """
    try:
        limits, state = (json.loads(text) for text in texts or ())
        _, devices, _, rate, most = limits
        samples = tuple((int(at), int(money), int(missing)) for at, _, money, missing in state[2])
        return AuditedReports(int(rate), int(most), sum(int(device[4]) for device in devices), samples)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
