"""What the shim costs and how exactly it keeps shares on the simulated GPU: what `make -C vcuda bench` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).parents[2] / "vcuda"


def rows() -> Iterator[dict[str, Any]]:
    """Its rows, as they come; what else it prints is the compiler's."""
    command = ["make", "--silent", "-C", str(VCUDA), "bench", f"PYTHON={sys.executable}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"make -C vcuda bench ended with status {process.returncode}")
