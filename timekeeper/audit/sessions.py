"""Checks sessions: their records, their amounts by time or by usage, and open sessions against their pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu import names
from fairgpu.dialects.hami import PRIORITY
from fairgpu.json_values import mapping
from timekeeper.audit.charges import Changes, PriceList, charge, held_rate, pod_rate, rate_at
from timekeeper.audit.cluster import MAX, AuditContext, ClusterView
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import (
    OPEN,
    AuditedReports,
    SessionAmount,
    SessionRecord,
    Snapshot,
    read_amount,
    read_reports,
    read_session,
)
from timekeeper.audit.sums import difference
from timekeeper.domain.holdings import kai
from timekeeper.domain.holdings.claims import extended_claim
from timekeeper.domain.holdings.holding import read_bound_pod
from timekeeper.domain.timestamps import Instant, instant_or_none

Json = Mapping[str, Any]
Missing = tuple[int, int]
"""Two reserved rates in microGPU-seconds a second: of the devices that no report has named, and of all devices."""

LATE = 60 * 10**9
"""The longest time between the receipt of a report and its write to the store, in nanoseconds."""


def check_use(
    snapshot: Snapshot, context: AuditContext, moment: Moment, pods: Mapping[str, Json]
) -> Iterator[Difference]:
    """Checks the amounts of sessions that are billed by their reports, and yields each difference.

    The expected amounts follow from the totals in the sessions' records and from the stored reports. A session whose
    reports are not stored any more is checked only if its pod's allocation shows that the pod cannot have used more
    than it reserves.

    Args:
        snapshot: the period whose sessions are checked.
        context: payers, prices, and the quantity that is billed.
        moment: the progress of settlement at the snapshot.
        pods: keyed by uid, the pods of the cluster as JSON.
    """
    for uid, text in sorted({**snapshot.ended, **snapshot.sessions}.items()):
        record, stored = read_session(text), read_amount(snapshot.amounts.get(uid, ""))
        if record is None or stored is None or not record.by_use or snapshot.end is None:
            continue
        reports = read_reports(snapshot.reports.get(uid))
        if (reports is None and _may_borrow(pods.get(uid))) or record.namespace not in context.payers:
            continue
        payers, period = context.payers[record.namespace], (snapshot.start, snapshot.end)
        reached = _reached(record, moment)
        low, high = (charge(record, payers, snapshot.account, period, until) for until in reached)
        sources = [("the totals in its record", [(record.used, record.missing)])]
        if reports is not None and record.end is None and reports.samples and reports.samples[-1][1] >= record.used:
            sources.append(("its reports as they came", _totals_between(record, reports, *reached)))
        for source, totals in sources:
            used = [(_used_in(snapshot, record, total), missing) for total, missing in totals]
            known = [(amount, missing) for amount, missing in used if amount is not None]
            least = min((_billed(context.bill, low, *each, reports) for each in known), default=stored.amount)
            most = max((_billed(context.bill, high, *each, reports) for each in known), default=stored.amount)
            if not least <= stored.amount <= most:
                expected = str(most) if least == most else f"{least} to {most}"
                reason = f"{source}, within its reservation (bill: {context.bill})"
                yield difference(snapshot, Figure.AMOUNT, uid, str(stored.amount), expected, reason)
                break


def _totals_between(record: SessionRecord, reports: AuditedReports, low: int, high: int) -> list[tuple[int, Missing]]:
    """Returns the totals that a session's reports may have had at the session's last settlement.

    There is one pair for each report that may have been the latest at that settlement: the cost of all use reported by
    then, in microGPU-seconds, and the reserved rates (see `Missing`). If no stored report is surely older than `low`,
    the totals in the session's record come first.

    Args:
        low: the earliest instant up to which the session can have been settled last, in nanoseconds since 1970.
        high: the latest such instant.
    """
    before = [place for place, (at, *_) in enumerate(reports.samples) if at <= low - LATE]
    first = before[-1] if before else 0
    totals = [(money, (missing, reports.whole)) for at, money, missing in reports.samples[first:] if at <= high]
    # If the earliest stored sample is later, the record's total counts for the time before it.
    return totals if before else [(record.used, record.missing), *totals]


def _reached(record: SessionRecord, moment: Moment) -> tuple[int, int]:
    """Returns the earliest and the latest instant (ns since 1970) up to which a session can have been settled last.

    Both are the session's end if it has ended. The earliest is 0 if the last settlement is unknown, or the session's
    node is silent.
    """
    if record.end is not None:
        return record.end, record.end
    is_confirmed = moment.settled is not None and record.node not in moment.silent
    return (min(moment.settled or 0, moment.now) if is_confirmed else 0), moment.now


def _billed(bill: str, reserved: int, used: int, missing: Missing, reports: AuditedReports | None) -> int:
    """Returns the amount that a session is billed by its reports, in microGPU-seconds.

    Devices without reports are billed as reserved. Use beyond the reservation is billed only up to the most that the
    pod can have used by borrowing.

    Args:
        bill: `used`, or `max`, the larger of the reserved and the used amount.
        reserved: the cost of the reservation, in microGPU-seconds.
        used: the cost of the reported use, in microGPU-seconds.
        missing: the reserved rate of the devices that no report names, and the reserved rate of all devices.
        reports: the session's reports; None if the store has none.
    """
    part, whole = missing
    if part and part == whole:
        return reserved
    ceiling = reserved * reports.most // reports.rate if reports is not None and reports.rate else reserved
    believed = min(used + (reserved * part // whole if whole else 0), max(ceiling, reserved))
    return max(reserved, believed) if bill == MAX else believed


def _used_in(snapshot: Snapshot, record: SessionRecord, total: int) -> int | None:
    """Returns the part of the cost of a session's reported use that belongs to the snapshot's period.

    Costs are microGPU-seconds. The result is None if the session's last segment is in another period or account.

    Args:
        total: the cost of all use that the session has reported.
    """
    totals = [*(base for *_, base in record.bases), total]
    keys = [(payer, since) for payer, since, _ in record.bases]
    if keys[-1] != (snapshot.account, snapshot.start):
        return None
    grown = zip(keys, totals[:-1], totals[1:], strict=True)
    return sum(max(end - start, 0) for key, start, end in grown if key == keys[-1])


def _may_borrow(pod: Json | None) -> bool:
    """Returns whether a pod is allowed to use more than it reserves: it is best effort or elastic.

    The result is also True if the pod or its allocation is missing or unreadable.

    Args:
        pod: the pod as JSON; None if it does not exist.
    """
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    try:
        containers = json.loads(annotations[names.ALLOCATION])["containers"]
        held = [device for container in containers for device in container["devices"]]
        return annotations.get(names.CORE_POLICY, "hard") != "hard" or not all(device["core"] for device in held)
    except (ValueError, KeyError, TypeError):
        return True


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of settlement at the time of a snapshot, which bounds the amounts of its sessions.

    Instants are nanoseconds since 1970.

    Attributes:
        settled: the instant up to which, at least, every open session was settled, except on silent nodes; None if
            unknown.
        now: the instant beyond which no session was settled.
        bill: the quantity that is billed; if it is "reserved", amounts follow from time alone.
        silent: the silent nodes. A session on such a node is settled only up to the last sign of life of its node or
            pod.
    """

    settled: int | None
    now: int
    bill: str = "reserved"
    silent: frozenset[str] = frozenset()


