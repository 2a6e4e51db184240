"""The books of one budget that a test may corrupt, and the differences that an audit of them finds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.servers.redis_server import RedisServer
from timekeeper.audit.auditing import Audit, AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.ledger.keys import AccountKeys
from timekeeper.sources.folder import write_json

Corruption = Callable[[LedgerHarness], object]
Found = set[tuple[Figure, str]]

KEYS = AccountKeys("a")
CORRECTED = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.fixture
def harness(server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with server.client() as client:
        client.flushall()
        yield LedgerHarness(tmp_path, client)


@pytest.fixture
def books(harness: LedgerHarness) -> LedgerHarness:
    """Returns the books of a budget with a running pod, an ended one, a deleted one, and a grant."""
    harness.budget("a", ["team-a"])
    harness.grant("more", "a", 5)
    harness.grant("lasting", "a", 2, expires="2026-06-01T00:00:00Z")
    harness.correct("refund", "a", "0.001", NOON)
    harness.pod("running", "team-a", core=50)
    ended = harness.pod("ended", "team-a", core=30)
    harness.pod("gone", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    harness.finish(ended)
    harness.remove("gone")
    harness.reconcile()
    harness.reconcile(10)
    write_statuses(harness)
    return harness


def write_statuses(harness: LedgerHarness) -> None:
    assert harness.reconciler is not None
    writer = StatusWriter(harness.source, harness.reconciler.books)
    writer.write(harness.now)
    while writer.waiting:  # a run leaves what a busy machine takes seconds to write to the next one
        writer.write(harness.now)
    harness.source.refresh()


def audited(harness: LedgerHarness, **question: Any) -> Audit:
    around = AuditEnvironment(
        harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, lambda _: False
    )
    return audit(around, AuditRequest(**{"patience_seconds": 0, **question}))


def found(harness: LedgerHarness) -> Found:
    return {(difference.figure, difference.subject) for difference in audited(harness).differences}


def in_hash(key: str, field: str, value: str) -> Corruption:
    return lambda harness: harness.client.hset(key, field, value)


def in_amount(uid: str, position: int, value: str) -> Corruption:
    def change(harness: LedgerHarness) -> None:
        text = harness.client.hget(KEYS.amounts(MONTH), uid)
        assert isinstance(text, bytes)
        parts = text.decode().split(" ")
        assert parts[position] != value
        parts[position] = value
        harness.client.hset(KEYS.amounts(MONTH), uid, " ".join(parts))

    return change


def in_json(key: str, field: str, name: str, value: object) -> Corruption:
    def change(harness: LedgerHarness) -> None:
        text = harness.client.hget(key, field)
        assert isinstance(text, bytes)
        document = json.loads(text)
        assert document[name] != value
        harness.client.hset(key, field, json.dumps({**document, name: value}))

    return change


def in_status(path: str, value: object) -> Corruption:
    def change(harness: LedgerHarness) -> None:
        file = harness.folder / "status" / "budget-a.json"
        status = inner = json.loads(file.read_text())
        *groups, last = path.split(".")
        for group in groups:
            inner = inner.setdefault(group, {})
        assert inner.get(last) != value
        inner[last] = value
        write_json(file, status)
        harness.source.refresh()

    return change
