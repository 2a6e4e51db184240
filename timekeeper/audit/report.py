"""An audit as people read it, and as JSON."""

from __future__ import annotations

import re
from typing import Any

from fairgpu.client.tables import table
from timekeeper.audit.auditing import Audit
from timekeeper.audit.difference import Difference, Figure
from timekeeper.rules.money import display
from timekeeper.rules.timestamps import format_exact

MONEY = frozenset({Figure.SPENT, Figure.CHECKPOINT, Figure.GRANTED, Figure.GONE, Figure.POSTED, Figure.AMOUNT})

Json = dict[str, Any]


def as_text(found: Audit) -> str:
    """A table of the differences under one line that says how much was looked at."""
    counts = ((found.accounts, "account"), (found.sessions, "session"), (found.entries, "ledger entry"))
    looked = f"Recomputed: {', '.join(_counted(count, noun) for count, noun in counts)}"
    lines = [f"{name}: there is no such period in the store" for name in found.missing]
    if not found.saw_pods:
        lines.append("The API server was not asked: budgets and pods were not compared.")
    if not found.differences:
        return "\n".join([*lines, f"{looked}. No figure differs."])
    headings = ("account", "period", "figure", "of", "stored", "expected", "recomputed from")
    rows = [_row(difference) for difference in found.differences]
    count = len(found.differences)
    verdict = f"{looked}. {count} {'figure differs' if count == 1 else 'figures differ'}:"
    return "\n".join([*lines, verdict, table(headings, rows)])


def as_json(found: Audit) -> Json:
    """The same for programs; amounts are decimal strings of microGPU-seconds."""
    return {
        "at": format_exact(found.at),
        "accounts": found.accounts,
        "sessions": found.sessions,
        "entries": found.entries,
        "sawPods": found.saw_pods,
        "missing": list(found.missing),
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
            for difference in found.differences
        ],
    }


def line(difference: Difference) -> str:
    """A difference in one line."""
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
    """An amount as it is stored, with what it is in GPU-hours where it is one."""
    if figure in MONEY and re.fullmatch(r"-?[0-9]{1,30}", text):
        return f"{text} ({display(int(text))} GPUh)"
    return text