def check_sessions(snapshot: Snapshot, payers: Mapping[str, Changes], moment: Moment) -> Iterator[Difference]:
    """Checks that each session has exactly one valid record, and that its amount follows from it; yields differences.

    Amounts are checked only if `moment.bill` is "reserved", and only of sessions whose cost follows from time alone.

    Args:
        snapshot: the period whose sessions are checked.
        payers: keyed by namespace, its payers in order of time.
        moment: the progress of settlement at the snapshot.
    """
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
    if snapshot.is_present(moment.now):
        yield from _check_homeless(snapshot)


def _check_homeless(snapshot: Snapshot) -> Iterator[Difference]:
    """Yields a difference for each amount of an open session that has no record, if the ledger lacks a part of it."""
    for uid, text in sorted(snapshot.amounts.items()):
        amount = read_amount(text)
        if (
            amount is not None
            and amount.flag == OPEN
            and amount.amount != amount.posted
            and uid not in snapshot.sessions
        ):
            reason = "what the ledger does not hold is of an open session"
            yield difference(snapshot, Figure.SESSION, uid, "no record", "the record of an open session", reason)


def _check_session(snapshot: Snapshot, record: SessionRecord, payers: Changes, moment: Moment) -> Iterator[Difference]:
    end = snapshot.end
    text = snapshot.amounts.get(record.uid)
    amount = read_amount(text) if text is not None else SessionAmount(0, 0, OPEN)
    if end is None or amount is None or not payers or moment.bill != "reserved" or record.by_use:
        return
    period = (snapshot.start, end)

    def until(instant: int) -> int:
        return charge(record, payers, snapshot.account, period, instant)

    if record.end is not None:
        expected = until(record.end)
        if amount.amount != expected:
            reason = "rate x time from its start to its end"
            yield difference(snapshot, Figure.AMOUNT, record.uid, str(amount.amount), str(expected), reason)
        return
    most = until(moment.now)
    is_confirmed = moment.settled is not None and record.node not in moment.silent
    least = until(min(moment.settled or 0, moment.now)) if is_confirmed else 0
    if not least <= amount.amount <= most:
        reason = "rate x time from its start to the last settlement"
        yield difference(snapshot, Figure.AMOUNT, record.uid, str(amount.amount), f"{least} to {most}", reason)


