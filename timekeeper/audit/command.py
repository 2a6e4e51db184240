"""`fairgpu audit`: recomputes the books and says where they differ."""

from __future__ import annotations

import argparse
import json
import sys
import time

import redis

from fairgpu.commands import CommandError
from timekeeper.audit.auditing import Question, audit
from timekeeper.audit.report import as_json, as_text
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.store.calls import StoreError


def run(client: redis.Redis, arguments: argparse.Namespace, *, reserved: bool) -> int:
    """Audits and prints; 0 where every figure is what it must be, else 1.

    Args:
        client: the store; its answers are bytes.
        arguments: `budget`, `period` and `output`.
        reserved: whether reservations are billed.

    Raises:
        CommandError: the period is no instant, or the store does not answer.
    """
    question = Question(tuple(arguments.budget or ()), _period(arguments.period), reserved=reserved)
    try:
        found = audit(client, question, time.time_ns)
    except (redis.RedisError, StoreError) as error:
        raise CommandError(f"the store does not answer: {error}") from error
    text = json.dumps(as_json(found), indent=2) if arguments.output == "json" else as_text(found)
    sys.stdout.write(text + "\n")
    return 1 if found.differences or found.missing else 0


def _period(text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except TimeError as error:
        raise CommandError(f"--period: {error}") from error
