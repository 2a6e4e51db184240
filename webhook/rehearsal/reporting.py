"""Shows what would happen to manifests: for a person as a diff or the refusal, for a program as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import orjson
import yaml

from webhook.rehearsal.rehearsal import Outcome, Rehearsal

_PLAIN, _RED, _GREEN, _YELLOW, _BOLD = "\033[0m", "\033[31m", "\033[32m", "\033[33m", "\033[1m"


def as_text(rehearsals: list[Rehearsal], *, colours: bool) -> str:
    """What a person reads."""
    lines = [line for rehearsal in rehearsals for line in _lines(rehearsal)]
    return "\n".join(_coloured(line) if colours else line for line in lines) + "\n"


def as_json(rehearsals: list[Rehearsal]) -> str:
    """What a program reads: a list of objects."""
    documents = [
        {
            "source": rehearsal.manifest.source,
            "kind": rehearsal.manifest.kind,
            "name": rehearsal.manifest.name,
            "namespace": rehearsal.namespace,
            "template": rehearsal.template,
            "outcome": rehearsal.outcome.value,
            "message": rehearsal.message,
            "warnings": rehearsal.warnings,
            "patch": rehearsal.operations,
        }
        for rehearsal in rehearsals
    ]
    return orjson.dumps(documents, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _lines(rehearsal: Rehearsal) -> Iterator[str]:
    manifest = rehearsal.manifest
    yield f"# {manifest.kind} {rehearsal.namespace}/{manifest.name}{_summary(rehearsal)}"
    if rehearsal.outcome is Outcome.REFUSED:
        yield from (f"!  {line}" for line in rehearsal.message.splitlines())
    yield from (f"~  warning: {warning}" for warning in rehearsal.warnings)
    if rehearsal.outcome is Outcome.CHANGED:
        yield from _diff(rehearsal.before, rehearsal.after)
    yield ""


def _summary(rehearsal: Rehearsal) -> str:
    """What stands behind the name of the object."""
    pods = f"the pods made from {rehearsal.template}" if rehearsal.template else ""
    if rehearsal.outcome is Outcome.REFUSED:
        if not rehearsal.let_in:
            return ": refused"
        return f": let in{' with a warning' if rehearsal.warned else ''}; {pods}: refused"
    said = "admitted, and changed as follows" if rehearsal.outcome is Outcome.CHANGED else rehearsal.message
    return f", and {pods}: {said}" if pods else f": {said}"


def _diff(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = (yaml.safe_dump(side, sort_keys=False, width=120).splitlines() for side in (before, after))
    for line in list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]:
        yield f"   {line}" if line.startswith("@@") else f" {line}"


def _coloured(line: str) -> str:
    for start, colour in (("#", _BOLD), ("!", _RED), ("~", _YELLOW), (" +", _GREEN), (" -", _RED)):
        if line.startswith(start):
            return f"{colour}{line}{_PLAIN}"
    return line
