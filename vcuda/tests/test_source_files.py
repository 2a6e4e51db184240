"""A name means one file of C, and a newcomer can read the shim's files from the lowest up, but for two circles."""

import re
from collections import Counter
from pathlib import Path

from node import BUILD

ROOT = BUILD.parent
SOURCE = ROOT / "src"
FOLDERS = ("src", "simgpu", "include", "tests", "bench")


def test_no_two_files_have_one_name() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[ch]")]
    assert [name for name, count in Counter(path.name for path in files).items() if count > 1] == []


def unit(path: str) -> str:
    """A file and its header count as one."""
    return path.rpartition(".")[0]


def includes() -> dict[str, set[str]]:
    """Returns, keyed by each of the shim's files, the others that it includes."""
    found: dict[str, set[str]] = {}
    for path in [*SOURCE.rglob("*.[ch]"), *SOURCE.rglob("*.def")]:
        name = unit(str(path.relative_to(SOURCE)))
        named = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        found.setdefault(name, set()).update(unit(one) for one in named if Path(SOURCE, one).exists())
    return found


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that a file includes, by whatever way."""
    seen: set[str] = set()
    new = {start}
    while new:
        new = {other for one in new for other in graph.get(one, ())} - seen
        seen |= new
    return seen


def test_includes_go_round_in_the_two_circles_that_the_documents_name_and_in_no_other() -> None:
    graph = {name: others - {name} for name, others in includes().items()}
    ways = {name: reached(graph, name) for name in graph}
    circles = {
        frozenset({other for other in ways[name] if name in ways[other]}) for name in graph if name in ways[name]
    }
    pacer = frozenset({"time/pacer", "helper"})
    assert pacer in circles
    (other,) = circles - {pacer}
    assert "process" in other
    assert {name for name in other if not name.startswith("memory/")} == {"process", "device", "hooks/hook"}
