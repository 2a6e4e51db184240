"""The builds of the services that can be measured: as it is written, and compiled as the images have it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build" / "accelerated"

Environment = dict[str, str]


def builds() -> dict[str, Environment]:
    """Each build that is there, the fastest last, with the environment in which `python -P` runs it."""
    written = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not any(COMPILED.glob("*.so")):
        return {"interpreted": written}
    return {"interpreted": written, "compiled": {**os.environ, "PYTHONPATH": f"{COMPILED}{os.pathsep}{ROOT}"}}
