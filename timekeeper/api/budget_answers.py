"""The REST API's answers about budgets: money spent and left, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from fairgpu.states import BudgetState
from timekeeper.api.models import Answer, Money, Rate, moment, money, rate
from timekeeper.domain.forecast import Burn, lasts_until
from timekeeper.domain.money import GPU_SECOND, Currency
from timekeeper.domain.timestamps import to_datetime
from timekeeper.ledger.present_use import NamespaceUse
from timekeeper.ledger.totals import Summary


class PeriodAnswer(Answer):
    """An accounting period: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class CurrencyAnswer(Answer):
    """The cost of a GPU-hour, by the admin's setting; the code is that of ISO 4217."""

    code: str
    perGpuHour: float  # noqa: N815 - the wire's name


class CostsAnswer(Answer):
    """A budget's amounts in the currency, to a hundredth: for display."""

    granted: float
    available: float | None
    spent: float
    remaining: float | None


class StretchAnswer(Answer):
    """The exact amount spent in a time, and the exhaustion that follows if the rate stays the same.

    `exhaustion` is null where it is not before the period's end, and where nothing is left already.
    """

    since: datetime
    until: datetime
    spent: Money
    rate: Rate
    exhaustion: datetime | None


class ForecastAnswer(Answer):
    """The forecasts by the last hour's and the last day's spending; null until an account was settled twice."""

    lastHour: StretchAnswer | None  # noqa: N815 - the wire's name
    lastDay: StretchAnswer | None  # noqa: N815 - the wire's name


class ExpiringAnswer(Answer):
    """A grant with an expiry of its own, and the money left of it; spending burns the soonest to expire first."""

    grant: str
    remaining: Money
    expires: datetime


class GraceAnswer(Answer):
    """The grace of an exhausted budget: the money and the time left of it; null for a limit that is not set."""

    remaining: Money | None
    ends: datetime | None


class BudgetUseAnswer(Answer):
    """The GPUs of a budget's pods that are busy now, of those `known` to the source; advisory, and no part of any bill.

    Both are numbers of GPUs without prices. `source` measured them, and `at` is the time of its answer.
    """

    busy: float
    known: float
    at: datetime
    source: Literal["prometheus"] = "prometheus"


class BudgetAnswer(Answer):
    """A budget in its present period. `available` and `remaining` are null where nothing limits the spending.

    `currency` and `costs` are null where the admin has set no currency.
    `state` is what pods meet; `computedState` what they would meet if it were enforced. `committed` is what
    admitted pods may still spend, where `admission` is safe. `expiring` are the grants that expire on their own,
    the soonest first. `grace` is null but for a budget that is in it. `presentUse` is null where none is known.
    """

    name: str
    namespaces: list[str]
    state: BudgetState
    enforcement: str
    period: PeriodAnswer
    granted: Money
    available: Money | None
    spent: Money
    remaining: Money | None
    rate: Rate
    exhaustedAt: datetime | None  # noqa: N815 - the wire's name
    computedState: BudgetState  # noqa: N815 - the wire's name
    admission: str
    committed: Money
    expiring: list[ExpiringAnswer]
    forecast: ForecastAnswer
    grace: GraceAnswer | None = None
    currency: CurrencyAnswer | None = None
    costs: CostsAnswer | None = None
    presentUse: BudgetUseAnswer | None = None  # noqa: N815 - the wire's name


class NamespaceAnswer(Answer):
    """The budget that pays for a namespace; null where none does, and then the state is unlimited."""

    namespace: str
    budget: BudgetAnswer | None
    state: BudgetState


class BudgetsAnswer(Answer):
    """A page of budgets, by name; `cursor` is null on the last page."""

    budgets: list[BudgetAnswer]
    cursor: str | None


def currency_answer(currency: Currency | None) -> CurrencyAnswer | None:
    """Returns a currency as REST answers show it; None for None."""
    return None if currency is None else CurrencyAnswer(code=currency.code, perGpuHour=float(currency.per_gpu_hour))


def budget_answer(
    figures: Summary, now: int, currency: Currency | None = None, uses: Mapping[str, NamespaceUse] | None = None
) -> BudgetAnswer:
    """Returns the REST answer about a budget.

    Args:
        figures: the budget's figures.
        now: the instant of the forecast and of the grace, in nanoseconds since 1970.
        currency: the currency of amounts beside GPU-hours; None for none.
        uses: the present use of namespaces by name; None where it is not known.
    """
    available = figures.available
    return BudgetAnswer(
        name=figures.name,
        namespaces=list(figures.namespaces),
        state=figures.state,
        enforcement=figures.enforcement,
        period=PeriodAnswer(start=to_datetime(figures.period_start), end=to_datetime(figures.period_end)),
        granted=money(figures.granted),
        available=None if available is None else money(available),
        spent=money(figures.spent),
        remaining=None if available is None else money(available - figures.spent),
        rate=rate(figures.rate),
        exhaustedAt=moment(figures.exhausted_at),
        currency=currency_answer(currency),
        costs=None if currency is None else _costs(figures, currency),
        computedState=figures.computed or figures.state,
        admission=figures.admission,
        committed=money(figures.committed),
        expiring=[
            ExpiringAnswer(grant=credit.name, remaining=money(left), expires=to_datetime(credit.expires))
            for credit, left in figures.expiring
        ],
        grace=_grace(figures),
        presentUse=_present_use([uses[name] for name in figures.namespaces if name in uses] if uses else []),
        forecast=ForecastAnswer(
            lastHour=_stretch(figures.burns.hour, figures, now), lastDay=_stretch(figures.burns.day, figures, now)
        ),
    )


def _present_use(uses: Sequence[NamespaceUse]) -> BudgetUseAnswer | None:
    if not uses:
        return None
    busy, known = (sum(rates) / GPU_SECOND for rates in zip(*((use.busy, use.known) for use in uses), strict=True))
    return BudgetUseAnswer(busy=busy, known=known, at=to_datetime(min(use.at for use in uses)))


def _grace(figures: Summary) -> GraceAnswer | None:
    if (figures.computed or figures.state) is not BudgetState.GRACE or figures.available is None:
        return None
    amount, duration, since = figures.grace_amount, figures.grace_duration, figures.exhausted_at
    return GraceAnswer(
        remaining=None if amount is None else money(max(figures.available + amount - figures.spent, 0)),
        ends=None if duration is None or since is None else to_datetime(since + duration),
    )


def _stretch(burn: Burn | None, figures: Summary, now: int) -> StretchAnswer | None:
    if burn is None:
        return None
    remaining = 0 if figures.available is None else figures.available - figures.spent
    return StretchAnswer(
        since=to_datetime(burn.since),
        until=to_datetime(burn.until),
        spent=money(burn.spent),
        rate=rate(burn.rate),
        exhaustion=moment(lasts_until(remaining, burn, now, figures.period_end)),
    )


def _costs(figures: Summary, currency: Currency) -> CostsAnswer:
    available = figures.available
    return CostsAnswer(
        granted=currency.worth(figures.granted),
        available=None if available is None else currency.worth(available),
        spent=currency.worth(figures.spent),
        remaining=None if available is None else currency.worth(available - figures.spent),
    )
