"""The command `fairgpu usage`: a table of the GPU-hours that teams used, and of their cost, from the REST API."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any
from urllib.parse import quote, urlencode

from fairgpu.client import transport
from fairgpu.client.figures import gpu_hours, percent, utc_moment
from fairgpu.client.server import Server, from_environment
from fairgpu.client.tables import print_text, table
from fairgpu.commands import CommandError, a_name

MAX_PAGES = 1000
PAGE = 10_000
GPU_HOUR = 3_600_000_000
"""MicroGPU-seconds in a GPU-hour."""
AMOUNTS = ("billed", "core", "memory", "used")
TOTAL = "TOTAL"
BLANK = " "
FORECAST_WINDOWS = ("today", "week", "month")
WINDOWS = "today, yesterday, week, month, lastweek, lastmonth, 7d, 36h, or START,END in RFC 3339"

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `fairgpu usage` to its parser."""
    parser.add_argument("-n", "--namespace", type=a_name, help="of this namespace alone")
    parser.add_argument("--window", help=f"of which time, in UTC: {WINDOWS} (default: 7d, or as --forecast)")
    parser.add_argument("--step", help="cut it into hours, days, weeks or months: hour, day, week, month, 6h, 2d")
    parser.add_argument(
        "--by",
        default="namespace",
        metavar="LIST",
        help="a comma list of namespace, budget, model, node, owner, user, label:KEY (default: %(default)s)",
    )
    parser.add_argument(
        "--idle",
        nargs="?",
        const="true",
        choices=("true", "model"),
        help="show the capacity that no pod held, too; with --idle model, of each model",
    )
    parser.add_argument(
        "--forecast",
        metavar="END",
        nargs="?",
        const="month",
        help="show what is expected to be billed by the end of today, week or month, or by a time in RFC 3339 "
        "(default: month)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="how to print it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetches all pages of usage and prints them; returns the exit status.

    Raises:
        CommandError: an option or the environment is invalid, there are more than MAX_PAGES pages, or the timekeeper
            refuses, or cannot be reached.
    """
    server = from_environment(os.environ)
    if arguments.namespace and arguments.idle:
        raise CommandError("--idle shows what no pod held in the whole cluster: leave out --namespace")
    query = {"window": _window(arguments), "aggregate": arguments.by, "limit": str(PAGE)}
    query |= {"step": arguments.step} if arguments.step else {}
    query |= {"idle": arguments.idle} if arguments.idle else {}
    query |= {"forecast": arguments.forecast} if arguments.forecast else {}
    path = f"/v1/namespaces/{quote(arguments.namespace, safe='')}/usage" if arguments.namespace else "/v1/usage"
    with transport.asking(arguments.namespace):
        if arguments.output == "csv":
            return _print_csv(server, path, query)
        answer = _all_pages(server, path, query)
    if arguments.output == "json":
        return print_text(json.dumps(answer, indent=2))
    if not answer["items"]:
        window = answer["window"]
        return print_text(f"Nothing was held from {utc_moment(window['start'])} to {utc_moment(window['end'])} UTC.")
    return print_text("\n\n".join([usage_table(answer), *forecast_note(answer)]))


def _window(arguments: argparse.Namespace) -> str:
    """Returns the value of the REST API's parameter `window`: the span of time whose use the command shows.

    The value is that of the option --window. Without the option it is `7d`, or with `--forecast today`, `week` or
    `month` the same word.

    Raises:
        CommandError: there is no --window, and the forecast goes to an instant that the user chose.
    """
    if arguments.window is not None:
        return str(arguments.window)
    if arguments.forecast in {None, *FORECAST_WINDOWS}:
        return arguments.forecast or "7d"
    raise CommandError("--forecast until a time of its own needs a --window: from when on the use counts")


def usage_table(answer: Json) -> str:
    """Formats the items of usage, one a line, and the sum of several items in the last line, in GPU-hours.

    If the answer has a forecast, each line also has the amount that is expected at the pace of the last day.

    Args:
        answer: an answer of `/v1/usage` with the items of all pages.
    """
    stepped = answer["step"] is not None
    money = answer["currency"]
    headings = [*(["from (UTC)"] if stepped else []), *answer["aggregate"]]
    headings += ["billed", "core", "memory", "used", "used %", *([money["code"]] if money else [])]
    if "forecast" in answer:
        headings += ["expected", *([f"expected {money['code']}"] if money else [])]
    items = answer["items"]
    named = [([utc_moment(item["start"])] if stepped else []) + list(item["key"].values()) for item in items]
    rows = [(*names, *_figures(item, money)) for names, item in zip(named, items, strict=True)]
    if len(items) > 1:
        rows.append((TOTAL, *[BLANK] * (len(named[0]) - 1), *_figures(total(items, money), money)))
    return table(headings, rows)


def forecast_note(answer: Json) -> list[str]:
    """Returns sentences that explain the column EXPECTED of the table, or say why its values are not known.

    The list is empty if the answer has no forecast, as for a window that has ended: the table then lacks the column.

    Args:
        answer: an answer of `/v1/usage`.
    """
    if "forecast" not in answer:
        return []
    forecast = answer["forecast"]
    if forecast["lastDay"] is None:
        return ["EXPECTED is not known now: it takes ten minutes of metering, and a timekeeper that leads."]
    start, end = utc_moment(answer["window"]["start"]), utc_moment(forecast["end"])
    pace = f"at the pace of pods since {utc_moment(forecast['lastDay']['start'])}"
    notes = [f"EXPECTED is what is billed from {start} to {end} UTC, {pace}."]
    failing = forecast.get("notSettled")
    if failing:
        notes += [f"EXPECTED is not known for what is billed to {', '.join(failing)}: the settlement fails."]
        notes += ["The timekeeper's log says why (not settled)."]
    return notes


def total(items: Sequence[Json], money: Json | None) -> Json:
    """Returns the exact sum of items of usage, as one more item.

    The item's cost in the currency is computed from the sum of the amounts, and is not the sum of rounded costs.
    Unknown use is left out of the sum. The forecast is unknown if that of any item is.

    Args:
        items: the items of an answer of `/v1/usage`, at least one.
        money: the currency of the answer; None for no costs.
    """
    figures: Json = {name: _sum([item[name] for item in items]) for name in AMOUNTS}
    if money is not None:
        figures["cost"] = _worth(figures["billed"], money)
    if "forecast" in items[0]:
        each = [_by_last_day(item, "billed") for item in items]
        expected = None if None in each else _sum(each)
        cost = _worth(expected, money) if money is not None and expected is not None else None
        figures["forecast"] = {"lastDay": None if expected is None else {"billed": expected, "cost": cost}}
    return figures


def _sum(amounts: Iterable[Json | None]) -> Json | None:
    """Returns the sum of the amounts that are not None, as an amount of the REST API; None if all are None."""
    known = [int(amount["microGPUSeconds"]) for amount in amounts if amount is not None]
    return {"microGPUSeconds": str(sum(known))} if known else None


def _worth(amount: Json, money: Json) -> Decimal:
    worth = Decimal(amount["microGPUSeconds"]) * Decimal(str(money["perGpuHour"])) / GPU_HOUR
    return worth.quantize(Decimal("0.01"), ROUND_HALF_EVEN)


def _by_last_day(item: Json, figure: str) -> Any:
    """Returns a figure of an item's forecast, at the pace of the last day; None if it is unknown.

    Args:
        item: an item of an answer of `/v1/usage` with a forecast.
        figure: `billed`, an amount of the REST API, or `cost`, in the admin's currency.
    """
    expected = item["forecast"]["lastDay"]
    return None if expected is None else expected[figure]


def _figures(item: Json, money: Json | None) -> tuple[str, ...]:
    share = percent(item["used"], item["core"]) if item["used"] is not None else ""
    cost = [f"{item['cost']:,.2f}"] if money else []
    expected: list[str] = []
    if "forecast" in item:
        worth = _by_last_day(item, "cost")
        expected = [gpu_hours(_by_last_day(item, "billed"))]
        expected += ["" if worth is None else f"{worth:,.2f}"] if money else []
    return (*(gpu_hours(item[name]) for name in AMOUNTS), share, *cost, *expected)


def _all_pages(server: Server, path: str, query: dict[str, str]) -> Json:
    answer: Json = {}
    items: list[Json] = []
    for _ in range(MAX_PAGES):
        answer = transport.get(server, f"{path}?{urlencode(query)}")
        items += answer["items"]
        if answer["next"] is None:
            return {**answer, "items": items}
        query = {**query, "cursor": answer["next"]}
    raise CommandError(f"more than {MAX_PAGES} pages: ask for a shorter window or longer steps")


def _print_csv(server: Server, path: str, query: dict[str, str]) -> int:
    following: str | None = f"{path}?{urlencode({**query, 'format': 'csv'})}"
    first = True
    while following is not None:
        text, following = transport.get_text(server, following)
        sys.stdout.write(text if first else text.partition("\n")[2])
        first = False
    return 0
