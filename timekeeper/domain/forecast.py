"""Computes the burn rate of a budget or a part of usage over the last hour and day, and forecasts spending from it.

An account is sampled every five minutes. A sample is an instant up to which the account was settled, and the amount
that it had spent by then since its first sample, across periods. The difference between two samples is exactly the
amount spent between them. The rate of the last hour is measured from a sample that is up to five minutes older than an
hour, the rate of the last day from one that is up to an hour older than a day. An account without samples of that age
is measured from its first one. `since` is the instant from which a rate is measured: that of the sample, or exactly an
hour or a day ago if nothing was spent between the sample and the following one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE, Instant

FINE: Final = 5 * MINUTE
"""The distance between samples of the last hour."""
COARSE: Final = HOUR
"""The distance between older samples."""
SHORTEST_MEASURE: Final = 10 * MINUTE
"""A burn that was measured over a shorter time gives no forecast."""
LONGEST_LAG: Final = 10 * MINUTE
"""Use that was settled longer ago gives no forecast: pods may have ended since.

The longest interval of settlements that the settings allow is five minutes, the default is 10 seconds. A new leader
takes over within a minute."""


class SpendSample(NamedTuple):
    """An instant (nanoseconds since 1970), and the microGPU-seconds spent by then since the account's first sample."""

    at: int
    spent: int


class BurnRecord(NamedTuple):
    """An account's recent spending, from which burn rates are computed.

    Attributes:
        samples: samples of what the account has spent in total, the oldest first; at least one.
        period: the start of the period in which the last sample was taken.
        total: the amount that this period had spent at the last sample, in microGPU-seconds.
    """

    samples: tuple[SpendSample, ...]
    period: Instant
    total: int


class Burn(NamedTuple):
    """The amount spent between two instants, in nanoseconds since 1970.

    Attributes:
        since: the first instant.
        until: the last instant.
        spent: microGPU-seconds; below 0 if corrections took back more than was spent.
    """

    since: int
    until: int
    spent: int

    @property
    def rate(self) -> int:
        """The mean spending from `since` to `until`, in microGPU-seconds a second; never below 0."""
        return max(self.spent, 0) * SECOND // (self.until - self.since)


class Burns(NamedTuple):
    """The amounts spent in the last hour and the last day.

    Both are None until the account has been settled twice. They are also None if the total of the period of the last
    sample, or that of the present period, is not known.
    """

    hour: Burn | None = None
    day: Burn | None = None


def sampled(
    record: BurnRecord | None, now: Instant, period: Instant, totals: Mapping[int, int], offset: int = 0
) -> BurnRecord:
    """Returns an account's recent spending with a new sample if one is due, else as it was.

    The samples begin anew if the amount spent since the last one is not known, because `totals` lacks its period. They
    also begin anew if a clock that was ahead set the last sample, which then is more than an hour after `now`.

    Args:
        record: the samples so far; None for none.
        now: the instant up to which the account is settled.
        period: the start of its present period.
        totals: the amounts spent in that period and in those before it, in microGPU-seconds, keyed by their starts.
        offset: the time in nanoseconds before each full five minutes at which a sample is due; it differs between
            accounts, so that they are not all sampled at once.
    """
    spent = None if record is None else _spent(record, period, totals)
    if record is None or spent is None or now < record.samples[-1].at - HOUR:
        return BurnRecord((SpendSample(now, 0),), period, totals[period])
    last = record.samples[-1]
    first = len(record.samples) == 1 and now - last.at >= MINUTE
    due = first or (now + offset) // FINE != (last.at + offset) // FINE or period != record.period
    if now <= last.at or not due:
        return record
    samples = _thinned((*record.samples, SpendSample(now, spent)), now)
    return BurnRecord(samples, period, totals[period])


def burns(record: BurnRecord | None, now: Instant, period: Instant, totals: Mapping[int, int]) -> Burns:
    """Returns the amounts that an account spent in the last hour and the last day.

    Args:
        record: the samples of its spending; None for none.
        now: the instant up to which the account is settled.
        period: the start of its present period.
        totals: the amounts spent in that period and in those before it, in microGPU-seconds, keyed by their starts.
    """
    spent = None if record is None else _spent(record, period, totals)
    if record is None or spent is None:
        return Burns()
    return Burns(
        hour=_since(record.samples, SpendSample(now, spent), now - HOUR),
        day=_since(record.samples, SpendSample(now, spent), now - DAY),
    )


