"""What pods' reports add up to: from what a session may report, what is known and one report, to what is known then.

A sidecar counts from its start (its boot), and each report tells all of that; so a boot adds what its latest report
exceeds the one before by. A report is no more than what the pod says: it is clamped by what the session holds and by
how old it is. What a report adds was received at an instant, and belongs to the period of that instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from fairgpu.allocation import DeviceShare
from fairgpu.charging import ChargeRules
from timekeeper.metering.reservations import Held, Reservation, rate_at
from timekeeper.rules.money import GPU_SECOND, SECOND
from timekeeper.rules.pricing import Prices, device_rate, price_at
from timekeeper.rules.timestamps import MINUTE

MAX_BOOTS = 64
"""Sidecar starts that are remembered of a pod."""
QUARTER = 15 * MINUTE
"""Periods begin at multiples of it, or as far beside them as the present one ends: of samples between two such instants
the last one is enough."""
RECENT = 2 * MINUTE
"""Samples of so long stay apart: a leader may still find that something else begins between them."""
MAX_SAMPLES = 400
"""Four days of quarters without any leader."""


class HeldDevice(NamedTuple):
    """One device that a session holds.

    Attributes:
        uuid: the device.
        shares: how many of its containers' vGPUs are on it.
        price: GPU-hours charged for an hour of the whole device, as of when the session began.
        total_mib: the device's memory.
        rate: what its containers that run beside each other reserve of it, in microGPU-seconds a second.
    """

    uuid: str
    shares: int
    price: Fraction
    total_mib: int
    rate: int


@dataclass(frozen=True, slots=True)
class ReportTerms:
    """The terms of a session's reports, fixed when it opens.

    Attributes:
        start: when it began, in nanoseconds since 1970.
        devices: what it holds.
        billed: whether use is billed, so that money is added up.
        rate: what it reserves when it opens, in microGPU-seconds a second.
        most: the most that it can use: the same, or its whole devices where it may borrow.
    """

    start: int
    devices: tuple[HeldDevice, ...]
    billed: bool = False
    rate: int = 0
    most: int = 0

    @property
    def whole(self) -> int:
        """The rate at which all of its devices are reserved."""
        return sum(device.rate for device in self.devices)


class Counter(NamedTuple):
    """Cumulative counters of one device as a container reported them since its sidecar started."""

    uuid: str
    busy_ns: int
    span_ns: int
    memory_peak_mib: int


class Boot(NamedTuple):
    """The latest report of one start of a sidecar, and what it came to in microGPU-seconds of GPU time and of money."""

    name: str
    sequence: int
    gpu: int
    money: int


class Sample(NamedTuple):
    """The totals of all reports by an instant.

    Attributes:
        at: when the last of them was received, in nanoseconds since 1970.
        gpu: GPU time, in microGPU-seconds.
        money: the same priced, or memory over time where that is more; 0 where use is not billed.
        missing: what the devices are reserved at that no report has named.
    """

    at: int
    gpu: int
    money: int
    missing: int


@dataclass(frozen=True, slots=True)
class Intake:
    """The state of a session's reports.

    Attributes:
        boots: the starts of its sidecar, the latest last.
        named: the devices that a report has named, by their place among those that the session holds.
        samples: what the reports had come to by when, in order of time; none while no device was named.
    """

    boots: tuple[Boot, ...] = ()
    named: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()


class Marks(NamedTuple):
    """The leader's marks in a session's time; instants are nanoseconds since 1970.

    Attributes:
        closed: nothing is put before it any more: a report that comes later counts as received then at the earliest.
        settled: nobody asks what there was before it.
        phase: how far beside a multiple of QUARTER the present period ends.
    """

    closed: int = 0
    settled: int = 0
    phase: int = 0


class Received(NamedTuple):
    """A report, and when it was received."""

    boot: str
    sequence: int
    counters: tuple[Counter, ...]
    at: int


def report_terms(
    reservation: Reservation, start: int, prices: Prices, charge: ChargeRules, *, billed: bool
) -> ReportTerms:
    """The terms of a reservation's reports; no devices where no allocation names them."""
    floor = charge.best_effort_floor_percent
    beside = [*reservation.containers, *(held for held, keeps in reservation.init_steps if keeps)]
    found: dict[str, HeldDevice] = {}
    for held in (*reservation.containers, *(step for step, _ in reservation.init_steps)):
        for share in _shares(held):
            price = price_at(prices, share.model, start)
            known = found.get(share.uuid, HeldDevice(share.uuid, 0, price, share.total_mib, 0))
            found[share.uuid] = known._replace(shares=known.shares + 1)
    for held in beside:
        for share in _shares(held):
            known = found[share.uuid]
            found[share.uuid] = known._replace(rate=known.rate + device_rate(share, known.price, floor))
    rate = rate_at(reservation, prices, start, charge)
    most = rate_at(_whole(reservation), prices, start, charge) if reservation.lends else rate
    return ReportTerms(start, tuple(found.values()), billed, rate, most)