SKEW = 60 * 10**9
"""The assumed largest difference between the API server's clock and the timekeeper's, in nanoseconds."""


def check_against_pods(
    snapshot: Snapshot, cluster: ClusterView, prices: PriceList, now: Instant, since: Instant, *, from_binding: bool
) -> Iterator[Difference]:
    """Checks the open sessions of an account against their pods and ResourceClaims, and yields each difference.

    Args:
        snapshot: the account's present period.
        cluster: the pods that hold or ask for a GPU, and the claims.
        prices: the price of each model over time, as sessions were charged.
        now: the instant whose rates are compared.
        since: the instant from which pods of other stacks are metered.
        from_binding: whether pods are metered from their binding on; otherwise, once they run.
    """
    for uid in sorted(snapshot.sessions):
        record = read_session(snapshot.sessions[uid])
        if record is None or record.end is not None:
            continue
        if record.held:
            rate = held_rate(record, prices, now)
            yield from _check_rate(snapshot, record, rate, now, "what it holds and the prices")
        if record.claim:
            yield from _check_claim(snapshot, record, cluster.claims.get(record.claim))
            continue
        pod = cluster.pods.get(uid)
        if pod is None or _ended(pod):
            reason = "the pods of the API server"
            stored = "open" if pod is None else "open, and its pod has ended"
            yield difference(snapshot, Figure.SESSION, uid, stored, "ended", reason)
            continue
        if not record.held:
            rate = pod_rate(pod, prices, now)
            yield from _check_rate(snapshot, record, rate, now, "its pod's allocation and the prices")
        earliest = since if record.held else 0
        yield from _check_start(snapshot, record, pod, earliest, from_binding=from_binding)


def _check_rate(
    snapshot: Snapshot, record: SessionRecord, expected: int | None, now: Instant, reason: str
) -> Iterator[Difference]:
    stored = rate_at(record, now)
    if expected is not None and expected != stored:
        yield difference(snapshot, Figure.RATE, record.uid, str(stored), str(expected), reason)


