"""Holds the sessions to the pods of the API server: each that holds a GPU is metered, since when and at what rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from timekeeper.audit.charging import rate_at
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.rates import PriceList, pod_rate
from timekeeper.audit.snapshot import SessionRecord, Snapshot, read_session
from timekeeper.audit.sums import difference
from timekeeper.rules.timestamps import TimeError, parse_instant

SKEW = 60 * 10**9
"""How far the API server's clock and ours are believed to be apart at most, in nanoseconds."""

Json = Mapping[str, Any]


def check_against_pods(
    snapshot: Snapshot, pods: Mapping[str, Json], prices: PriceList, now: int, *, from_binding: bool
) -> Iterator[Difference]:
    """The open sessions of an account against their pods.

    Args:
        snapshot: the account's latest period.
        pods: the pods that hold or ask for a GPU, by uid.
        prices: as they were charged.
        now: nanoseconds since 1970.
        from_binding: whether pods are metered from their binding on.
    """
    for uid in sorted(snapshot.sessions):
        record = read_session(snapshot.sessions[uid])
        if record is None or record.end is not None:
            continue
        pod = pods.get(uid)
        if pod is None or _ended(pod):
            reason = "the pods of the API server"
            stored = "open" if pod is None else "open, and its pod has ended"
            yield difference(snapshot, Figure.SESSION, uid, stored, "ended", reason)
            continue
        rate = pod_rate(pod, prices, now)
        if rate is not None and rate != rate_at(record, now):
            reason = "its pod's allocation and the prices"
            yield difference(snapshot, Figure.RATE, uid, str(rate_at(record, now)), str(rate), reason)
        yield from _check_start(snapshot, record, pod, from_binding=from_binding)


def unmetered(pods: Mapping[str, Json], metered: set[str], settled: int) -> Iterator[tuple[str, str]]:
    """The (namespace, uid) of pods that were bound well before the last settlement, run on, and have no session."""
    for uid, pod in pods.items():
        bound = bound_at(pod)
        if uid not in metered and bound is not None and not _ended(pod) and bound < settled - SKEW:
            yield str(_mapping(pod.get("metadata")).get("namespace", "")), uid


def bound_at(pod: Json) -> int | None:
    """When a pod was bound, by the API server's clock; None where it is not, or nobody says when."""
    if not _mapping(pod.get("spec")).get("nodeName"):
        return None
    for condition in _mapping(pod.get("status")).get("conditions") or []:
        if _mapping(condition).get("type") == "PodScheduled" and condition.get("status") == "True":
            scheduled = _instant(condition.get("lastTransitionTime"))
            created = _instant(_mapping(pod.get("metadata")).get("creationTimestamp"))
            return max(scheduled, created or 0) if scheduled is not None else None
    return None


def _check_start(snapshot: Snapshot, record: SessionRecord, pod: Json, *, from_binding: bool) -> Iterator[Difference]:
    bound = bound_at(pod)
    if bound is None:
        return
    # A clock of ours that is behind the API server's starts a meter early by as much.
    early, late = record.start < bound - SKEW, from_binding and record.start > bound
    if early or late:
        expected = str(bound) if from_binding else f"{bound} or later"
        yield difference(snapshot, Figure.START, record.uid, str(record.start), expected, "when its pod was bound")


def _ended(pod: Json) -> bool:
    return _mapping(pod.get("status")).get("phase") in {"Succeeded", "Failed"}


def _instant(value: Any) -> int | None:
    try:
        return parse_instant(value)
    except TimeError:
        return None


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
