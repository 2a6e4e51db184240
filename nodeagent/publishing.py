"""Composes the input of the page writer: every container that shares a GPU, its slot and its notice. Pure."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fairgpu import names
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import Record
from nodeagent.schedule_page import Shown
from nodeagent.turns import starts

NOTICES = (names.EVICTION_AT, names.RECLAIM_AT)
NOTICE_STEP_NS = 10**8
LATEST_NS = (1 << 63) - 1
"""The latest notice, in ns of CLOCK_MONOTONIC, that fits into a page; the writer would refuse a GPU with a later
one."""


def schedule(records: Iterable[Record], notices: Mapping[str, int], folders: Folders) -> bytes:
    """Returns the input of the page writer, `schedule.json` (nodeagent.pages), for the node's present containers.

    Args:
        records: the records of all containers that live or are starting.
        notices: when pods will be evicted, in ns of CLOCK_MONOTONIC, keyed by the pod's uid.
        folders: the agent's folders, which hold the containers' ledger files.
    """
    sharing = [record for record in records if not record.whole]
    placed = starts(
        {
            _name(record): (
                record.devices[0].core_percent,
                frozenset(device.uuid for device in record.devices),
            )
            for record in sharing
        }
    )
    gpus: dict[str, list[dict[str, Any]]] = {}
    for record in sharing:
        start = placed.get(_name(record))
        ledger = folders.ledger(record)
        for index, device in enumerate(record.devices):
            entry = {
                "slot": device.slot,
                "key": device.key,
                "corePercent": device.core_percent,
                "policy": record.policy.name.lower(),
                "ledger": ledger,
                "device": index,
                "noticeNs": notices.get(record.uid, 0),
                "name": _name(record),
            }
            gpus.setdefault(device.uuid, []).append(entry | ({} if start is None else {"startNs": start}))
    listed = [{"uuid": uuid, "containers": containers} for uuid, containers in sorted(gpus.items())]
    return json.dumps({"gpus": listed}, separators=(",", ":")).encode()


def to_show(records: Iterable[Record], notices: Mapping[str, int]) -> dict[str, frozenset[Shown]]:
    """Returns the containers that the schedule page of each GPU must show, as `Shown`, keyed by the GPU's uuid.

    Args:
        records: the records of all containers that live or are starting.
        notices: when pods will be evicted, in ns of CLOCK_MONOTONIC, keyed by the pod's uid.
    """
    gpus: dict[str, set[Shown]] = {}
    for record in records:
        for device in [] if record.whole else record.devices:
            container = device.slot, device.key, device.core_percent, notices.get(record.uid, 0)
            gpus.setdefault(device.uuid, set()).add(container)
    return {uuid: frozenset(containers) for uuid, containers in gpus.items()}


def _name(record: Record) -> str:
    """Returns a name that is unique on the node, and stays the same when the container starts again."""
    return f"{record.uid}/{record.container}"


def notices(pods: Iterable[Mapping[str, Any]], wall: dt.datetime, monotonic_ns: int) -> dict[str, int]:
    """Returns when pods will be evicted, in ns of CLOCK_MONOTONIC, keyed by the pod's uid.

    The timekeeper and the scheduler write such notices on pods; of two on one pod, the sooner counts. An instant is
    rounded to NOTICE_STEP_NS, so that a notice has the same value in each round, although the two clocks are read one
    after the other. One before the host's start counts as NOTICE_STEP_NS, and one after LATEST_NS as LATEST_NS.

    Args:
        wall: the present time of the calendar.
        monotonic_ns: the present time, in ns of CLOCK_MONOTONIC.
    """
    found = {}
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        times = [at for name in NOTICES if name in annotations and (at := _time(annotations[name])) is not None]
        if times:
            at_ns = monotonic_ns + int((min(times) - wall).total_seconds() * 10**9)
            rounded = (at_ns + NOTICE_STEP_NS // 2) // NOTICE_STEP_NS * NOTICE_STEP_NS
            found[str(pod["metadata"]["uid"])] = min(max(rounded, NOTICE_STEP_NS), LATEST_NS)
    return found


def _time(text: Any) -> dt.datetime | None:
    try:
        at = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else None
