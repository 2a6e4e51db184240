from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import redis as redis_library
from prometheus_client import CollectorRegistry

from fairgpu.leadership import Term
from tests.support.ledger.harness import MONTH, LedgerHarness
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest
from timekeeper.audit.cluster import read_cluster
from timekeeper.controller.audit_job import AuditMeasures, Auditor
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.ledger.keys import AccountKeys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

KEYS = AccountKeys("a")


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client(socket_timeout=5) as client:
        harness = LedgerHarness(tmp_path, client)
        harness.budget("a", ["team-a"])
        harness.pod("p", "team-a")
        harness.reconcile()
        harness.reconcile(60)
        assert harness.reconciler is not None
        StatusWriter(harness.source, harness.reconciler.books).write(harness.now)
        harness.source.refresh()
        yield harness


class Job:
    """The hourly audit of one process."""

    def __init__(self, harness: LedgerHarness) -> None:
        self.registry = CollectorRegistry()
        self.term = Term(lambda: 0.0)
        around = AuditEnvironment(
            harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, lambda _: False
        )
        measures = AuditMeasures(self.registry)
        self.auditor = Auditor(around, AuditRequest(patience_seconds=0), harness.source, self.term, measures)

    def lead(self) -> None:
        self.term.hold(1, 100.0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fairgpu_timekeeper_audit_{name}", labels)


def events(harness: LedgerHarness) -> list[dict[str, str]]:
    file = harness.folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [found for found in map(json.loads, lines) if found["reason"] == "LedgerDiffers"]


def test_the_leader_reports_a_figure_that_differs(harness: LedgerHarness) -> None:
    job = Job(harness)
    job.lead()
    harness.client.hset(KEYS.period(MONTH), "gone", "5")
    job.auditor.audit()
    assert job.value("differences", figure="gone") == 1
    assert job.value("differences", figure="spent") == 0
    assert job.value("timestamp_seconds") == pytest.approx(harness.now / 1e9, abs=60)
    (event,) = events(harness)
    assert event["regarding"] == "budget-a"
    assert "gone is 5 (0 GPUh), must be 0 (0.00 GPUh)" in event["message"]
    assert event["message"].endswith("All of them: fairgpu audit --budget a")


def test_once_the_figure_is_right_again_the_metric_says_so(harness: LedgerHarness) -> None:
    job = Job(harness)
    job.lead()
    harness.client.hset(KEYS.period(MONTH), "gone", "5")
    job.auditor.audit()
    harness.client.hset(KEYS.period(MONTH), "gone", "0")
    job.auditor.audit()
    assert job.value("differences", figure="gone") == 0
    assert len(events(harness)) == 1


def test_a_replica_that_does_not_lead_shows_nothing(harness: LedgerHarness) -> None:
    job = Job(harness)
    harness.client.hset(KEYS.period(MONTH), "gone", "5")
    job.auditor.audit()
    assert job.value("differences", figure="gone") == 0
    assert job.value("timestamp_seconds") == 0
    assert events(harness) == []


def test_an_audit_without_a_store_leaves_what_is_known(harness: LedgerHarness, redis_server: RedisServer) -> None:
    job = Job(harness)
    job.lead()
    harness.client.hset(KEYS.period(MONTH), "gone", "5")
    job.auditor.audit()
    redis_server.kill()
    with pytest.raises(redis_library.RedisError):
        harness.client.ping()
    job.auditor.audit()
    assert job.value("differences", figure="gone") == 1
