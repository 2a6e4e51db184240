"""The routes that answer usage queries, as JSON and as CSV.

The models are the schema of the answers; a page of items is written without them, as fast as it is read.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Flask, Response, request

from timekeeper.api.dependencies import Dependencies, may_read_all, may_read_namespace
from timekeeper.api.models import Answer, CurrencyAnswer, Money, currency_answer, is_namespace
from timekeeper.api.paging import only_parameters
from timekeeper.api.problems import invalid
from timekeeper.api.usage import PARAMETERS, Usage, find, read_query
from timekeeper.domain.forecast import UsageForecast
from timekeeper.domain.money import GPU_HOUR, Currency, amount_cells
from timekeeper.domain.timestamps import format_instant
from timekeeper.domain.usage import MOST_SUMS, FoldedHoursError, Group, TooManySumsError
from timekeeper.domain.windows import Window

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes for the beginning of a formula (OWASP, CSV injection)."""
FIGURES = ("billed", "core", "memory", "used")


class WindowAnswer(Answer):
    """A window of time: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class ExpectedAnswer(Answer):
    """The amount that is expected to be billed, and its cost in the display currency; null where there is none."""

    billed: Money
    cost: float | None


class ItemForecastAnswer(Answer):
    """The amounts that a key comes to by the forecast's end, at the pace of the last hour and of the last day.

    Null while less than ten minutes were metered, or nothing has been settled for ten minutes, and where an account
    that pays a part of it is in the forecast's `notSettled`.
    """

    lastHour: ExpectedAnswer | None  # noqa: N815 - the wire's name
    lastDay: ExpectedAnswer | None  # noqa: N815 - the wire's name


class UsageForecastAnswer(Answer):
    """The end of a forecast, the times by whose pace it was made, and the accounts without one.

    `notSettled` names the accounts whose settlement has failed for more than ten minutes. Items with their use have no
    forecast.
    """

    end: datetime
    lastHour: WindowAnswer | None  # noqa: N815 - the wire's name
    lastDay: WindowAnswer | None  # noqa: N815 - the wire's name
    notSettled: list[str]  # noqa: N815 - the wire's name


class UsageItem(Answer):
    """The figures of one key in one step.

    `billed` is money as in the ledger; `core` and `memory` are what was reserved of GPU time and of device memory,
    without a price; `used` is the GPU time of reports, null where there are none; `cost` is `billed` in the display
    currency, null where there is none. The key `__idle__` is capacity that no pod held, and
    `__idle__ MODEL` that of a model. `forecast` is there where the
    question asks for it: what was billed in the window, and what pods add to it.
    """

    start: datetime
    end: datetime
    key: dict[str, str]
    billed: Money
    core: Money
    memory: Money
    used: Money | None
    cost: float | None
    forecast: ItemForecastAnswer | None = None


class UsageAnswer(Answer):
    """A page of usage, by start and then by key; `next` is the cursor of the next page, null on the last.

    `forecast` is there where the question asks for it.
    """

    window: WindowAnswer
    step: str | None
    aggregate: list[str]
    currency: CurrencyAnswer | None
    items: list[UsageItem]
    next: str | None
    forecast: UsageForecastAnswer | None = None


def as_json(usage: Usage, currency: Currency | None) -> bytes:
    """Returns a page of usage as the JSON of a UsageAnswer.

    Args:
        currency: the currency of costs; None for none.
    """
    names = usage.query.aggregate
    shown = currency_answer(currency)
    steps = {step: _window(step) for step in {item.step for item in usage.items}}
    return orjson.dumps(
        {
            "window": _window(usage.query.window),
            "step": usage.query.step,
            "aggregate": names,
            "currency": None if shown is None else shown.model_dump(),
            "items": [
                {
                    **steps[item.step],
                    "key": dict(zip(names, item.key, strict=True)),
                    **{name: _money(amount) for name, amount in zip(FIGURES, item.figures, strict=True)},
                    "cost": _cost(item.figures.billed, currency),
                    **_forecast_of(item, usage.forecast, currency),
                }
                for item in usage.items
            ],
            "next": usage.following,
            **({} if usage.forecast is None else {"forecast": _measured(usage.forecast)}),
        }
    )


def as_csv(usage: Usage, currency: Currency | None) -> bytes:
    """Returns a page of usage as CSV; amounts are in GPU-hours and in exact microGPU-seconds.

    Args:
        currency: the currency of costs; None for none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    amounts = [f"{name}_{unit}" for name in FIGURES for unit in ("gpu_hours", "micro_gpu_seconds")]
    forecast = usage.forecast
    paces = [] if forecast is None else [f"expected_by_last_{measure}" for measure in ("hour", "day")]
    expected = [f"{pace}_{unit}" for pace in paces for unit in ("gpu_hours", "micro_gpu_seconds", "cost")]
    writer.writerow(["start", "end", *usage.query.aggregate, *amounts, "cost", "currency", *expected])
    for item in usage.items:
        cells = [part for amount in item.figures for part in amount_cells(amount)]
        cost = ("", "") if currency is None else (currency.worth(item.figures.billed), currency.code)
        row = [*_window(item.step).values(), *map(harmless, item.key), *cells, *cost]
        for amount in () if forecast is None else forecast.expected(item.key, item.figures.billed):
            worth = _cost(amount, currency)
            row += [*amount_cells(amount), "" if worth is None else worth]
        writer.writerow(row)
    return text.getvalue().encode()


