"""Holds amounts that are billed by use to the totals in each session's record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fairgpu import names
from timekeeper.audit.charging import charge
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.sessions import Moment
from timekeeper.audit.sight import MAX, Sight
from timekeeper.audit.snapshot import SessionRecord, Snapshot, read_amount, read_session
from timekeeper.audit.sums import difference

Json = Mapping[str, Any]


def check_use(snapshot: Snapshot, sight: Sight, moment: Moment, pods: Mapping[str, Json]) -> Iterator[Difference]:
    """Sessions that reported, whose pods are there to tell what they hold, and that may borrow nothing.

    Args:
        snapshot: the period.
        sight: payers, prices and what is billed.
        moment: how far the books had come.
        pods: by uid.
    """
    for uid, text in sorted({**snapshot.ended, **snapshot.sessions}.items()):
        record, stored = read_session(text), read_amount(snapshot.amounts.get(uid, ""))
        if record is None or stored is None or not record.by_use or snapshot.end is None or _may_borrow(pods.get(uid)):
            continue
        used = _used_in(snapshot, record)
        if used is None or record.namespace not in sight.payers:
            continue
        payers, period = sight.payers[record.namespace], (snapshot.start, snapshot.end)
        least, most = (
            _billed(sight.bill, charge(record, payers, snapshot.account, period, until), used, record.missing)
            for until in _reached(record, moment)
        )
        if not least <= stored.amount <= most:
            expected = str(most) if least == most else f"{least} to {most}"
            reason = f"what its reports come to, within its reservation (bill: {sight.bill})"
            yield difference(snapshot, Figure.AMOUNT, uid, str(stored.amount), expected, reason)


def _reached(record: SessionRecord, moment: Moment) -> tuple[int, int]:
    """Between which instants the session was last settled."""
    if record.end is not None:
        return record.end, record.end
    speaks = moment.settled is not None and record.node not in moment.silent
    return (min(moment.settled or 0, moment.now) if speaks else 0), moment.now


def _billed(bill: str, reserved: int, used: int, missing: tuple[int, int]) -> int:
    """The bill of a session that borrows nothing; devices that it did not measure are billed as reserved."""
    part, whole = missing
    believed = min(used + (reserved * part // whole if whole else 0), reserved)
    return max(reserved, believed) if bill == MAX else believed


def _used_in(snapshot: Snapshot, record: SessionRecord) -> int | None:
    """What the reports tell of the period, in microGPU-seconds; None where another period of it is still to be cut."""
    totals = [*(base for *_, base in record.bases), record.used]
    keys = [(payer, since) for payer, since, _ in record.bases]
    if keys[-1] != (snapshot.account, snapshot.start):
        return None
    grown = zip(keys, totals[:-1], totals[1:], strict=True)
    return sum(max(end - start, 0) for key, start, end in grown if key == keys[-1])


def _may_borrow(pod: Json | None) -> bool:
    """Whether a pod may use more than it reserves (best effort, elastic), or nobody can tell."""
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    try:
        containers = json.loads(annotations[names.ALLOCATION])["containers"]
        held = [device for container in containers for device in container["devices"]]
        return annotations.get(names.CORE_POLICY, "hard") != "hard" or not all(device["core"] for device in held)
    except (ValueError, KeyError, TypeError):
        return True