def burns_at_last_sample(record: BurnRecord | None) -> Burns:
    """Returns the amounts that an account spent in the hour and the day that end with its last sample.

    Args:
        record: the samples of its spending; None for none, which gives None for both.
    """
    if record is None:
        return Burns()
    latest = record.samples[-1]
    return Burns(_since(record.samples, latest, latest.at - HOUR), _since(record.samples, latest, latest.at - DAY))


def lasts_until(remaining: int, burn: Burn | None, now: Instant, before: Instant) -> Instant | None:
    """Returns the instant at which a budget's money runs out if spending goes on at the rate of `burn`.

    None if the money lasts until `before`, if nothing is being spent, or if no money is left already.

    Args:
        remaining: the amount that is left now, in microGPU-seconds.
        burn: the recent spending; None if it is not known, and then the result is None.
        before: the end of the period.
    """
    if burn is None or burn.spent <= 0 or remaining <= 0:
        return None
    moment = now + remaining * (burn.until - burn.since) // burn.spent
    return moment if moment < before else None


def runs_out_early(remaining: int, burns: Burns, now: Instant, before: Instant) -> bool:
    """Returns whether a budget's money runs out before an instant, both at the last hour's and at the last day's rate.

    The long window shows that the spending is significant, the short one that it still goes on
    (https://sre.google/workbook/alerting-on-slos/, multiwindow alerts). The result is False if a rate was measured over
    less than SHORTEST_MEASURE, and if no money is left already.

    Args:
        remaining: the amount that is left now, in microGPU-seconds.
        burns: the spending of the last hour and the last day. If one of them is None, the result is False.
        before: the instant, such as the end of the period.
    """
    windows = (burns.hour, burns.day)
    if any(burn is None or burn.until - burn.since < SHORTEST_MEASURE for burn in windows):
        return False
    return all(lasts_until(remaining, burn, now, before) is not None for burn in windows)


class Edges(NamedTuple):
    """The starts of the last hour and the last day of usage, in nanoseconds since 1970, each at a full hour.

    Attributes:
        day: the start of the hour that holds the instant one day ago, since use is stored by the hour.
        hour: the start of the hour that holds the instant one hour ago.
    """

    day: int
    hour: int


