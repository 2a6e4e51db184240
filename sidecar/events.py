"""Writes log lines: JSON objects on standard output, with a time, a level and the event's name."""

from __future__ import annotations

import json
import sys
import time


def emit(level: str, event: str, **fields: str | float | None) -> None:
    """Writes one line of the log; an OSError is ignored, since a lost log must not stop the sidecar.

    Args:
        level: `info`, `warning` or `error`.
        event: the event's name, such as `started`.
        fields: further fields of the line.
    """
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    line = json.dumps({"time": stamp, "level": level, "event": event, **fields}, separators=(",", ":"))
    try:
        print(line, file=sys.stdout, flush=True)  # noqa: T201 - these lines are the log
    except OSError:
        return
