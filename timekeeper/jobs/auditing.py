"""The hourly audit: the leader's books are recomputed, and what differs is told in metrics, log and events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import redis
import structlog
from prometheus_client import CollectorRegistry, Gauge

from timekeeper.audit.auditing import Audit, Question, Surroundings, audit
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.report import line
from timekeeper.leadership.term import Term
from timekeeper.rules.money import SECOND
from timekeeper.sources.source import Notice, Source
from timekeeper.store.calls import StoreError

MAX_NOTICES = 20
"""Budgets beside which an event is written: where more differ at once, the cause is elsewhere."""
MAX_LINES = 100
"""Differences that are logged one by one."""
MAX_TOLD = 3
"""Differences that an event names."""

_log = structlog.get_logger()


class AuditMeasures:
    """What the last audit of this process found."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.differences = Gauge(
            "fairgpu_timekeeper_audit_differences",
            "Figures that differed in the last audit, by kind; 0 while this process does not lead.",
            ["figure"],
            registry=registry,
        )
        self.ended = Gauge(
            "fairgpu_timekeeper_audit_timestamp_seconds",
            "When the last audit of this process ended.",
            registry=registry,
        )
        self.duration = Gauge(
            "fairgpu_timekeeper_audit_duration_seconds", "How long the last audit took.", registry=registry
        )
        self.clear()

    def clear(self) -> None:
        """Nothing is known to differ."""
        for figure in Figure:
            self.differences.labels(figure.value).set(0)

    def take(self, found: Audit, seconds: float) -> None:
        """Takes over what an audit found."""
        counts = Counter(difference.figure for difference in found.differences)
        for figure in Figure:
            self.differences.labels(figure.value).set(counts[figure])
        self.duration.set(seconds)
        self.ended.set(found.at / SECOND + seconds)


class Auditor:
    """Audits while this process leads."""

    def __init__(
        self, around: Surroundings, question: Question, source: Source, term: Term, measures: AuditMeasures
    ) -> None:
        self._around = around
        self._question = question
        self._source = source
        self._term = term
        self._measures = measures
        self._clock: Callable[[], float] = time.monotonic

    def audit(self) -> None:
        """One audit; where the store does not answer, the next one finds what is to be found."""
        if self._term.number() is None:
            self._measures.clear()
            return
        began = self._clock()
        try:
            found = audit(self._around, self._question)
        except (redis.RedisError, StoreError) as error:
            _log.warning("not audited: the store does not answer", error=str(error))
            return
        if self._term.number() is None:
            return  # whoever leads now audits for itself
        self._measures.take(found, self._clock() - began)
        counts = {"accounts": found.accounts, "sessions": found.sessions, "entries": found.entries}
        _log.info("audited", differences=len(found.differences), **counts)
        for difference in found.differences[:MAX_LINES]:
            _log.error("figure differs", account=difference.account, difference=line(difference))
        self._tell(found.differences)

    def _tell(self, differences: Sequence[Difference]) -> None:
        objects = {item["metadata"]["name"]: item for item in self._source.mirrors.budgets.items()}
        by_account: dict[str, list[Difference]] = {}
        for difference in differences:
            by_account.setdefault(difference.account, []).append(difference)
        for name in sorted(by_account.keys() & objects.keys())[:MAX_NOTICES]:
            found = by_account[name]
            more = f"; and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""
            told = "; ".join(line(difference) for difference in found[:MAX_TOLD])
            message = f"An audit found figures that differ: {told}{more}. All of them: fairgpu audit --budget {name}"
            self._source.tell(Notice(objects[name], "LedgerDiffers", message, warning=True))
