"""The suite for a real GPU says what it is and what it found; without one it claims nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node import BUILD

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))
import real
from time_rows import each_second

UNCHARGED = (
    "the first kernel",
    "stacks of 16384 bytes",
    "100 executable graphs of 20 kernels",
)
"""Memory that the driver takes and no call allocates; each of these launches code of a new module, too."""


def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    # Its own folder is searched for the driver alone: also on a machine that has a GPU, none is found.
    hidden = "import ctypes, runpy, sys; ctypes.CDLL = lambda name: (_ for _ in ()).throw(OSError(name)); "
    program = hidden + f"runpy.run_path({str(Path(real.__file__))!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "nothing was tested" in done.stderr


def test_the_report_names_the_gpu_and_what_was_missed() -> None:
    row = {"name": "launch", "value": 61.0, "unit": "ns added", "goal": "<= 50", "met": False, "context": "3 rounds"}
    text = real.report("Some GPU, driver for CUDA 13.0", [row])
    assert text.startswith("Some GPU, driver for CUDA 13.0, ")
    assert "| launch | <= 50 | 61.0 ns added | **missed**; 3 rounds |" in text


def test_work_that_programs_completed_together_is_read_from_the_second_and_the_first_is_left_out() -> None:
    assert each_second(["1.0 5.0 9.5 \n", "2.0 4.0 8.0 \n"]) == [6.0, 8.5]


def test_a_part_that_cannot_be_measured_says_why_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "vcuda: launch", "met": True}

    def ends(_: Path) -> Iterator[dict[str, Any]]:
        yield row
        raise RuntimeError("no context on this GPU")

    monkeypatch.setattr(real, "PARTS", {"one": ends, "other": lambda _: iter([row])})
    first, failed, last = real.rows(tmp_path, [])
    assert (first, last) == (row, row)
    assert (failed["name"], failed["met"]) == ("vcuda: the rest of one", False)
    assert "no context on this GPU" in failed["context"]


def test_each_part_of_the_suite_runs_where_the_simulated_driver_stands_in(tmp_path: Path) -> None:
    """The suite for a GPU's machine must not fail there for its own mistakes."""
    parts = ["checks", "addresses", "nvml", "unasked", "waiting", "deck"]
    environment = os.environ | {
        "SIMGPU_DIR": str(tmp_path / "gpu"),
        "VCUDA_GPU_REPORT": str(tmp_path / "report.md"),
        "LD_LIBRARY_PATH": str(BUILD / "simgpu" / "13"),
        "PYTHONPATH": str(BUILD / "real"),
    }
    command = [sys.executable, str(real.__file__), *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {row["unit"]: row for row in rows if "the rest of" in row["name"]} == {}, done.stderr
    assert all("Simulated GPU" in row["context"] for row in rows)
    timed = [row["context"] for row in rows if row["unit"] == "us"]
    assert [context for context in timed if "answers 0 and 0" not in context and "answers [0]" not in context] == []
    wrong = [row["name"] for row in rows if not row["met"] and row["unit"] != "us"]
    assert wrong == [f"vcuda: taken beyond the charge by {what}" for what in UNCHARGED]
