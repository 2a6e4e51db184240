"""The map of the code names what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "architecture.md"
LINKS = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", PAGE.read_text())


def defined(file: Path) -> set[str]:
    """Functions and classes of a Python file, macros and functions of a C file, and the name of the file."""
    text = file.read_text()
    if file.suffix != ".py":
        pairs = re.findall(r"^#define (\w+)\(|^[a-z][^;=\n]*?\b(\w+)\(", text, re.MULTILINE)
        return {file.stem} | {name for pair in pairs for name in pair}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {file.stem} | {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)}


def test_the_page_has_five_journeys_and_says_who_leads() -> None:
    assert len(re.findall(r"^## ", PAGE.read_text(), re.MULTILINE)) == 5 + 1
    assert len(LINKS) > 20


@pytest.mark.parametrize(("name", "target"), LINKS, ids=[name for name, _ in LINKS])
def test_each_link_leads_to_a_definition(name: str, target: str) -> None:
    assert name in defined((PAGE.parent / target).resolve())
