"""Writes each closed month's usage to the admin's destination, in a thread of its own that delays no other job.

A late change of a month writes its file again; a file that somebody else changed is not replaced. The store's record of
a file is written after the file was read back, and until then no record of that month is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import redis
import structlog

from fairgpu.keeping import Wait
from fairgpu.leadership import CurrentTerm
from timekeeper.controller.metrics import ExportMeasures
from timekeeper.domain.timestamps import DAY, Instant
from timekeeper.export import document
from timekeeper.export.destination import ChangedError, DeposedError, Destination, ExportError
from timekeeper.export.document import Account, Document, DocumentError, closed_months, file_name, window_of
from timekeeper.ledger import exports, reading
from timekeeper.ledger.client import Store, StoreError
from timekeeper.ledger.connection import store_clock
from timekeeper.ledger.exports import Export, Exports, UnreadableUseError

IDLE_SECONDS = 30.0
FIRST_RETRY_SECONDS = 10.0
LAST_RETRY_SECONDS = 900.0
AGAIN_SECONDS = 3600.0
"""The shortest time between two exports of a month that keeps changing."""

_log = structlog.get_logger()


class ConflictError(ExportError):
    """A month's exported file and the store's usage differ, and an admin must decide which of the two counts.

    Either the file lacks usage that the store holds, and is not the one that the leader wrote last: somebody changed
    it, or an admin kept it. Or the file is missing, and the store no longer holds the whole month.
    """


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """The result of an attempt to export a month.

    Attributes:
        export: the store's record of the month's present file.
        written: whether this attempt wrote the file.
    """

    export: Export
    written: bool


class Exporter:
    """Exports the usage of closed months as files while this process leads. For one thread alone."""

    def __init__(
        self,
        client: Store,
        destination: Destination,
        term: CurrentTerm,
        hourly_days: int,
        measures: ExportMeasures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._destination = destination
        self._term = term
        self._hourly_days = hourly_days
        self._measures = measures
        self._clock = clock
        self._number: int | None = None
        self._folded: set[str] = set()
        self._looked_day = -1
        self._suspect: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._attempts: dict[str, int] = {}

    def run(self, wait: Wait, now: Callable[[], Instant]) -> None:
        """Exports the usage of closed months, whenever some are due, until `wait` returns True, as the process ends.

        A month counts as closed once it is closed by both the local clock, `now`, and the store's. If a clock that is
        ahead closed a month too early, use that comes after the export would be in no file and would be deleted.
        """
        while not wait(IDLE_SECONDS if self._number is not None else 1.0):
            try:
                self.step(min(now(), store_clock(self._client)))
            except (redis.RedisError, StoreError) as error:
                _log.warning("months cannot be read", error=str(error))
            except Exception:  # noqa: BLE001 - no error may stop later exports
                self._measures.outcomes.labels("failed").inc()
                _log.exception("export failed unexpectedly")

    def step(self, now: Instant) -> None:
        """Writes the files of the closed months that are due, if this process leads.

        A month that cannot be exported is logged and counted, and is tried again later.

        Raises:
            redis.RedisError: the store does not answer.
            StoreError: the store refuses.
        """
        number = self._term.number()
        if number is None:
            self._number = None
            self._measures.pending.set(0)
            return
        if number != self._number:
            self._looked_day, self._number = -1, number
        if now // DAY != self._looked_day:
            self._folded = exports.folded_months(self._client, reading.account_names(self._client))
        records = exports.load(self._client)
        self._check_files(records, now)
        closed = closed_months(now, self._hourly_days, {*self._folded, *records.written, *records.changes})
        due = [month for month in closed if month in self._suspect or not records.is_confirmed(month)]
        for index, month in enumerate(due):
            self._measures.pending.set(len(due) - index)
            if self._term.number() != number:
                return
            if self._clock() >= self._not_before.get(month, 0.0):
                self._export_if_due(month, records)
        left = exports.load(self._client)
        self._measures.pending.set(sum(month in self._suspect or not left.is_confirmed(month) for month in due))

    def _check_files(self, records: Exports, now: Instant) -> None:
        """Makes those months due for export whose files are missing, or differ from what was last written.

        It looks once a day, as a term begins, and after a failure to look; any other call does nothing.
        """
        if now // DAY == self._looked_day:
            return
        try:
            tags = {month: self._destination.tag(file_name(month)) for month in records.written}
        except ExportError as error:
            self._measures.outcomes.labels("failed").inc()
            _log.warning("exported months cannot be checked", error=str(error))
            return
        self._suspect = {month for month, tag in tags.items() if tag != records.written[month].tag}
        self._looked_day = now // DAY

    def _export_if_due(self, month: str, records: Exports) -> None:
        try:
            outcome = self._export(month, records)
            if not self._leads():
                return  # the next leader checks the file itself
        except DeposedError as error:
            _log.warning("month left to the next leader", month=month, error=str(error))
            return
        except (ExportError, DocumentError, UnreadableUseError) as error:
            self._failed(month, error)
            return
        exports.note_written(self._client, month, outcome.export)
        self._suspect.discard(month)
        self._attempts.pop(month, None)
        self._not_before[month] = self._clock() + AGAIN_SECONDS
        self._measures.outcomes.labels("written" if outcome.written else "unchanged").inc()
        _log.info("month exported", month=month, rows=outcome.export.rows, written=outcome.written)

    def _leads(self) -> bool:
        return self._number is not None and self._term.number() == self._number

    def _export(self, month: str, records: Exports) -> ExportOutcome:
        name, change, last = file_name(month), records.changes.get(month, 0), records.written.get(month)
        window = window_of(month)
        alone = document.write(exports.month_rows(self._client, window))
        stored = self._destination.read(name)
        if stored is None:
            if last is not None and last.sha256 != alone.sha256:
                raise ConflictError(f"{name} is gone, and the store no longer holds all of that month")
            return self._put(name, alone, change, None)
        there = document.content_sha256(stored.body)
        if last is not None and (last.sha256, last.change) == (there, change):
            return ExportOutcome(replace(last, tag=stored.tag), written=False)
        if there == alone.sha256:
            return ExportOutcome(Export(change, there, alone.rows, stored.tag), written=False)
        merged = document.write(self._merged(stored.body, exports.month_rows(self._client, window)))
        if there == merged.sha256:
            adopted = last is None or last.adopted or last.sha256 != there
            return ExportOutcome(Export(change, there, merged.rows, stored.tag, adopted), written=False)
        if last is None or last.adopted or last.sha256 != there:
            raise ConflictError(f"{name} is not what this store wrote, and what the store holds is not in it")
        return self._put(name, merged, change, stored.tag)

    def _put(self, name: str, document: Document, change: int, replacing: str | None) -> ExportOutcome:
        tag = self._destination.write(name, document.body, replacing, self._leads)
        back = self._destination.read(name)
        if back is None or back.body != document.body:
            raise ExportError(f"{name} was written, and is another one when it is read back")
        return ExportOutcome(Export(change, document.sha256, document.rows, back.tag or tag), written=True)

    @staticmethod
    def _merged(body: bytes, rows: Iterable[Account]) -> Iterable[Account]:
        return document.merge(document.read(body), rows)

    def _failed(self, month: str, error: Exception) -> None:
        conflict = isinstance(error, ConflictError | DocumentError | ChangedError)
        attempts = self._attempts[month] = self._attempts.get(month, 0) + 1
        pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 16), LAST_RETRY_SECONDS)
        self._not_before[month] = self._clock() + pause
        self._measures.outcomes.labels("conflict" if conflict else "failed").inc()
        _log.warning("month not exported, and kept", month=month, attempt=attempts, error=str(error))
