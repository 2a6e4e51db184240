"""Adds up a session's reports to cumulative totals, and divides the totals among the periods that pay.

A session's time consists of segments, each paid for by one period of one account. The base of a segment is the
session's total when the segment began. A period's part of the total is the growth of the total over the period's
segments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from fairgpu.allocation import DeviceShare
from fairgpu.charging import ChargeRules
from timekeeper.domain.charges import Segment
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Prices, device_rate, price_at
from timekeeper.domain.reservations import Held, Reservation, rate_at
from timekeeper.domain.timestamps import MINUTE, Instant

Key = tuple[str, int]
Base = tuple[str, int, int]
"""An account, the start of one of its periods, and the total at which a segment in that period began."""
Bases = tuple[Base, ...]
"""Bases in order of time."""


@dataclass(frozen=True, slots=True)
class Course:
    """The segments of a session whose amounts may still change.

    Attributes:
        start: when the session began.
        segments: these segments, in order of time; the last one goes on, or the session ended in it. Perhaps bases of
            later segments are stored, too. An earlier settlement wrote these by a clock that was ahead, or before the
            session's end was known.
    """

    start: Instant
    segments: Sequence[Segment]


def extended(bases: Bases, course: Course, total_at: Callable[[int], int]) -> Bases:
    """Returns `bases` with a base added for each new segment of a session.

    A base's total is the GPU time of all reports, or its price, in microGPU-seconds.

    Args:
        bases: the bases so far. Bases of segments that turn out to have no time, or not to exist, are dropped.
        course: the segments whose amounts may still change.
        total_at: returns the total of all reports that were received before an instant, in nanoseconds since 1970.
    """
    keys = {(segment.account, segment.period) for segment in course.segments}
    begun, places = _begun(bases, course.segments)
    last = places[-1] if places else len(bases) - 1
    kept = [base for place, base in enumerate(bases[: last + 1]) if place in places or base[:2] not in keys]
    added = [
        (segment.account, segment.period, total_at(segment.start) if segment.start > course.start else 0)
        for segment in course.segments[begun:]
    ]
    return _without_past((*kept, *added), keys)


def begun_by(bases: Bases, course: Course, past: Instant) -> Bases:
    """Returns `bases` without those of segments that begin after `past`.

    A clock that was ahead set the start of such a segment. Its base is not final, since more reports may come before
    that start.

    Args:
        bases: the bases that `extended` returned for this course, or those that were given to `extended`.
        past: the earlier of the local clock's time and the store's, in nanoseconds since 1970.
    """
    coming = [(segment.account, segment.period) for segment in course.segments if segment.start > past]
    kept = len(bases)
    while coming and kept and bases[kept - 1][:2] == coming[-1]:
        coming.pop()
        kept -= 1
    return bases[:kept]


def _begun(bases: Bases, segments: Sequence[Segment]) -> tuple[int, Sequence[int]]:
    """Finds the segments whose bases are in `bases`: the longest run of segments that all have one.

    Segments before the run had bases that were dropped, since they are not needed any more. `bases` may also have bases
    of other segments: of earlier ones, and of segments that turned out to have no time. Of equally long runs, the first
    counts.

    Returns:
        The number of segments up to the end of the run, which need no new base; and, for each segment of the run, the
        index of its base.
    """
    runs = [(first, _places(bases, segments[first:])) for first in range(len(segments))]
    first, places = max(runs, key=lambda run: len(run[1]), default=(0, []))
    return first + len(places), places


def _places(bases: Bases, segments: Sequence[Segment]) -> list[int]:
    """Returns the index in `bases` of each segment's base; the list ends before the first segment without a base.

    A segment's base is one with the segment's account and period that comes after the bases of earlier segments.
    """
    places: list[int] = []
    for segment in segments:
        after = places[-1] + 1 if places else 0
        key = segment.account, segment.period
        place = next((place for place in range(after, len(bases)) if bases[place][:2] == key), None)
        if place is None:
            break
        places.append(place)
    return places


def parts(bases: Bases, total: int) -> dict[Key, int]:
    """Returns the part of each period in the total of a session's reports, keyed by (account, start of the period).

    Args:
        bases: (account, start of the period, total) for each segment of the session, in order of time. The total is
            the one at the segment's start, in microGPU-seconds.
        total: the total by now, in microGPU-seconds.
    """
    by_period: dict[Key, int] = {}
    if not bases:
        return by_period
    for (account, period, base), following in zip(bases, [*(base for *_, base in bases[1:]), total], strict=True):
        by_period[account, period] = by_period.get((account, period), 0) + max(following - base, 0)
    return by_period


def _without_past(bases: Bases, keys: Collection[Key]) -> Bases:
    """Returns the bases of the periods in `keys`, which may still change, and the bases before and after each of these.

    The base before is needed if a session turns out to have ended before the period in which it was settled last.
    """
    held = [(account, period) in keys for account, period, _ in bases]
    return tuple(base for index, base in enumerate(bases) if any(held[max(index - 1, 0) : index + 2]))


MAX_BOOTS = 64
"""The most sidecar starts that are stored for a pod."""
QUARTER = 15 * MINUTE
"""The longest stretch of time of which only the last sample is kept. A stretch begins at each full quarter of an hour,
and at each phase of `Marks` after it, so that a period can start only where a stretch does.
"""
RECENT = 2 * MINUTE
"""All samples of this time before the latest report are kept: a leader may find later that a segment began then."""
MAX_SAMPLES = 400
"""The most samples that are kept: those of four days without any leader, one each quarter of an hour.

