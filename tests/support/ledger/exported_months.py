"""A harness with closed months to export: their folder, which can fail, and the objects that move old use there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S
from timekeeper.api.exported_months import ExportedMonths
from timekeeper.api.usage import Query, find
from timekeeper.controller.archive import Archivist
from timekeeper.controller.export_job import Exporter
from timekeeper.controller.metrics import ExportMeasures
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import parse_instant
from timekeeper.domain.usage import Group
from timekeeper.domain.windows import Retention, Window
from timekeeper.export import document
from timekeeper.export.destination import ExportError, Folder, MayWrite, Stored
from timekeeper.export.document import window_of

JANUARY = "2026-01"
KEPT = Retention(hourly_days=2, months=2, exported=True)


class Away(Folder):
    """A folder that can be made unreachable, or can end the process right after it has written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.away = False
        self.dies_after_writing = False
        self.written = 0
        self.before_writing: Callable[[], None] = lambda: None
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    def read(self, name: str) -> Stored | None:
        self._check()
        return super().read(name)

    def write(self, name: str, body: bytes, replacing: str | None, may_write: MayWrite) -> str:
        self._check()
        self.before_writing()
        tag = super().write(name, body, replacing, may_write)
        self.written += 1
        if self.dies_after_writing:
            raise KeyboardInterrupt
        return tag

    def _check(self) -> None:
        self.asked.set()
        self.answers.wait(LIMIT_S)
        if self.away:
            raise ExportError("away")


class Term:
    def __init__(self) -> None:
        self.leads = True

    def number(self) -> int | None:
        return 1 if self.leads else None


class MonthsHarness:
    """A harness, a folder for months, and the archivist and exporter that move old use from the store to the folder."""

    def __init__(self, harness: LedgerHarness, folder: Path) -> None:
        self.harness = harness
        folder.mkdir()
        self.folder = folder
        self.place = Away(folder)
        self.reconciler = harness.lead()
        self.seconds = 0.0
        self.term = Term()
        self.registry = CollectorRegistry()
        self.restart()

    def restart(self) -> None:
        """Replaces the exporter, as a new process does."""
        self.registry = CollectorRegistry()
        measures = ExportMeasures(self.registry)
        self.exporter = Exporter(
            self.harness.client, self.place, self.term, KEPT.hourly_days, measures, clock=lambda: self.seconds
        )

    def pass_days(self, days: int) -> None:
        for passed in range(0, days, 6):
            self.harness.reconcile(86_400 * min(6, days - passed))

    def archive(self) -> None:
        Archivist(
            self.harness.client, self.harness.source, self.reconciler.books, self.reconciler.fencing_token, KEPT
        ).archive(self.harness.now)

    def export(self) -> None:
        self.seconds += 3600.0
        self.exporter.step(self.harness.now)

    def count(self, outcome: str) -> float:
        return self.registry.get_sample_value("fairgpu_timekeeper_exports_total", {"outcome": outcome}) or 0.0

    def pending(self) -> float:
        return self.registry.get_sample_value("fairgpu_timekeeper_exports_pending") or 0.0

    def billed(self, month: str) -> dict[str, int]:
        """Returns the whole GPU-hours of each budget in a month's file."""
        sums: dict[str, int] = {}
        for account, row in document.read((self.folder / f"usage-{month}.csv.gz").read_bytes()):
            sums[account] = sums.get(account, 0) + row.figures.billed
        return {account: amount // GPU_HOUR for account, amount in sums.items()}

    def usage_of(self, start: str, end: str, *aggregate: str, step: str | None = None, **options: Any) -> list[Group]:
        """Returns the REST service's answer about usage from the day `start` up to the day `end`."""
        months = ExportedMonths(self.harness.client, self.place, KEPT.months, 1 << 20)
        window = Window(parse_instant(f"{start}T00:00:00Z"), parse_instant(f"{end}T00:00:00Z"))
        query = Query(window, step, aggregate or ("budget",), 1000, **options)
        return find(self.harness.client, query, self.harness.now, exported=months).items

    def held(self, month: str) -> dict[str, int]:
        """Returns the whole GPU-hours of each budget that the store has of a month."""
        query = Query(window_of(month), None, ("budget",), 1000)
        found = find(self.harness.client, query, self.harness.now)
        return {item.key[0]: item.figures.billed // GPU_HOUR for item in found.items}


@pytest.fixture
def months(redis_server: RedisServer, tmp_path: Path) -> Iterator[MonthsHarness]:
    with redis_server.client() as client:
        harness = LedgerHarness(tmp_path, client)
        harness.budget("research", ["team-a"], gpu_hours=10_000)
        made = MonthsHarness(harness, tmp_path / "months")
        harness.pod("p1", "team-a")
        harness.pod("p2", "team-b", core=50)
        harness.reconcile(0)
        yield made
