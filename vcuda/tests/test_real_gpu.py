"""The suite for a real GPU says what it is and what it found; without one it claims nothing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node import BUILD, until

sys.path.append(str(Path(__file__).resolve().parent / "gpu"))
import deadline
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"name": "vcuda: launch", "met": True}

    def ends(_: Path) -> Iterator[dict[str, Any]]:
        yield row
        raise RuntimeError("no context on this GPU")

    monkeypatch.setattr(real, "PARTS", {"one": ends, "other": lambda _: iter([row])})
    real.measure(tmp_path, ["one", "other"])
    first, failed, ended, last, _ = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first, ended["ended"], last) == (row, "one", row)
    assert (failed["name"], failed["met"]) == ("vcuda: the rest of one", False)
    assert "no context on this GPU" in failed["context"]


def printing(*lines: dict[str, Any], then: str = "") -> list[str]:
    """Returns the command of a suite that prints these lines, and then goes on with this program."""
    program = "".join(f"print({json.dumps(line)!r}, flush=True)\n" for line in lines)
    return [sys.executable, "-c", f"import os, signal, subprocess, time\n{program}{then}"]


def test_each_part_that_has_not_ended_at_the_deadline_is_a_row_and_all_programs_are_killed(tmp_path: Path) -> None:
    """A program that ignores SIGTERM, and one that it began, keep the suite's output open."""
    row = {"name": "vcuda: launch", "met": True}
    pids = tmp_path / "pids"
    hangs = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
began = subprocess.Popen(["sleep", "1000"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{began.pid}}")
print({json.dumps(row)!r}, flush=True)
time.sleep(1000)
"""
    command = printing(row, {"ended": "one", "seconds": 1}, then=hangs)
    rows = real.measured_until(time.monotonic() + 3, command, ["one", "two", "three"])
    assert [next(rows), next(rows)] == [row, row]
    programs = [Path("/proc", pid) for pid in pids.read_text().split()]
    missing = list(rows)
    assert [each["name"] for each in missing] == ["vcuda: the rest of two", "vcuda: the rest of three"]
    assert not any(each["met"] for each in missing)
    assert all("the eight minutes of all parts were over" in each["context"] for each in missing)
    assert "PARTS=three measures it" in missing[1]["context"]
    until(lambda: not any(is_running(program) for program in programs))


def is_running(process: Path) -> bool:
    """Whether the process is neither ended nor a zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_parts_behind_one_that_crashes_the_suite_are_rows(capfd: pytest.CaptureFixture[str]) -> None:
    command = printing({"ended": "one", "seconds": 1}, then="os.abort()")
    (missing,) = real.measured_until(None, command, ["one", "two"])
    assert (missing["name"], missing["met"]) == ("vcuda: the rest of two", False)
    assert "the suite itself failed" in missing["context"]
    assert capfd.readouterr().err == "one: 1 s\n"


def test_the_build_takes_from_the_time_of_all_parts_and_named_parts_have_no_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1100.0)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    monkeypatch.setenv("VCUDA_GPU_BEGAN", "1000")
    assert real.deadline_of([]) == 5 + real.MOST_SECONDS - 100
    assert real.deadline_of(["racing"]) is None
    assert real.MOST_SECONDS + 2 * deadline.END_SECONDS < 8 * 60


def test_each_part_of_the_suite_runs_where_the_simulated_driver_stands_in(tmp_path: Path) -> None:
    """The suite for a GPU's machine must not fail there for its own mistakes."""
    parts = ["checks", "addresses", "nvml", "unasked", "waiting", "runtimes", "deck"]
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
    runtimes = {row["name"]: row["context"] for row in rows if row["name"].startswith("vcuda: runtime ")}
    assert all("the same 35 lines" in context for context in runtimes.values()), runtimes
    assert wrong == [*(f"vcuda: taken beyond the charge by {what}" for what in UNCHARGED), *runtimes]