def edges_at(now: Instant) -> Edges:
    """Returns the instants from which use counts as that of the last day and of the last hour (see `Edges`)."""
    return Edges((now - DAY) // HOUR * HOUR, (now - HOUR) // HOUR * HOUR)


@dataclass(frozen=True, slots=True)
class UsageForecast:
    """The forecast of usage: the amounts billed by an instant if pods go on as in the last hour or the last day.

    Instants are nanoseconds since 1970.

    Attributes:
        until: the instant up to which the use was settled, or the present if that is not known. The measured time ends
            with it.
        end: the instant up to which the forecast goes.
        since: two instants: the first from which the spending of the last hour is measured, then that of the last day.
            An instant is None if it lies less than SHORTEST_MEASURE before `until`. Both are None if use was not
            settled within LONGEST_LAG, or if nothing says when metering began.
        spent: the microGPU-seconds that pods spent since the two instants of `since`, in the same order. They are keyed
            by the values of the dimensions by which the query groups.
        not_settled: the accounts whose settlement has failed for longer than LONGEST_LAG.
        unknown: the keys, as in `spent`, of use that these accounts pay for. Such a key has no forecast: the amounts
            billed since the last settlement are not known.
    """

    until: int
    end: int
    since: tuple[int | None, int | None]
    spent: Mapping[tuple[str, ...], tuple[int, int]]
    not_settled: tuple[str, ...] = ()
    unknown: frozenset[tuple[str, ...]] = frozenset()

    def expected(self, key: tuple[str, ...], billed: int) -> list[int | None]:
        """Forecasts the microGPU-seconds billed by `end`: one figure by the last hour's rate, one by the last day's.

        An amount is None if there is no forecast.

        Args:
            key: the values of the dimensions by which the query groups.
            billed: the microGPU-seconds that were billed for these values so far.
        """
        if key in self.unknown:
            return [None, None]
        burns = zip(self.since, self.spent.get(key, (0, 0)), strict=True)
        return [
            None if since is None else billed + self._to_come(Burn(since, self.until, spent)) for since, spent in burns
        ]

    def _to_come(self, burn: Burn) -> int:
        return max(burn.spent, 0) * max(self.end - self.until, 0) // (burn.until - burn.since)


def usage_forecast(
    spent: Mapping[tuple[str, ...], tuple[int, int]],
    now: Instant,
    end: int,
    *,
    settled: int | None,
    began: int | None,
    earliest: int | None,
) -> UsageForecast:
    """Returns the forecast of usage from the spending of the last hour and the last day.

    Instants are nanoseconds since 1970.

    Args:
        spent: the microGPU-seconds that pods spent since the hour edge and since the day edge of `edges_at(now)`, keyed
            by the values of the dimensions by which the query groups.
        end: the instant up to which the forecast goes.
        settled: the instant up to which the spending is settled; None if no such instant is known. There is no forecast
            for None, or if the instant is longer ago than LONGEST_LAG.
        began: the instant at which metering began; None if that is not known.
        earliest: the start of the first hour in which pods spent anything since the day edge; None if they spent
            nothing. If that hour ended before metering began, pods were charged for the time before metering, too, and
            the rate is measured from that hour on. If `began` is None, it is measured from that hour on as well.
    """
    measured_from = began if earliest is None or (began is not None and began < earliest + HOUR) else earliest
    edges = edges_at(now)
    until = now if settled is None else settled
    if measured_from is None or settled is None or now - settled > LONGEST_LAG:
        return UsageForecast(until, end, (None, None), spent)
    begins = [max(edge, measured_from) for edge in (edges.hour, edges.day)]
    hour, day = (None if until - begin < SHORTEST_MEASURE else begin for begin in begins)
    return UsageForecast(until, end, (hour, day), spent)


def _spent(record: BurnRecord, period: int, totals: Mapping[int, int]) -> int | None:
    """Returns the microGPU-seconds spent since the first sample; None if that is not known.

    It is not known if `totals` lacks the present period or that of the last sample, or if the present one is earlier.

    Args:
        period: the start of the present period, in nanoseconds since 1970.
        totals: keyed by their starts, the amounts spent in that period and in those before it.
    """
    if record.period not in totals or period not in totals or period < record.period:
        return None
    later = sum(total for start, total in totals.items() if record.period < start <= period)
    return record.samples[-1].spent + totals[record.period] - record.total + later


def _since(samples: Sequence[SpendSample], latest: SpendSample, edge: int) -> Burn | None:
    index = _base(samples, edge)
    base = samples[index]
    following = samples[index + 1] if index + 1 < len(samples) else latest
    if base.at < edge and following.spent == base.spent and following.at >= edge:
        base = base._replace(at=edge)  # nothing was spent in between, so the total at the edge is known
    return Burn(base.at, latest.at, latest.spent - base.spent) if base.at < latest.at else None


def _base(samples: Sequence[SpendSample], edge: int) -> int:
    """Returns the index of the last sample at or before the instant `edge`; 0 if all are later."""
    return max(bisect_right(samples, edge, key=lambda sample: sample.at) - 1, 0)


def _thinned(samples: Sequence[SpendSample], now: Instant) -> tuple[SpendSample, ...]:
    """Returns the samples that a forecast needs: all of the last hour, and one of each earlier hour of the last day.

    Of samples in a row with the same amount, only the first and the last are kept.
    """
    day, hour = (samples[_base(samples, now - length)] for length in (DAY, HOUR))
    kept: list[SpendSample] = []
    for sample in samples:
        if sample.at < day.at:
            continue
        if sample.at < hour.at and kept and sample.at // COARSE == kept[-1].at // COARSE:
            continue
        if len(kept) > 1 and kept[-2].spent == kept[-1].spent == sample.spent:
            kept.pop()
        kept.append(sample)
    return tuple(kept)
