"""The map of the code names what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT

PAGE = ROOT / "docs" / "architecture.md"
LINK = r"\[`(\w+)`\]\(([^)]+)\)"
LINKS = re.findall(LINK, PAGE.read_text())
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]}
JOURNEYS = [title for title in SECTIONS if not title.startswith("Who leads")]


def defined(file: Path) -> set[str]:
    """Functions and classes of a Python file, macros and functions of a C file, and the name of the file."""
    text = file.read_text()
    if file.suffix != ".py":
        pairs = re.findall(r"^#define (\w+)\(|^[a-z][^;=\n]*?\b(\w+)\(", text, re.MULTILINE)
        return {file.stem} | {name for pair in pairs for name in pair}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {file.stem} | {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)}


def test_the_page_has_five_journeys_and_says_who_leads() -> None:
    assert (len(SECTIONS), len(JOURNEYS)) == (6, 5)


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_journey_has_five_to_ten_steps_each_with_a_link(title: str) -> None:
    steps = re.split(r"^\d+\. ", SECTIONS[title], flags=re.MULTILINE)[1:]
    assert 5 <= len(steps) <= 10
    assert [step for step in steps if not re.search(LINK, step)] == []


@pytest.mark.parametrize(("name", "target"), LINKS, ids=[name for name, _ in LINKS])
def test_each_link_leads_to_a_definition(name: str, target: str) -> None:
    assert name in defined((PAGE.parent / target).resolve())
