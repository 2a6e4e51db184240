"""The leader's decisions about pods, carried out at once in the test's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from timekeeper.controller.eviction import eviction_writes, label_writes
from timekeeper.controller.metrics import PodMeasures
from timekeeper.controller.pod_writer import PodWriter
from timekeeper.controller.pod_writes import Plan
from timekeeper.controller.releases import Releaser, removals
from timekeeper.controller.state.books import Books
from timekeeper.sources.base import Source


def work_off(writer: PodWriter) -> int:
    """Does all due writes in the calling thread; returns the number that succeeded."""
    return sum(write() for write in iter(writer._take, None))


class PodJobs:
    """A leader's decisions about pods, and its pod writer; each call returns the number of writes that succeeded."""

    def __init__(self, source: Source, books: Books, clock: Callable[[], float] = time.monotonic) -> None:
        self.books = books
        self.without_notice_seconds = 600.0
        self.registry = CollectorRegistry()
        self.writer = PodWriter(source, PodMeasures(self.registry), clock)
        self.releaser = Releaser(source, books)
        self.leads = True

    def release(self, now: int) -> int:
        writes, notices = self.releaser.releases(now, now, self.writer.progress(Plan.RELEASES))
        self.writer.record(notices)
        self.writer.hand_over(Plan.RELEASES, writes, lambda: self.leads)
        return work_off(self.writer)

    def remove_finalizers(self) -> int:
        self.writer.hand_over(Plan.FINALIZERS, removals(self.books), lambda: self.leads)
        return work_off(self.writer)

    def label(self) -> int:
        self.writer.hand_over(Plan.LABELS, label_writes(self.books), lambda: self.leads)
        return work_off(self.writer)

    def evict(self, settled_at: int, now: int) -> int:
        writes = eviction_writes(self.books, settled_at, settled_at, now, self.without_notice_seconds)
        if writes is None:
            self.writer.pause(Plan.EVICTIONS)
        else:
            self.writer.hand_over(Plan.EVICTIONS, writes, lambda: self.leads)
        return work_off(self.writer)

    def counted(self, name: str, **labels: str) -> float:
        """Returns a metric of the pod writer, given its name without the prefix `fairgpu_timekeeper_`; 0 if absent."""
        return self.registry.get_sample_value(f"fairgpu_timekeeper_{name}", labels) or 0.0