def harmless(text: str) -> str:
    """Returns a text as a cell of CSV that no spreadsheet takes for a formula.

    A text that begins like a formula gets an apostrophe in front: users choose the names of objects.
    """
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _window(window: Window) -> dict[str, str]:
    return {"start": format_instant(window.start), "end": format_instant(window.end)}


def _cost(amount: int | None, currency: Currency | None) -> float | None:
    return None if amount is None or currency is None else currency.worth(amount)


PACES = ("lastHour", "lastDay")


def _measured(forecast: UsageForecast) -> dict[str, Any]:
    """Returns the end of a forecast, the times by whose pace it was made, and the accounts without one."""
    until = format_instant(forecast.until)
    since = zip(PACES, forecast.since, strict=True)
    times = {pace: None if at is None else {"start": format_instant(at), "end": until} for pace, at in since}
    return {"end": format_instant(forecast.end), **times, "notSettled": forecast.not_settled}


def _forecast_of(item: Group, forecast: UsageForecast | None, currency: Currency | None) -> dict[str, Any]:
    """Returns the field with an item's forecast; nothing where the question asks for none."""
    if forecast is None:
        return {}
    amounts = zip(PACES, forecast.expected(item.key, item.figures.billed), strict=True)
    expected = {
        pace: None if amount is None else {"billed": _money(amount), "cost": _cost(amount, currency)}
        for pace, amount in amounts
    }
    return {"forecast": expected}


def _money(amount: int | None) -> dict[str, Any] | None:
    return None if amount is None else {"microGPUSeconds": str(amount), "gpuHours": amount / GPU_HOUR}


JSON, CSV = "application/json", "text/csv"


def add_usage_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the routes of usage: `GET /v1/usage` and `GET /v1/namespaces/NAME/usage`."""

    @app.get("/v1/usage")
    def usage() -> Response:
        caller = may_read_all(parts.access)
        only_parameters(*PARAMETERS, "idle")
        with parts.asking.one_more(caller.name):
            return _answered(parts, None)

    @app.get("/v1/namespaces/<namespace>/usage")
    def namespace_usage(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        only_parameters(*PARAMETERS)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        return _answered(parts, namespace)


def _answered(parts: Dependencies, namespace: str | None) -> Response:
    media = _media()
    now = parts.now()
    query = read_query(request.args, parts.usage_labels, now, namespace)
    try:
        usage = find(parts.store, query, now, parts.closed_days, parts.exported)
    except FoldedHoursError as error:
        kept = f"{format_instant(error.start)},{format_instant(error.end)}"
        raise invalid(
            "step" if query.step else "window",
            query.step or request.args.get("window"),
            f"a window and steps that do not divide folded hours, such as {kept}: write whole days in UTC",
        ) from error
    except TooManySumsError as error:
        allowed = (
            f"names, a window and steps that come to at most {MOST_SUMS} sums: leave names out, such as owner or user, "
            "ask for a shorter window or longer steps, or for one namespace, GET /v1/namespaces/NAME/usage"
        )
        raise invalid("aggregate", ",".join(query.aggregate), allowed) from error
    return _response(usage, media, parts.currency)


def _response(usage: Usage, media: str, currency: Currency | None) -> Response:
    body = as_json(usage, currency) if media == JSON else as_csv(usage, currency)
    response = Response(body, mimetype=media)
    response.set_etag(blake2b(body, digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    response.headers["Vary"] = "Accept, Authorization"
    if usage.following is not None:
        parameters = {**request.args.to_dict(), "cursor": usage.following}
        response.headers["Link"] = f'<{request.path}?{urlencode(parameters)}>; rel="next"'
    response.make_conditional(request)
    return response


def _media() -> str:
    """Returns the media type of the answer: by `format`, else by the Accept header, else JSON."""
    text = request.args.get("format")
    if text is None:
        return request.accept_mimetypes.best_match([JSON, CSV], JSON)
    media = {"json": JSON, "csv": CSV}
    if text not in media:
        raise invalid("format", text, "json or csv")
    return media[text]
