"""The commands `fairgpu budget`, `fairgpu grant`, `fairgpu correct` and `fairgpu sessions`."""

from __future__ import annotations

import argparse
import json
import os
import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from fairgpu.client import figures, transport, usage
from fairgpu.client.figures import gpu_hours, gpus, moment, percent, span, worth
from fairgpu.client.server import Server, from_environment
from fairgpu.client.tables import print_text, table
from fairgpu.commands import CommandError, a_name

EPILOG = """environment:
  FAIRGPU_SERVER   the timekeeper's address, such as https://localhost:8443
  FAIRGPU_TOKEN    a token for it; without one, the token of the kubeconfig's current user
  FAIRGPU_CA_FILE  the CA that signed its certificate, in PEM; without one, the system's CAs
"""
MAX_PAGES = 1000

Json = dict[str, Any]


def register(subparsers: Any) -> None:
    """Adds the client's commands to the parser of `fairgpu`."""
    budget = subparsers.add_parser("budget", help="what budgets hold and what they have spent")
    actions = budget.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _command(actions, "list", "all budgets", _list_budgets)
    listing.set_defaults(namespace=None)
    one = _command(actions, "get", "one budget, or what pays for a namespace", _get_budget)
    which = one.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", type=a_name, help="the budget's name")
    which.add_argument("-n", "--namespace", type=a_name, help="the namespace that it pays for")
    grant = _command(subparsers, "grant", "give a budget GPU-hours, or take some away", _grant)
    grant.add_argument("budget", help="the budget's name")
    grant.add_argument(
        "gpu_hours", metavar="GPU_HOURS", help="how much, with at most six decimal places: 2.5; -2.5 takes away"
    )
    grant.add_argument("--reason", required=True, help="why, for later readers of the ledger")
    grant.add_argument("--name", help="a name for it; the same name and amount again grants nothing twice")
    grant.add_argument("--expires", help="until when, such as 2026-12-31T23:00:00Z; else with the present period")
    correct = _command(subparsers, "correct", "set right what a budget spent in a period", _correct)
    correct.add_argument("budget", help="the budget's name")
    correct.add_argument("gpu_hours", metavar="GPU_HOURS", help="how much more was spent, or less: 2.5, -2.5")
    moment_help = "a moment in that period: 2026-01-15 (its midnight in UTC), 2026-01-01T05:00:00Z"
    correct.add_argument("--period", required=True, help=moment_help)
    correct.add_argument("--reason", required=True, help="why, for later readers of the ledger")
    correct.add_argument("-n", "--namespace", type=a_name, help="of whose use it is; else of the budget's as a whole")
    correct.add_argument("--name", help="a name for it; the same name again corrects nothing twice")
    usage.add_arguments(_documented(subparsers, "usage", "what was held and used, by whom, of what"))
    sessions = _command(subparsers, "sessions", "the reservations that are being metered", _sessions)
    sessions.add_argument("-n", "--namespace", type=a_name, help="of this namespace alone")