Samples in which a device was named for the first time are kept beyond that.
"""


class HeldDevice(NamedTuple):
    """One device of which a session holds shares.

    Attributes:
        uuid: the device's uuid.
        shares: the number of vGPUs that the session's containers hold on the device.
        price: GPU-hours charged for an hour of the whole device, as of when the session began.
        total_mib: the memory of the whole device, in MiB.
        rate: the rate, in microGPU-seconds a second, of the shares that main containers and native sidecars hold on it.
    """

    uuid: str
    shares: int
    price: Fraction
    total_mib: int
    rate: int


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """The limits of a session's reports, fixed when it opens: the devices that they may name, and the most use.

    Attributes:
        start: the session's start.
        devices: the devices of which the session holds shares; empty if no allocation names them.
        billed: whether use is billed, so that the price of the use is added up.
        rate: the rate of the session's reservation when it opens, in microGPU-seconds a second.
        most: the highest rate at which the session's use can cost, in the same unit: `rate`, or the rate of the
            session's whole devices if it may use the GPU time that other pods do not use.
    """

    start: Instant
    devices: tuple[HeldDevice, ...]
    billed: bool = False
    rate: int = 0
    most: int = 0

    def most_gpu(self, instant: Instant) -> int:
        """Returns the most GPU time that the session can have used by an instant, in microGPU-seconds.

        It is the whole time of a device for each vGPU, from the session's start on. Larger reports are reduced to it.
        """
        return self.shares * max(instant - self.start, 0) * GPU_SECOND // SECOND

    @property
    def shares(self) -> int:
        """The number of vGPUs that the session's containers hold."""
        return sum(device.shares for device in self.devices)

    def most_money(self, instant: Instant) -> int:
        """Returns the price of the most GPU time that the session can have used by an instant, in microGPU-seconds."""
        rate = sum((device.shares * device.price for device in self.devices), Fraction(0))
        return int(rate * max(instant - self.start, 0) * GPU_SECOND / SECOND)

    @property
    def whole(self) -> int:
        """The rate of the shares that main containers and native sidecars hold, in microGPU-seconds a second.

        Before the first report, all of it is `missing` in the totals.
        """
        return sum(device.rate for device in self.devices)


class Counter(NamedTuple):
    """A container's use of one device, as a report of the pod's sidecar states it.

    Attributes:
        uuid: the device's uuid.
        busy_ns: the time for which the container kept the device busy, in nanoseconds.
        span_ns: the time that the counter covers, in nanoseconds.
        memory_peak_mib: the most memory of the device that the container held at one time, in MiB.
        earlier_busy_ns: the part of `busy_ns` that the sidecar found when it started. The sidecar may have reported it
            already, after an earlier start.
        earlier_span_ns: the same part of `span_ns`.
    """

    uuid: str
    busy_ns: int
    span_ns: int
    memory_peak_mib: int
    earlier_busy_ns: int = 0
    earlier_span_ns: int = 0


class Boot(NamedTuple):
    """The reports since one start of a pod's sidecar, which reports the pod's use.

    Attributes:
        name: the id of the start.
        sequence: the number of the latest report since then.
        gpu: the GPU time used since then, in microGPU-seconds, without the use that the sidecar found when it started.
        money: the price of that GPU time, in microGPU-seconds.
    """

    name: str
    sequence: int
    gpu: int
    money: int


