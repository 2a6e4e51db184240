"""How fast a budget has been spending: what was settled over the last hour and the last day, and where that leads.

An account is sampled every five minutes: an instant up to which it was settled, and what it had spent by then since its
first sample, whatever period that was in. The difference between two samples is exactly what was spent between them.
So a rate is that of a stretch which begins at a sample: an hour and up to five minutes more, or a day and up to an hour
more, and `since` says where. Before there were samples for so long, it begins with the first of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import DAY, HOUR, MINUTE

FINE: Final = 5 * MINUTE
"""How far samples of the last hour are apart."""
COARSE: Final = HOUR
"""How far older ones are."""
TELLING: Final = 10 * MINUTE
"""A stretch that is shorter says what happens, but not yet where it leads."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What an account had spent by an instant (nanoseconds since 1970), in microGPU-seconds since its first sample."""

    at: int
    spent: int


@dataclass(frozen=True, slots=True)
class BurnRecord:
    """An account's samples, oldest first and never none.

    Attributes:
        samples: the samples.
        period: the period in which the last one was taken.
        total: what that period stood at then.
    """

    samples: tuple[Sample, ...]
    period: int
    total: int


@dataclass(frozen=True, slots=True)
class Burn:
    """What was spent in a stretch of time.

    Attributes:
        since: where it begins.
        until: where it ends.
        spent: microGPU-seconds; below 0 where corrections took back more than was spent.
    """

    since: int
    until: int
    spent: int

    @property
    def rate(self) -> int:
        """MicroGPU-seconds a second; never below 0."""
        return max(self.spent, 0) * SECOND // (self.until - self.since)


@dataclass(frozen=True, slots=True)
class Burns:
    """The last hour and the last day, beside each other; None while nothing has been settled twice."""

    hour: Burn | None = None
    day: Burn | None = None


def sampled(record: BurnRecord | None, now: int, period: int, totals: Mapping[int, int], offset: int = 0) -> BurnRecord:
    """The record with a sample of now where one is due; the same one where none is.

    Args:
        record: what is known; None for nothing.
        now: until when the account is settled, in nanoseconds since 1970.
        period: the start of its present period.
        totals: what that period and those before it stand at, by their starts.
        offset: how long before each full five minutes a sample is due, so that not all accounts have theirs at once.
    """
    spent = None if record is None else _spent(record, period, totals)
    if record is None or spent is None or now < record.samples[-1].at - HOUR:
        return BurnRecord((Sample(now, 0),), period, totals[period])
    last = record.samples[-1]
    first = len(record.samples) == 1 and now - last.at >= MINUTE
    due = first or (now + offset) // FINE != (last.at + offset) // FINE or period != record.period
    if now <= last.at or not due:
        return record
    samples = _thinned((*record.samples, Sample(now, spent)), now)
    return BurnRecord(samples, period, totals[period])


def burns(record: BurnRecord | None, now: int, period: int, totals: Mapping[int, int]) -> Burns:
    """What was spent over the last hour and the last day; arguments as for sampled()."""
    spent = None if record is None else _spent(record, period, totals)
    if record is None or spent is None:
        return Burns()
    return Burns(
        hour=_since(record.samples, Sample(now, spent), now - HOUR),
        day=_since(record.samples, Sample(now, spent), now - DAY),
    )


def burns_at_last_sample(record: BurnRecord | None) -> Burns:
    """What was spent over the hour and the day that end with the last sample."""
    if record is None:
        return Burns()
    latest = record.samples[-1]
    return Burns(_since(record.samples, latest, latest.at - HOUR), _since(record.samples, latest, latest.at - DAY))


def lasts_until(remaining: int, burn: Burn | None, now: int, before: int) -> int | None:
    """When nothing is left at the rate of a stretch; None where that is not before an instant, or is so already.

    Args:
        remaining: what is left now, in microGPU-seconds.
        burn: the stretch.
        now: nanoseconds since 1970.
        before: the same; the end of the period.
    """
    if burn is None or burn.spent <= 0 or remaining <= 0:
        return None
    moment = now + remaining * (burn.until - burn.since) // burn.spent
    return moment if moment < before else None


def runs_out_early(remaining: int, found: Burns, now: int, before: int) -> bool:
    """Whether the money is gone before an instant, both as the last hour went and as the last day did.

    Of two such stretches the long one says that it matters, and the short one that it is still so
    (https://sre.google/workbook/alerting-on-slos/, multiwindow alerts).
    """
    stretches = (found.hour, found.day)
    if any(burn is None or burn.until - burn.since < TELLING for burn in stretches):
        return False
    return all(lasts_until(remaining, burn, now, before) is not None for burn in stretches)


def _spent(record: BurnRecord, period: int, totals: Mapping[int, int]) -> int | None:
    """What was spent since the first sample; None where a period in between is not known."""
    if record.period not in totals or period not in totals or period < record.period:
        return None
    later = sum(total for start, total in totals.items() if record.period < start <= period)
    return record.samples[-1].spent + totals[record.period] - record.total + later


def _since(samples: Sequence[Sample], latest: Sample, edge: int) -> Burn | None:
    index = _base(samples, edge)
    base = samples[index]
    following = samples[index + 1] if index + 1 < len(samples) else latest
    if base.at < edge and following.spent == base.spent and following.at >= edge:
        base = replace(base, at=edge)  # nothing was spent in between, so that it is known there, too
    return Burn(base.at, latest.at, latest.spent - base.spent) if base.at < latest.at else None


def _base(samples: Sequence[Sample], edge: int) -> int:
    """Where the last sample at or before an instant stands; the first one where all are later."""
    return max(bisect_right(samples, edge, key=lambda sample: sample.at) - 1, 0)


def _thinned(samples: Sequence[Sample], now: int) -> tuple[Sample, ...]:
    """What later questions need: those of the last hour and the one before, one of each earlier hour, for a day."""
    day, hour = (samples[_base(samples, now - length)] for length in (DAY, HOUR))
    kept: list[Sample] = []
    for sample in samples:
        if sample.at < day.at:
            continue
        if sample.at < hour.at and kept and sample.at // COARSE == kept[-1].at // COARSE:
            continue
        if len(kept) > 1 and kept[-2].spent == kept[-1].spent == sample.spent:
            kept.pop()
        kept.append(sample)
    return tuple(kept)
