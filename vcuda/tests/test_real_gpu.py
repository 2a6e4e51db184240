"""The suite for a real GPU says what it is and what it found; without one it claims nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))
import real
from time_rows import each_second


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


def test_what_programs_completed_together_is_told_by_the_second_and_the_first_is_left_out() -> None:
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
