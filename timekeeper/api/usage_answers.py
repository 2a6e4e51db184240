"""Writes answers about usage, as JSON and as CSV.

The models are their schema; a page of items is written without them, as fast as it is read.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import Any

import orjson

from timekeeper.api.budget_answers import CurrencyAnswer, currency_answer
from timekeeper.api.models import Answer, Money
from timekeeper.api.usage_finding import Usage
from timekeeper.domain.money import GPU_HOUR, Currency
from timekeeper.domain.timestamps import format_instant
from timekeeper.domain.windows import Window

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes for the beginning of a formula (OWASP, CSV injection)."""
FIGURES = ("billed", "core", "memory", "used")


class WindowAnswer(Answer):
    """A window of time: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class UsageItem(Answer):
    """The figures of one key in one step.

    `billed` is money as in the ledger; `core` and `memory` are what was reserved of GPU time and of device memory, no
    price in it; `used` is the GPU time of reports, null where there are none; `cost` is `billed` in the display
    currency, null where there is none. The key `__idle__` is capacity that no pod held.
    """

    start: datetime
    end: datetime
    key: dict[str, str]
    billed: Money
    core: Money
    memory: Money
    used: Money | None
    cost: float | None


class UsageAnswer(Answer):
    """A page of usage, by start and then by key; `next` is the cursor of the next page, null on the last."""

    window: WindowAnswer
    step: str | None
    aggregate: list[str]
    currency: CurrencyAnswer | None
    items: list[UsageItem]
    next: str | None


def as_json(usage: Usage, currency: Currency | None) -> bytes:
    """Returns the answer as the JSON of a UsageAnswer."""
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
                    "cost": None if currency is None else currency.worth(item.figures.billed),
                }
                for item in usage.items
            ],
            "next": usage.following,
        }
    )


def as_csv(usage: Usage, currency: Currency | None) -> bytes:
    """Returns the items as CSV, amounts in GPU-hours beside the exact microGPU-seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    amounts = [f"{name}_{unit}" for name in FIGURES for unit in ("gpu_hours", "micro_gpu_seconds")]
    writer.writerow(["start", "end", *usage.query.aggregate, *amounts, "cost", "currency"])
    for item in usage.items:
        cells = [part for amount in item.figures for part in _cells(amount)]
        cost = ("", "") if currency is None else (currency.worth(item.figures.billed), currency.code)
        row = [*_window(item.step).values(), *map(harmless, item.key), *cells, *cost]
        writer.writerow(row)
    return text.getvalue().encode()


def harmless(text: str) -> str:
    """Returns a cell that no spreadsheet takes for a formula: users choose the names of objects."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _window(window: Window) -> dict[str, str]:
    return {"start": format_instant(window.start), "end": format_instant(window.end)}


def _money(amount: int | None) -> dict[str, Any] | None:
    return None if amount is None else {"microGPUSeconds": str(amount), "gpuHours": amount / GPU_HOUR}


def _cells(amount: int | None) -> tuple[str, str]:
    return ("", "") if amount is None else (f"{amount / GPU_HOUR:.6f}", str(amount))
