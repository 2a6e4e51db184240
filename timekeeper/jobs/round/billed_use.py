"""Reads what pods report where what they use is billed.

Counters are cumulative, and begin anew with a container that is made anew: they are tallied over that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import structlog

from fairgpu.charging import ChargeRules
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.round.settling import Used
from timekeeper.metering.bill import DeviceUse, Use, UseTally, tallied, use_cost
from timekeeper.metering.reservations import Reservation, Tariff, tariff
from timekeeper.metering.sessions import Session
from timekeeper.rules.pricing import Prices, price_at

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


def used_of(metered: Metered, body: str | bytes | None, prices: Prices, charge: ChargeRules) -> Used | None:
    """What a pod's reports amount to, with its latest one; None where there are none, or nobody knows what it held."""
    reservation, session, known = metered.reservation, metered.session, metered.acknowledged.use.tally
    if (body is None and known is None) or reservation is None or not reservation.placed:
        return None
    devices = reservation.devices
    price = {device.model: price_at(prices, device.model, session.start) for device in devices.values()}
    told = read_use(body, session.uid) if body is not None else {}
    tally = tallied(known or UseTally(), told, devices, price)
    total = tally.before + use_cost(tally.use, devices, price)
    return Used(tally, total, ceiling_tariff(session, reservation, prices, charge))


def ceiling_tariff(session: Session, reservation: Reservation, prices: Prices, charge: ChargeRules) -> Tariff:
    """The rates of the most that a session can use: its reservation, or its whole devices where it may borrow."""
    if not reservation.lends:
        return session.tariff
    return tariff(_whole(reservation), prices, session.start, charge)


def _whole(reservation: Reservation) -> Reservation:
    def whole(held: Any) -> Any:
        return tuple(replace(device, core_percent=100) for device in held) if isinstance(held, tuple) else held

    return replace(
        reservation,
        containers=tuple(whole(held) for held in reservation.containers),
        init_steps=tuple((whole(held), keeps) for held, keeps in reservation.init_steps),
    )
