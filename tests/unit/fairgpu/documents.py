"""Reads the tables of docs/dialects.md and docs/bad-input.md, and says what a pod becomes in their words.

A row's first cell is the manifest: each `key: value` in backticks is a limit of the container, or an annotation,
label, request or setting where that word stands before it. Its second cell is what comes of it, and its third, where
there is one, why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairgpu.dialects.reading import DialectSettings
from fairgpu.pod import PodReading, read_pod

DOCUMENTS = Path(__file__).parents[3] / "docs"

_PART = re.compile(r"(?:(annotation|label|setting|request) )?`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: under which heading it stands, the manifest as written, and what comes of it."""

    heading: str
    written: str
    becomes: str
    because: str | None


def rows(document: str) -> Iterator[Row]:
    """The rows of all tables whose first column is headed `written`."""
    heading, in_table = "", False
    for line in (DOCUMENTS / document).read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "written":
            in_table = True
        elif in_table and not set(cells[0]) <= {"-"}:
            yield Row(heading, cells[0], cells[1], cells[2] if len(cells) > 2 else None)


def read_row(written: str) -> PodReading:
    """Reads the pod that a first cell describes: one container, unless it speaks of none."""
    limits: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    places = {"annotation": annotations, "label": labels, "setting": settings, "request": requests, "": limits}
    for kind, text in _PART.findall(written):
        key, value = text.split(": ", 1)
        places[kind][key] = yaml.safe_load(value)
    container = {"name": "main", "resources": {"limits": limits, "requests": requests}}
    pod = {"metadata": {"annotations": annotations, "labels": labels}, "spec": {"containers": [container]}}
    return read_pod(pod, DialectSettings(**settings))


def reasons(reading: PodReading) -> str:
    """Why a pod is refused, or what is done otherwise than it says."""
    faults = [f"given {fault.given}; allowed: {fault.allowed}" for fault in reading.faults]
    return "; and ".join(faults or [warning.partition(": ")[2] for warning in reading.warnings])


def outcome(reading: PodReading) -> str:
    """Returns the outcome of a pod of one container, in the words of the second cell."""
    if reading.faults:
        return "refused; write " + "; and ".join(fault.instead for fault in reading.faults)
    if not reading.has_gpu_keys:
        return "left alone"
    if not reading.requests_gpu:
        return "no GPU"
    (container,) = reading.containers
    assert container.request is not None
    parts = [*container.request.resources().items(), *reading.choices.annotations().items()]
    text = ", ".join(f"`{key.removeprefix('fairgpu.io/')}: {value}`" for key, value in parts)
    if reading.permission_requests:
        text += "; needs `" + "`, `".join(each.permission for each in reading.permission_requests) + "`"
    return text + ("; with a warning" if reading.warnings else "")
