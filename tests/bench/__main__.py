"""Runs the benchmarks, prints a table, writes build/bench.json: `python -m tests.bench [NAME...]`.

A benchmark is a module of this folder with `rows()`, which returns dictionaries of name, value, unit, goal, met and
context. A goal that is missed is printed as missed: the exit status says only whether everything could be measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULT = Path("build/bench.json")
FIELDS = ("name", "value", "unit", "goal", "met", "context")


def available() -> list[str]:
    """The names of the benchmark modules."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))


def measure(names: list[str]) -> list[dict[str, Any]]:
    """The rows of the named benchmarks, in order, each printed as soon as it is there."""
    rows: list[dict[str, Any]] = []
    for name in names:
        module = importlib.import_module(f"tests.bench.{name}")
        if not hasattr(module, "rows"):
            continue
        for row in module.rows():
            print(line(row), flush=True)
            rows.append({field: row[field] for field in FIELDS})
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    found = row["value"]
    value = found if isinstance(found, str) else f"{found:,.4g}" if isinstance(found, float) else f"{found:,}"
    verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
    return f"{row['name']:<58} {value:>12} {row['unit']:<14} {row['goal'] or '':<14} {verdict:<7} {row['context']}"


def main() -> int:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*available(), []], help="the benchmarks to run; all of them if none"
    )
    names = parser.parse_args().names or available()
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, Linux {platform.release()}")
    print(f"{'figure':<58} {'value':>12} {'unit':<14} {'goal':<14}")
    rows = measure(list(names))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {RESULT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