class Sample(NamedTuple):
    """The totals of a session's reports at an instant.

    Attributes:
        at: the instant at which the last of these reports was received.
        gpu: GPU time, in microGPU-seconds.
        money: the price of the GPU time or of memory times time, whichever is more, in microGPU-seconds; 0 if use is
            not billed.
        missing: the reserved rate of the devices that no report has named, in microGPU-seconds a second.
    """

    at: Instant
    gpu: int
    money: int
    missing: int


@dataclass(frozen=True, slots=True)
class Intake:
    """The reports of a session that were received so far, as totals.

    Attributes:
        boots: the starts of the pod's sidecar, the latest last.
        named: the devices that a report has named, each as its index in the `devices` of ReportLimits, sorted.
        samples: the totals in order of time; empty while no report has named a device.
    """

    boots: tuple[Boot, ...] = ()
    named: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()


class Marks(NamedTuple):
    """The bounds that the leader sets for the reports of a session; instants are nanoseconds since 1970.

    Attributes:
        closed: totals before this instant do not change any more: a report that arrives later counts as received at
            this instant or later.
        settled: totals before this instant are not needed any more.
        phases: the nanoseconds after a full quarter of an hour at which periods may begin before the next
            reconciliation.
    """

    closed: int = 0
    settled: int = 0
    phases: tuple[int, ...] = (0,)


class Received(NamedTuple):
    """A report of a pod's sidecar, and when it was received.

    Attributes:
        boot: the id of the sidecar's start.
        sequence: the report's number since that start.
        counters: the use of each device by each container since that start.
        at: the instant at which it was received.
    """

    boot: str
    sequence: int
    counters: tuple[Counter, ...]
    at: Instant


def report_limits(
    reservation: Reservation, start: Instant, prices: Prices, charge: ChargeRules, *, billed: bool
) -> ReportLimits:
    """Returns the limits of a session's reports; they have no devices if no allocation names them.

    Args:
        start: the session's start.
        prices: the prices over time, keyed by a model's name or some of its words.
        charge: the admin's rules for charging.
        billed: whether use is billed.
    """
    floor = charge.best_effort_floor_percent
    by_uuid: dict[str, HeldDevice] = {}
    held_beside = [(held, True) for held in reservation.containers]
    for held, beside in (*held_beside, *reservation.init_steps):
        for share in _shares(held):
            known = by_uuid.get(share.uuid)
            if known is None:
                known = HeldDevice(share.uuid, 0, price_at(prices, share.model, start), share.total_mib, 0)
            rate = known.rate + (device_rate(share, known.price, floor) if beside else 0)
            by_uuid[share.uuid] = HeldDevice(share.uuid, known.shares + 1, known.price, known.total_mib, rate)
    rate = rate_at(reservation, prices, start, charge)
    most = rate_at(_whole(reservation), prices, start, charge) if reservation.lends else rate
    return ReportLimits(start, tuple(by_uuid.values()), billed, rate, most)


def intake_after(limits: ReportLimits, intake: Intake, report: Received, marks: Marks) -> Intake | None:
    """Returns the totals of a session's reports with another report added; None if the report is not new.

    A report is not new if a report of the same start of the sidecar came before with the same or a higher number. Only
    the last MAX_BOOTS starts are known. A report also states the use that the sidecar found when it started. Earlier
    reports may have stated that use, so it does not add to the totals: it only raises them if they are lower.

    Args:
        limits: the limits of the session's reports; use above them does not count.
        intake: the totals so far.
        marks: the leader's bounds for the reports.
    """
    before = next((boot for boot in intake.boots if boot.name == report.boot), None)
    if before is not None and report.sequence <= before.sequence:
        return None
    at = max(report.at, marks.closed, intake.samples[-1].at if intake.samples else 0)
    age = max(at - limits.start, 0)
    gpu, money, named = _amounts(limits, report.counters, age)
    if money and is_unpriced(limits, intake):
        intake = _priced(intake, Fraction(money, max(gpu, 1)))
        before = next((boot for boot in intake.boots if boot.name == report.boot), None)
    last = intake.samples[-1] if intake.samples else None
    earlier_gpu, earlier_money, _ = _amounts(limits, [_earlier(counter) for counter in report.counters], age)
    boot = Boot(
        report.boot,
        report.sequence,
        max(gpu - earlier_gpu, before.gpu if before else 0),
        max(money - earlier_money, before.money if before else 0),
    )
    boots = (*(other for other in intake.boots if other is not before), boot)[-MAX_BOOTS:]
    all_named = tuple(sorted({*intake.named, *named}))
    if not all_named:
        return replace(intake, boots=boots)
    added_gpu, added_money = boot.gpu - (before.gpu if before else 0), boot.money - (before.money if before else 0)
    sample = Sample(
        at,
        min(max(last.gpu if last else 0, earlier_gpu) + added_gpu, limits.most_gpu(at)),
        min(max(last.money if last else 0, earlier_money) + added_money, limits.most_money(at)) if limits.billed else 0,
        sum(device.rate for place, device in enumerate(limits.devices) if place not in all_named),
    )
    return Intake(boots, all_named, _coalesced((*intake.samples, sample), marks))


