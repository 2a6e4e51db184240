"""Encodes and decodes `ROOT/figures.json`, in which the agent gives the writer of schedule pages the driver's figures.

`{"gpus":[{"uuid":"GPU-...","containers":[{"slot":0,"key":7,"driverBytes":1,"sampledNs":2,"trimPermille":1000,"deadGoneNs":2}]}]}`.

A container's figures count only while its slot on the page still has the same key: each start of a container gets a new
key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.driver_figures import Figure

NAME = "figures.json"

Keyed = Mapping[tuple[int, int], Figure]
"""The figures of the containers on one GPU, keyed by the container's slot on the GPU's schedule page and the key of its
start."""


def encode(gpus: Mapping[str, Keyed]) -> bytes:
    """Returns the content of the file by which the agent passes the driver's figures to the writer of schedule pages.

    Args:
        gpus: the figures of each GPU's containers by slot and key, keyed by the GPU's uuid.
    """
    listed = [
        {"uuid": uuid, "containers": [_entry(slot, key, figure) for (slot, key), figure in sorted(figures.items())]}
        for uuid, figures in sorted(gpus.items())
    ]
    return json.dumps({"gpus": listed}, separators=(",", ":")).encode()


def decode(content: bytes) -> dict[str, dict[tuple[int, int], Figure]]:
    """Returns the driver's figures of each container on each GPU, from the content of a file that `encode` made.

    The file has neither `busy_percent` nor `trimmed_ns`: they are 0 in the answer.

    Returns:
        For each GPU's uuid, the figures of each container, keyed by its slot and the key of its start (see `PageSlot`).

    Raises:
        ValueError: the content is not JSON of this form.
    """
    try:
        return {str(gpu["uuid"]): dict(map(_figure, gpu["containers"])) for gpu in json.loads(content)["gpus"]}
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{error!r} is missing or of a wrong kind") from error


def of_slots(figures: Keyed, keys: Iterable[tuple[int, int]]) -> dict[int, Figure]:
    """Returns the figures of the containers that are on a GPU's schedule page now, keyed by slot.

    Args:
        figures: the figures, keyed by slot and key.
        keys: the slot and key of each container that is on the page now.
    """
    return {slot: figures[slot, key] for slot, key in keys if (slot, key) in figures}


def _entry(slot: int, key: int, figure: Figure) -> dict[str, Any]:
    return {
        "slot": slot,
        "key": key,
        "driverBytes": figure.driver_bytes,
        "sampledNs": figure.sampled_ns,
        "trimPermille": figure.trim_permille,
        "deadGoneNs": figure.dead_gone_ns,
    }


def _figure(entry: Mapping[str, Any]) -> tuple[tuple[int, int], Figure]:
    figure = Figure(
        int(entry["driverBytes"]),
        int(entry["sampledNs"]),
        trim_permille=int(entry["trimPermille"]),
        dead_gone_ns=int(entry.get("deadGoneNs", 0)),
    )
    return (int(entry["slot"]), int(entry["key"])), figure
