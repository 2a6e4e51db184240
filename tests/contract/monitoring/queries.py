"""Finds the metrics and labels that a PromQL expression names, as far as the rules and the dashboard need."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

OF_THE_TARGET = frozenset({"namespace", "pod", "container", "instance", "job"})
"""Labels that Prometheus gives every series of a PodMonitor."""

_NAME = re.compile(r"(?<![\w$:])(?:[a-z]+:)?fairgpu_[a-z0-9_]+(?::[a-z0-9_]+)?")
_MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class Query:
    """The metrics of an expression, each with the labels that are matched on it; and the labels that it groups by."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouping: set[str] = field(default_factory=set)


def read_query(expression: str) -> Query:
    """Reads an expression."""
    text = _QUOTED.sub('""', expression)
    query = Query()
    for match in _NAME.finditer(text):
        labels = query.metrics.setdefault(match[0], set())
        rest = text[match.end() :]
        if rest.startswith("{"):
            labels |= set(_MATCHER.findall(rest[: rest.index("}")]))
    for match in _GROUPING.finditer(text):
        query.grouping.update(name.strip() for name in match[1].split(",") if name.strip())
    return query
