"""The command `fairgpu usage`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
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
WINDOWS = "today, yesterday, week, month, lastweek, lastmonth, 7d, 36h, or START,END in RFC 3339"

Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("-n", "--namespace", type=a_name, help="of this namespace alone")
    parser.add_argument("--window", default="7d", help=f"of which time, in UTC: {WINDOWS} (default: %(default)s)")
    parser.add_argument("--step", help="cut it into hours, days, weeks or months: hour, day, week, month, 6h, 2d")
    parser.add_argument(
        "--by",
        default="namespace",
        metavar="LIST",
        help="a comma list of namespace, budget, model, node, owner, user, label:KEY (default: %(default)s)",
    )
    parser.add_argument("--idle", action="store_true", help="show the capacity that no pod held, too")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="how to print it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetches all pages of usage and prints them."""
    server = from_environment(os.environ)
    if arguments.namespace and arguments.idle:
        raise CommandError("--idle shows what no pod held in the whole cluster: leave out --namespace")
    query = {"window": arguments.window, "aggregate": arguments.by, "limit": str(PAGE)}
    query |= {"step": arguments.step} if arguments.step else {}
    query |= {"idle": "true"} if arguments.idle else {}
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
    return print_text(usage_table(answer))


def usage_table(answer: Json) -> str:
    """Formats the items, one a line, and their sum in the last line; amounts in GPU-hours."""
    stepped = answer["step"] is not None
    money = answer["currency"]
    headings = [*(["from (UTC)"] if stepped else []), *answer["aggregate"]]
    headings += ["billed", "core", "memory", "used", "used %", *([money["code"]] if money else [])]
    items = answer["items"]
    named = [([utc_moment(item["start"])] if stepped else []) + list(item["key"].values()) for item in items]
    rows = [(*names, *_figures(item, money)) for names, item in zip(named, items, strict=True)]
    if len(items) > 1:
        rows.append((TOTAL, *[BLANK] * (len(named[0]) - 1), *_figures(total(items, money), money)))
    return table(headings, rows)


def total(items: Sequence[Json], money: Json | None) -> Json:
    """Returns the exact sum of items; its cost is computed from the sum, and is not the sum of rounded costs."""
    figures: Json = {}
    for name in AMOUNTS:
        known = [int(item[name]["microGPUSeconds"]) for item in items if item[name] is not None]
        figures[name] = {"microGPUSeconds": str(sum(known))} if known else None
    if money is not None:
        worth = Decimal(figures["billed"]["microGPUSeconds"]) * Decimal(str(money["perGpuHour"])) / GPU_HOUR
        figures["cost"] = worth.quantize(Decimal("0.01"), ROUND_HALF_EVEN)
    return figures


def _figures(item: Json, money: Json | None) -> tuple[str, ...]:
    share = percent(item["used"], item["core"]) if item["used"] is not None else ""
    cost = [f"{item['cost']:,.2f}"] if money else []
    return (*(gpu_hours(item[name]) for name in AMOUNTS), share, *cost)


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
