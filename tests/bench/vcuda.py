"""The shim's cost and the error of its shares, on the simulated GPU: the rows of `make -C vcuda bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def rows() -> Iterator[dict[str, Any]]:
    """Builds what is measured, measures, and hands on the rows as they come."""
    make = ["make", "-s", "-C", str(ROOT / "vcuda"), f"PYTHON={sys.executable}"]
    subprocess.run([*make, "bench-programs"], check=True, stdout=subprocess.DEVNULL)
    with subprocess.Popen([*make, "bench"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, [*make, "bench"])
