"""Use under the shim reaches the timekeeper by the sidecars of programs; what they hold is billed exactly."""

import re
import sys
import tempfile
from pathlib import Path

import pytest
from node import BUILD

sys.path.append(str(BUILD.parent))
sys.path.append(str(BUILD.parent / "bench"))
from demo_bill import billed, pod


def test_usage_by_the_shim_is_reported_and_the_reservation_is_billed(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as name:  # what a config can name is short
        used, spent, expected = billed(Path(name), [pod("notebook", 30, 4096), pod("training", 70, 8192)], 1.5)
    assert spent == expected > 0
    assert set(used) == {"notebook", "training"}
    assert all(0 < amount < spent for amount in used.values())
    numbered = re.compile(r"\d+  [A-Z]")
    assert [line for line in capsys.readouterr().out.splitlines() if numbered.match(line)] == [], (
        "this follows `fairgpu demo`, whose headings are numbered"
    )
