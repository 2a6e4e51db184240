"""A runtime's verbose Status says whether it applies CDI, and which runtime is its default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.runtime.devices import RuntimeConfiguration, configuration

FOLDER = Path("/var/run/cdi")


def said(**fields: Any) -> dict[str, str]:
    config = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"], **fields}
    return {"config": json.dumps(config), "golang": json.dumps("go1.25")}


def runtimes(default: str, program: str | None) -> dict[str, Any]:
    options = {} if program is None else {"BinaryName": program}
    return {"defaultRuntimeName": default, "runtimes": {default: {"runtimeType": "r", "options": options}, "other": {}}}


@pytest.mark.parametrize(
    ("fields", "applied"),
    [
        ({}, True),
        ({"cdiSpecDirs": ["/run/cdi"]}, True),
        ({"cdiSpecDirs": ["/etc/cdi"]}, False),
        ({"cdiSpecDirs": []}, False),
        ({"enableCDI": False}, False),
    ],
)
def test_cdi_is_applied_where_it_is_on_and_the_specs_folder_is_read(fields: dict[str, Any], *, applied: bool) -> None:
    assert configuration(said(**fields), FOLDER).applies_cdi is applied


@pytest.mark.parametrize(
    ("containerd", "injects"),
    [
        (runtimes("runc", "/usr/bin/runc"), ""),
        (runtimes("runc", None), ""),
        (runtimes("nvidia", "/usr/bin/nvidia-container-runtime"), "nvidia (/usr/bin/nvidia-container-runtime)"),
        (runtimes("n", "/opt/nvidia-container-runtime.cdi"), "n (/opt/nvidia-container-runtime.cdi)"),
        ({"defaultRuntimeName": "gone", "runtimes": {}}, ""),
        (None, ""),
    ],
)
def test_a_default_runtime_of_nvidias_is_named(containerd: dict[str, Any] | None, injects: str) -> None:
    assert configuration(said(containerd=containerd), FOLDER).injects == injects


@pytest.mark.parametrize(
    "info",
    [{}, {"config": "{"}, {"config": "[]"}, {"config": "{}"}, {"config": '{"enableCDI": true, "cdiSpecDirs": 1}'}],
)
def test_nothing_is_known_of_a_runtime_that_says_something_else(info: dict[str, str]) -> None:
    assert configuration(info, FOLDER) == RuntimeConfiguration(None, "")
