"""The reports of a sidecar that started again add to those before, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from pathlib import Path

import pytest

from sidecar.delivery import Accepted, Outcome
from sidecar.reporter import Reporter
from sidecar.settings import Settings
from tests.support.usage_writer import Device, usage_record, write_usage
from timekeeper.api.models import Report
from timekeeper.api.reports import counters_of
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.reports import HeldDevice, Intake, Marks, Received, ReportLimits, intake_after

HOUR = 3600 * SECOND
GPU = "GPU-8f6d2c1e-0a53-4c27-9a3d-5d4f7b1e2c90"
LIMITS = ReportLimits(0, (HeldDevice(GPU, 2, Fraction(1), 1000, 1_000_000),), billed=True)


class PodUnderReport:
    """A pod with its usage volume, the sidecar's starts, and what the timekeeper has of their reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.intake = Intake()
        self.sequences: Iterator[int] = count(1)
        self.start_sidecar("boot-1")

    def start_sidecar(self, boot: str) -> None:
        settings = Settings("timekeeper", 443, "", "", "token", str(self.folder), 60)
        self.sidecar = Reporter(settings, self._take, boot)

    def use(self, seconds: int, container: str = "main", epoch: int = 1) -> None:
        """The container's counters show this much of the GPU's time since the container started."""
        record = usage_record(Device(GPU, seconds * SECOND, seconds * SECOND), sequence=seconds, epoch_ns=epoch)
        write_usage(self.folder / container / "usage", record)

    def report(self) -> None:
        self.sidecar.sample()
        self.sidecar._start_delivery()
        self.sidecar._events.get(timeout=60)

    @property
    def used(self) -> tuple[float, float]:
        """The seconds of GPU time that the timekeeper counts, and those that it charges if use is billed."""
        last = self.intake.samples[-1]
        return last.gpu / GPU_SECOND, last.money / GPU_SECOND

    def _take(self, body: bytes) -> Outcome:
        report = Report.model_validate_json(body)
        received = Received(report.boot, report.seq, counters_of(report), HOUR)
        self.intake = intake_after(LIMITS, self.intake, received, Marks()) or self.intake
        return Accepted(None)


@pytest.fixture
def pod(tmp_path: Path) -> PodUnderReport:
    return PodUnderReport(tmp_path)


def test_use_that_an_earlier_start_reported_is_not_counted_again(pod: PodUnderReport) -> None:
    pod.use(100)
    pod.report()
    pod.start_sidecar("boot-2")
    pod.report()
    pod.report()
    assert pod.used == (100, 100)


def test_use_between_the_last_report_and_the_next_start_is_counted(pod: PodUnderReport) -> None:
    pod.use(100)
    pod.report()
    pod.use(130)
    pod.start_sidecar("boot-2")
    pod.report()
    pod.use(150)
    pod.report()
    assert pod.used == (150, 150)


def test_a_start_after_hours_without_any_timekeeper_reports_all_that_was_used(pod: PodUnderReport) -> None:
    pod.use(900)
    pod.sidecar.sample()
    pod.start_sidecar("boot-2")
    pod.report()
    assert pod.used == (900, 900)


def test_a_container_that_began_before_the_sidecar_looked_is_counted_whole(pod: PodUnderReport) -> None:
    pod.use(3)
    pod.report()
    assert pod.used == (3, 3)


def test_a_container_that_starts_later_adds_to_what_was_reported_before(pod: PodUnderReport) -> None:
    pod.use(100)
    pod.report()
    pod.start_sidecar("boot-2")
    pod.report()
    pod.use(20, "helper")
    pod.report()
    pod.use(30, epoch=2)
    pod.report()
    assert pod.used == (150, 150)


def test_a_file_that_was_unreadable_at_first_holds_what_was_used_before(pod: PodUnderReport) -> None:
    pod.use(100)
    pod.report()
    (pod.folder / "main" / "usage").write_bytes(b"torn")
    pod.start_sidecar("boot-2")
    pod.report()
    (pod.folder / "main" / "usage").unlink()
    pod.use(100)
    pod.report()
    assert pod.used == (100, 100)


def test_a_volume_that_was_unreadable_at_first_holds_what_was_used_before(pod: PodUnderReport, tmp_path: Path) -> None:
    pod.use(100)
    pod.report()
    away = pod.folder.rename(tmp_path.with_name("away"))
    pod.start_sidecar("boot-2")
    pod.report()
    away.rename(pod.folder)
    pod.report()
    assert pod.used == (100, 100)


def test_many_starts_count_nothing_twice(pod: PodUnderReport) -> None:
    for number in range(2, 80):
        pod.use(10 * number)
        pod.start_sidecar(f"boot-{number}")
        pod.report()
    assert pod.used == (790, 790)
