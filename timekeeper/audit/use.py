"""Holds amounts that are billed by use to the counters in each session's record, priced anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from fairgpu import names
from timekeeper.audit.charging import NANOSECONDS, charge
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.rates import GPU_SECOND, PriceList, price_at
from timekeeper.audit.sessions import Moment
from timekeeper.audit.sight import MAX, Sight
from timekeeper.audit.snapshot import SessionRecord, Snapshot, read_amount, read_session
from timekeeper.audit.sums import difference

Json = Mapping[str, Any]


class _Device(NamedTuple):
    model: str
    total_mib: int


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
        devices = _devices(pods.get(uid, {}))
        if record is None or stored is None or not record.by_use or not devices or snapshot.end is None:
            continue
        used = _used_in(snapshot, record, devices, sight.prices)
        if used is None or record.namespace not in sight.payers:
            continue
        payers, period = sight.payers[record.namespace], (snapshot.start, snapshot.end)
        least, most = (
            _billed(sight.bill, charge(record, payers, snapshot.account, period, until), used)
            for until in _reached(record, moment)
        )
        if not least <= stored.amount <= most:
            expected = str(most) if least == most else f"{least} to {most}"
            reason = f"the counters of its reports, within its reservation (bill: {sight.bill})"
            yield difference(snapshot, Figure.AMOUNT, uid, str(stored.amount), expected, reason)


def _reached(record: SessionRecord, moment: Moment) -> tuple[int, int]:
    """Between which instants the session was last settled."""
    if record.end is not None:
        return record.end, record.end
    speaks = moment.settled is not None and record.node not in moment.silent
    return (min(moment.settled or 0, moment.now) if speaks else 0), moment.now


def _billed(bill: str, reserved: int, used: int) -> int:
    return max(reserved, min(used, reserved)) if bill == MAX else min(used, reserved)


def _used_in(
    snapshot: Snapshot, record: SessionRecord, devices: Mapping[str, _Device], prices: PriceList
) -> int | None:
    """What the reports tell of the period, in microGPU-seconds; None where another period of it is still to be cut."""
    bases = sorted((since, base) for payer, since, base in record.bases)
    mine = [base for payer, since, base in record.bases if (payer, since) == (snapshot.account, snapshot.start)]
    if len(mine) != 1 or bases[-1] != (snapshot.start, mine[0]):
        return None
    used = record.used_before + int(sum(_occupied(record, devices, prices), Fraction(0)))
    return max(used - mine[0], 0)


def _occupied(record: SessionRecord, devices: Mapping[str, _Device], prices: PriceList) -> Iterator[Fraction]:
    """Per device the larger of GPU time and of memory over time, at the price of when the session began."""
    for uuid, busy, span, peak in record.counters:
        if uuid in devices:
            device = devices[uuid]
            memory = span * min(Fraction(peak, device.total_mib), Fraction(1))
            price = price_at(prices, device.model, record.start)
            yield max(Fraction(busy), memory) * price * Fraction(GPU_SECOND, NANOSECONDS)


def _devices(pod: Json) -> dict[str, _Device]:
    """What a pod holds, by uuid; nothing for one that may use more than it reserves (best effort, elastic)."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    try:
        containers = json.loads(annotations[names.ALLOCATION])["containers"]
        held = [device for container in containers for device in container["devices"]]
        if annotations.get(names.CORE_POLICY, "hard") != "hard" or not all(device["core"] for device in held):
            return {}
        return {device["uuid"]: _Device(device["model"], device["totalMiB"]) for device in held}
    except (ValueError, KeyError, TypeError):
        return {}
