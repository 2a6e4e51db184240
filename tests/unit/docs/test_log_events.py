"""Every event that the services log is in the reference of logs, and none that they do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "logs.md"
LEVELS = {"exception": "error"}


def logged() -> Iterator[tuple[str, str]]:
    """(event, level) of each call of a module's log."""
    for package in ("fairgpu", "nodeagent", "scheduler", "timekeeper", "webhook"):
        for file in sorted((ROOT / package).rglob("*.py")):
            yield from logged_in(file)


def logged_in(file: Path) -> Iterator[tuple[str, str]]:
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if "_log." in text else ():
        match node:
            case ast.Call(ast.Attribute(ast.Name("_log"), level), [ast.Constant(str(event)), *_]):
                yield event, LEVELS.get(level, level)
            case ast.Call(ast.Attribute(ast.Name("_log"), level)):
                raise AssertionError(f"{file}:{node.lineno}: an event that is no literal cannot be looked up")


def test_the_reference_has_every_event_with_its_level() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(logged())


def test_every_event_of_the_sidecar_is_on_its_page() -> None:
    calls = [
        node
        for file in sorted((ROOT / "sidecar").glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit"
    ]
    named = {call.args[1].value for call in calls if isinstance(call.args[1], ast.Constant)}
    page = (ROOT / "docs" / "sidecar.md").read_text()
    assert len(named) > 4
    assert {event for event in named if f"| `{event}`" not in page} == set()
