"""`fairgpu audit`: recomputes the books and says where they differ."""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from fairgpu.cluster.connect import NoClusterError, connect
from fairgpu.commands import CommandError
from timekeeper.audit.asking import question_of
from timekeeper.audit.auditing import Surroundings, audit
from timekeeper.audit.report import as_json, as_text
from timekeeper.audit.world import World, see
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.cluster import ClusterSource
from timekeeper.sources.folder import FolderSource
from timekeeper.sources.source import Mirrors
from timekeeper.store.calls import StoreError
from timekeeper.store.connection import unreached

FIRST_SIGHT_SECONDS = 60.0
"""How long the API server may take to show all budgets and pods."""


def run(
    client: redis.Redis, settings: TimekeeperSettings, arguments: argparse.Namespace, environ: Mapping[str, str]
) -> int:
    """Audits and prints; 0 where every figure is what it must be, else 1.

    Args:
        client: the store; its answers are bytes.
        settings: how the books are kept.
        arguments: `budget`, `period`, `output`, `store_only` and `standalone`.
        environ: says where the API server is.

    Raises:
        CommandError: the period is no instant, or the store or the API server does not answer.
    """
    question = question_of(settings, tuple(arguments.budget or ()), _period(arguments.period))
    ending = threading.Event()
    try:
        look = _look(settings, arguments, environ, ending.wait)
        found = audit(Surroundings(client, look, time.time_ns, ending.wait), question)
    except (redis.RedisError, StoreError) as error:
        raise CommandError(unreached(error)) from error
    finally:
        ending.set()
    text = json.dumps(as_json(found), indent=2) if arguments.output == "json" else as_text(found)
    sys.stdout.write(text + "\n")
    return 1 if found.differences or found.missing else 0


def _look(
    settings: TimekeeperSettings,
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    wait: Callable[[float], bool],
) -> Callable[[], World | None]:
    if arguments.store_only:
        return lambda: None
    mirrors = _mirrors(arguments.standalone or settings.folder, environ, wait)
    template: dict[str, Any] | None = settings.metering.default_budget
    deadline = time.monotonic() + FIRST_SIGHT_SECONDS
    while see(mirrors, template) is None:
        if time.monotonic() > deadline:
            raise CommandError("the API server does not show all budgets and pods; --store-only does without them")
        wait(0.05)
    return lambda: see(mirrors, template)


def _mirrors(folder: Path | None, environ: Mapping[str, str], wait: Callable[[float], bool]) -> Mirrors:
    source: ClusterSource | FolderSource
    if folder is not None:
        source = FolderSource(folder, time.time_ns)
    else:
        try:
            source = ClusterSource(connect(environ), time.time_ns, random.random)
        except NoClusterError as error:
            raise CommandError(f"{error}; or look at the store alone: --store-only") from error
    source.start(wait)
    return source.mirrors


def _period(text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except TimeError as error:
        raise CommandError(f"--period: {error}") from error
