"""The page travels with the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from timekeeper.dashboard.serving import read_assets

ROOT = Path(__file__).parents[2]
SOURCES = (
    "setup.cfg",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "fairgpu",
    "timekeeper",
    "webhook",
    "sidecar",
    "nodeagent",
)
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
"""The call that `pip wheel` makes to the package's own build system (PEP 517), without the rest of pip."""


def test_a_wheel_carries_every_file_of_the_page(tmp_path: Path) -> None:
    """From a copy, as the images build it: a build in the tree leaves files behind."""
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=source, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("fairgpu-*.whl"))) as wheel:
        carried = {name.removeprefix("timekeeper/dashboard/static/") for name in wheel.namelist()}
    assert {"index.html", *read_assets().by_name} <= carried


def test_the_images_are_built_from_that_wheel() -> None:
    text = (ROOT / "deploy" / "images" / "service" / "Containerfile").read_text()
    assert "COPY timekeeper/ timekeeper/" in text
    assert "pip wheel" in text