def _check_claim(snapshot: Snapshot, record: SessionRecord, claim: Json | None) -> Iterator[Difference]:
    if claim is None or not _devices(claim):
        stored = "open" if claim is None else "open, and its claim has no devices"
        yield difference(snapshot, Figure.SESSION, record.uid, stored, "ended", "the claims of the API server")


def _devices(claim: Json) -> list[Any]:
    results = mapping(mapping(mapping(claim.get("status")).get("allocation")).get("devices")).get("results")
    return results if isinstance(results, list) else []


def unmetered(
    cluster: ClusterView, metered: set[str], settled: Instant, drivers: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yields the pods and ResourceClaims that hold a GPU and have no session, each as namespace and uid.

    A pod counts if it has not ended and was bound more than a minute before the last settlement. A claim counts if an
    accelerator is allocated to it and such a pod reserves it.

    Args:
        cluster: the pods and claims of the cluster.
        metered: the uids of the open sessions.
        settled: the instant of the last settlement.
        drivers: the drivers of Dynamic Resource Allocation whose devices are accelerators.
    """
    yield from _unmetered_claims(cluster, {uid.rsplit("-", 2)[0] for uid in metered}, settled, drivers)
    for uid, pod in cluster.pods.items():
        bound = bound_at(pod)
        waited = bound is not None and bound < settled - SKEW
        if uid not in metered and waited and not _ended(pod) and _asks_for_a_part(pod):
            yield str(mapping(pod.get("metadata")).get("namespace", "")), uid


def _unmetered_claims(
    cluster: ClusterView, metered: set[str], settled: int, drivers: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for uid, claim in cluster.claims.items():
        held = any(item.get("driver") in drivers and item.get("adminAccess") is not True for item in _devices(claim))
        users = mapping(claim.get("status")).get("reservedFor") or []
        pods = (cluster.pods.get(str(user.get("uid"))) for user in users)
        bound = [at for pod in pods if pod is not None and not _ended(pod) and (at := bound_at(pod)) is not None]
        if uid not in metered and held and bound and min(bound) < settled - SKEW:
            yield str(mapping(claim.get("metadata")).get("namespace", "")), uid


def _asks_for_a_part(pod: Json) -> bool:
    """Whether a pod is charged for GPUs that its containers' resources request.

    False if a claim covers all these resources: then the claim's session is charged. Also False for a pod that only
    keeps a GPU for other pods of KAI.
    """
    asking = read_bound_pod(pod)
    covered = extended_claim(pod)
    by_claim = frozenset[str]() if covered is None else covered.resources
    return bool(asking.resources - {PRIORITY} - by_claim) and not kai.reserves(asking)


def bound_at(pod: Json) -> Instant | None:
    """Returns the instant, by the API server's clock, at which a pod was bound to its node.

    Returns:
        None if the pod has no node, or its status does not state the instant.
    """
    if not mapping(pod.get("spec")).get("nodeName"):
        return None
    for condition in mapping(pod.get("status")).get("conditions") or []:
        if mapping(condition).get("type") == "PodScheduled" and condition.get("status") == "True":
            scheduled = instant_or_none(condition.get("lastTransitionTime"))
            created = instant_or_none(mapping(pod.get("metadata")).get("creationTimestamp"))
            return max(scheduled, created or 0) if scheduled is not None else None
    return None


def _check_start(
    snapshot: Snapshot, record: SessionRecord, pod: Json, earliest: int, *, from_binding: bool
) -> Iterator[Difference]:
    bound = bound_at(pod)
    if bound is None:
        return
    bound = max(bound, earliest)
    # If our clock is behind the API server's, the meter starts early by the difference.
    early, late = record.start < bound - SKEW, from_binding and record.start > bound
    if early or late:
        expected = str(bound) if from_binding else f"{bound} or later"
        yield difference(snapshot, Figure.START, record.uid, str(record.start), expected, "when its pod was bound")


def _ended(pod: Json) -> bool:
    return mapping(pod.get("status")).get("phase") in names.TERMINAL_PHASES
