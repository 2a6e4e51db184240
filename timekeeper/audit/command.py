"""The command `fairgpu audit`: runs an audit and prints it as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from fairgpu.client.tables import table
from fairgpu.cluster.connect import NoClusterError, connect
from fairgpu.commands import CommandError
from fairgpu.keeping import Wait
from timekeeper.audit.auditing import Audit, AuditEnvironment, audit, request_of
from timekeeper.audit.cluster import ClusterView, read_cluster
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.sums import UnseenEnd
from timekeeper.domain.money import display
from timekeeper.domain.timestamps import TimeError, format_exact, parse_instant
from timekeeper.ledger.client import Store, StoreError
from timekeeper.ledger.connection import unreachable_message
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.base import Mirrors
from timekeeper.sources.choosing import cluster_source

MOST_SHOWN = 20
"""The most unobserved ends of sessions that the text lists; the JSON lists all of them."""
MONEY = frozenset({Figure.SPENT, Figure.CHECKPOINT, Figure.GRANTED, Figure.FINALIZED, Figure.POSTED, Figure.AMOUNT})

Json = dict[str, Any]


def as_text(audit: Audit) -> str:
    """Formats the result of an audit as text, with a table of the differences."""
    counts = ((audit.accounts, "account"), (audit.sessions, "session"), (audit.entries, "ledger entry"))
    looked = f"Recomputed: {', '.join(_counted(count, noun) for count, noun in counts)}"
    lines = [f"{name}: there is no such period in the store" for name in audit.missing]
    if not audit.saw_pods:
        lines.append("The API server was not asked: budgets and pods were not compared.")
    if audit.unknown_model:
        of = f"{display(audit.unknown_model)} of {display(audit.billed)} GPU-hours"
        lines.append(f"At the price of `*`, since nothing names the model: {of}.")
    lines += _unseen(audit.unseen)
    if not audit.differences:
        return "\n".join([*lines, f"{looked}. No figure differs."])
    headings = ("account", "period", "figure", "of", "stored", "expected", "recomputed from")
    rows = [_row(difference) for difference in audit.differences]
    count = len(audit.differences)
    verdict = f"{looked}. {count} {'figure differs' if count == 1 else 'figures differ'}:"
    return "\n".join([*lines, verdict, table(headings, rows)])


def as_json(audit: Audit) -> Json:
    """Returns the result of an audit as a JSON object; amounts are microGPU-seconds as decimal text."""
    return {
        "at": format_exact(audit.at),
        "accounts": audit.accounts,
        "sessions": audit.sessions,
        "entries": audit.entries,
        "sawPods": audit.saw_pods,
        "billed": str(audit.billed),
        "unknownModel": str(audit.unknown_model),
        "unseenEnds": [
            {
                "account": one.account,
                "namespace": one.namespace,
                "pod": one.pod,
                "start": format_exact(one.start),
                "end": format_exact(one.end),
                "amount": str(one.amount),
            }
            for one in audit.unseen
        ],
        "missing": list(audit.missing),
        "differences": [
            {
                "account": difference.account,
                "period": _period(difference),
                "figure": difference.figure.value,
                "subject": difference.subject or None,
                "stored": difference.stored,
                "expected": difference.expected,
                "recomputedFrom": difference.reason,
            }
            for difference in audit.differences
        ],
    }


def _unseen(ends: Sequence[UnseenEnd]) -> list[str]:
    """Formats the sessions whose end was not observed, at most MOST_SHOWN, the dearest first; nothing without any."""
    if not ends:
        return []
    dearest = sorted(ends, key=lambda one: (-one.amount, one.account, one.namespace, one.pod))
    rows = [
        (one.account, one.namespace, one.pod, format_exact(one.start), format_exact(one.end), display(one.amount))
        for one in dearest[:MOST_SHOWN]
    ]
    of = f"{_counted(len(ends), 'session')}, {display(sum(one.amount for one in ends))} GPU-hours"
    headings = ("account", "namespace", "pod", "from", "last sign of life", "GPU-hours")
    more = [f"and {len(ends) - MOST_SHOWN} more: -o json has all"] if len(ends) > MOST_SHOWN else []
    return [f"Ended unobserved, and charged up to the last sign of life: {of}.", table(headings, rows), *more]


def line(difference: Difference) -> str:
    """Formats a difference that an audit found as one line."""
    of = f" of {difference.subject}" if difference.subject else ""
    stored, expected = (_shown(difference.figure, text) for text in (difference.stored, difference.expected))
    return f"{difference.figure.value}{of} is {stored}, must be {expected} ({difference.reason})"


def _counted(count: int, noun: str) -> str:
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else several}"


def _row(difference: Difference) -> tuple[str, ...]:
    return (
        difference.account,
        _period(difference) or "",
        difference.figure.value,
        difference.subject,
        _shown(difference.figure, difference.stored),
        _shown(difference.figure, difference.expected),
        difference.reason,
    )


def _period(difference: Difference) -> str | None:
    return None if difference.period is None else format_exact(difference.period)


def _shown(figure: Figure, text: str) -> str:
    """Returns a figure's value for people: the text, and for an amount of microGPU-seconds also its GPU-hours."""
    if figure in MONEY and re.fullmatch(r"-?[0-9]{1,30}", text):
        return f"{text} ({display(int(text))} GPUh)"
    return text


FIRST_READ_SECONDS = 60.0
"""The time-out, in seconds, for the first lists of budgets and pods."""


def run(client: Store, settings: TimekeeperSettings, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Audits the ledger and prints the result; returns 1 if a figure differs or a requested period is missing, else 0.

    Args:
        client: the store; its answers are bytes.
        arguments: the options of the command, as parsed: `budget`, `period`, `output`, `store_only`, `standalone`.
        environ: the environment variables, which name the API server.

    Raises:
        CommandError: the period is not an instant, the configuration of the API server is missing or invalid, the store
            or the API server does not answer, or a value of packed ledger entries cannot be read.
    """
    request = request_of(settings, tuple(arguments.budget or ()), _period_command(arguments.period))
    ending = threading.Event()
    try:
        read = _cluster_reader(settings, arguments, environ, ending.wait)
        result = audit(AuditEnvironment(client, read, time.time_ns, ending.wait), request)
    except (redis.RedisError, StoreError) as error:
        raise CommandError(unreachable_message(error)) from error
    finally:
        ending.set()
    text = json.dumps(as_json(result), indent=2) if arguments.output == "json" else as_text(result)
    sys.stdout.write(text + "\n")
    return 1 if result.differences or result.missing else 0


def _cluster_reader(
    settings: TimekeeperSettings,
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    wait: Wait,
) -> Callable[[], ClusterView | None]:
    if arguments.store_only:
        return lambda: None
    mirrors = _mirrors(settings, arguments.standalone or settings.folder, environ, wait)
    template: dict[str, Any] | None = settings.metering.default_budget
    deadline = time.monotonic() + FIRST_READ_SECONDS
    while read_cluster(mirrors, template) is None:
        if time.monotonic() > deadline:
            raise CommandError("the API server does not show all budgets and pods; --store-only does without them")
        wait(0.05)
    return lambda: read_cluster(mirrors, template)


def _mirrors(settings: TimekeeperSettings, folder: Path | None, environ: Mapping[str, str], wait: Wait) -> Mirrors:
    try:
        api = connect(environ) if folder is None else None
    except NoClusterError as error:
        raise CommandError(f"{error}; or look at the store alone: --store-only") from error
    source = cluster_source(settings, api, folder)
    source.start(wait)
    return source.mirrors


def _period_command(text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except TimeError as error:
        raise CommandError(f"--period: {error}") from error