def _documented(subparsers: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=text, description=text, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser


def _command(subparsers: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser = _documented(subparsers, name, text)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print it")
    parser.set_defaults(run=run)
    return parser


def _list_budgets(arguments: argparse.Namespace) -> int:
    server = from_environment(os.environ)
    with transport.asking(None):
        budgets = _all_pages(server, "/v1/budgets", "budgets", {})["budgets"]
    if arguments.output == "json":
        return _print_json({"budgets": budgets})
    if not budgets:
        return print_text("There are no budgets: every namespace is metered and unlimited.")
    headings = ("name", "state", "spent", "available", "spent %", "remaining", "GPUs now", "period ends")
    return print_text(table(headings, [_budget_row(budget) for budget in budgets]))


def _budget_row(budget: Json) -> tuple[str, ...]:
    return (
        budget["name"],
        budget["state"],
        gpu_hours(budget["spent"]),
        gpu_hours(budget["available"]),
        percent(budget["spent"], budget["available"]),
        gpu_hours(budget["remaining"]),
        gpus(budget["rate"]),
        moment(budget["period"]["end"]),
    )


def _get_budget(arguments: argparse.Namespace) -> int:
    server = from_environment(os.environ)
    if arguments.namespace:
        answer = transport.get(server, f"/v1/namespaces/{quote(arguments.namespace, safe='')}/budget")
        budget = answer["budget"]
    else:
        with transport.asking(None):
            answer = budget = transport.get(server, f"/v1/budgets/{quote(arguments.name, safe='')}")
    if arguments.output == "json":
        return _print_json(answer)
    if budget is None:
        return print_text(f"No budget names the namespace {arguments.namespace}: it is metered and unlimited.")
    return print_text(describe(budget))


def describe(budget: Json) -> str:
    """Formats a budget of the REST API for people, one figure a line."""
    period = budget["period"]
    lines = [
        ("Name", budget["name"]),
        ("Namespaces", ", ".join(budget["namespaces"])),
        ("State", figures.state(budget)),
        ("Enforcement", figures.ENFORCEMENT.get(budget["enforcement"], "")),
        ("Admission", figures.admission(budget)),
        ("Period", f"{moment(period['start'])} to {moment(period['end'])}"),
        ("Available", f"{gpu_hours(budget['available']) or 'unlimited'} GPU-hours{worth(budget, 'available')}"),
        ("  of which granted", f"{gpu_hours(budget['granted'])} GPU-hours"),
        ("Spent", _spent(budget)),
        ("Remaining", f"{gpu_hours(budget['remaining']) or 'unlimited'} GPU-hours{worth(budget, 'remaining')}"),
        *(("  of which expires", figures.expiring(found)) for found in budget.get("expiring", [])),
        ("In grace", figures.grace(budget)),
        ("Being spent", f"{gpus(budget['rate'])} GPUs"),
        ("  busy now", figures.busy_now(budget, datetime.now(UTC).isoformat())),
        ("  over the hour", figures.stretch(budget, "lastHour")),
        ("  over the day", figures.stretch(budget, "lastDay")),
        ("Exhausted", moment(budget["exhaustedAt"])),
    ]
    return "\n".join(f"{name + ':':<20} {value}" for name, value in lines if value)


def _spent(budget: Json) -> str:
    share = percent(budget["spent"], budget["available"])
    return f"{gpu_hours(budget['spent'])} GPU-hours {share}".rstrip() + worth(budget, "spent")


def _grant(arguments: argparse.Namespace) -> int:
    body = {"budget": arguments.budget, "gpuHours": arguments.gpu_hours, "reason": arguments.reason}
    if arguments.expires:
        body["expires"] = arguments.expires
    answer, made = _order("/v1/grants", body, arguments.name)
    if arguments.output == "json":
        return _print_json(answer)
    until = f" until {moment(answer['expires'])}" if answer.get("expires") else ""
    what = f"{answer['gpuHours']} GPU-hours to budget {answer['budget']}{until} (grant {answer['name']})"
    return print_text(f"granted {what}" if made else f"nothing to do: {what} was made before")


def _correct(arguments: argparse.Namespace) -> int:
    period = arguments.period if "T" in arguments.period else f"{arguments.period}T00:00:00Z"
    body = {
        "budget": arguments.budget,
        "gpuHours": arguments.gpu_hours,
        "effectivePeriod": period,
        "reason": arguments.reason,
    }
    if arguments.namespace:
        body["namespace"] = arguments.namespace
    answer, made = _order("/v1/corrections", body, arguments.name)
    if arguments.output == "json":
        return _print_json(answer)
    spent = f"{answer['gpuHours']} GPU-hours of budget {answer['budget']}"
    what = f"{spent} in the period that holds {answer['effectivePeriod']} (correction {answer['name']})"
    return print_text(f"corrected by {what}" if made else f"nothing to do: {what} was made before")


def _order(path: str, body: Json, name: str | None) -> tuple[Json, bool]:
    """Posts a grant or a correction to the REST API; returns the answer, and whether the timekeeper made an order.

    The timekeeper makes none if an order of the same name exists already. A request without a name gets a random
    Idempotency-Key, so that each call makes another order.

    Args:
        path: the path in the REST API, such as `/v1/grants`.
        body: the grant or the correction, as JSON without its name.
        name: the order's name; None for an order without a name.

    Raises:
        CommandError: the timekeeper refused, or was not reached; the message says if the order may have been made.
    """
    server = from_environment(os.environ)
    try:
        if name:
            return transport.post(server, path, {**body, "name": name}, {})
        return transport.post(server, path, body, {"Idempotency-Key": str(uuid.uuid4())})
    except transport.UnknownOutcomeError as error:
        raise CommandError(f"{error}\n{_after_unknown(path, name)}") from error
    except transport.RefusedError as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        raise CommandError(f"{error}\n{_after_unknown(path, name)}") from error


def _after_unknown(path: str, name: str | None) -> str:
    """Returns advice for a person who asked for an order and does not know whether the timekeeper has made it.

    Args:
        path: the path of the request in the REST API, such as `/v1/grants`.
        name: the order's name in the request; None if the request named none.
    """
    unknown = "Whether the order was made is not known:"
    if name:
        return f"{unknown} run the command again, which with --name orders nothing twice."
    objects = f"gpu{path.rpartition('/')[2]}"
    return (
        f"{unknown} kubectl get {objects} shows it. Do not just repeat the command: without --name it orders once more."
    )


def _sessions(arguments: argparse.Namespace) -> int:
    query = {"namespace": arguments.namespace} if arguments.namespace else {}
    server = from_environment(os.environ)
    with transport.asking(arguments.namespace):
        answer = _all_pages(server, "/v1/sessions", "sessions", query)
    if arguments.output == "json":
        return _print_json(answer)
    sessions = answer["sessions"]
    if not sessions:
        where = f" of the namespace {arguments.namespace}" if arguments.namespace else ""
        return print_text(f"No pod{where} holds a GPU now.")
    headings = ["namespace", "pod", "node", "budget", "GPUs", "held for", "GPU-hours", "used", "last report"]
    now = datetime.now(UTC).isoformat()
    sessions.sort(key=_place)
    rows = [_session_row(session, now) for session in sessions]
    source = answer.get("presentUseFrom")
    if source is None:
        return print_text(table(headings, rows))
    shown = [[*row, *_present_use(session, now)] for row, session in zip(rows, sessions, strict=True)]
    note = f"BUSY NOW is by {source.capitalize()}, advisory, and no part of any bill."
    return print_text(f"{table([*headings, 'busy now', 'as of'], shown)}\n\n{note}")


def _place(session: Json) -> tuple[str, str]:
    return session["namespace"], session["pod"]


def _session_row(session: Json, now: str) -> tuple[str, ...]:
    return (
        session["namespace"],
        session["pod"],
        session["node"],
        session["budget"],
        gpus(session["rate"]),
        span(session["start"], session["end"] or now),
        gpu_hours(session["amount"]),
        "held idle" if session.get("heldIdle") else gpu_hours(session["used"]),
        f"{span(session['reportedAt'], now)} ago" if session["reportedAt"] else "",
    )


def _present_use(session: Json, now: str) -> tuple[str, str]:
    use = session["presentUse"]
    return ("", "") if use is None else (f"{use['percent']:.0f}%", f"{span(use['at'], now)} ago")


def _all_pages(server: Server, path: str, what: str, query: dict[str, str]) -> Json:
    """Fetches all pages of a list of the REST API; returns the last page, with the items of all pages in its list.

    Args:
        server: the timekeeper.
        path: the path of the list, such as `/v1/budgets`.
        what: the key of the list of items in each page, such as `budgets`.
        query: the parameters of the query; empty for none.

    Raises:
        CommandError: there are more than MAX_PAGES pages, or a request fails.
    """
    items: list[Json] = []
    for _ in range(MAX_PAGES):
        answer = transport.get(server, f"{path}?{urlencode(query)}" if query else path)
        items += answer[what]
        if answer.get("cursor") is None:
            return {**{key: value for key, value in answer.items() if key != "cursor"}, what: items}
        query = {**query, "cursor": answer["cursor"]}
    raise CommandError(f"more than {MAX_PAGES} pages of {what}: name a namespace with -n")


def _print_json(answer: Json) -> int:
    return print_text(json.dumps(answer, indent=2))
