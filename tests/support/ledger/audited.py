"""Books of one budget that a test may corrupt, and what an audit of them finds."""

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

Corruption = Callable[[LedgerHarness], object]
Found = set[tuple[Figure, str]]

KEYS = AccountKeys("a")
CORRECTED = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.fixture
def stage(server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with server.client() as client:
        client.flushall()
        yield LedgerHarness(tmp_path, client)


@pytest.fixture
def books(stage: LedgerHarness) -> LedgerHarness:
    """A budget with a running pod, an ended one, one that is gone, and a grant."""
    stage.budget("a", ["team-a"])
    stage.grant("more", "a", 5)
    stage.grant("lasting", "a", 2, expires="2026-06-01T00:00:00Z")
    stage.correct("refund", "a", "0.001", NOON)
    stage.pod("running", "team-a", core=50)
    ended = stage.pod("ended", "team-a", core=30)
    stage.pod("gone", "team-a")
    stage.round()
    stage.pass_time(100)
    stage.finish(ended)
    stage.remove("gone")
    stage.round()
    stage.round(10)
    write_statuses(stage)
    return stage


def write_statuses(stage: LedgerHarness) -> None:
    assert stage.keeper is not None
    StatusWriter(stage.source, stage.keeper.books).write(stage.now)
    stage.source.refresh()


def audited(stage: LedgerHarness, **question: Any) -> Audit:
    around = AuditEnvironment(
        stage.client, lambda: read_cluster(stage.source.mirrors, None), lambda: stage.now, lambda _: False
    )
    return audit(around, AuditRequest(**{"patience_seconds": 0, **question}))


def found(stage: LedgerHarness) -> Found:
    return {(difference.figure, difference.subject) for difference in audited(stage).differences}


def in_hash(key: str, field: str, value: str) -> Corruption:
    return lambda stage: stage.client.hset(key, field, value)


def in_amount(uid: str, position: int, value: str) -> Corruption:
    def change(stage: LedgerHarness) -> None:
        text = stage.client.hget(KEYS.amounts(MONTH), uid)
        assert isinstance(text, bytes)
        parts = text.decode().split(" ")
        assert parts[position] != value
        parts[position] = value
        stage.client.hset(KEYS.amounts(MONTH), uid, " ".join(parts))

    return change


def in_json(key: str, field: str, name: str, value: object) -> Corruption:
    def change(stage: LedgerHarness) -> None:
        text = stage.client.hget(key, field)
        assert isinstance(text, bytes)
        document = json.loads(text)
        assert document[name] != value
        stage.client.hset(key, field, json.dumps({**document, name: value}))

    return change


def in_status(path: str, value: object) -> Corruption:
    def change(stage: LedgerHarness) -> None:
        file = stage.folder / "status" / "budget-a.json"
        status = inner = json.loads(file.read_text())
        *groups, last = path.split(".")
        for group in groups:
            inner = inner.setdefault(group, {})
        assert inner.get(last) != value
        inner[last] = value
        file.write_text(json.dumps(status))
        stage.source.refresh()

    return change