def is_unpriced(limits: ReportLimits, intake: Intake) -> bool:
    """Returns whether a session's reports have no price, since they came before use was billed, and use is billed now.

    Until the next report states a price, the session is billed as reserved. The result is False if no report has stated
    any use, or if a device of the session has the price 0.
    """
    last = intake.samples[-1] if limits.billed and intake.samples else None
    return last is not None and last.gpu > 0 == last.money and all(device.price > 0 for device in limits.devices)


def _priced(intake: Intake, price: Fraction) -> Intake:
    """Returns the totals with their money set to their GPU time at `price` for each microGPU-second.

    The reports that the totals add up came while use was not billed, so that they have no money yet.
    """
    return replace(
        intake,
        boots=tuple(boot._replace(money=int(boot.gpu * price)) for boot in intake.boots),
        samples=tuple(sample._replace(money=int(sample.gpu * price)) for sample in intake.samples),
    )


def sample_before(samples: Sequence[Sample], instant: Instant) -> Sample | None:
    """Returns the totals of the reports that were received before an instant; None if there were none.

    Args:
        samples: the totals in order of time.
    """
    return next((sample for sample in reversed(samples) if sample.at < instant), None)


def _earlier(counter: Counter) -> Counter:
    """Returns a counter with only the use that the sidecar found when it started; the peak of memory stays."""
    busy, span = min(counter.earlier_busy_ns, counter.busy_ns), min(counter.earlier_span_ns, counter.span_ns)
    return Counter(counter.uuid, busy, span, counter.memory_peak_mib)


def _amounts(limits: ReportLimits, counters: Sequence[Counter], age: int) -> tuple[int, int, set[int]]:
    """Returns the GPU time and the money that one report states, in microGPU-seconds, and the indexes of its devices.

    The money is 0 if use is not billed. The indexes are those of the devices in `limits` that the report names. `age`
    is the time in nanoseconds since the session began: no counter can have counted more.
    """
    places = {device.uuid: place for place, device in enumerate(limits.devices)}
    busy, occupied = dict[int, int](), dict[int, Fraction]()
    for counter in counters:
        place = places.get(counter.uuid)
        if place is None:
            continue
        device = limits.devices[place]
        used, span = min(counter.busy_ns, age), min(counter.span_ns, age)
        memory = Fraction(span * min(counter.memory_peak_mib, device.total_mib), device.total_mib)
        busy[place] = min(busy.get(place, 0) + used, device.shares * age)
        sum_ = occupied.get(place, Fraction(0)) + max(Fraction(used), memory)
        occupied[place] = min(sum_, Fraction(device.shares * age))
    priced = sum((time * limits.devices[place].price for place, time in occupied.items()), Fraction(0))
    money = int(priced * GPU_SECOND / SECOND) if limits.billed else 0
    return sum(busy.values()) * GPU_SECOND // SECOND, money, set(busy)


def _coalesced(samples: tuple[Sample, ...], marks: Marks) -> tuple[Sample, ...]:
    """Returns the samples without those that no settlement needs any more.

    A sample at which reports named a further device is always kept: what a session pays in a period that it has left
    depends on the devices that were named by then.
    """
    newest, kept, spare = samples[-1].at, list[Sample](), list[int]()

    def cell(sample: Sample) -> tuple[int, ...]:
        return sample.at >= marks.closed, *((sample.at - phase) // QUARTER for phase in marks.phases)

    for sample, following in pairwise(samples):
        if sample.at == following.at:
            continue
        if not kept or kept[-1].missing != sample.missing:
            kept.append(sample)
        elif following.at >= marks.settled and (cell(sample) != cell(following) or newest - following.at < RECENT):
            spare.append(len(kept))
            kept.append(sample)
    too_many = set(spare[: max(len(kept) + 1 - MAX_SAMPLES, 0)])
    return (*(sample for place, sample in enumerate(kept) if place not in too_many), samples[-1])


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
