"""Bills what was used instead of what was reserved, where the admin wants that: from the pods' own reports.

Counters are cumulative, and begin anew with a container that is made anew: they are tallied over that. What the tally
has grown by since a period began is that period's; so the total at which each period began is part of the session's
record, and the tally with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from fairgpu.charging import ChargeRules
from timekeeper.jobs.memory.metered import Key, Metered
from timekeeper.metering.bill import Bill, DeviceUse, Use, UseTally, billed, tallied, use_cost
from timekeeper.metering.reservations import Reservation, Tariff, tariff
from timekeeper.metering.segments import Span, amounts
from timekeeper.rules.pricing import Prices, price_at

Billing = Callable[[Metered, Mapping[Key, int], Sequence[Span]], dict[Key, int]]
"""From a session, what its reservation costs in each period, and its pieces, to what is billed in each period."""

_log = structlog.get_logger()


def read_use(body: str | bytes, uid: str) -> Use:
    """The counters of a pod's report as the REST API stores it, a list of containers; none of what is no report."""
    try:
        document = json.loads(body)
        return {
            (str(container["name"]), str(device["uuid"])): DeviceUse(
                int(device["busyNs"]), int(device["spanNs"]), int(device["memoryPeakMiB"])
            )
            for container in document
            for device in container["devices"]
        }
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("report not understood", uid=uid, error=repr(error))
        return {}


def take_use(metered: Metered, body: str | bytes | None, prices: Prices) -> None:
    """Takes over a pod's latest report; what it amounts to is in the session's record, so that it never shrinks."""
    known = metered.session.use_tally
    if (body is None and known is None) or metered.reservation is None or not metered.reservation.placed:
        return
    devices = metered.reservation.devices
    start = metered.session.start
    price = {device.model: price_at(prices, device.model, start) for device in devices.values()}
    told = read_use(body, metered.session.uid) if body is not None else {}
    found = tallied(known or UseTally(), told, devices, price)
    if found != known:
        metered.session, metered.record_stale = replace(metered.session, use_tally=found), True
    metered.used = max(metered.used or 0, found.before + use_cost(found.use, devices, price))


def bill_use(bill: Bill, metered: Metered, reserved: Mapping[Key, int], most: Mapping[Key, int]) -> dict[Key, int]:
    """The amount of each period where not simply the reservation is billed.

    Args:
        bill: what is billed.
        metered: the session; its record notes at what total each of its periods began.
        reserved: what the reservation costs in each period.
        most: the most that it can have used in each.

    A pod that has never reported is billed what it reserves: silence is no way to run for nothing.
    """
    if metered.used is None:
        return dict(reserved)
    bases = {(account, period): base for account, period, base in metered.session.use_bases}
    result = {}
    ordered = sorted(reserved, key=lambda key: key[1])
    for key in ordered:
        bases.setdefault(key, metered.used if bases else 0)
    for key, following in zip(ordered, [*ordered[1:], None], strict=True):
        until = metered.used if following is None else bases[following]
        result[key] = billed(bill, reserved[key], until - bases[key], most.get(key, 0))
    kept = tuple((*key, base) for key, base in bases.items() if key in reserved)
    if kept and kept != metered.session.use_bases:
        metered.session = replace(metered.session, use_bases=kept)
        metered.record_stale = True
    return result


def billing(bill: Bill, prices: Prices, charge: ChargeRules) -> Billing | None:
    """How plans bill what was used; None where reservations are billed."""
    if bill is Bill.RESERVED:
        return None

    def amounts_of(metered: Metered, reserved: Mapping[Key, int], stretches: Sequence[Span]) -> dict[Key, int]:
        if metered.reservation is None:
            # Its pod is gone, and with it what it held: what was billed stands.
            return {key: metered.written.get(key, amount) for key, amount in reserved.items()}
        return bill_use(bill, metered, reserved, amounts(ceiling_tariff(metered, prices, charge), stretches))

    return amounts_of


def ceiling_tariff(metered: Metered, prices: Prices, charge: ChargeRules) -> Tariff:
    """The rates of the most that a session can use: its reservation, or its whole devices where it may borrow."""
    reservation = metered.reservation
    if reservation is None or not reservation.lends:
        return metered.session.tariff
    return tariff(_whole(reservation), prices, metered.session.start, charge)


def _whole(reservation: Reservation) -> Reservation:
    def whole(held: Any) -> Any:
        return tuple(replace(device, core_percent=100) for device in held) if isinstance(held, tuple) else held

    return replace(
        reservation,
        containers=tuple(whole(held) for held in reservation.containers),
        init_steps=tuple((whole(held), keeps) for held, keeps in reservation.init_steps),
    )