def taken(terms: ReportTerms, known: Intake, report: Received, marks: Marks) -> Intake | None:
    """The state after a report; None where a later report of the same boot was taken before."""
    before = next((boot for boot in known.boots if boot.name == report.boot), None)
    if before is not None and report.sequence <= before.sequence:
        return None
    last = known.samples[-1] if known.samples else None
    at = max(report.at, marks.closed, last.at if last else 0)
    age = max(at - terms.start, 0)
    gpu, money, named = _amounts(terms, report.counters, age)
    boot = Boot(
        report.boot, report.sequence, max(gpu, before.gpu if before else 0), max(money, before.money if before else 0)
    )
    boots = (*(other for other in known.boots if other is not before), boot)[-MAX_BOOTS:]
    all_named = tuple(sorted({*known.named, *named}))
    if not all_named:
        return replace(known, boots=boots)
    most_gpu = sum(device.shares for device in terms.devices) * age * GPU_SECOND // SECOND
    most_money = int(sum(device.shares * device.price for device in terms.devices) * age * GPU_SECOND / SECOND)
    added_gpu, added_money = boot.gpu - (before.gpu if before else 0), boot.money - (before.money if before else 0)
    sample = Sample(
        at,
        min((last.gpu if last else 0) + added_gpu, most_gpu),
        min((last.money if last else 0) + added_money, most_money) if terms.billed else 0,
        sum(device.rate for place, device in enumerate(terms.devices) if place not in all_named),
    )
    return Intake(boots, all_named, _coalesced((*known.samples, sample), marks))


def sample_before(samples: Sequence[Sample], instant: int) -> Sample | None:
    """The totals of the reports received before an instant; None where there were none."""
    return next((sample for sample in reversed(samples) if sample.at < instant), None)


def _amounts(terms: ReportTerms, counters: Sequence[Counter], age: int) -> tuple[int, int, set[int]]:
    """GPU time and money of one report in microGPU-seconds, and the devices that it names."""
    places = {device.uuid: place for place, device in enumerate(terms.devices)}
    busy, occupied = dict[int, int](), dict[int, Fraction]()
    for counter in counters:
        place = places.get(counter.uuid)
        if place is None:
            continue
        device = terms.devices[place]
        used, span = min(counter.busy_ns, age), min(counter.span_ns, age)
        memory = Fraction(span * min(counter.memory_peak_mib, device.total_mib), device.total_mib)
        busy[place] = min(busy.get(place, 0) + used, device.shares * age)
        sum_ = occupied.get(place, Fraction(0)) + max(Fraction(used), memory)
        occupied[place] = min(sum_, Fraction(device.shares * age))
    priced = sum((found * terms.devices[place].price for place, found in occupied.items()), Fraction(0))
    money = int(priced * GPU_SECOND / SECOND) if terms.billed else 0
    return sum(busy.values()) * GPU_SECOND // SECOND, money, set(busy)


def _coalesced(samples: tuple[Sample, ...], marks: Marks) -> tuple[Sample, ...]:
    """The samples that somebody may still ask for."""
    newest = samples[-1].at

    def cell(sample: Sample) -> tuple[bool, int]:
        return sample.at >= marks.closed, (sample.at - marks.phase) // QUARTER

    kept = [
        sample
        for sample, following in pairwise(samples)
        if following.at >= marks.settled
        and (cell(sample) != cell(following) or newest - following.at < RECENT)
        and sample.at != following.at
    ]
    return (*kept, samples[-1])[-MAX_SAMPLES:]


def _shares(held: Held) -> Sequence[DeviceShare]:
    return held if isinstance(held, tuple) else ()


def _whole(reservation: Reservation) -> Reservation:
    def whole(held: Held) -> Held:
        return tuple(replace(device, core_percent=100) for device in held) if isinstance(held, tuple) else held

    return replace(
        reservation,
        containers=tuple(whole(held) for held in reservation.containers),
        init_steps=tuple((whole(held), keeps) for held, keeps in reservation.init_steps),
    )
