"""`fairgpu timekeeper months`: what became of each month, and what to do where a file and the store disagree."""

from __future__ import annotations

import argparse
import sys
import time

import redis

from fairgpu.commands import CommandError
from timekeeper.export.destination import Destination, ExportError
from timekeeper.export.months import closed_until, window_of
from timekeeper.export.places import destination
from timekeeper.jobs import month_conflicts
from timekeeper.rules.timestamps import DAY, TimeError, format_instant
from timekeeper.settings import TimekeeperSettings
from timekeeper.store.calls import StoreError
from timekeeper.store.connection import unreached


def run(client: redis.Redis, settings: TimekeeperSettings, arguments: argparse.Namespace) -> int:
    """Does it, and prints what was done.

    Args:
        client: the store; its answers are bytes.
        settings: where months are written.
        arguments: `action` (list, keep or rewrite) and `month`.

    Raises:
        CommandError: it cannot be done; the words say what can.
    """
    place = destination(settings.export)
    if place is None:
        raise CommandError(
            "timekeeper.export names no place, so that no month is written: set timekeeper.export.folder or "
            "timekeeper.export.bucket.name"
        )
    try:
        if arguments.action == "list":
            return _list(client, place, settings.usage.hourly_days)
        month = _month(arguments.month, arguments.action, settings.usage.hourly_days)
        if arguments.action == "keep":
            kept = month_conflicts.keep(client, place, month)
            return _print(f"{month}: the file stays as it is ({kept.rows} rows)")
        written, aside = month_conflicts.rewrite(client, place, month)
        was = "" if aside is None else f"; what was there is {aside} now"
        return _print(f"{month}: written from what the store holds ({written.rows} rows){was}")
    except (redis.RedisError, StoreError) as error:
        raise CommandError(unreached(error)) from error
    except ExportError as error:
        raise CommandError(str(error)) from error


def _list(client: redis.Redis, place: Destination, hourly_days: int) -> int:
    found = month_conflicts.look(client, place, time.time_ns(), hourly_days)
    if not found:
        return _print("No month is closed yet of which anything was used.")
    lines = [f"{each.month}   {each.state:<8}{'' if each.rows is None else f'   {each.rows} rows'}" for each in found]
    return _print("\n".join(lines))


def _month(text: str | None, action: str, hourly_days: int) -> str:
    if text is None:
        raise CommandError(f"MONTH: {action} needs one, such as 2026-10")
    try:
        window = window_of(text)
    except TimeError as error:
        raise CommandError(f"MONTH: {text!r} is no month: write it as 2026-10") from error
    if window.end > closed_until(time.time_ns(), hourly_days):
        closes = format_instant(window.end + (hourly_days + 1) * DAY)
        raise CommandError(f"MONTH: {text} is not closed before {closes}, and nothing of it is written until then")
    return text


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0
