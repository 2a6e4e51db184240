"""Audits the ledger while this process leads; differences become metrics, log events and Events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import redis
import structlog
from prometheus_client import CollectorRegistry, Gauge

from fairgpu.leadership import Term
from timekeeper.audit.auditing import Audit, AuditEnvironment, AuditRequest, audit
from timekeeper.audit.command import line
from timekeeper.audit.difference import Difference, Figure
from timekeeper.domain.money import SECOND
from timekeeper.ledger.client import StoreError
from timekeeper.sources.base import ObjectEvent, Source

MAX_NOTICES = 20
"""The most budgets that get an event each after one audit: if more differ at once, the cause is no single budget."""
MAX_LINES = 100
"""The most differences that are logged one by one."""
MAX_NAMED = 3
"""The most differences that an event names."""

_log = structlog.get_logger()


class AuditMeasures:
    """The metrics of this process's last audit."""

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
        """Sets the metric of each kind of difference to 0."""
        for figure in Figure:
            self.differences.labels(figure.value).set(0)

    def take(self, audit: Audit, seconds: float) -> None:
        """Sets the metrics to the result of an audit.

        Args:
            seconds: the time that the audit took.
        """
        counts = Counter(difference.figure for difference in audit.differences)
        for figure in Figure:
            self.differences.labels(figure.value).set(counts[figure])
        self.duration.set(seconds)
        self.ended.set(audit.at / SECOND + seconds)


class Auditor:
    """Audits the ledger while this process leads, and reports differences as metrics, log events and Events."""

    def __init__(
        self, environment: AuditEnvironment, request: AuditRequest, source: Source, term: Term, measures: AuditMeasures
    ) -> None:
        self._environment = environment
        self._request = request
        self._source = source
        self._term = term
        self._measures = measures
        self._clock: Callable[[], float] = time.monotonic

    def audit(self) -> None:
        """Runs one audit if this process leads; otherwise it sets the metrics of differences to 0.

        If the store does not answer, the metrics stay as they are until the next audit. If this process stops leading
        during the audit, the result is dropped, and the metrics stay, too.
        """
        if self._term.number() is None:
            self._measures.clear()
            return
        began = self._clock()
        try:
            result = audit(self._environment, self._request)
        except (redis.RedisError, StoreError) as error:
            _log.warning("not audited: the store does not answer", error=str(error))
            return
        if self._term.number() is None:
            return  # the next leader runs its own audit
        self._measures.take(result, self._clock() - began)
        counts = {"accounts": result.accounts, "sessions": result.sessions, "entries": result.entries}
        _log.info("audited", differences=len(result.differences), **counts)
        for difference in result.differences[:MAX_LINES]:
            _log.error("figure differs", account=difference.account, difference=line(difference))
        self._record_events(result.differences)

    def _record_events(self, differences: Sequence[Difference]) -> None:
        objects = {item["metadata"]["name"]: item for item in self._source.mirrors.budgets.items()}
        by_account: dict[str, list[Difference]] = {}
        for difference in differences:
            by_account.setdefault(difference.account, []).append(difference)
        for name in sorted(by_account.keys() & objects.keys())[:MAX_NOTICES]:
            own = by_account[name]
            more = f"; and {len(own) - MAX_NAMED} more" if len(own) > MAX_NAMED else ""
            shown = "; ".join(line(difference) for difference in own[:MAX_NAMED])
            message = f"An audit found figures that differ: {shown}{more}. All of them: fairgpu audit --budget {name}"
            self._source.record_event(ObjectEvent(objects[name], "LedgerDiffers", message, warning=True))
